"""Which fields of an evaluation row were found, where each field is looked up by itself.

The texts of a field are then an evaluation set of their own, `SET:FIELD`. Here the fields of a row
meet again, so that rows whose input was seen differ from those whose input and answer were.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from beam_pipeline.overlap.evaluation import EvaluationRows
from beam_pipeline.overlap.evaluation_sources import name_with_field
from beam_pipeline.overlap.results.output_files import write_lines


def write_field_hits(
    path: str, temp_folder: str, rows: EvaluationRows, fields: Sequence[str], hits: np.ndarray
) -> None:
    """Writes a line for each evaluation row of which a field was found.

    Args:
      fields: of a row, in order.
      hits: HITS of the texts that were found.
    """
    write_lines(path, temp_folder, _records(rows, fields, hits))


def _best(hits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the numbers of texts, ascending, their coverage and n-gram coverage at the best n."""
    numbers, of_hit = np.unique(hits["number"], return_inverse=True)
    coverage, ngram_coverage = np.zeros((2, len(numbers)))
    np.maximum.at(coverage, of_hit, hits["num_covered_tokens"] / hits["num_tokens"])
    shares = hits["num_shared_places"] / hits["num_informative_places"]
    np.maximum.at(ngram_coverage, of_hit, shares)
    return numbers, coverage, ngram_coverage


def _records(
    rows: EvaluationRows, fields: Sequence[str], hits: np.ndarray
) -> Iterator[dict[str, Any]]:
    # By the place of its evaluation set, path and row.
    found: dict[tuple[int, str, int], dict[str, Any]] = {}
    numbers, *scores = _best(hits)
    for row, *shares in zip(rows.some(numbers), *(each.tolist() for each in scores), strict=True):
        place = rows.datasets.index(row.eval_dataset)
        field = fields[place % len(fields)]
        record = found.setdefault(
            (place // len(fields), row.eval_path, row.eval_row),
            {
                "eval_dataset": row.eval_dataset.removesuffix(name_with_field("", field)),
                "instance_id": row.instance_id,
                "eval_path": row.eval_path,
                "eval_row": row.eval_row,
                "fields_hit": [],
                "coverage": {},
                "ngram_coverage": {},
            },
        )
        record["fields_hit"].append(field)
        record["coverage"][field], record["ngram_coverage"][field] = shares
    for key in sorted(found):
        yield found[key]
