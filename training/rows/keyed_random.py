"""Random numbers derived from keys, for compiled code.

A key is a uint64 derived from everything the numbers may depend on, such as (seed, epoch, row, k),
so a context is the same on any host, in any order and after any resume. Streams are SplitMix64
(Steele, Lea and Flood, 2014); `permuted` is a Feistel cipher, a permutation without an array.
"""

import numpy as np
from numba import uint64

from beam_pipeline.kernels import subkernel

_MASK = 0xFFFF_FFFF_FFFF_FFFF


@subkernel
def mix(key):
    """Returns a uint64 whose every bit depends on every bit of `key`: SplitMix64's output."""
    key = uint64(key) + uint64(0x9E3779B97F4A7C15)
    key = (key ^ (key >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> uint64(27))) * uint64(0x94D049BB133111EB)
    return key ^ (key >> uint64(31))


@subkernel
def combine(key, value):
    """Returns the key of `value`, any integer, below `key`."""
    return mix(uint64(key) ^ mix(uint64(value)))


@subkernel
def next_word(stream):
    """Returns the next uint64 of a stream, uint64 [1], which starts as a key."""
    word = mix(stream[0])
    stream[0] += uint64(0x9E3779B97F4A7C15)
    return word


@subkernel
def next_below(stream, limit):
    """Returns an integer in [0, limit), limit <= 2**32; deviates from uniform by limit / 2**32."""
    return np.int64(((next_word(stream) >> uint64(32)) * uint64(limit)) >> uint64(32))


@subkernel
def uniform(word):
    """Returns a float64 in [0, 1), given a random uint64."""
    return np.float64(uint64(word) >> uint64(11)) * (1.0 / (1 << 53))


@subkernel
def next_uniform(stream):
    """Returns a float64 in [0, 1)."""
    return uniform(next_word(stream))


@subkernel
def permuted(index, size, key):
    """Returns the image of `index` under the permutation of [0, size) with this key.

    Four rounds of a balanced Feistel network over the next power of four, repeated while the value
    is out of range: fewer than four times on average.
    """
    half = uint64(1)
    while (uint64(1) << (uint64(2) * half)) < uint64(size):
        half += uint64(1)
    mask = (uint64(1) << half) - uint64(1)
    value = uint64(index)
    while True:
        left, right = value >> half, value & mask
        for number in range(4):
            left, right = right, left ^ (combine(key, (right << uint64(3)) | uint64(number)) & mask)
        value = (left << half) | right
        if value < uint64(size):
            return np.int64(value)


def key_of(*values: int) -> np.uint64:
    """Returns the key of integers, each from -2**63 to 2**64 - 1, outside of kernels."""
    key = 0
    for value in values:
        key = _mix(key ^ _mix(value & _MASK))
    return np.uint64(key)


def _mix(key: int) -> int:
    key = (key + 0x9E3779B97F4A7C15) & _MASK
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _MASK
    return key ^ (key >> 31)
