"""The evaluation rows that share something with the training data, as columns, the worst first.

  overlap_coverage → HitRows → how many instances are covered how far

A row has a line for each n at which it has a hit, and one of fewer tokens than n is compared whole,
at the n of its length. Here every row has its figures at each configured n: those of a short row
count at all n that are longer. Rows with more covered tokens come first.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.overlap.report.output import Output
from beam_pipeline.overlap.results.layout import COVERAGE

ROW_KEY = ("eval_dataset", "eval_path", "eval_row")
_SCORES = ("num_covered_tokens", "num_train_documents", "longest_run")
_SCHEMA = pa.schema(
    [
        ("eval_dataset", pa.string()),
        ("eval_path", pa.string()),
        ("eval_row", pa.int64()),
        ("instance_id", pa.string()),
        ("n", pa.int64()),
        ("num_tokens", pa.int64()),
        *((name, pa.int64()) for name in _SCORES),
    ]
)


@dataclass
class HitRows:
    """Evaluation rows with a hit; r rows, k configured n.

    Attributes:
      keys: the columns ROW_KEY, `instance_id` and `num_tokens`; a lone surrogate is an escape.
      lengths: the configured n, ascending.
      first_lines: int64 [r], the line of overlap_coverage that each row's first record is.
      scores: by name, int64 [k, r]: `num_covered_tokens`, `num_train_documents` and `longest_run`
        at each n; 0 where there is no hit.
    """

    keys: pa.Table
    lengths: list[int]
    first_lines: np.ndarray
    scores: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.first_lines)

    @functools.cached_property
    def covered(self) -> np.ndarray:
        """Tokens in shared n-grams of any n, int64 [r]; they descend."""
        return self.scores["num_covered_tokens"].max(axis=0, initial=0)

    @functools.cached_property
    def coverage(self) -> np.ndarray:
        """The share of a row's tokens that n-grams of each n cover, and at the end of any n.

        float64 [k + 1, r].
        """
        tokens = self.keys.column("num_tokens").to_numpy()
        return np.vstack([self.scores["num_covered_tokens"], self.covered]) / tokens

    def instances(self) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Numbers the instances, distinct ids of a set.

        Returns:
          The instance of each row, int64 [r], the set of each instance, and the names of sets.
        """
        sets, ids = (
            self.keys.column(name).combine_chunks().dictionary_encode()
            for name in ("eval_dataset", "instance_id")
        )
        num_ids = max(1, len(ids.dictionary))
        both = sets.indices.to_numpy().astype(np.int64) * num_ids + ids.indices.to_numpy()
        distinct, of_row = np.unique(both, return_inverse=True)
        return of_row, distinct // num_ids, sets.dictionary.to_pylist()

    def at_least(self, level: float) -> np.ndarray:
        """Tells which rows have that coverage, and a hit, at each n and at any; bool [k + 1, r]."""
        return (self.coverage >= level) & (self.coverage > 0)


def read_rows(output: Output, lengths: Sequence[int]) -> HitRows:
    """Reads all rows with a hit.

    Args:
      lengths: the configured n, ascending.
    """
    tables = [_SCHEMA.empty_table(), *output.tables(COVERAGE, _SCHEMA)]
    lines = pa.concat_tables(tables).combine_chunks()
    differs = np.zeros(max(0, len(lines) - 1), bool)
    for name in ROW_KEY:
        column = lines.column(name)
        differs |= pc.not_equal(column[1:], column[:-1]).to_numpy()
    begins = np.append(True, differs)[: len(lines)]
    firsts, row_of_line = np.flatnonzero(begins), np.cumsum(begins) - 1
    n, tokens = (lines.column(name).to_numpy() for name in ("n", "num_tokens"))
    scores = {name: np.zeros((len(lengths), len(firsts)), np.int64) for name in _SCORES}
    for at, length in enumerate(lengths):
        is_here = n == np.minimum(tokens, length)
        for name, values in scores.items():
            values[at, row_of_line[is_here]] = lines.column(name).to_numpy()[is_here]
    keys = lines.select([*ROW_KEY, "instance_id", "num_tokens"]).take(firsts)
    rows = HitRows(keys, list(lengths), firsts, scores)
    documents = scores["num_train_documents"].max(axis=0, initial=0)
    order = np.lexsort((-documents, -rows.coverage[-1], -rows.covered))
    ordered = {name: values[:, order] for name, values in scores.items()}
    return HitRows(keys.take(order), list(lengths), firsts[order], ordered)
