"""Measures the training examples of a dataset: padding, modes, windows, sizes.

Rows are sampled evenly over sizes and address families, so that the few largest are included;
figures from rows.parquet are of all rows. Memory is one row with its contexts, one batch, and about
100 bytes per context.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from beam_pipeline.dataset import row_codec
from beam_pipeline.dataset.rows import Dataset
from beam_pipeline.errors import ProbelineError
from training.batches.config import DataConfig
from training.batches.mixture import check_single
from training.batches.planning import HostPlan, fitting
from training.dataset import BatchDataset
from training.extent import AnalysisExtent
from training.rows.row_source import ProbeRowDataSource
from training.rows.row_table import RowTable, ShardSet
from training.rows.shard_reader import ShardReader
from training.sampler import Context, Example, ProbeRowSampler
from training.statistics.collector import BatchStatistics, Groups, collect
from training.tokens.draws import MODE_NAMES
from training.tokens.kinds import MIN_MEASUREMENTS_FOR_MODE, NOTHING, timestamp_modes

FAMILIES = ("IPv4", "IPv6", "both")
SIZE_NAMES = ("small", "≤ 100", "≤ 1,000", "≤ 10,000", "≤ 100,000", "> 100,000")
_SIZE_ENDS = (100, 1_000, 10_000, 100_000)
MIN_MEASUREMENTS_FOR_SHARE = 20  # per context, for a meaningful share of timestamps
SMALL = 0  # its index in SIZE_NAMES; the other sizes are large rows, by measurements

_MIN_DRAWS = 1_000  # of the timestamp mode
_MAX_BATCH_SIZE = 32
_US_PER_SECOND = 1_000_000


# --- tables: the first columns are the row's number, and its size and family as in `Statistics` ---


def _table(counts: str, **others: type) -> np.dtype:
    columns = ("number", "size", "family", *counts.split())
    return np.dtype([*((name, np.int64) for name in columns), *others.items()])


# A context; `repeats` as in `collector.repeats_of`.
CONTEXT = _table(
    "mode num_measurements num_timed window",
    has_repeats=np.bool_,
    repeats=np.float64,
    span_seconds=np.float64,
    padding=np.float64,
)
# An example of a single small row, or of a part of it. `mode` is that of a visit, by its first
# example; NOTHING in the others and in short ones.
PADDED = _table("mode", padding=np.float64)


class Epochs(NamedTuple):
    """The number of epochs in which each sampled row was drawn."""

    large: int
    small: int


@dataclass(frozen=True)
class Statistics:
    """Measurements of a dataset: all rows in `rows`, samples from `sampled` on."""

    files: str
    extent: AnalysisExtent
    shards: ShardSet
    rows: RowTable
    sizes: np.ndarray  # int64 [rows], index into SIZE_NAMES
    families: np.ndarray  # int64 [rows], index into FAMILIES
    epochs: Epochs
    sampled: np.ndarray  # int64 [rows read], their numbers
    contexts: np.ndarray  # CONTEXT [contexts of large rows]
    padded: np.ndarray  # PADDED [examples of small rows]
    batch_size: int
    batch_padding: np.ndarray  # float64 [examples of batches]

    @property
    def dataset(self) -> Dataset:
        return self.shards.dataset

    @property
    def encoding(self) -> str:
        """The measurement encoding of the rows, from the manifest."""
        return str(self.dataset.manifest.options.get("measurement_encoding", "unknown"))

    @property
    def num_batches(self) -> int:
        return len(self.batch_padding) // self.batch_size

    @property
    def groups(self) -> Groups:
        contexts, small = self.contexts, self.padded["mode"]
        sizes = {size: f"rows {SIZE_NAMES[size]}" for size in np.unique(contexts["size"]).tolist()}
        kinds = {"any destinations": False, "few destinations": True}
        return Groups(
            padding={
                "batches of build_dataset": self.batch_padding,
                "contexts of large rows": contexts["padding"],
                "small rows, if not packed": self.padded["padding"],
            },
            modes={
                "large": np.bincount(contexts["mode"], minlength=len(MODE_NAMES)),
                "small": np.bincount(small[small != NOTHING], minlength=len(MODE_NAMES)),
            },
            repeats={
                name: contexts["repeats"][contexts["has_repeats"] == has_repeats]
                for name, has_repeats in kinds.items()
            },
            spans_seconds={
                name: contexts["span_seconds"][contexts["size"] == size]
                for size, name in sizes.items()
            },
        )

    def untimed_shares(self, mode: int) -> np.ndarray:
        """Returns the share without timestamp of each of a mode's contexts, except short ones."""
        num = self.contexts["num_measurements"]
        chosen = (self.contexts["mode"] == mode) & (num >= MIN_MEASUREMENTS_FOR_SHARE)
        return 1 - self.contexts["num_timed"][chosen] / num[chosen]


