"""Which sorted runs are merged at a time, and how much of each is in memory.

Known of each run are its size and its span, the times of its first and last record. A merge that
opens runs in the order of their first records has those open whose spans hold the same time:

  run 1  |======|                   never more than two are open, however many runs follow:
  run 2       |=======|             large pieces of each, none merged before
  run 3                 |=====|

Runs that do not overlap are thus read one after the other, whole. Only where more are open than the
memory has blocks for, some of those are merged to one first.
"""

import numpy as np

MAX_FAN_IN = 32  # large runs that are open at a time


def smallest_block(memory_bytes: int) -> int:
    """Returns how much of a large run is at least in memory while it is open."""
    return max(memory_bytes // MAX_FAN_IN, 1)


def merged_first(spans: np.ndarray, num_bytes: np.ndarray, memory_bytes: int) -> np.ndarray:
    """Returns which runs are to be merged to one first, int64 [0 or 2 and more].

    Args:
      spans: int64 [n, 2], ascending by their beginnings.
      num_bytes: int64 [n], the sizes of the runs.
    """
    block = smallest_block(memory_bytes)
    needed = np.minimum(num_bytes, block)
    open_bytes = _open_at_starts(spans, needed)
    at = int(np.argmax(open_bytes))
    excess = int(open_bytes[at]) - block * MAX_FAN_IN
    if excess <= 0:
        return np.zeros(0, np.int64)
    time = spans[at, 0]
    here = np.flatnonzero((spans[:, 0] <= time) & (spans[:, 1] >= time))
    here = here[np.argsort(num_bytes[here], kind="stable")]  # the smallest, which costs least
    together = np.cumsum(needed[here])
    enough = int(np.searchsorted(together, excess + block)) + 1
    return here[: min(enough, int(np.searchsorted(together, block * MAX_FAN_IN, "right")))]


def blocks(spans: np.ndarray, num_bytes: np.ndarray, memory_bytes: int) -> np.ndarray:
    """Returns how much of each run may be in memory while it is open, int64 [n].

    However many are open, it is `memory_bytes` in all at most. Small runs are held whole, and large
    ones share what is left where most are open. The arguments are those of `merged_first`.
    """
    smallest = smallest_block(memory_bytes)
    is_large = num_bytes > smallest
    small = _open_at_starts(spans, np.where(is_large, 0, num_bytes))
    large = _open_at_starts(spans, is_large.astype(np.int64))
    share = np.maximum((memory_bytes - small) // np.maximum(large, 1), smallest)
    ends = np.searchsorted(spans[:, 0], spans[:, 1], "right")
    allowed = num_bytes.copy()
    for run in np.flatnonzero(is_large).tolist():
        allowed[run] = min(num_bytes[run], share[run : ends[run]].min())
    return allowed


def _open_at_starts(spans: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the weight of all runs that are open when each begins; ends are inclusive."""
    starts, ends = spans[:, 0], np.sort(spans[:, 1])
    begun = np.append(0, np.cumsum(weights))
    ended = np.append(0, np.cumsum(weights[np.argsort(spans[:, 1], kind="stable")]))
    return (
        begun[np.searchsorted(starts, starts, "right")]
        - ended[np.searchsorted(ends, starts, "left")]
    )
