"""Contexts of few destinations: most of them come again, so that a model learns to look them up.

Such a context has the destinations of some measurements drawn at random, an eighth to half as many
as it takes, log-uniform: so each comes two to eight times on average, whatever the crop and however
many destinations the row has. Measurements to others are passed over, but not without end: where
those to few destinations are rare, any is taken after so many tries.
"""

import numpy as np
from numba import njit

from training.rows.keyed_random import combine, next_below, next_uniform, uniform
from training.rows.measurement_at import dst_at

_SALT = 0x7265_7065_6174
_FEWEST, _MOST = 1 / 8, 1 / 2  # destinations, for each measurement that a context takes
_MIN_ROWS = 4  # times as many measurements as a context takes
MAX_TRIES = 512  # measurements that are looked at for each one that a context takes


@njit
def draws_repeats(key, share):
    """Tells whether the context with a key is one of few destinations."""
    return share > 0.0 and uniform(combine(key, _SALT)) < share


@njit
def has_room(num_measurements, enough):
    """Tells whether a row is long enough for contexts of `enough` measurements with repeats."""
    return num_measurements >= _MIN_ROWS * enough


@njit
def draw_few(raw, layout, scratch, enough):
    """Draws few destinations of a row into `scratch.few`, as hashes; returns how many."""
    share = _FEWEST * (_MOST / _FEWEST) ** next_uniform(scratch.stream)
    num_few = max(1, np.int64(share * enough))
    for number in range(num_few):
        item = next_below(scratch.stream, layout.num_measurements)
        scratch.few[number] = _hash_at(raw, layout, scratch.ranks, item)
    return num_few


@njit
def is_one_of(few, raw, layout, ranks, item):
    """Tells whether a measurement goes to one of few destinations, uint64 [few] of hashes."""
    return _hash_at(raw, layout, ranks, item) in few


@njit
def _hash_at(raw, layout, ranks, item):
    dst = dst_at(raw, layout, item, ranks)
    return combine(dst[0], dst[1])