def measure(
    files: str, extent: AnalysisExtent, advance: Callable[[float], None] = lambda _: None
) -> Statistics:
    """Measures a dataset, a split or some of its shards; `files` as in `row_table.find_shards`.

    `advance` is called with the number of rows and batches measured since the last call. Raises
    ProbelineError for a damaged row, and for an example that breaks a rule.
    """
    check_single(files, "training.analyze_padding")
    source = ProbeRowDataSource(files)
    rows = source.rows
    if not len(rows):
        raise ProbelineError(f"{files} has no rows: name a different split or dataset")
    sizes, families = size_classes(rows, extent.crop_size), families_of(rows)
    numbers = draw_rows(sizes, families, extent.max_rows, extent.seed)
    sampler = ProbeRowSampler(extent.crop_size, seed=extent.seed, repeat_share=extent.repeat_share)
    epochs = _epochs(sampler, rows.n_measurements[numbers], sizes[numbers] == SMALL)
    reader = ShardReader(source.shards, rows)
    contexts, padded = [np.zeros(0, CONTEXT)], [np.zeros(0, PADDED)]
    for number in numbers.tolist():
        row = source[number]  # raises the error of a damaged row
        if sizes[number] == SMALL:
            lines = _padded([list(sampler.examples(row, epoch)) for epoch in range(epochs.small)])
            padded.append(lines)
        else:
            drawn = [c for epoch in range(epochs.large) for c in sampler.contexts(row, epoch)]
            times = row_codec.decode_record(reader.read(number)).run["event_time"]
            lines = _contexts(drawn, times)
            contexts.append(lines)
        lines["number"], lines["size"], lines["family"] = number, sizes[number], families[number]
        advance(1)
    batch_size, batch_padding = _measure_batches(files, source, extent, advance)
    return Statistics(
        files=files,
        extent=extent,
        shards=source.shards,
        rows=rows,
        sizes=sizes,
        families=families,
        epochs=epochs,
        sampled=numbers,
        contexts=np.concatenate(contexts),
        padded=np.concatenate(padded),
        batch_size=batch_size,
        batch_padding=batch_padding,
    )


