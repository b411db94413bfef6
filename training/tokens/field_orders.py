"""The orders that the fields of a measurement can have."""

import itertools

import numpy as np

# Without a timestamp (source 0, destination 1, RTT 2) the first 6 lines, with one (3) the other 24.
NUM_ORDERS, NUM_TIMESTAMPED_ORDERS = 6, 24
_NO_FIELD = 9
FIELD_ORDERS = np.array(
    [
        *((*order, _NO_FIELD) for order in itertools.permutations(range(3))),
        *itertools.permutations(range(4)),
    ],
    np.int64,
)
# Source, time, destination, RTT: what an RTT depends on is told before it.
FIXED_ORDER, FIXED_TIMED_ORDER = (
    FIELD_ORDERS.tolist().index(order) for order in ([0, 1, 2, _NO_FIELD], [0, 3, 1, 2])
)
