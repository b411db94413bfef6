"""Many identities and places at a time, against one at a time with hashlib and whole numbers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.dataset import layout
from beam_pipeline.dataset.addresses import format_any
from beam_pipeline.dataset.placement import places, probe_hashes, range_of, splits, src_ids

_HALVES = st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1))
_IPV4 = st.integers(0, 2**32 - 1).map(lambda value: (0, 0xFFFF << 32 | value))
_ADDRESSES = st.lists(st.one_of(_IPV4, st.tuples(_HALVES, _HALVES)), min_size=1, max_size=20)


def columns(addresses: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    hi, lo = (np.array(half, np.uint64) for half in zip(*addresses, strict=True))
    return hi, lo, format_any(hi, lo).to_pylist()


@given(
    _ADDRESSES,
    st.one_of(st.sampled_from([0.0, 1.0, 0.5, math.nextafter(1, 0)]), st.floats(0, 1)),
    st.integers(-(2**63), 2**63 - 1),
)
def test_ids_and_splits_of_columns(addresses, ratio, seed):
    hi, lo, texts = columns(addresses)
    assert src_ids(hi, lo).tolist() == [layout.src_id(text) for text in texts]
    assert splits(hi, lo, ratio, seed).tolist() == [
        layout.split_of(text, ratio, seed) for text in texts
    ]


@given(_ADDRESSES, st.integers(0, 2**31 - 1), st.integers(1, 2**31))
def test_places_and_shards_of_columns(addresses, row_index, num_shards):
    hi, lo, texts = columns(addresses)
    indexes = np.array([row_index * (at % 2) for at in range(len(lo))], np.int32)
    found = places(probe_hashes(hi, lo), indexes)
    keys = list(zip(texts, indexes.tolist(), strict=True))
    assert found.tolist() == [layout.place_of(*key) for key in keys]
    assert range_of(found, num_shards).tolist() == [
        layout.shard_of_row(*key, num_shards) for key in keys
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_the_place_of_a_row_never_changes(version):
    """Another place would move every row of every dataset; those of version 1 are still read."""
    keys = [("192.0.2.1", 0), ("192.0.2.1", 1), ("::", 0), ("2001:db8::1", 7)]
    found = [layout.shard_of_row(*key, 1000, version) for key in keys]
    assert found == {1: [271, 911, 740, 350], 2: [104, 29, 0, 476]}[version]


def test_rows_of_a_probe_are_spread_over_all_shards():
    shards = [layout.shard_of_row("192.0.2.1", number, 50) for number in range(1000)]
    assert max(np.bincount(shards, minlength=50)) < 45
