"""Packed tables of probes are unpacked as they were, and small where their values are."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.probe_rows.chunks import NUM_COLUMNS, pack, unpack
from tests.support.helpers import MAPPED_IPV4

_VALUE = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
_TABLE = st.lists(st.tuples(*[_VALUE] * NUM_COLUMNS), min_size=1, max_size=5)


def packed(tables: list[np.ndarray]) -> list[bytes]:
    bounds = np.cumsum([0, *(table.shape[1] for table in tables)])
    data, ends = pack(np.concatenate(tables, axis=1), bounds)
    return [data[start:end].tobytes() for start, end in itertools.pairwise(ends)]


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
