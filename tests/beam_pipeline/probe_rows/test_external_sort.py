"""What the bounded sort reads and writes, and its memory.

That it sorts any runs in any memory is in test_grouping.py.
"""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from beam_pipeline.dataset.sorted_run import NARROW, WIDE
from beam_pipeline.probe_rows import external_sort
from beam_pipeline.probe_rows.external_sort import (
    ExternalSort,
    SortedRun,
    Span,
    UnreadRun,
    load_all,
)
from beam_pipeline.shards.claim_checks import ClaimReader, ClaimWriter, Payload, PayloadReader
from tests.support.helpers import is_sorted, make_run, quick_and_slow


def unread(stored: list[SortedRun], reader: ClaimReader) -> Iterator[UnreadRun]:
    """Yields runs as a bucket does, with spans."""
    for run in stored:
        (records,) = load_all([run], ClaimReader())
        span = Span(*records["event_time"][[0, -1]].tolist())
        yield UnreadRun(run.is_wide, run.num_bytes, PayloadReader(run.payload, reader), span)


def store(folder: Path, runs: list[np.ndarray]) -> list[SortedRun]:
    """Returns sorted runs, stored in one file."""
    writer = ClaimWriter(str(folder / "chunks"), "unit")
    stored = [SortedRun(run.dtype == WIDE, writer.put(memoryview(run).cast("B"))) for run in runs]
    writer.close()
    return stored


def cut(run: np.ndarray, num_chunks: int, seed: int) -> list[np.ndarray]:
    """Deals a run's records at random to sorted chunks."""
    owner = np.random.default_rng(seed).integers(0, num_chunks, len(run))
    return [run[owner == number] for number in range(num_chunks) if (owner == number).any()]


class Sorted(NamedTuple):
    blocks: list[np.ndarray]
    num_reads: int
    spilled_bytes: int


class CountingReader(ClaimReader):
    num_reads = 0

    def read(self, payload: Payload) -> bytes:
        self.num_reads += 1
        return super().read(payload)


def sort_all(folder: Path, stored: list[SortedRun], memory_bytes: int) -> Sorted:
    reader = CountingReader()
    sorter = ExternalSort(str(folder / "runs"), reader, memory_bytes)
    try:
        blocks = list(sorter.sort(unread(stored, reader)))
    finally:
        reader.close()
    return Sorted(blocks, reader.num_reads, sorter.spilled_bytes)


# --- what is read and written -------------------------------------------------------------------


def test_disjoint_runs_are_read_once_each_whatever_their_order(tmp_path):
    """Their sizes are very different."""
    run = make_run(60_000, seed=24, ties=True)
    step = np.flatnonzero(np.diff(run["event_time"])) + 1  # no time is in two runs
    wanted = np.linspace(0, 1, 301)[1:-1] ** 1.5
    bounds = np.unique(step[np.searchsorted(step, wanted * len(run)).clip(max=len(step) - 1)])
    runs = np.split(run, bounds)
    order = np.random.default_rng(25).permutation(len(runs)).tolist()
    found = sort_all(tmp_path, store(tmp_path, [runs[at] for at in order]), 30_000)
    assert np.concatenate(found.blocks).tobytes() == run.tobytes()
    assert found.num_reads == len(runs) > 280
    assert found.spilled_bytes == 0


@pytest.mark.parametrize(("num_runs", "merged"), [(3, 0), (4, 2), (27, 54)])
def test_no_more_runs_than_the_fan_in_are_merged_at_a_time(tmp_path, monkeypatch, num_runs, merged):
    """And no more than it takes: of four runs, two are merged before the last merge."""
    monkeypatch.setattr(external_sort, "MAX_FAN_IN", 3)
    run = make_run(num_runs * 20, seed=23)
    stored = store(tmp_path, [run[at::num_runs].copy() for at in range(num_runs)])
    found = sort_all(tmp_path, stored, 300)
    assert np.concatenate(found.blocks).tobytes() == run.tobytes()
    assert found.spilled_bytes == merged * 20 * run.itemsize


@pytest.mark.parametrize("is_disjoint", quick_and_slow([False, True], [False]))
def test_memory_stays_a_small_multiple_however_long_the_history(tmp_path, is_disjoint):
    run, memory_bytes = make_run(150_000, seed=16), 200_000
    stored = store(tmp_path, np.split(run, 15) if is_disjoint else cut(run, 14, seed=17))
    wanted, num_records = run.tobytes(), len(run)
    del run
    reader = ClaimReader()
    runs = list(unread(stored, reader))
    sorter = ExternalSort(str(tmp_path / "runs"), reader, memory_bytes)
    tracemalloc.start()
    at, peak = 0, 0
    for block in sorter.sort(runs):
        peak = max(peak, tracemalloc.get_traced_memory()[1])
        assert is_sorted(block)
        assert block.tobytes() == wanted[at : at + block.nbytes]
        at += block.nbytes
        tracemalloc.reset_peak()  # what the checks took is not the sort's
    tracemalloc.stop()
    reader.close()
    assert at == num_records * NARROW.itemsize
    assert peak < 4 * memory_bytes < len(wanted)
