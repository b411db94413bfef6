"""The estimate of a hot probe: what its sort and its cut read and move, as the job does."""

import heapq
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.dataset.layout import RowFormat
from beam_pipeline.dataset.sorted_run import NARROW
from beam_pipeline.probe_rows import grouping, merge_plan
from beam_pipeline.probe_rows.bucket import Bucket, LargeHistory
from beam_pipeline.probe_rows.external_sort import ExternalSort, SortedRun
from beam_pipeline.probe_rows.grouping import SEGMENT_BYTES, SortBucket
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.row_splitting import OpenRows
from beam_pipeline.shards.claim_checks import READS_AT_A_TIME, ClaimReader, ClaimWriter, Payload
from benchmarks import estimate, scale, worker
from tests.support.buckets import unread


class TimedReader(ClaimReader):
    """Counts reads, and in `now` those waited for: READS_AT_A_TIME of them take one of time."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.num_bytes = self.now = 0
        self._free_at = [0] * READS_AT_A_TIME

    def ahead(self, payload: Payload) -> Callable[[], bytes]:
        if isinstance(payload, bytes):
            return super().ahead(payload)
        self.reads += 1
        self.num_bytes += payload.length
        done = max(self.now, heapq.heappop(self._free_at)) + 1
        heapq.heappush(self._free_at, done)
        return lambda: self._waited(payload, done)

    def _waited(self, payload: Payload, done: int) -> bytes:
        self.now = max(self.now, done)
        return super().read(payload)


MEMORY_BYTES = 1 << 20


def hot_runs(
    folder: Path, chunk_bytes: int, num_chunks: int, are_disjoint: bool
) -> list[SortedRun]:
    """Returns the runs of a probe in work units, stored, in any order."""
    count = chunk_bytes // 16
    writer = ClaimWriter(str(folder), "unit")
    runs = []
    for number in np.random.default_rng(1).permutation(num_chunks).tolist():
        run = np.zeros(count, NARROW)
        places = np.arange(count)
        run["event_time"] = (
            places + number * count if are_disjoint else places * num_chunks + number
        )
        runs.append(SortedRun(False, writer.put(memoryview(run).cast("B"))))
    writer.close()
    return runs


@pytest.mark.parametrize("are_disjoint", [True, False], ids=["disjoint", "overlapping"])
@pytest.mark.parametrize(
    ("chunk_bytes", "num_chunks"), [(100_000, 60), (20_000, 200), (700_000, 12)]
)
def test_a_hot_probe_reads_what_the_estimate_says(
    are_disjoint, chunk_bytes, num_chunks, tmp_path, monkeypatch
):
    """All is a thirtieth of what it is, and what is merged at a time a quarter."""
    monkeypatch.setattr(merge_plan, "MAX_FAN_IN", 8)
    monkeypatch.setattr(estimate, "SPAN_RECORDS", 1)
    monkeypatch.setattr(estimate, "INLINE_BYTES", 0)
    num_bytes = chunk_bytes * num_chunks
    reader = TimedReader()
    runs = unread(hot_runs(tmp_path / "in", chunk_bytes, num_chunks, are_disjoint), reader)
    sort = ExternalSort(str(tmp_path / "runs"), reader, MEMORY_BYTES)
    assert sum(block.nbytes for block in sort.sort(runs)) == num_bytes
    expected = estimate.hot_probe(num_bytes, chunk_bytes, are_disjoint, MEMORY_BYTES)
    nothing = estimate.hot_probe(num_bytes, num_bytes, True, 2 * num_bytes)  # one read, and the cut
    assert reader.reads == pytest.approx(expected.reads - nothing.reads + 1, rel=0.05)
    assert reader.now == pytest.approx(expected.waits - nothing.waits + 1, rel=0.35)
    assert reader.num_bytes == expected.merges * num_bytes
    moved = reader.num_bytes + sort.spilled_bytes
    assert moved == pytest.approx(expected.bytes_moved - nothing.bytes_moved + num_bytes)
    if are_disjoint:
        assert sort.spilled_bytes == 0
        if chunk_bytes < MEMORY_BYTES // 2:
            assert reader.reads == num_chunks


def test_a_hot_probe_in_small_chunks_reads_what_the_estimate_says(tmp_path, monkeypatch):
    monkeypatch.setattr(merge_plan, "MAX_FAN_IN", 8)
    num_measurements = 60 * (1 << 17) // 16
    num_bytes = 16 * (num_measurements - num_measurements % scale.CHUNK_RECORDS)
    chunks = list(worker.chunks(num_measurements))
    np.random.default_rng(2).shuffle(chunks)  # type: ignore[arg-type]
    reader = TimedReader()
    sort = ExternalSort(str(tmp_path), reader, 1 << 17)
    (history,) = Bucket(chunks, reader, 1 << 17, str(tmp_path)).histories()
    assert isinstance(history, LargeHistory)
    assert sum(len(run) for run in sort.sort(history.runs)) == num_bytes // 16
    expected = estimate.hot_probe(num_bytes, scale.CHUNK_RECORDS * 16, memory_bytes=1 << 17)
    nothing = estimate.hot_probe(num_bytes, num_bytes, True, 2 * num_bytes)
    assert reader.reads == pytest.approx(expected.reads - nothing.reads + 1, rel=0.1)
    moved = reader.num_bytes + sort.spilled_bytes
    # What is joined is whole chunks, here ten of them with their tables.
    assert moved == pytest.approx(expected.bytes_moved - nothing.bytes_moved + num_bytes, rel=0.03)


def test_the_cut_of_a_hot_probe_reads_what_the_estimate_says(tmp_path, monkeypatch):
    """Rows and segments are a sixteenth of what they are."""
    for module in (grouping, estimate):
        monkeypatch.setattr(module, "SEGMENT_BYTES", SEGMENT_BYTES // 16)
    monkeypatch.setattr(estimate, "_ROW_RUN_BYTES", estimate._ROW_RUN_BYTES // 16)
    run = np.zeros(1_000_000, NARROW)
    run["event_time"] = np.arange(len(run)) * 1_000_000
    row_format = RowFormat("compact", (8 << 20) // 16)
    sort = SortBucket(Workspace(str(tmp_path), 0), row_format)
    segments = list(sort._store_segments([run]))
    reader = TimedReader()
    rows = OpenRows("192.0.2.1", [], 0, row_format, reader)
    cut = [row for segment in segments for row in rows.append(segment)]
    assert len(cut) == pytest.approx(run.nbytes / estimate._ROW_RUN_BYTES, abs=1)
    expected = estimate.hot_probe(run.nbytes, run.nbytes, True, 2 * run.nbytes)
    assert reader.reads == pytest.approx(expected.reads - 1, rel=0.1)
    assert reader.now == pytest.approx(expected.waits - 1, rel=0.1)
    written_and_staged = 2 * run.nbytes
    moved = reader.num_bytes + written_and_staged
    assert moved == pytest.approx(expected.bytes_moved - run.nbytes, rel=0.05)
