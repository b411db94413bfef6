"""Packed tables of probes are unpacked as they were, and small where their values are."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.probe_rows.probe_table import PROBE, pack, unpack
from tests.support.helpers import MAPPED_IPV4

_HALF, _COUNT = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
_TABLE = st.lists(st.tuples(_HALF, _HALF, _COUNT, _COUNT), min_size=1, max_size=5)


def packed(tables: list[np.ndarray]) -> list[bytes]:
    bounds = np.cumsum([0, *map(len, tables)])
    probes = np.concatenate(tables)
    data, ends = pack([probes[name] for name in PROBE.names or ()], bounds)
    return [data[start:end].tobytes() for start, end in itertools.pairwise(ends)]


@given(st.lists(_TABLE, min_size=1, max_size=4))
def test_tables_are_unpacked_as_they_were(lines):
    tables = [np.array(some, PROBE) for some in lines]
    for table, data in zip(tables, packed(tables), strict=True):
        assert np.array_equal(unpack(data), table)


def test_a_probe_takes_few_bytes():
    probes = np.zeros(1000, PROBE)
    probes["lo"] = MAPPED_IPV4 | np.arange(0, 1 << 32, (1 << 32) // 1000)[:1000]
    probes["narrow"] = np.arange(1000) % 200 + 70_000
    (data,) = packed([probes])
    assert len(data) <= 1000 * 5 + 80
    assert np.array_equal(unpack(data), probes)
    (one,) = packed([probes[:1]])
    assert len(one) <= 80


def test_a_table_is_the_same_whatever_lies_beside_it():
    first, second = np.zeros(3, PROBE), np.full(2, 7, PROBE)
    assert packed([first, second]) == packed([first]) + packed([second])