def draw_rows(sizes: np.ndarray, families: np.ndarray, max_rows: int, seed: int) -> np.ndarray:
    """Draws up to max_rows rows, ascending: the first, and equally many of each size and family."""
    strata, stratum = np.unique(sizes * len(FAMILIES) + families, return_inverse=True)
    members = sorted((np.flatnonzero(stratum == i) for i in range(len(strata))), key=len)
    rng = np.random.default_rng(seed)
    drawn, left = [np.zeros(1, np.int64)], max_rows - 1
    for i, numbers in enumerate(members):
        count = min(len(numbers), left // (len(members) - i))
        drawn.append(rng.choice(numbers, count, replace=False))
        left -= count
    return np.unique(np.concatenate(drawn))


def size_classes(rows: RowTable, crop_size: int) -> np.ndarray:
    """Returns the index into SIZE_NAMES of each row: int64 [rows]."""
    classes = 1 + np.searchsorted(_SIZE_ENDS, rows.n_measurements, "left")
    return np.where(rows.untimed_tokens <= crop_size, SMALL, classes)


def families_of(rows: RowTable) -> np.ndarray:
    """Returns the index into FAMILIES of each row, by source and destinations: int64 [rows]."""
    has_ipv6 = rows.src_is_ipv6 | (rows.num_ipv6 > 0)
    has_ipv4 = ~rows.src_is_ipv6 | (rows.num_ipv6 < rows.n_measurements)
    return np.where(has_ipv6 & has_ipv4, 2, np.where(has_ipv6, 1, 0))


def _epochs(sampler: ProbeRowSampler, n: np.ndarray, is_small: np.ndarray) -> Epochs:
    """Returns the epochs that give _MIN_DRAWS of the timestamp mode; 0 without large rows."""
    contexts = sum(sampler.num_contexts(count) for count in n[~is_small].tolist())
    visits = int((is_small & (n >= MIN_MEASUREMENTS_FOR_MODE)).sum())
    large, small = (-(-_MIN_DRAWS // draws) if draws else 0 for draws in (contexts, visits))
    return Epochs(large, max(1, small))


def _collect(examples: Sequence[Example]) -> BatchStatistics:
    return collect({name: np.stack([e[name] for e in examples]) for name in examples[0]})


def _contexts(contexts: Sequence[Context], times_us: np.ndarray) -> np.ndarray:
    """Checks contexts of a row; returns CONTEXT, without the columns that all tables have."""
    found = _collect([context.example for context in contexts])
    lines = np.zeros(len(contexts), CONTEXT)
    lines["mode"] = [MODE_NAMES.index(context.mode) for context in contexts]
    for name in ("num_measurements", "num_timed", "window", "has_repeats"):
        lines[name] = [getattr(context, name) for context in contexts]
    lines["padding"], lines["repeats"] = found.padding, found.repeats
    first = np.array([context.first for context in contexts])
    last = first + lines["window"] - 1
    lines["span_seconds"] = (times_us[last] - times_us[first]) / _US_PER_SECOND
    return lines


def _padded(visits: Sequence[Sequence[Example]]) -> np.ndarray:
    """Checks the examples of a small row in several epochs; returns PADDED, as `_contexts`."""
    found = _collect([example for visit in visits for example in visit])
    lines, segments = np.zeros(len(found.padding), PADDED), found.segments
    lines["padding"], lines["mode"] = found.padding, NOTHING
    firsts = np.cumsum([0, *map(len, visits[:-1])])
    firsts = firsts[segments["num_measurements"][firsts] >= MIN_MEASUREMENTS_FOR_MODE]
    lines["mode"][firsts] = timestamp_modes(segments, segments["fills_crop"])[firsts]
    return lines


def _measure_batches(
    files: str, source: ProbeRowDataSource, extent: AnalysisExtent, advance: Callable[[float], None]
) -> tuple[int, np.ndarray]:
    """Returns the size of endless batches, as large as the rows allow, and padding in the first."""
    # Padding does not depend on the order, and mixed_rows=1 reads few rows.
    config = DataConfig(
        files,
        batch_size=_MAX_BATCH_SIZE,
        crop_size=extent.crop_size,
        seed=extent.seed,
        mixed_rows=1,
        repeat_share=extent.repeat_share,
    )
    config = fitting(config, source.rows)
    batches = iter(BatchDataset(config, [HostPlan(source.shards, config)]))
    padding: list[np.ndarray] = []
    try:
        for batch in itertools.islice(batches, extent.num_batches):
            padding.append(collect(batch).padding)
            advance(1)
    finally:
        batches.close()
    return config.batch_size, np.concatenate(padding)
