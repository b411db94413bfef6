"""Statistics of what rows become in training: one table for each thing that is counted.

`Statistics` is what `training.analyze_padding` measures, `FeedStatistics` what training was fed;
examples, segments and distributions are counted in the same way for both. A table is a structured
array; `row` in it is an index into the sampled rows.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.cli.flags import check_limits, flag
from beam_pipeline.dataset.manifest import Dataset
from training.rows.row_table import RowTable, ShardSet
from training.tokens.draws import MODE_NAMES
from training.tokens.example_faults import Batch, Tally
from training.tokens.kinds import timestamp_modes

FAMILIES = ("IPv4", "IPv6", "both")
SIZE_NAMES = ("small", "≤ 100", "≤ 1,000", "≤ 10,000", "≤ 100,000", "> 100,000")
_SIZE_ENDS = (100, 1_000, 10_000, 100_000)
SMALL = 0  # its index in SIZE_NAMES; the other sizes are large rows, by measurements


def _table(counts: str, **others: type) -> np.dtype:
    return np.dtype([*((name, np.int64) for name in counts.split()), *others.items()])


# A row that was read. Bytes are those of its record and of the measurements in it; num_contexts
# is 0 if it is small.
ROW = _table(
    "number size family num_measurements untimed_tokens record_bytes measurements_bytes "
    "num_contexts",
    is_in_order=np.bool_,
)
# A context; `window` is the stride of a strided one, `whole_` counts all measurements but the
# last, which can be cut.
CONTEXT = _table(
    "row mode num_tokens num_measurements num_timed window whole_measurements whole_tokens",
    span_seconds=np.float64,
)
VISIT = _table("row num_measurements num_timed")  # of a small row in one epoch
PADDED = _table("row num_padding")  # an example with nothing but one small row, or a part of it
EXAMPLE = _table("num_padding num_segments")  # of a batch


class Epochs(NamedTuple):
    """The epochs in which each sampled row was drawn: large and small rows, and by strides."""

    large: int
    small: int
    strided: int


@dataclass(frozen=True)
class Extent:
    """How much is measured, and at what crop size."""

    crop_size: int = flag("tokens of an example.", 1024)
    seed: int = flag("seed of the sample and of all draws.", 0)
    max_rows: int = flag("rows that are read one by one.", 300, limits=(1, None))
    num_batches: int = flag("batches that are taken from build_dataset.", 32, limits=(1, None))

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass
class Statistics:
    """What was measured of a dataset; `rows` has all its rows, the tables below are a sample.

    Attributes:
      sizes, families: index into SIZE_NAMES and FAMILIES of each row, int64 [rows].
      sampled: ROW.
      contexts, strided: CONTEXT, of `ProbeRowSampler` (large rows) and `ProbeWindowSampler`.
      visits, padded: VISIT and PADDED, of small rows.
      examples: EXAMPLE, of the batches of build_dataset.
      batch_error: why there are no, or no more, batches.
      bad_rows: why rows could not be used.
      tallies: by the name of the check.
    """

    files: str
    extent: Extent
    shards: ShardSet
    rows: RowTable
    sizes: np.ndarray
    families: np.ndarray
    sampled: np.ndarray = field(default_factory=partial(np.zeros, 0, ROW))
    contexts: np.ndarray = field(default_factory=partial(np.zeros, 0, CONTEXT))
    strided: np.ndarray = field(default_factory=partial(np.zeros, 0, CONTEXT))
    visits: np.ndarray = field(default_factory=partial(np.zeros, 0, VISIT))
    padded: np.ndarray = field(default_factory=partial(np.zeros, 0, PADDED))
    examples: np.ndarray = field(default_factory=partial(np.zeros, 0, EXAMPLE))
    batch_size: int = 0
    num_batches: int = 0
    batch_error: str | None = None
    bad_rows: list[str] = field(default_factory=list)
    epochs: Epochs = field(default=Epochs(0, 0, 0))
    tallies: Mapping[str, Tally] = field(
        default_factory=lambda: {
            name: Tally() for name in ("shapes", "targets", "positions", "decodes", "context_order")
        }
    )

    @property
    def dataset(self) -> Dataset:
        return self.shards.dataset

    @property
    def encoding(self) -> str:
        """How the rows hold their measurements, by the manifest."""
        return str(self.dataset.manifest.options.get("measurement_encoding", "unknown"))

    def row_column(self, lines: np.ndarray, name: str) -> np.ndarray:
        """Returns a column of the sampled row that each line of another table belongs to."""
        return self.sampled[name][lines["row"]]


@dataclass(frozen=True)
class Step:
    """A batch in numbers: `padding` is a share, the names of the modes count segments."""

    step: int
    examples: int
    crop_size: int
    real_tokens: int
    padding: float
    segments: int
    segments_decoded: int
    full: int
    partial: int
    none: int


@dataclass
class FeedStatistics:
    """What training was fed; the first three lists have an entry per batch.

    Attributes:
      examples: EXAMPLE of each batch.
      segments: `kinds.SEGMENT` of each batch.
      fields: `kinds.token_fields` of the first batch's inputs.
      spans_seconds: between the first and the last timestamp of decoded segments.
      rtts_ms: of decoded measurements, -1.0 is a failed ping.
      sources: decoded segments by source address.
      contexts: some decoded segments as text.
    """

    steps: list[Step] = field(default_factory=list)
    examples: list[np.ndarray] = field(default_factory=list)
    segments: list[np.ndarray] = field(default_factory=list)
    fields: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    spans_seconds: list[int] = field(default_factory=list)
    rtts_ms: list[float] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)
    contexts: list[str] = field(default_factory=list)


def size_classes(rows: RowTable, crop_size: int) -> np.ndarray:
    """Returns the index into SIZE_NAMES of each row: int64 [rows]."""
    classes = 1 + np.searchsorted(_SIZE_ENDS, rows.n_measurements, "left")
    return np.where(rows.untimed_tokens <= crop_size, SMALL, classes)


def families_of(rows: RowTable) -> np.ndarray:
    """Returns the index into FAMILIES of each row, by source and destinations: int64 [rows]."""
    has_ipv6 = rows.src_is_ipv6 | (rows.num_ipv6 > 0)
    has_ipv4 = ~rows.src_is_ipv6 | (rows.num_ipv6 < rows.n_measurements)
    return np.where(has_ipv6 & has_ipv4, 2, np.where(has_ipv6, 1, 0))


def count_examples(batch: Batch) -> np.ndarray:
    """Counts padding and segments of the examples of a batch: EXAMPLE [batch]."""
    segmentation = batch["inputs_segmentation"]
    examples = np.zeros(len(segmentation), EXAMPLE)
    examples["num_padding"] = (segmentation == 0).sum(axis=1)
    examples["num_segments"] = segmentation.max(axis=1, initial=0)
    return examples


def segment_modes(segments: np.ndarray) -> np.ndarray:
    """Returns the timestamp mode of `kinds.SEGMENT`s, as far as tokens show it: int64."""
    return timestamp_modes(segments, segments["fills_crop"])


def mode_counts(segments: np.ndarray, min_measurements: int = 1) -> dict[str, int]:
    """Returns how many of the segments with at least so many measurements are in each mode."""
    modes = segment_modes(segments[segments["num_measurements"] >= min_measurements])
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
