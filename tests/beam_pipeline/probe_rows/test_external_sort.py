"""The bounded sort against sorted(): the same records, whatever the chunks and the memory."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.sorted_run import NARROW, WIDE
from beam_pipeline.errors import ProbelineError
from beam_pipeline.probe_rows import external_sort
from beam_pipeline.probe_rows.external_sort import ExternalSort, SortedRun
from beam_pipeline.shards.claim_checks import ClaimReader, ClaimWriter, StoredPayload
from tests.support.helpers import (
    is_sorted,
    make_run,
    records_as_tuples,
    records_strategy,
    run_of_tuples,
)
from tests.support.properties import num_examples


def store(folder: Path, runs: list[np.ndarray], inline_bytes: int = 0) -> list[SortedRun]:
    """Returns sorted runs as chunks in one file; small ones travel inline."""
    writer = ClaimWriter(str(folder / "chunks"), "unit", inline_bytes)
    chunks = [SortedRun(run.dtype == WIDE, writer.put(memoryview(run).cast("B"))) for run in runs]
    writer.close()
    return chunks


def cut(run: np.ndarray, num_chunks: int, seed: int) -> list[np.ndarray]:
    """Deals a run's records at random to sorted chunks."""
    owner = np.random.default_rng(seed).integers(0, num_chunks, len(run))
    return [run[owner == number] for number in range(num_chunks) if (owner == number).any()]


def sort_all(folder: Path, chunks: list[SortedRun], memory_bytes: int) -> list[np.ndarray]:
    reader = ClaimReader()
    try:
        return list(ExternalSort(str(folder / "runs"), reader, memory_bytes).sort(chunks))
    finally:
        reader.close()


def tuples_of(blocks: list[np.ndarray]) -> list[tuple]:
    return [record for block in blocks for record in records_as_tuples(block)]


CHUNKS = st.lists(st.lists(records_strategy(), min_size=1, max_size=15), min_size=1, max_size=12)


