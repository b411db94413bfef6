"""Measures the training examples of a dataset: padding, modes, windows, sizes.

Rows are sampled evenly over sizes and address families, so that the few largest are included;
figures from rows.parquet are of all rows. Memory is one row with its contexts, one batch, and about
100 bytes per context.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from training.sampler import Context, Example, ProbeRowSampler, ProbeWindowSampler
from training.statistics import collector
from training.statistics.collector import BatchStatistics
from training.tokens import example_faults
from training.tokens.draws import MODE_NAMES
from training.tokens.example_faults import Batch, Tally
from training.tokens.kinds import MIN_MEASUREMENTS_FOR_MODE

FAMILIES = ("IPv4", "IPv6", "both")
SIZE_NAMES = ("small", "≤ 100", "≤ 1,000", "≤ 10,000", "≤ 100,000", "> 100,000")
_SIZE_ENDS = (100, 1_000, 10_000, 100_000)
SMALL = 0  # its index in SIZE_NAMES; the other sizes are large rows, by measurements

_MIN_DRAWS = 1_000  # of the timestamp mode, and of strides
_MAX_BATCH_SIZE = 32
_DECODED_PER_BATCH = 4
_US_PER_SECOND = 1_000_000


# --- tables: the first columns are the row's number, and its size and family as in `Statistics` ---


def _table(counts: str, **others: type) -> np.dtype:
    columns = ("number", "size", "family", *counts.split())
    return np.dtype([*((name, np.int64) for name in columns), *others.items()])


# A row that was read: the bytes of its record and of the measurements in it; num_contexts is 0 for
# a small row.
ROW = _table("num_measurements untimed_tokens record_bytes measurements_bytes num_contexts")
# A context; `window` is the stride of a strided one, `whole_` excludes the last measurement, which
# may be cut; `repeats` as in `collector.repeats_of`.
CONTEXT = _table(
    "mode num_tokens num_measurements num_timed window whole_measurements whole_tokens",
    has_repeats=np.bool_,
    repeats=np.float64,
    span_seconds=np.float64,
    padding=np.float64,
)
VISIT = _table("num_measurements num_timed")  # of a small row in one epoch
PADDED = _table("", padding=np.float64)  # an example of a single small row, or of a part of it
_TABLES = {"sampled": ROW, "contexts": CONTEXT, "strided": CONTEXT, "visits": VISIT}
_TABLES |= {"padded": PADDED}


class Epochs(NamedTuple):
    """The number of epochs in which each sampled row was drawn: large, small, and by strides."""

    large: int
    small: int
    strided: int


@dataclass
class Statistics:
    """Measurements of a dataset: all rows in `rows`, samples in the tables from `sampled` on.

    `contexts` are of `ProbeRowSampler`, `strided` of `ProbeWindowSampler`.
    """

    files: str
    extent: AnalysisExtent
    shards: ShardSet
    rows: RowTable
    sizes: np.ndarray  # int64 [rows], index into SIZE_NAMES
    families: np.ndarray  # int64 [rows], index into FAMILIES
    sampled: np.ndarray = field(default_factory=partial(np.zeros, 0, ROW))
    contexts: np.ndarray = field(default_factory=partial(np.zeros, 0, CONTEXT))  # large rows
    strided: np.ndarray = field(default_factory=partial(np.zeros, 0, CONTEXT))
    visits: np.ndarray = field(default_factory=partial(np.zeros, 0, VISIT))  # small rows
    padded: np.ndarray = field(default_factory=partial(np.zeros, 0, PADDED))  # small rows
    batch_padding: np.ndarray = field(default_factory=partial(np.zeros, 0, np.float64))
    batch_size: int = 0
    num_batches: int = 0
    batch_error: str | None = None  # why there are no batches, or why they ended
    bad_rows: list[str] = field(default_factory=list)  # why rows could not be used
    epochs: Epochs = field(default=Epochs(0, 0, 0))
    examples: Tally = field(default_factory=Tally)  # checks of examples and decoded segments

    @property
    def dataset(self) -> Dataset:
        return self.shards.dataset

    @property
    def encoding(self) -> str:
        """The measurement encoding of the rows, from the manifest."""
        return str(self.dataset.manifest.options.get("measurement_encoding", "unknown"))

    def collect(self, batch: Batch, num_examples: int) -> BatchStatistics | None:
        """Checks a batch; returns its statistics, or None if it breaks a rule."""
        found = fault = None
        try:
            found = collector.collect(batch, (num_examples, self.extent.crop_size))
        except ProbelineError as error:
            fault = str(error)
        self.examples.take(fault, num_examples)
        return found

    def decode(
        self,
        where: str,
        batch: Batch,
        example: int,
        row_facts: tuple[str, int, int, str | None] | None = None,
    ) -> None:
        """Decodes an example's segments and checks them; row_facts as for `context_fault`."""
        try:
            segments = collector.decode_example(batch, example)
        except ProbelineError as error:
            self.examples.take(f"{where}: {error}")
            return
        for _, measurements in segments:
            fault = example_faults.time_fault(measurements)
            if row_facts:
                fault = example_faults.context_fault(measurements, *row_facts) or fault
            self.examples.take(fault and f"{where}: {fault}")


