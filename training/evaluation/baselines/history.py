"""What precedes queries in their segments: RTTs to the destination, and to all destinations.

The baselines see a query's segment through this module only, so none can look ahead.
"""

from typing import NamedTuple

import numpy as np

from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt
from beam_pipeline.kernels import kernel
from training.evaluation.baselines.grouping import grouped_medians


class History(NamedTuple):
    """What precedes queries in their segments: arrays [queries].

    Attributes:
      last_ms, median_ms: of earlier answered pings to the destination, NaN if there are none.
      is_repeat: whether the destination was pinged before.
    """

    last_ms: np.ndarray
    median_ms: np.ndarray
    is_repeat: np.ndarray


class Context(NamedTuple):
    """A query, and the destinations that its segment has measured before it.

    Attributes:
      destination: the query's row of `Pairs`, −1 if it has none.
      known: int64 [known], the rows of the others, ascending; may include the query's.
      known_ms: float64 [known], the median of each one's answered pings.
    """

    destination: int
    known: np.ndarray
    known_ms: np.ndarray


def look_back(measurements: np.ndarray, queries: np.ndarray) -> History:
    """Collects what precedes queries in their segments.

    Args:
      measurements: `kinds.MEASUREMENT`, of whole segments.
      queries: int64, numbers of the queries among them.
    """
    rtt_ms = decode_rtt(measurements["code"]).astype(np.float64)
    history = History(
        np.full(len(queries), np.nan), np.full(len(queries), np.nan), np.zeros(len(queries), bool)
    )
    _look_back(measurements, rtt_ms, queries, *history, np.empty(len(measurements)))
    return history


@kernel
def _look_back(measurements, rtt_ms, queries, last_ms, median_ms, is_repeat, seen):
    for i in range(len(queries)):
        query = measurements[queries[i]]
        count = 0
        at = queries[i] - 1
        while at >= 0 and measurements[at].segment == query.segment:
            before = measurements[at]
            if before.dst_hi == query.dst_hi and before.dst_lo == query.dst_lo:
                is_repeat[i] = True
                if rtt_ms[at] >= 0:
                    seen[count] = rtt_ms[at]
                    count += 1
            at -= 1
        if count:
            last_ms[i] = seen[0]
            median_ms[i] = np.median(seen[:count])


def contexts_of(measurements: np.ndarray, rows: np.ndarray, queries: np.ndarray) -> list[Context]:
    """Returns the context of each query.

    Args:
      measurements, queries: as in `look_back`.
      rows: int64 [measurements], the rows of `Pairs` of their destinations, −1 without.
    """
    begins = np.searchsorted(measurements["segment"], measurements["segment"][queries])
    tells = (measurements["code"] != FAILED_RTT) & (rows >= 0)
    rtt_ms = decode_rtt(measurements["code"]).astype(np.float64)
    contexts = []
    for query, begin in zip(queries.tolist(), begins.tolist(), strict=True):
        before = begin + np.flatnonzero(tells[begin:query])
        known = grouped_medians(rows[before], rtt_ms[before])
        contexts.append(Context(int(rows[query]), *known))
    return contexts
