"""Which fields of an evaluation row were found, where each field is looked up by itself.

The texts of a field are then an evaluation set of their own, `SET:FIELD`. Here the fields of a row
meet again, so that rows whose input was seen differ from those whose input and answer were.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from beam_pipeline.overlap.documents.evaluation import EvaluationRows
from beam_pipeline.overlap.documents.record_ids import name_with_field
from beam_pipeline.overlap.results.output_files import write_lines


def write_field_hits(
    path: str, temp_folder: str, rows: EvaluationRows, fields: Sequence[str], numbers: np.ndarray
) -> None:
    """Writes a line for each evaluation row of which a field was found.

    Args:
      fields: of a row, in order.
      numbers: of the texts that were found, in ascending order.
    """
    write_lines(path, temp_folder, _records(rows, fields, numbers))


def _records(
    rows: EvaluationRows, fields: Sequence[str], numbers: np.ndarray
) -> Iterator[dict[str, Any]]:
    # By the place of its evaluation set, path and row.
    found: dict[tuple[int, str, int], dict[str, Any]] = {}
    for row in rows.some(numbers):
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
            },
        )
        record["fields_hit"].append(field)
    for key in sorted(found):
        yield found[key]
