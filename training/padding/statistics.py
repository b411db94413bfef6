"""What `training.analyze_padding` measures: `Statistics`, a table for each thing that is counted.

A table is a structured array. Its first columns are those of the row that a line belongs to: its
number, and its size and family as in `Statistics`; `padding` is a share of the crop. The feed
report counts padding, modes and distributions in the same way.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.dataset.rows import Dataset
from training.extent import AnalysisExtent
from training.rows.row_table import RowTable, ShardSet
from training.tokens.draws import MODE_NAMES
from training.tokens.example_faults import Batch, Tally
from training.tokens.kinds import Parsed, timestamp_modes

FAMILIES = ("IPv4", "IPv6", "both")
SIZE_NAMES = ("small", "≤ 100", "≤ 1,000", "≤ 10,000", "≤ 100,000", "> 100,000")
_SIZE_ENDS = (100, 1_000, 10_000, 100_000)
SMALL = 0  # its index in SIZE_NAMES; the other sizes are large rows, by measurements


def _table(counts: str, **others: type) -> np.dtype:
    columns = ("number", "size", "family", *counts.split())
    return np.dtype([*((name, np.int64) for name in columns), *others.items()])


# A row that was read. Bytes are those of its record and of the measurements in it; num_contexts
# is 0 if it is small.
ROW = _table(
    "num_measurements untimed_tokens record_bytes measurements_bytes num_contexts",
    is_in_order=np.bool_,
)
# A context; `window` is the stride of a strided one, `whole_` counts all measurements but the
# last, which can be cut; `repeats` are as repeats_of gives them.
CONTEXT = _table(
    "mode num_tokens num_measurements num_timed window whole_measurements whole_tokens",
    has_repeats=np.bool_,
    repeats=np.float64,
    span_seconds=np.float64,
    padding=np.float64,
)
VISIT = _table("num_measurements num_timed")  # of a small row in one epoch
PADDED = _table("", padding=np.float64)  # an example with nothing but one small row, or a part
CHECKED = ("shapes", "targets", "positions", "decodes", "context_order")  # in every example


Summary = dict[str, list[dict[str, Any]]]


class Epochs(NamedTuple):
    """The epochs in which each sampled row was drawn: large and small rows, and by strides."""

    large: int
    small: int
    strided: int


@dataclass
class Statistics:
    """What was measured of a dataset; `rows` has all its rows, the tables below are a sample.

    Attributes:
      sizes, families: index into SIZE_NAMES and FAMILIES of each row, int64 [rows].
      sampled: ROW.
      contexts, strided: CONTEXT, of `ProbeRowSampler` (large rows) and `ProbeWindowSampler`.
      visits, padded: VISIT and PADDED, of small rows.
      batch_padding: float64, of each example of the batches of build_dataset.
      batch_error: why there are no, or no more, batches.
      bad_rows: why rows could not be used.
      tallies: by the name of the check.
      summary: the tables of `summary.summarise`.
    """

    files: str
    extent: AnalysisExtent
    shards: ShardSet
    rows: RowTable
    sizes: np.ndarray
    families: np.ndarray
    sampled: np.ndarray = field(default_factory=partial(np.zeros, 0, ROW))
    contexts: np.ndarray = field(default_factory=partial(np.zeros, 0, CONTEXT))
    strided: np.ndarray = field(default_factory=partial(np.zeros, 0, CONTEXT))
    visits: np.ndarray = field(default_factory=partial(np.zeros, 0, VISIT))
    padded: np.ndarray = field(default_factory=partial(np.zeros, 0, PADDED))
    batch_padding: np.ndarray = field(default_factory=partial(np.zeros, 0, np.float64))
    batch_size: int = 0
    num_batches: int = 0
    batch_error: str | None = None
    bad_rows: list[str] = field(default_factory=list)
    epochs: Epochs = field(default=Epochs(0, 0, 0))
    tallies: dict[str, Tally] = field(default_factory=lambda: {name: Tally() for name in CHECKED})
    summary: Summary = field(default_factory=dict)

    @property
    def dataset(self) -> Dataset:
        return self.shards.dataset

    @property
    def encoding(self) -> str:
        """How the rows hold their measurements, by the manifest."""
        return str(self.dataset.manifest.options.get("measurement_encoding", "unknown"))


def size_classes(rows: RowTable, crop_size: int) -> np.ndarray:
    """Returns the index into SIZE_NAMES of each row: int64 [rows]."""
    classes = 1 + np.searchsorted(_SIZE_ENDS, rows.n_measurements, "left")
    return np.where(rows.untimed_tokens <= crop_size, SMALL, classes)


def families_of(rows: RowTable) -> np.ndarray:
    """Returns the index into FAMILIES of each row, by source and destinations: int64 [rows]."""
    has_ipv6 = rows.src_is_ipv6 | (rows.num_ipv6 > 0)
    has_ipv4 = ~rows.src_is_ipv6 | (rows.num_ipv6 < rows.n_measurements)
    return np.where(has_ipv6 & has_ipv4, 2, np.where(has_ipv6, 1, 0))


def padding_of(batch: Batch) -> np.ndarray:
    """Returns the share of padding of each example: float64 [batch]."""
    return (batch["inputs_segmentation"] == 0).mean(axis=1)


def repeats_of(parsed: Parsed) -> np.ndarray:
    """Returns the share of each segment's measurements whose destination came before in it.

    Returns:
      float64 [segments]; measurements without a whole destination and outcome do not count.
    """
    measurements = parsed.measurements
    columns = [measurements[name] for name in ("dst_lo", "dst_hi", "segment")]
    ordered = np.stack(columns)[:, np.lexsort(columns)]
    is_new = np.ones(len(measurements), bool)
    is_new[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    num_segments = len(parsed.segments)
    num_new = np.bincount(ordered[2].astype(np.int64), is_new, num_segments)
    num_all = np.bincount(measurements["segment"], minlength=num_segments)
    return 1 - num_new / np.maximum(1, num_all)


def mode_counts(segments: np.ndarray, min_measurements: int = 1) -> dict[str, int]:
    """Returns how many `kinds.SEGMENT`s are in each mode, as far as tokens show it.

    Args:
      min_measurements: shorter segments do not count.
    """
    chosen = segments[segments["num_measurements"] >= min_measurements]
    modes = timestamp_modes(chosen, chosen["fills_crop"])
    counts = np.bincount(modes, minlength=len(MODE_NAMES)).tolist()
    return dict(zip(MODE_NAMES, counts, strict=True))


def distribution(values: np.ndarray, count: str = "number", unit: str = "") -> dict[str, Any]:
    """Returns number, mean, min, p10, median, p90 and max of values; None if there are none.

    Args:
      count: the key of the number of values.
      unit: ends the other keys, such as "_seconds".
    """
    quantiles = np.quantile(values, (0, 0.1, 0.5, 0.9, 1)).tolist() if len(values) else [None] * 5
    mean = float(values.mean()) if len(values) else None
    names = (f"{name}{unit}" for name in ("mean", "min", "p10", "median", "p90", "max"))
    return {count: len(values), **dict(zip(names, [mean, *quantiles], strict=True))}