@settings(
    max_examples=num_examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    CHUNKS,
    st.integers(0, 20_000).map(lambda n: n // 20),
    st.sampled_from([2, 3, 128]),
    st.sampled_from([0, 50, 10_000]),
)
def test_any_chunks_come_out_as_sorted_gives_them(
    tmp_path, monkeypatch, groups, memory_bytes, fan_in, inline_bytes
):
    monkeypatch.setattr(external_sort, "MAX_FAN_IN", fan_in)
    chunks = store(tmp_path, [run_of_tuples(sorted(group)) for group in groups], inline_bytes)
    blocks = sort_all(tmp_path, chunks, memory_bytes)
    assert tuples_of(blocks) == sorted(record for group in groups for record in group)
    assert all(len(block) for block in blocks)


@pytest.mark.parametrize("memory_bytes", [1, 100, 2_000, 1 << 20])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("fan_in", [3, 128])
def test_many_passes_over_many_chunks(tmp_path, monkeypatch, fan_in, wide, memory_bytes):
    monkeypatch.setattr(external_sort, "MAX_FAN_IN", fan_in)
    run = make_run(400, seed=1, wide=wide, ties=True)
    chunks = store(tmp_path, cut(run, 15, seed=2))
    blocks = sort_all(tmp_path, chunks, memory_bytes)
    assert tuples_of(blocks) == records_as_tuples(run)
    assert (len(blocks) == 1) == (memory_bytes >= run.nbytes)


def test_narrow_and_wide_chunks_meet_in_one_order(tmp_path, monkeypatch):
    """Only one group of runs has a wide one, so widths differ between the passes too."""
    monkeypatch.setattr(external_sort, "MAX_FAN_IN", 3)
    runs = [*cut(make_run(600, seed=3, ties=True), 11, seed=4), make_run(40, seed=5, wide=True)]
    blocks = sort_all(tmp_path, store(tmp_path, runs), 2_000)
    assert len(blocks) > 5
    assert tuples_of(blocks) == sorted(record for run in runs for record in records_as_tuples(run))


def test_the_order_of_the_chunks_does_not_matter(tmp_path):
    chunks = store(tmp_path, cut(make_run(500, seed=6, wide=True, ties=True), 20, seed=7))
    one_way = np.concatenate(sort_all(tmp_path, chunks, 3_000))
    other_way = np.concatenate(sort_all(tmp_path, chunks[::-1], 3_000))
    assert one_way.tobytes() == other_way.tobytes()


@pytest.mark.parametrize("memory_bytes", [100, 1_000, 100_000])
def test_records_that_are_all_equal_are_all_kept(tmp_path, memory_bytes):
    run = np.repeat(make_run(1, seed=8), 700)
    blocks = sort_all(tmp_path, store(tmp_path, [run[:300], run[300:310], run[310:]]), memory_bytes)
    assert np.concatenate(blocks).tobytes() == run.tobytes()


def test_one_chunk_larger_than_memory_is_streamed_without_a_spill(tmp_path):
    run = make_run(2_000, seed=9)
    reader = ClaimReader()
    sorter = ExternalSort(str(tmp_path / "runs"), reader, 4_000)
    blocks = list(sorter.sort(store(tmp_path, [run])))
    reader.close()
    assert np.concatenate(blocks).tobytes() == run.tobytes()
    assert len(blocks) > 5
    assert sorter.spilled_bytes == 0
    assert not (tmp_path / "runs").exists()


def test_small_chunks_are_joined_to_runs_of_about_the_memory_allowed(tmp_path):
    """One file handle and one block a chunk would be too many and too small."""
    run, memory_bytes = make_run(2_000, seed=10), 4_000
    reader = ClaimReader()
    sorter = ExternalSort(str(tmp_path / "runs"), reader, memory_bytes)
    blocks = list(sorter.sort(store(tmp_path, cut(run, 400, seed=11))))
    reader.close()
    assert np.concatenate(blocks).tobytes() == run.tobytes()
    assert sorter.spilled_bytes == run.nbytes
    sizes = [path.stat().st_size for path in (tmp_path / "runs").iterdir()]
    assert sum(sizes) == run.nbytes
    assert len(sizes) <= 1 + run.nbytes // memory_bytes
    assert max(sizes) < memory_bytes + memory_bytes // 16


@pytest.mark.parametrize(("num_chunks", "passes"), [(3, 0), (4, 1), (9, 1), (10, 2), (27, 2)])
def test_no_more_runs_than_the_fan_in_are_merged_at_a_time(
    tmp_path, monkeypatch, num_chunks, passes
):
    monkeypatch.setattr(external_sort, "MAX_FAN_IN", 3)
    run = make_run(num_chunks * 20, seed=23)
    reader = ClaimReader()
    sorter = ExternalSort(str(tmp_path / "runs"), reader, 300)
    blocks = list(
        sorter.sort(store(tmp_path, [run[at::num_chunks].copy() for at in range(num_chunks)]))
    )
    reader.close()
    assert np.concatenate(blocks).tobytes() == run.tobytes()
    assert sorter.spilled_bytes == passes * run.nbytes


def test_what_fits_in_memory_is_one_sorted_block_and_touches_no_storage(tmp_path):
    run = make_run(200, seed=12, ties=True)
    chunks = store(tmp_path, cut(run, 5, seed=13), inline_bytes=1 << 20)
    (block,) = sort_all(tmp_path, chunks, run.nbytes)
    assert block.tobytes() == run.tobytes()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("num_chunks", [10, 40, 400])
def test_no_block_is_larger_than_the_memory_allowed(tmp_path, num_chunks, wide):
    run = make_run(4_000, seed=14, wide=wide)
    memory_bytes = 16_000
    blocks = sort_all(tmp_path, store(tmp_path, cut(run, num_chunks, seed=15)), memory_bytes)
    assert max(block.nbytes for block in blocks) <= 2 * memory_bytes
    assert len(np.concatenate(blocks)) == len(run)


def test_memory_stays_a_small_multiple_however_long_the_history(tmp_path):
    run, memory_bytes = make_run(150_000, seed=16), 200_000
    chunks = store(tmp_path, cut(run, 14, seed=17))
    wanted, num_records = run.tobytes(), len(run)
    del run
    reader = ClaimReader()
    sorter = ExternalSort(str(tmp_path / "runs"), reader, memory_bytes)
    tracemalloc.start()
    at, peak = 0, 0
    for block in sorter.sort(chunks):
        peak = max(peak, tracemalloc.get_traced_memory()[1])
        assert is_sorted(block)
        assert block.tobytes() == wanted[at : at + block.nbytes]
        at += block.nbytes
        tracemalloc.reset_peak()  # what the checks took is not the sort's
    tracemalloc.stop()
    reader.close()
    assert at == num_records * NARROW.itemsize
    assert peak < 4 * memory_bytes < len(wanted)


# --- chunk files that changed -------------------------------------------------------------------


def damage(path: str, at: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 1
    Path(path).write_bytes(data)


@pytest.mark.parametrize("memory_bytes", [1 << 20, 2_000], ids=["in memory", "block by block"])
@pytest.mark.parametrize("record", [0, 150, 299])
def test_a_chunk_that_changed_on_storage_ends_the_run(tmp_path, record, memory_bytes):
    chunks = store(tmp_path, [make_run(300, seed=18), make_run(10, seed=19)])
    payload = chunks[0].payload
    assert isinstance(payload, StoredPayload)
    damage(payload.path, payload.offset + record * NARROW.itemsize + 8)  # of the destination
    with pytest.raises(ProbelineError, match=r"unit-\w+ changed after it was written"):
        sort_all(tmp_path, chunks, memory_bytes)


@pytest.mark.parametrize("memory_bytes", [1 << 20, 2_000], ids=["in memory", "block by block"])
def test_a_chunk_file_that_was_cut_ends_the_run(tmp_path, memory_bytes):
    chunks = store(tmp_path, [make_run(300, seed=20)])
    payload = chunks[0].payload
    assert isinstance(payload, StoredPayload)
    os.truncate(payload.path, payload.length - 1)
    with pytest.raises(ProbelineError, match="changed after it was written"):
        sort_all(tmp_path, chunks, memory_bytes)


def test_a_chunk_file_that_is_gone_ends_the_run_with_its_name(tmp_path):
    chunks = store(tmp_path, [make_run(300, seed=21)])
    payload = chunks[0].payload
    assert isinstance(payload, StoredPayload)
    os.remove(payload.path)
    with pytest.raises(ProbelineError, match=r"cannot read back .*unit-\w+: No such file"):
        sort_all(tmp_path, chunks, 1 << 20)


# --- SortedRun ----------------------------------------------------------------------------------


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
@pytest.mark.parametrize("wide", [False, True])
def test_a_stored_run_survives_the_trip_as_bytes_and_can_be_cut(tmp_path, wide, inline_bytes):
    run = make_run(50, seed=22, wide=wide)
    (stored,) = store(tmp_path, [run], inline_bytes)
    again = SortedRun.decode(stored.encode())
    assert again == stored
    assert again.count == 50
    reader = ClaimReader()
    assert again.load(reader).tobytes() == run.tobytes()
    part = SortedRun.decode(again.part(7, 20).encode())
    assert part.load(reader).tobytes() == run[7:27].tobytes()
    assert part.part(3, 5).load(reader).tobytes() == run[10:15].tobytes()
    reader.close()
