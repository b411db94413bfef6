"""What is measured of the rows of a dataset in training: columns of numbers, see `Figures`.

A line is a row, a context or an example that was looked at. `measuring` fills them,
`summary` makes means and shares of them, for people and for checks.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from beam_pipeline.dataset.manifest import Dataset
from training.rows.row_table import RowTable, ShardSet
from training.tokens.example_faults import Tally

FAMILIES = ("IPv4", "IPv6", "both")
SIZE_NAMES = ("small", "≤ 100", "≤ 1,000", "≤ 10,000", "≤ 100,000", "> 100,000")
_SIZE_ENDS = (100, 1_000, 10_000, 100_000)
LEAST_OF_A_SMALL_ROW = 10  # measurements, for its timestamps to tell their mode
SMALL = 0  # its place in SIZE_NAMES; the others are of large rows, by measurements

# A row that was read; bytes are those of its record and of the measurements in it.
ROW = np.dtype(
    [
        *((name, np.int64) for name in ("number", "size", "family", "num_measurements")),
        *((name, np.int64) for name in ("untimed_tokens", "record_bytes", "measurements_bytes")),
        ("num_contexts", np.int64),  # 0 of a small row
        ("is_in_order", np.bool_),
    ]
)
# A context: `row` is a place among the rows read, `window` is the stride of a strided one, and
# `whole_tokens` are those of all its measurements but the last, which can be cut.
CONTEXT = np.dtype(
    [
        *((name, np.int64) for name in ("row", "mode", "num_tokens", "num_measurements")),
        *((name, np.int64) for name in ("num_timed", "window", "whole_measurements")),
        *(("whole_tokens", np.int64), ("span_seconds", np.float64)),
    ]
)
# A small row as its measurements come in an epoch: with how many timestamps.
VISIT = np.dtype([(name, np.int64) for name in ("row", "num_measurements", "num_timed")])
# An example that holds one small row, or a part of it, alone.
PADDED = np.dtype([("row", np.int64), ("num_padding", np.int64)])
# An example of a batch.
EXAMPLE = np.dtype([("num_padding", np.int64), ("num_segments", np.int64)])


class Epochs(NamedTuple):
    """In how many epochs each sampled row was drawn, and in how many by strides."""

    large: int
    small: int
    strided: int


@dataclass(frozen=True)
class Extent:
    """How much is looked at, and at what crop size."""

    crop_size: int = 1024
    seed: int = 0
    max_rows: int = 300
    num_batches: int = 32


def _no_lines(dtype: np.dtype) -> Callable[[], np.ndarray]:
    return lambda: np.zeros(0, dtype)


@dataclass
class Figures:
    """All that was measured; `rows` is the table of all rows, every other array a sample.

    Attributes:
      bad_rows: why rows could not be used.
      batch_error: why there are no, or no more, batches.
      tallies: of shapes, targets, positions, decodes, times; by name.
    """

    files: str
    extent: Extent
    shards: ShardSet
    rows: RowTable
    sizes: np.ndarray
    families: np.ndarray
    sampled: np.ndarray = field(default_factory=_no_lines(ROW))
    contexts: np.ndarray = field(default_factory=_no_lines(CONTEXT))
    strided: np.ndarray = field(default_factory=_no_lines(CONTEXT))
    visits: np.ndarray = field(default_factory=_no_lines(VISIT))
    padded: np.ndarray = field(default_factory=_no_lines(PADDED))
    batches: np.ndarray = field(default_factory=_no_lines(EXAMPLE))
    batch_size: int = 0
    num_batches: int = 0
    batch_error: str | None = None
    bad_rows: list[str] = field(default_factory=list)
    epochs: Epochs = field(default_factory=lambda: Epochs(0, 0, 0))
    tallies: dict[str, Tally] = field(
        default_factory=lambda: {
            name: Tally() for name in ("shapes", "targets", "positions", "decodes", "times")
        }
    )

    @property
    def dataset(self) -> Dataset:
        return self.shards.dataset

    @property
    def is_whole_split(self) -> bool:
        return len(self.shards.chosen) == len(self.shards.shards)

    @property
    def encoding(self) -> str:
        """How the rows hold their measurements, by the manifest."""
        return str(self.dataset.manifest.options.get("measurement_encoding", "unknown"))

    def facts(self, lines: np.ndarray, name: str) -> np.ndarray:
        """Returns a field of the row that each context, visit or padded example is of."""
        return self.sampled[name][lines["row"]]


def size_classes(rows: RowTable, crop_size: int) -> np.ndarray:
    """Returns the place in SIZE_NAMES of each row: int64 [rows]."""
    classes = 1 + np.searchsorted(_SIZE_ENDS, rows.n_measurements, "left")
    return np.where(rows.untimed_tokens <= crop_size, SMALL, classes)


def families_of(rows: RowTable) -> np.ndarray:
    """Returns the place in FAMILIES of each row, by its source and destinations: int64 [rows]."""
    has_ipv6 = rows.src_is_ipv6 | (rows.num_ipv6 > 0)
    has_ipv4 = ~rows.src_is_ipv6 | (rows.num_ipv6 < rows.n_measurements)
    return np.where(has_ipv6 & has_ipv4, 2, np.where(has_ipv6, 1, 0))