def measure(
    files: str, extent: AnalysisExtent, advance: Callable[[float], None] = lambda _: None
) -> Statistics:
    """Measures a dataset, a split or some of its shards; `files` as in `row_table.find_shards`.

    `advance` is called with the number of rows and batches measured since the last call.
    """
    check_single(files, "training.analyze_padding")
    source = ProbeRowDataSource(files)
    shards, rows = source.shards, source.rows
    if not len(source):
        raise ProbelineError(f"{files} has no rows: name a different split or dataset")
    statistics = Statistics(
        files, extent, shards, rows, size_classes(rows, extent.crop_size), families_of(rows)
    )
    numbers = draw_rows(statistics.sizes, statistics.families, extent.max_rows, extent.seed)
    _RowMeasurer(statistics, source, numbers).run(numbers, advance)
    _measure_batches(statistics, advance)
    return statistics


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


class _RowMeasurer:
    """Measures the sampled rows, one at a time."""

    def __init__(self, statistics: Statistics, source: ProbeRowDataSource, numbers: np.ndarray):
        extent = statistics.extent
        self._statistics = statistics
        self._source = source
        self._reader = ShardReader(statistics.shards, statistics.rows)
        self._sampler = ProbeRowSampler(
            extent.crop_size, seed=extent.seed, repeat_share=extent.repeat_share
        )
        self._window_sampler = ProbeWindowSampler(extent.crop_size, seed=extent.seed)
        self._tables = {name: [np.zeros(0, dtype)] for name, dtype in _TABLES.items()}
        is_small = statistics.sizes[numbers] == SMALL
        n = statistics.rows.n_measurements[numbers]
        contexts = sum(self._sampler.num_contexts(count) for count in n[~is_small].tolist())
        visits = int((is_small & (n >= MIN_MEASUREMENTS_FOR_MODE)).sum())
        # Enough epochs for _MIN_DRAWS; 0 without draws.
        large, small, strided = (
            -(-_MIN_DRAWS // draws) if draws else 0 for draws in (contexts, visits, len(numbers))
        )
        statistics.epochs = Epochs(large, max(1, small), strided)

    def run(self, numbers: np.ndarray, advance: Callable[[float], None]) -> None:
        """Measures all rows; unusable ones become `bad_rows`."""
        for number in numbers.tolist():
            try:
                self._measure(number)
            except (ProbelineError, ValueError) as error:
                self._statistics.bad_rows.append(" ".join(str(error).split()))
            advance(1)
        for name, tables in self._tables.items():
            setattr(self._statistics, name, np.concatenate(tables))

    def _measure(self, number: int) -> None:
        statistics, epochs, sampler = self._statistics, self._statistics.epochs, self._sampler
        element = self._source[number]
        record = row_codec.decode_record(self._reader.read(number))
        if record.encoding != statistics.encoding:
            expected = statistics.encoding
            raise ValueError(f"row {number} is {record.encoding}, the dataset {expected}")
        times_us = record.run["event_time"]
        size = statistics.sizes[number]
        is_small = bool(size == SMALL)
        if sampler.is_small(element) != is_small:
            raise ValueError(f"row {number} does not have the tokens that rows.parquet has")
        large_epochs, small_epochs = epochs.large * (not is_small), epochs.small * is_small
        contexts = [c for e in range(large_epochs) for c in sampler.contexts(element, e)]
        strided = [self._window_sampler.context(element, e) for e in range(epochs.strided)]
        visits = [list(sampler.examples(element, e)) for e in range(small_epochs)]
        row = (number, size, statistics.families[number])
        counts = (record.n_measurements, statistics.rows.untimed_tokens[number], record.num_bytes)
        num_contexts = len(contexts) // max(1, epochs.large)
        tables = {
            "sampled": np.array([(*row, *counts, len(record.measurements), num_contexts)], ROW),
            "contexts": self._contexts(contexts, times_us),
            "strided": self._contexts(strided, times_us, strided=True),
            **self._visits(visits),
        }
        for name, lines in tables.items():
            lines["number"], lines["size"], lines["family"] = row
            self._tables[name].append(lines)
        examples = [(context.example, context.mode) for context in contexts[:1] + strided[:1]]
        examples += [(example, None) for visit in visits[:1] for example in visit]
        first, last = (times_us[[0, -1]] // _US_PER_SECOND).tolist()
        for example, mode in examples:
            batch = {name: values[np.newaxis] for name, values in example.items()}
            row_facts = (record.src_addr, first, last, mode)
            statistics.decode(f"row {number}", batch, 0, row_facts)

    def _collect(self, examples: Sequence[Example]) -> BatchStatistics | None:
        if not examples:
            return None
        batch = {name: np.stack([e[name] for e in examples]) for name in examples[0]}
        return self._statistics.collect(batch, len(examples))

    def _contexts(
        self, contexts: Sequence[Context], times_us: np.ndarray, strided: bool = False
    ) -> np.ndarray:
        """Checks contexts of a row; returns CONTEXT."""
        found = self._collect([context.example for context in contexts])
        if found is None:
            return np.zeros(0, CONTEXT)
        lines = np.zeros(len(contexts), CONTEXT)
        lines["mode"] = [MODE_NAMES.index(context.mode) for context in contexts]
        for name in ("num_tokens", "num_measurements", "num_timed", "window", "has_repeats"):
            lines[name] = [getattr(context, name) for context in contexts]
        lines["padding"] = found.padding
        lines["repeats"] = found.repeats
        lines["whole_measurements"] = found.segments["num_measurements"] - 1
        lines["whole_tokens"] = found.segments["whole_tokens"]
        first = np.array([context.first for context in contexts])
        steps = (
            lines["window"] * (lines["num_measurements"] - 1) if strided else lines["window"] - 1
        )
        lines["span_seconds"] = (times_us[first + steps] - times_us[first]) / _US_PER_SECOND
        return lines

    def _visits(self, visits: Sequence[Sequence[Example]]) -> dict[str, np.ndarray]:
        """Checks the examples of a small row in several epochs; returns VISIT and PADDED."""
        examples = [example for visit in visits for example in visit]
        found = self._collect(examples)
        if found is None:
            return {"visits": np.zeros(0, VISIT), "padded": np.zeros(0, PADDED)}
        tables = {"visits": np.zeros(len(visits), VISIT), "padded": np.zeros(len(examples), PADDED)}
        segments = found.segments
        ends = np.cumsum([len(visit) for visit in visits])
        begins = np.append(0, ends[:-1])
        # The last example of a visit is whole; the last measurement of the others may be cut.
        is_cut = np.ones(len(examples), bool)
        is_cut[ends - 1] = False
        num_measurements = segments["num_measurements"] - is_cut
        num_timed = segments["num_timed"] - (is_cut & segments["is_last_timed"])
        tables["visits"]["num_measurements"] = np.add.reduceat(num_measurements, begins)
        tables["visits"]["num_timed"] = np.add.reduceat(num_timed, begins)
        tables["padded"]["padding"] = found.padding
        return tables


def _measure_batches(statistics: Statistics, advance: Callable[[float], None]) -> None:
    """Takes the first batches of an endless dataset, as large as the rows allow."""
    extent = statistics.extent
    rng = np.random.default_rng(extent.seed)
    # Padding does not depend on the order, and mixed_rows=1 reads few rows.
    config = DataConfig(
        statistics.files,
        batch_size=_MAX_BATCH_SIZE,
        crop_size=extent.crop_size,
        seed=extent.seed,
        mixed_rows=1,
        repeat_share=extent.repeat_share,
        on_bad_row="skip",
    )
    config = fitting(config, statistics.rows)
    size = statistics.batch_size = config.batch_size
    batches = iter(BatchDataset(config, [HostPlan(statistics.shards, config)]))
    padding = [statistics.batch_padding]
    try:
        for number, batch in enumerate(itertools.islice(batches, extent.num_batches)):
            if found := statistics.collect(batch, size):
                padding.append(found.padding)
                for example in rng.choice(size, min(size, _DECODED_PER_BATCH), replace=False):
                    statistics.decode(f"batch {number} example {example}", batch, example)
            statistics.num_batches += 1
            advance(1)
    except ProbelineError as error:
        statistics.batch_error = str(error)
    finally:
        batches.close()
    statistics.batch_padding = np.concatenate(padding)
