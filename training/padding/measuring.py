"""Measures what the rows of a dataset become in training: padding, modes, windows, sizes.

In goes a dataset, out come `Statistics`. Rows are sampled evenly over sizes and address families,
so that the few largest are among them; what rows.parquet has is taken of all rows. Memory is one
row with its contexts, one batch, and some 100 bytes per context.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from beam_pipeline.dataset import row_codec
from beam_pipeline.errors import ProbelineError
from training.batches.config import DataConfig
from training.batches.mixture import check_single
from training.batches.planning import HostPlan, fitting
from training.dataset import BatchDataset
from training.extent import AnalysisExtent
from training.padding.statistics import (
    CONTEXT,
    FAMILIES,
    PADDED,
    ROW,
    SMALL,
    VISIT,
    Epochs,
    Statistics,
    families_of,
    padding_of,
    repeats_of,
    size_classes,
)
from training.padding.summary import summarise
from training.rows.row_source import ProbeRowDataSource
from training.rows.shard_reader import ShardReader
from training.sampler import Context, Example, ProbeRowSampler, ProbeWindowSampler
from training.tokens import example_faults
from training.tokens.draws import MODE_NAMES
from training.tokens.example_faults import Batch
from training.tokens.kinds import MIN_MEASUREMENTS_FOR_MODE, parse

_MIN_DRAWS = 1_000  # of the timestamp mode, and of strides
_MAX_BATCH_SIZE = 32
_DECODED_PER_BATCH = 4
_US_PER_SECOND = 1_000_000


def measure(
    files: str, extent: AnalysisExtent, advance: Callable[[float], None] = lambda _: None
) -> Statistics:
    """Measures a dataset, a split or some shards of it, as `row_table.find_shards` takes them.

    Args:
      advance: called with the number of rows and batches that have been measured.

    Raises:
      ProbelineError: there is no finished dataset, or it has no rows.
      UsageError: the crop size is too small, or `files` is a mixture.
    """
    check_single(files, "training.analyze_padding")
    source = ProbeRowDataSource(files)
    shards, rows = source.shards, source.rows
    if not len(source):
        raise ProbelineError(f"{files} has no rows: name another split or dataset")
    statistics = Statistics(
        files, extent, shards, rows, size_classes(rows, extent.crop_size), families_of(rows)
    )
    numbers = draw_rows(statistics.sizes, statistics.families, extent.max_rows, extent.seed)
    _RowMeasurer(statistics, source, numbers).run(numbers, advance)
    _measure_batches(statistics, advance)
    statistics.summary = summarise(statistics)
    return statistics


def draw_rows(sizes: np.ndarray, families: np.ndarray, max_rows: int, seed: int) -> np.ndarray:
    """Draws at most `max_rows` rows: the first, and equally many of each size and family.

    Args:
      sizes, families: int64 [rows], as in `Statistics`.

    Returns:
      Numbers of rows, ascending: int64.
    """
    strata, stratum = np.unique(sizes * len(FAMILIES) + families, return_inverse=True)
    members = sorted((np.flatnonzero(stratum == i) for i in range(len(strata))), key=len)
    rng = np.random.default_rng(seed)
    drawn, left = [np.zeros(1, np.int64)], max_rows - 1
    for i, numbers in enumerate(members):
        count = min(len(numbers), left // (len(members) - i))
        drawn.append(rng.choice(numbers, count, replace=False))
        left -= count
    return np.unique(np.concatenate(drawn))


def _check_batch(statistics: Statistics, batch: Batch, size: int) -> bool:
    """Checks a batch as a whole; returns whether its arrays have the right shapes."""
    tallies = statistics.tallies
    fault = example_faults.shape_fault(batch, size, statistics.extent.crop_size)
    tallies["shapes"].take(fault, size)
    if fault is None:
        tallies["targets"].take(example_faults.target_fault(batch), size)
        tallies["positions"].take(example_faults.position_fault(batch), size)
    return fault is None


def _decode(
    statistics: Statistics,
    where: str,
    batch: Batch,
    example: int,
    row_facts: tuple[str, int, int, str | None] | None = None,
) -> None:
    """Decodes the segments of an example and checks their measurements.

    Args:
      row_facts: the arguments of `context_fault`, if all segments are of one row.
    """
    for tokens in example_faults.segments_of(batch, example):
        measurements, fault = example_faults.decoded(tokens)
        if row_facts:
            fault = fault or example_faults.context_fault(measurements, *row_facts)
        time_fault = example_faults.time_fault(measurements)
        for name, found in (("decodes", fault), ("context_order", time_fault)):
            statistics.tallies[name].take(found and f"{where}: {found}")


# --- rows ---------------------------------------------------------------------------------------


class _RowMeasurer:
    """Measures the sampled rows, each read and dropped again."""

    def __init__(self, statistics: Statistics, source: ProbeRowDataSource, numbers: np.ndarray):
        extent = statistics.extent
        self._statistics = statistics
        self._source = source
        self._reader = ShardReader(statistics.shards, statistics.rows)
        self._sampler = ProbeRowSampler(
            extent.crop_size, seed=extent.seed, repeat_share=extent.repeat_share
        )
        self._window_sampler = ProbeWindowSampler(extent.crop_size, seed=extent.seed)
        dtypes = {"sampled": ROW, "contexts": CONTEXT, "strided": CONTEXT}
        dtypes |= {"visits": VISIT, "padded": PADDED}
        self._tables = {name: [np.zeros(0, dtype)] for name, dtype in dtypes.items()}
        is_small = statistics.sizes[numbers] == SMALL
        n = statistics.rows.n_measurements[numbers]
        contexts = sum(self._sampler.num_contexts(count) for count in n[~is_small].tolist())
        visits = int((is_small & (n >= MIN_MEASUREMENTS_FOR_MODE)).sum())
        # Enough epochs for _MIN_DRAWS; ceil(_MIN_DRAWS / 0) is none.
        large, small, strided = (
            -(-_MIN_DRAWS // draws) if draws else 0 for draws in (contexts, visits, len(numbers))
        )
        statistics.epochs = Epochs(large, max(1, small), strided)

    def run(self, numbers: np.ndarray, advance: Callable[[float], None]) -> None:
        """Measures all rows; those that cannot be used become `bad_rows`."""
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
            raise ValueError(f"row {number} has other tokens than rows.parquet says")
        large_epochs, small_epochs = epochs.large * (not is_small), epochs.small * is_small
        contexts = [c for e in range(large_epochs) for c in sampler.contexts(element, e)]
        strided = [self._window_sampler.context(element, e) for e in range(epochs.strided)]
        visits = [list(sampler.examples(element, e)) for e in range(small_epochs)]
        row = (number, size, statistics.families[number])
        counts = (record.n_measurements, statistics.rows.untimed_tokens[number], record.num_bytes)
        num_contexts = len(contexts) // max(1, epochs.large)
        others = (len(record.measurements), num_contexts, _is_in_order(record, times_us))
        tables = {
            "sampled": np.array([(*row, *counts, *others)], ROW),
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
            _decode(statistics, f"row {number}", batch, 0, row_facts)

    def _stack(self, examples: Sequence[Example]) -> dict[str, np.ndarray]:
        batch = {name: np.stack([e[name] for e in examples]) for name in examples[0]}
        _check_batch(self._statistics, batch, len(examples))
        return batch

    def _contexts(
        self, contexts: Sequence[Context], times_us: np.ndarray, strided: bool = False
    ) -> np.ndarray:
        """Checks contexts of a row and returns them as CONTEXT."""
        lines = np.zeros(len(contexts), CONTEXT)
        if not contexts:
            return lines
        batch = self._stack([context.example for context in contexts])
        parsed = parse(batch["targets"], batch["targets_segmentation"])
        lines["mode"] = [MODE_NAMES.index(context.mode) for context in contexts]
        for name in ("num_tokens", "num_measurements", "num_timed", "window", "has_repeats"):
            lines[name] = [getattr(context, name) for context in contexts]
        lines["padding"] = padding_of(batch)
        lines["repeats"] = repeats_of(parsed)
        lines["whole_measurements"] = parsed.segments["num_measurements"] - 1
        lines["whole_tokens"] = parsed.segments["whole_tokens"]
        first = np.array([context.first for context in contexts])
        steps = (
            lines["window"] * (lines["num_measurements"] - 1) if strided else lines["window"] - 1
        )
        lines["span_seconds"] = (times_us[first + steps] - times_us[first]) / _US_PER_SECOND
        return lines

    def _visits(self, visits: Sequence[Sequence[Example]]) -> dict[str, np.ndarray]:
        """Checks the examples of a small row in some epochs; returns VISIT and PADDED."""
        examples = [example for visit in visits for example in visit]
        tables = {"visits": np.zeros(len(visits), VISIT), "padded": np.zeros(len(examples), PADDED)}
        if not examples:
            return tables
        batch = self._stack(examples)
        segments = parse(batch["targets"], batch["targets_segmentation"]).segments
        ends = np.cumsum([len(visit) for visit in visits])
        begins = np.append(0, ends[:-1])
        # The last example of a visit is whole; the others end with a measurement that may be cut.
        is_cut = np.ones(len(examples), bool)
        is_cut[ends - 1] = False
        num_measurements = segments["num_measurements"] - is_cut
        num_timed = segments["num_timed"] - (is_cut & segments["is_last_timed"])
        tables["visits"]["num_measurements"] = np.add.reduceat(num_measurements, begins)
        tables["visits"]["num_timed"] = np.add.reduceat(num_timed, begins)
        tables["padded"]["padding"] = padding_of(batch)
        return tables


def _is_in_order(row: row_codec.ProbeRow, times_us: np.ndarray) -> bool:
    """Returns whether times ascend between the ends that the record gives (to the second)."""
    expected = np.array([row.first_timestamp_us, row.last_timestamp_us]) // _US_PER_SECOND
    ends = times_us[[0, -1]] // _US_PER_SECOND
    return bool((np.diff(times_us) >= 0).all() and (ends == expected).all())


# --- batches ------------------------------------------------------------------------------------


def _measure_batches(statistics: Statistics, advance: Callable[[float], None]) -> None:
    """Takes the first batches of an endless dataset, as large as the rows allow."""
    extent = statistics.extent
    rng = np.random.default_rng(extent.seed)
    # Padding is the same whatever the order; with mixed_rows=1 few rows are read.
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
            if _check_batch(statistics, batch, size):
                padding.append(padding_of(batch))
                for example in rng.choice(size, min(size, _DECODED_PER_BATCH), replace=False):
                    _decode(statistics, f"batch {number} example {example}", batch, example)
            statistics.num_batches += 1
            advance(1)
    except ProbelineError as error:
        statistics.batch_error = str(error)
    finally:
        batches.close()
    statistics.batch_padding = np.concatenate(padding)
