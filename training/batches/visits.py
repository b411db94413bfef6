"""How often a row comes in an epoch if its weight is no integer: now once less, now once more.

Over the epochs it comes as often as its weight says, and every process finds the same.
"""

import math

import numpy as np
from numba import njit

from training.rows.keyed_random import combine, next_uniform

_ROUNDING = 5  # a key below a seed and an epoch; `lanes` has the others


@njit
def visits_rounding(seed, epoch, rounds_visits):
    """Returns what an epoch adds to fractional visits before they are floored, in all lanes."""
    if not rounds_visits:
        return 0.0
    stream = np.full(1, combine(combine(seed, epoch), _ROUNDING), np.uint64)
    return next_uniform(stream)


@njit
def small_context(plan, entry, epoch):
    """Returns the k of the context that an entry of small_rows gives in an epoch; -1 if none.

    A row of weight w has ceil(w) entries. By the end of an epoch, the number of those that gave one
    since the first is w times the number of epochs, rounded: in other epochs up for each row.
    """
    if len(plan.small_copy) == 0:
        return np.int64(0)
    weight, copy = np.float64(plan.small_weight[entry]), np.int64(plan.small_copy[entry])
    stream = np.full(1, combine(plan.identity[plan.small_rows[entry]], _ROUNDING), np.uint64)
    phase = next_uniform(stream)
    visits = math.floor((epoch + 1) * weight + phase) - math.floor(epoch * weight + phase)
    return copy if copy < visits else np.int64(-1)
