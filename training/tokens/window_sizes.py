"""How large a window of a row is, and how sparse what is taken of it."""

import math

import numpy as np
from numba import njit

from training.rows.keyed_random import next_below, next_uniform


@njit
def draw_window_size(num_measurements, drawing, stream):
    """Draws the size of a window, log-uniform between two shares of the row."""
    low = math.log(max(1.0, drawing.min_window * (num_measurements + 1.0)))
    high = math.log(max(1.0, drawing.max_window * (num_measurements + 1.0)))
    size = np.int64(math.exp(low + next_uniform(stream) * (high - low)))
    return min(num_measurements, max(1, size))


@njit
def draw_stride(num_measurements, enough, drawing, stream):
    """Draws a stride, a power of two that leaves `enough` measurements, or 1.

    Each power has `drawing.stride_ratio` times the probability of the one before.
    """
    exponents = 1
    while (1 << exponents) * enough <= num_measurements:
        exponents += 1
    ratio = drawing.stride_ratio
    if ratio == 1.0:
        return 1 << next_below(stream, exponents)
    share = next_uniform(stream) * (1.0 - ratio**exponents)
    return 1 << min(exponents - 1, np.int64(math.log(1.0 - share) / math.log(ratio)))
