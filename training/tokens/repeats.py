"""Contexts of few destinations: most of them come again, so that a model learns to look them up.

The destinations of such a context are that of a measurement drawn at random, the anchor, and an
eighth of the others, which a salt chooses by hash. Measurements to others are passed over, but not
without end: where those to few destinations are rare, any is taken after so many tries.
"""

import numpy as np
from numba import njit, uint64

from training.rows.keyed_random import combine, next_below, uniform
from training.rows.measurement_at import dst_at

_SALT = 0x7265_7065_6174
_ONE_OF = 8  # destinations beside the anchor, of which one is drawn from
_MIN_ROWS = 4  # times as many measurements as a context takes
_MAX_TRIES = 32  # measurements that are looked at for each one that a context takes
NO_FEW = (np.uint64(0), np.uint64(0), 0, 0)  # in place of draw_few's


@njit
def draws_repeats(key, share):
    """Tells whether the context with a key is one of few destinations."""
    return share > 0.0 and uniform(combine(key, _SALT)) < share


@njit
def has_room(num_measurements, enough):
    """Tells whether a row is long enough for contexts of `enough` measurements with repeats."""
    return num_measurements >= _MIN_ROWS * enough


@njit
def draw_few(raw, layout, ranks, enough, stream):
    """Draws few destinations of a row: (anchor hi, anchor lo, salt, number of tries)."""
    anchor = dst_at(raw, layout, next_below(stream, layout.num_measurements), ranks)
    return anchor[0], anchor[1], next_below(stream, 1 << 32), _MAX_TRIES * enough


@njit
def is_one_of(few, raw, layout, ranks, item):
    """Tells whether a measurement goes to one of few destinations."""
    dst = dst_at(raw, layout, item, ranks)
    if dst[0] == few[0] and dst[1] == few[1]:
        return True
    return combine(combine(few[2], dst[0]), dst[1]) % uint64(_ONE_OF) == 0
