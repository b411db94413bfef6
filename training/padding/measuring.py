"""Measures what the rows of a dataset become in training: padding, modes, windows, sizes.

In goes a dataset, out come `Figures`. Rows are drawn evenly over sizes and address families, so
that the few largest are among them; what rows.parquet tells is taken of all rows. Memory is one
row, one batch, and some 100 bytes a context.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset import row_codec
from beam_pipeline.errors import ProbelineError
from training.batches.config import DataConfig, fitting
from training.dataset import BatchDataset
from training.padding.statistics import (
    CONTEXT,
    EXAMPLE,
    FAMILIES,
    LEAST_OF_A_SMALL_ROW,
    PADDED,
    ROW,
    SMALL,
    VISIT,
    Epochs,
    Extent,
    Figures,
    families_of,
    size_classes,
)
from training.rows.row_source import ProbeRowDataSource, ShardReader
from training.sampler import Context, Example, ProbeRowSampler, ProbeWindowSampler
from training.tokens.draws import MODE_NAMES
from training.tokens.example_faults import (
    Batch,
    context_fault,
    decoded,
    position_fault,
    segments_of,
    shape_fault,
    target_fault,
    time_fault,
    whole_measurements,
)
from training.tokens.tokenizer import TIMESTAMP_ABS, TIMESTAMP_DELTA4

_LEAST_DRAWS = 1_000  # of the timestamp mode, and of strides
_LARGEST_BATCH = 32
_DECODED_PER_BATCH = 4
_CHECKED_TOGETHER = 256
_US_PER_SECOND = 1_000_000
_LINES = {
    "sampled": ROW,
    "contexts": CONTEXT,
    "strided": CONTEXT,
    "visits": VISIT,
    "padded": PADDED,
}


def measure(
    files: str, extent: Extent, advance: Callable[[float], None] = lambda _: None
) -> Figures:
    """Measures a dataset, a split or some shards of it, as `row_table.find_shards` takes them.

    Args:
      advance: is told how many rows and batches are done.

    Raises:
      ProbelineError: there is no finished dataset, or nothing in it.
      UsageError: the crop size does not suit.
    """
    config = DataConfig(files, batch_size=1, crop_size=extent.crop_size)
    source = ProbeRowDataSource(files)
    shards, rows = source.shards, source.rows
    if not len(source):
        raise ProbelineError(f"{files} has no rows: name another split or dataset")
    figures = Figures(
        files, extent, shards, rows, size_classes(rows, config.crop_size), families_of(rows)
    )
    numbers = draw_rows(figures.sizes, figures.families, extent.max_rows, extent.seed)
    _RowMeasurer(figures, source, numbers).run(advance)
    _measure_batches(figures, advance)
    return figures


def draw_rows(sizes: np.ndarray, families: np.ndarray, max_rows: int, seed: int) -> np.ndarray:
    """Draws at most `max_rows` rows: the first, and as equally many of each size and family."""
    strata, stratum = np.unique(sizes * len(FAMILIES) + families, return_inverse=True)
    members = sorted((np.flatnonzero(stratum == i) for i in range(len(strata))), key=len)
    rng = np.random.default_rng(seed)
    drawn, left = [np.zeros(1, np.int64)], max_rows - 1
    for i, numbers in enumerate(members):
        count = min(len(numbers), left // (len(members) - i))
        drawn.append(rng.choice(numbers, count, replace=False))
        left -= count
    return np.unique(np.concatenate(drawn))


def _epochs(draws_an_epoch: int) -> int:
    return -(-_LEAST_DRAWS // draws_an_epoch) if draws_an_epoch else 0


# --- rows ---------------------------------------------------------------------------------------


class _RowMeasurer:
    """Goes through the drawn rows once, each read and dropped again."""

    def __init__(self, figures: Figures, source: ProbeRowDataSource, numbers: np.ndarray):
        extent = figures.extent
        self._figures = figures
        self._source = source
        self._reader = ShardReader(figures.shards, figures.rows)
        self._sampler = ProbeRowSampler(extent.crop_size, seed=extent.seed)
        self._window_sampler = ProbeWindowSampler(extent.crop_size, seed=extent.seed)
        self._numbers = numbers.tolist()
        is_small = figures.sizes[numbers] == SMALL
        n = figures.rows.n_measurements[numbers]
        tells_mode = is_small & (n >= LEAST_OF_A_SMALL_ROW)
        contexts = sum(self._sampler.num_contexts(count) for count in n[~is_small].tolist())
        figures.epochs = Epochs(
            large=_epochs(contexts),
            small=max(1, _epochs(int(tells_mode.sum()))),
            strided=_epochs(len(numbers)),
        )
        self._lines: dict[str, list[tuple]] = {name: [] for name in _LINES}

    def run(self, advance: Callable[[float], None]) -> None:
        """Measures all rows; those that cannot be used become `bad_rows`."""
        for number in self._numbers:
            try:
                self._row(number)
            except (ProbelineError, ValueError) as error:
                self._figures.bad_rows.append(" ".join(str(error).split()))
            advance(1)
        for name, dtype in _LINES.items():
            setattr(self._figures, name, np.array(self._lines[name], dtype))

    def _row(self, number: int) -> None:
        figures, epochs = self._figures, self._figures.epochs
        element = self._source[number]
        record = row_codec.decode_record(self._reader.read(number))
        if record.encoding != figures.encoding:
            raise ValueError(f"row {number} is {record.encoding}, the dataset {figures.encoding}")
        times_us = _times_us(record)
        is_small = bool(figures.sizes[number] == SMALL)
        if self._sampler.is_small(element) != is_small:
            raise ValueError(f"row {number} has other tokens than rows.parquet says")
        contexts, strided = [], []
        if not is_small:
            for epoch in range(epochs.large):
                contexts += self._sampler.contexts(element, epoch)
        for epoch in range(epochs.strided):
            strided.append(self._window_sampler.context(element, epoch))
        place, lines = len(self._lines["sampled"]), self._lines
        facts = (number, figures.sizes[number], figures.families[number], record.n_measurements)
        sizes = (figures.rows.untimed_tokens[number], record.num_bytes, len(record.measurements))
        num_contexts = len(contexts) // max(1, epochs.large)
        lines["sampled"].append((*facts, *sizes, num_contexts, _is_in_order(record, times_us)))
        for context in contexts:
            end = context.first + context.window
            lines["contexts"].append(_context_line(place, context, times_us, end))
        for context in strided:
            end = context.first + context.window * (context.num_measurements - 1) + 1
            lines["strided"].append(_context_line(place, context, times_us, end))
        self._check([context.example for context in contexts + strided])
        for context in contexts[:1] + strided[:1]:
            self._decode(number, context.example, record, times_us, context.mode)
        for epoch in range(epochs.small if is_small else 0):
            examples = list(self._sampler.examples(element, epoch))
            padding = [int((e["inputs_segmentation"] == 0).sum()) for e in examples]
            lines["padded"] += [(place, num_padding) for num_padding in padding]
            lines["visits"].append((place, *_count_timed(examples)))
            self._check(examples)
            for example in examples if epoch == 0 else []:
                self._decode(number, example, record, times_us)

    def _check(self, examples: Sequence[Example]) -> None:
        """Checks examples, some hundred at a time."""
        for begin in range(0, len(examples), _CHECKED_TOGETHER):
            some = examples[begin : begin + _CHECKED_TOGETHER]
            crop_size = self._figures.extent.crop_size
            faults = [
                shape_fault({k: v[np.newaxis] for k, v in e.items()}, 1, crop_size) for e in some
            ]
            fault = next((fault for fault in faults if fault), None)
            self._figures.tallies["shapes"].take(fault, len(some))
            if fault is None:
                batch = {name: np.stack([e[name] for e in some]) for name in some[0]}
                self._figures.tallies["targets"].take(target_fault(batch), len(some))
                self._figures.tallies["positions"].take(position_fault(batch), len(some))

    def _decode(
        self,
        number: int,
        example: Example,
        row: row_codec.ProbeRow,
        times_us: np.ndarray,
        mode: str | None = None,
    ) -> None:
        """Decodes an example of a row and holds it against the row."""
        batch = {name: values[np.newaxis] for name, values in example.items()}
        tallies, first, last = self._figures.tallies, times_us[0], times_us[-1]
        for tokens in segments_of(batch, 0):
            measurements, fault = decoded(tokens)
            fault = fault or context_fault(
                measurements, row.src_addr, first // _US_PER_SECOND, last // _US_PER_SECOND, mode
            )
            tallies["decodes"].take(fault and f"row {number}: {fault}")
            fault = time_fault(measurements)
            tallies["times"].take(fault and f"row {number}: {fault}")


def _times_us(row: row_codec.ProbeRow) -> np.ndarray:
    if row.encoding == "compact":
        return row.run["event_time"]
    return row.to_arrow().column("event_time").cast(pa.int64()).to_numpy()


def _is_in_order(row: row_codec.ProbeRow, times_us: np.ndarray) -> bool:
    """Tells whether times ascend, between the ends that the record tells (to the second)."""
    ends = np.array([row.first_timestamp_us, row.last_timestamp_us]) // _US_PER_SECOND
    told = times_us[[0, -1]] // _US_PER_SECOND
    return bool((np.diff(times_us) >= 0).all() and (told == ends).all())


def _context_line(place: int, context: Context, times_us: np.ndarray, end: int) -> tuple:
    """Returns a context as CONTEXT, of a window that ends before measurement `end`."""
    example, num = context.example, context.num_tokens
    tokens = np.append(example["inputs"][: num - 1], example["targets"][num - 2 : num - 1])
    return (
        place,
        MODE_NAMES.index(context.mode),
        *(context.num_tokens, context.num_measurements, context.num_timed, context.window),
        *whole_measurements(tokens),
        (times_us[end - 1] - times_us[context.first]) / _US_PER_SECOND,
    )


def _count_timed(examples: Sequence[Example]) -> tuple[int, int]:
    """Returns how many measurements, and how many with a timestamp, a small row came as."""
    count = timed = 0
    for number, example in enumerate(examples):
        batch = {name: values[np.newaxis] for name, values in example.items()}
        for tokens in segments_of(batch, 0):
            measurements, end = whole_measurements(tokens)
            if number == len(examples) - 1:  # the last one is whole; elsewhere it may be cut
                measurements, end = measurements + 1, len(tokens)
            told = tokens[:end]
            count += measurements
            timed += int(((told >= TIMESTAMP_ABS) & (told <= TIMESTAMP_DELTA4)).sum())
    return count, timed


# --- batches ------------------------------------------------------------------------------------


def _measure_batches(figures: Figures, advance: Callable[[float], None]) -> None:
    """Takes the first batches of an endless dataset, as large ones as the rows allow."""
    extent = figures.extent
    rng = np.random.default_rng(extent.seed)
    config = _batch_config(figures)
    figures.batch_size = config.batch_size
    batches = iter(BatchDataset(config, figures.shards))
    lines = []
    try:
        for batch in itertools.islice(batches, extent.num_batches):
            lines.append(_check_batch(figures, batch, rng))
            figures.num_batches += 1
            advance(1)
    except ProbelineError as error:
        figures.batch_error = str(error)
    finally:
        batches.close()
    figures.batches = np.concatenate([figures.batches, *lines])


def _batch_config(figures: Figures) -> DataConfig:
    # Padding is the same whatever the order; with mixed_rows=1 few rows are read.
    config = DataConfig(
        figures.files,
        batch_size=_LARGEST_BATCH,
        crop_size=figures.extent.crop_size,
        seed=figures.extent.seed,
        mixed_rows=1,
        on_bad_row="skip",
    )
    return fitting(config, figures.rows)


def _check_batch(figures: Figures, batch: Batch, rng: np.random.Generator) -> np.ndarray:
    """Checks a batch and decodes some of it; returns its lines of EXAMPLE."""
    tallies, size = figures.tallies, figures.batch_size
    fault = shape_fault(batch, size, figures.extent.crop_size)
    tallies["shapes"].take(fault, size)
    if fault:
        return np.zeros(0, EXAMPLE)
    tallies["targets"].take(target_fault(batch), size)
    tallies["positions"].take(position_fault(batch), size)
    for example in rng.choice(size, min(size, _DECODED_PER_BATCH), replace=False):
        for tokens in segments_of(batch, example):
            measurements, fault = decoded(tokens)
            where = f"batch {figures.num_batches} example {example}"
            tallies["decodes"].take(fault and f"{where}: {fault}")
            fault = time_fault(measurements)
            tallies["times"].take(fault and f"{where}: {fault}")
    lines = np.zeros(size, EXAMPLE)
    lines["num_padding"] = (batch["inputs_segmentation"] == 0).sum(axis=1)
    lines["num_segments"] = batch["inputs_segmentation"].max(axis=1)
    return lines
