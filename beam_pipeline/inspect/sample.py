"""A bounded, repeatable sample of a split's measurements, drawn from its rows.

Points are placed at equal distances over all measurements, in the order of src_id and row_index.
From each row hit, evenly spread measurements are taken, so the chance of a row is proportional to
its length, and all measurements have about equal weight. A small split is taken whole.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from beam_pipeline.dataset.row_codec import ProbeRow
from beam_pipeline.dataset.row_index import RowIndex
from beam_pipeline.dataset.rows import Rows
from beam_pipeline.dataset.sorted_run import WIDE, widen

HOUR_US = 3_600_000_000
HOURS = 24
MAX_ROWS = 400
MAX_BYTES = 64 << 20
MAX_MEASUREMENTS = 400_000
# A silence is longer than an hour and this many mean intervals of the row.
_INTERVALS_OF_SILENCE = 20
_THREADS = 4


class Plan(NamedTuple):
    """The rows to read: their lines in the row index, and the share of the split of each."""

    lines: np.ndarray
    shares: np.ndarray
    is_whole: bool


@dataclass(frozen=True)
class Sample:
    """Measurements [m] of some rows [r] of a split."""

    lines: np.ndarray  # int64 [r], the rows' lines in the row index
    is_whole: bool
    num_silences: np.ndarray  # int64 [r], within each row
    longest_silence_us: np.ndarray
    run: np.ndarray  # `sorted_run.WIDE` [m]
    weight: np.ndarray  # float64 [m], measurements of the split represented by each

    def __len__(self) -> int:
        return len(self.run)

    @property
    def answered(self) -> np.ndarray:
        return self.run["rtt"] >= 0

    @property
    def hours(self) -> np.ndarray:
        """The hour of the day of each measurement, UTC: int64 [m]."""
        return self.run["event_time"] // HOUR_US % HOURS


def plan(index: RowIndex) -> Plan:
    """Chooses the rows: at most MAX_ROWS and, except for a single larger row, MAX_BYTES."""
    total = int(index.n_measurements.sum())
    fits = len(index) <= MAX_ROWS and int(index.num_bytes.sum()) <= MAX_BYTES
    if total <= MAX_MEASUREMENTS and fits:
        shares = index.n_measurements / max(1, total)
        return Plan(np.arange(len(index)), shares, True)
    order = np.lexsort((index.row_index, index.src_id))
    ends = np.cumsum(index.n_measurements[order])
    num_points = MAX_ROWS
    while True:
        points = (2 * np.arange(num_points) + 1) * total // (2 * num_points)
        rows, hits = np.unique(np.searchsorted(ends, points, "right"), return_counts=True)
        lines = order[rows]
        if num_points == 1 or int(index.num_bytes[lines].sum()) <= MAX_BYTES:
            break
        num_points //= 2
    in_file_order = np.argsort(lines)
    return Plan(lines[in_file_order], hits[in_file_order] / num_points, False)


def draw(rows: Rows) -> Sample:
    """Draws the sample of a split; ProbelineError if a row is damaged or contradicts its line."""
    index = rows.lines
    planned = plan(index)

    def read(places: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        return [
            _take(rows[line], share, planned.is_whole)
            for line, share in zip(planned.lines[places], planned.shares[places], strict=True)
        ]

    # In plan order, some shards at a time.
    shards = index.shard[planned.lines]
    by_shard = np.split(np.arange(len(shards)), np.flatnonzero(np.diff(shards)) + 1)
    with ThreadPoolExecutor(_THREADS) as threads:
        taken = list(chain.from_iterable(threads.map(read, by_shard)))
    runs, silences = [run for run, _ in taken], [lengths for _, lengths in taken]
    counts = np.array(list(map(len, runs)), np.int64)
    weight = planned.shares * index.n_measurements.sum() / np.maximum(1, counts)
    return Sample(
        lines=planned.lines,
        is_whole=planned.is_whole,
        num_silences=np.array(list(map(len, silences)), np.int64),
        longest_silence_us=np.array([each.max(initial=0) for each in silences], np.int64),
        run=np.concatenate([np.zeros(0, WIDE), *runs]),
        weight=np.repeat(weight, counts),
    )


def _take(row: ProbeRow, share: float, is_whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sampled measurements of a row, and the lengths of its silences in µs."""
    run = widen(row.run)
    gaps = np.diff(run["event_time"])
    mean_us = (int(run["event_time"][-1]) - int(run["event_time"][0])) / max(1, len(gaps))
    is_silence = gaps > max(HOUR_US, _INTERVALS_OF_SILENCE * mean_us)
    count = len(run) if is_whole else min(len(run), max(1, round(share * MAX_MEASUREMENTS)))
    if count < len(run):
        # One from each of `count` parts; equal distances could miss a round of destinations.
        rng = np.random.default_rng([row.src_id, row.row_index])
        run = run[((np.arange(count) + rng.random(count)) * len(run) / count).astype(np.int64)]
    return run, gaps[is_silence]
