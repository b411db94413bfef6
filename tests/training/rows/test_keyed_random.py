"""Numbers from keys: they are what SplitMix64 gives, uniform, and unrelated for related keys.

Keys are fixed, so that a test passes or fails for good. A bound on a statistic is one that truly
random numbers break with a probability of 1e-9.
"""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import njit

from tests.support.properties import num_examples
from tests.support.reference_sampler import distance, most_chi_square, most_deviation
from training.rows.keyed_random import (
    combine,
    key_of,
    next_below,
    next_uniform,
    next_word,
    permuted,
)


# Not cached: numba does not see when what they call has changed.
@njit
def numbers_below(key, count, limit):
    """The first numbers of a key's stream."""
    stream, found = np.full(1, key, np.uint64), np.empty(count, np.int64)
    for i in range(count):
        found[i] = next_below(stream, limit)
    return found


@njit
def uniform_numbers(keys, count):
    """The first numbers of the stream of each key."""
    found = np.empty((len(keys), count))
    for i in range(len(keys)):
        stream = np.full(1, keys[i], np.uint64)
        for j in range(count):
            found[i, j] = next_uniform(stream)
    return found


@njit
def places_of(indices, size, keys):
    found = np.empty((len(keys), len(indices)), np.int64)
    for i in range(len(keys)):
        for j in range(len(indices)):
            found[i, j] = permuted(indices[j], size, keys[i])
    return found


def permutation(size, key):
    return places_of(np.arange(size), size, np.full(1, key, np.uint64))[0]


@njit
def key_in_kernel(values):
    key = np.uint64(0)
    for value in values:
        key = combine(key, value)
    return key


@njit
def keys_below(key, count, step):
    """The keys of a key with each of 0, step, 2 * step, …"""
    found = np.empty(count, np.uint64)
    for i in range(count):
        found[i] = combine(key, i * step)
    return found


@njit
def keys_with(keys, value):
    found = np.empty(len(keys), np.uint64)
    for i in range(len(keys)):
        found[i] = combine(keys[i], value)
    return found


def assert_even(counts: np.ndarray) -> None:
    expected = counts.sum() / counts.size
    assert expected >= 20
    assert ((counts - expected) ** 2 / expected).sum() < most_chi_square(counts.size - 1)


def test_a_stream_is_splitmix64():
    # As published: https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64
    stream = np.full(1, 1234567, np.uint64)
    assert [next_word(stream) for _ in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize("limit", [3, 4099])
def test_next_below_is_uniform(limit):
    values = numbers_below(key_of(1, limit), 90_000, limit)
    assert values.min() >= 0
    assert values.max() < limit
    assert_even(np.bincount(values, minlength=limit))


integers = st.one_of(
    st.sampled_from([0, 1, -1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1]),
    st.integers(-(2**63), 2**64 - 1),
)


@settings(max_examples=num_examples(200))
@given(st.lists(integers, min_size=1, max_size=4))
@example([-1])
@example([2**63])
def test_key_of_is_combine_inside_kernels(values):
    wrapped = [value & (2**64 - 1) for value in values]
    expected = key_in_kernel(np.array(wrapped, np.uint64))
    assert key_of(*values) == expected
    assert key_of(*values).dtype == np.uint64
    as_signed = np.array(wrapped, np.uint64).view(np.int64)
    assert key_in_kernel(as_signed) == expected


@pytest.mark.parametrize(
    "neighbours",
    [
        pytest.param(lambda: keys_below(key_of(7), 40_001, 1), id="contexts"),
        pytest.param(lambda: keys_with(keys_below(key_of(), 40_001, 1), 7), id="seeds"),
        pytest.param(lambda: keys_with(keys_below(key_of(0, 1), 40_001, 1 << 20), 3), id="rows"),
    ],
)
def test_streams_of_neighbouring_keys_are_unrelated(neighbours):
    firsts = uniform_numbers(neighbours(), 1)[:, 0]
    assert distance(firsts.tolist()) < most_deviation(len(firsts))
    cells = (firsts * 30).astype(int)
    assert_even(np.bincount(cells[:-1] * 30 + cells[1:], minlength=900))


@settings(max_examples=num_examples(100))
@given(st.integers(1, 5000), st.integers(0, 2**64 - 1))
def test_permuted_is_a_bijection_for_any_size_and_key(size, key):
    assert len(set(permutation(size, np.uint64(key)).tolist())) == size


@pytest.mark.parametrize("size", [100, 1025])
def test_permuted_takes_an_index_anywhere(size):
    for index in (0, 1, size // 2, size - 1):
        places = places_of(np.array([index]), size, keys_below(key_of(8, index), 40_000, 1))
        assert_even(np.bincount(places[:, 0], minlength=size))
