"""Orders and distinct values of columns of integers, in a fraction of the time of numpy's own."""

from collections.abc import Sequence

import numpy as np

_WORD_BITS = 64
_MAX_RANGE_PER_VALUE = 8  # of the range of values that are looked up in a table


def order_of(keys: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the order of records by integers from 0 up, the first key first, equals in any order.

    >>> order_of([np.array([1, 0, 1]), np.array([2, 9, 1])]).tolist()
    [1, 2, 0]
    """
    num_bits = [int(key.max(initial=0)).bit_length() for key in keys]
    if sum(num_bits) > _WORD_BITS:
        return np.lexsort(keys[::-1])
    packed = np.zeros(len(keys[0]), np.uint64)
    for key, bits in zip(keys, num_bits, strict=True):
        packed = packed << np.uint64(bits) | key.astype(np.uint64)
    return np.argsort(packed)


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns what `np.unique` with `return_inverse` returns of integers.

    >>> [each.tolist() for each in distinct(np.array([7, 5, 7]))]
    [[5, 7], [1, 0, 1]]
    """
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    size = high - low + 1
    if size > _MAX_RANGE_PER_VALUE * len(values):
        return np.unique(values, return_inverse=True)
    is_there = np.zeros(size, bool)
    is_there[values - low] = True
    found = np.flatnonzero(is_there)
    numbers = np.empty(size, np.int64)
    numbers[found] = np.arange(len(found))
    return found + low, numbers[values - low]
