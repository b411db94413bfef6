"""Buckets: their size, the memory that sorting one takes, and chunk files that changed.

That every history comes out whole, once and sorted is in test_grouping.py.
"""

import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.errors import ProbelineError
from beam_pipeline.probe_rows.bucket import MAX_BUCKETS, Bucket, LargeHistory, num_buckets
from beam_pipeline.probe_rows.chunks import NUM_COLUMNS, Chunk, pack, unpack
from beam_pipeline.probe_rows.external_sort import ExternalSort
from beam_pipeline.shards.claim_checks import ClaimReader
from tests.support.buckets import Measurement, some_units, store
from tests.support.helpers import MAPPED_IPV4


def test_buckets_and_their_size_grow_with_the_input() -> None:
    sizes = np.geomspace(1, 1e12, 400).astype(np.int64).tolist()
    numbers = [num_buckets(size) for size in sizes]
    assert numbers[0] == 1 and numbers[-1] == MAX_BUCKETS and numbers == sorted(numbers)
    assert all(size / number <= 500_000 for size, number in zip(sizes, numbers) if size <= 10**8)
    large = [size / number for size, number in zip(sizes, numbers) if size >= 10**8]
    assert all(a <= 1.01 * b for a, b in pairwise(large))  # fewer chunks than the square
    assert num_buckets(35 * 10**9) > 0.99 * MAX_BUCKETS


def sizes_of(chunk: Chunk) -> list[int]:
    return [
        len(payload) if isinstance(payload, bytes) else payload.length
        for payload in (chunk.probes, chunk.narrow, chunk.wide)
    ]


def test_as_many_probes_are_sorted_at_a_time_as_the_memory_holds(tmp_path):
    units = some_units(3, num_probes=20, per_probe=10, wide_share=0)
    (chunks,) = store(tmp_path, units).values()
    for memory_bytes, steps in ((480, 20), (959, 20), (960, 10), (20 * 480, 1)):
        reader = ClaimReader(str(tmp_path))
        histories = list(Bucket(chunks, reader, memory_bytes, str(tmp_path)).histories())
        reader.close()
        assert [len(history[0]) for history in histories] == [20 // steps] * steps


# --- memory -------------------------------------------------------------------------------------


def sort_all(folder: Path, chunks: list[Chunk], memory_bytes: int) -> Counter[str]:
    """Sorts a bucket; returns how many probes were sorted in which way."""
    reader, ways = ClaimReader(str(folder)), Counter()
    sorter = ExternalSort(f"{folder}/runs", reader, memory_bytes)
    try:
        for history in Bucket(chunks, reader, memory_bytes, str(folder)).histories():
            if isinstance(history, LargeHistory):
                ways["external"] += 1
                for _ in sorter.sort(history.runs):
                    pass
            else:
                ways["in memory"] += len(history.bounds) - 1
    finally:
        reader.close()
    return ways


def peak_of(folder: Path, chunks: list[Chunk], memory_bytes: int) -> int:
    """Returns the most bytes that sorting a bucket takes, once its kernels are compiled."""
    sort_all(folder, chunks[:2], memory_bytes)
    tracemalloc.start()
    sort_all(folder, chunks, memory_bytes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_stays_a_small_multiple_however_many_probes_a_bucket_has(tmp_path):
    units = some_units(6, num_probes=300, per_probe=40, wide_share=1, ties=False)
    (chunks,) = store(tmp_path, units).values()
    memory_bytes, tables = 100_000, 6 * 300 * 24
    total = sum(sum(sizes_of(chunk)) for chunk in chunks)
    assert peak_of(tmp_path, chunks, memory_bytes) < 4 * memory_bytes + 4 * tables < total / 1.8


# --- chunk files that changed -------------------------------------------------------------------


def damaged_units(large: bool) -> list[list[Measurement]]:
    """Work units whose chunks have all three parts, of one probe or of several."""
    if large:
        return some_units(3, num_probes=1, per_probe=120, wide_share=1)
    return some_units(3, num_probes=8, per_probe=15)


@pytest.mark.parametrize("part", ["probes", "narrow", "wide"])
@pytest.mark.parametrize(
    ("memory_bytes", "large", "ways"),
    [
        (1 << 20, False, {"in memory": 8}),
        (800, False, {"in memory": 4, "external": 4}),
        (1500, True, {"external": 1}),
    ],
    ids=["whole", "probes outside", "one probe outside"],
)
def test_a_chunk_that_changed_on_storage_ends_the_run(
    tmp_path, monkeypatch, part, memory_bytes, large, ways
):
    """One that was cut or is gone, too."""
    monkeypatch.setattr("beam_pipeline.probe_rows.chunks.LARGE_RUN_RECORDS", 100)
    (chunks,) = store(tmp_path, damaged_units(large)).values()
    assert sort_all(tmp_path, chunks, memory_bytes) == ways
    payload: Any = getattr(chunks[1], part)
    path = Path(f"{tmp_path}{payload.path}")
    data = bytearray(path.read_bytes())
    end = payload.offset + payload.length
    data[end - 1] ^= 1
    for left in (data, data[: end - 1]):
        path.write_bytes(left)
        with pytest.raises(ProbelineError, match=r"unit-[\w-]+ changed after it was written"):
            sort_all(tmp_path, chunks, memory_bytes)
    path.unlink()
    with pytest.raises(ProbelineError, match=r"cannot read back .*unit-[\w-]+: No such file"):
        sort_all(tmp_path, chunks, memory_bytes)


# --- packed tables of probes --------------------------------------------------------------------

_VALUE = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
_TABLE = st.lists(st.tuples(*[_VALUE] * NUM_COLUMNS), min_size=1, max_size=5)


def packed(tables: list[np.ndarray]) -> list[bytes]:
    bounds = np.cumsum([0, *(table.shape[1] for table in tables)])
    return pack(np.concatenate(tables, axis=1), bounds)


@given(st.lists(_TABLE, min_size=1, max_size=4))
def test_tables_are_unpacked_as_they_were(lines):
    tables = [np.array(some, np.uint64).T for some in lines]
    assert np.array_equal(unpack(packed(tables)), np.concatenate(tables, axis=1))
    for table, data in zip(tables, packed(tables), strict=True):
        assert np.array_equal(unpack([data]), table)


def test_a_probe_takes_few_bytes():
    probes = np.zeros((NUM_COLUMNS, 1000), np.uint64)
    probes[1] = MAPPED_IPV4 | np.arange(0, 1 << 32, (1 << 32) // 1000)[:1000]
    probes[2] = np.arange(1000) % 200 + 70_000
    (data,) = packed([probes])
    assert len(data) <= 1000 * 5 + 80
    assert np.array_equal(unpack([data]), probes)
    (one,) = packed([probes[:, :1]])
    assert len(one) <= 80
