"""Predictions of RTTs without a model: from the segment so far, and from the training split.

  last seen             the last RTT to the destination in the segment
  context median        the median of all before in the segment
  prefix × destination  the median of training probes in the source's /16 (IPv6: /32)
  destination           the median of all training probes
  global                the median of all training RTTs

Each falls back on the destination, which falls back on the global one. Training medians are of a
sample of rows, and of some measurements of each.
"""

from typing import NamedTuple

import numpy as np
from numba import njit, uint64

from beam_pipeline.dataset.addresses import MAPPED_IPV4
from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt
from beam_pipeline.kernels import kernel
from training.evaluation.examples import Extent, Split
from training.rows.row_layout import dst_at, rtt_code_at
from training.rows.row_source import ShardReader
from training.rows.row_table import RowTable

_MOST_MEASUREMENTS = 1000  # of a row
_MOST_BYTES = 1 << 30  # that are read
_PREFIX_BITS = 34


class History(NamedTuple):
    """What the segments tell before queries: arrays [queries]; ms are nan where there is none."""

    last_ms: np.ndarray
    median_ms: np.ndarray
    is_repeat: np.ndarray


def look_back(measurements: np.ndarray, queries: np.ndarray) -> History:
    """Looks at what precedes some MEASUREMENTs, given by number, in their segments."""
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


# --- the training split -------------------------------------------------------------------------


class TrainingMedians(NamedTuple):
    """Medians of the training split, for the queries that they were asked for: ms [queries].

    Nan where the sample has nothing of a destination, or of a prefix and destination.
    """

    prefix_ms: np.ndarray
    destination_ms: np.ndarray
    global_ms: float
    num_rows: int
    num_rtts: int


def training_medians(train: Split, queries: np.ndarray, extent: Extent) -> TrainingMedians | None:
    """Takes the medians that baselines need; None if no ping of the sample was successful.

    Args:
      queries: MEASUREMENT.

    Raises:
      ProbelineError: a row cannot be read.
    """
    rng = np.random.default_rng(extent.seed)
    rows = _choose_rows(train.rows, extent.num_train_rows, rng)
    wanted, number = _unique_addresses(queries["dst_hi"], queries["dst_lo"])
    reader = ShardReader(train.shards, train.rows)
    parts = [_read_row(reader, row, wanted, rng) for row in rows.tolist()]
    prefixes = _prefixes(train.rows.src_hi[rows], train.rows.src_lo[rows])
    prefix = np.repeat(prefixes, [len(codes) for _, codes in parts])
    destination, codes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    is_success = codes != FAILED_RTT
    rtt_ms = decode_rtt(codes).astype(np.float64)
    if not is_success.any():
        return None
    is_wanted = is_success & (destination >= 0)
    destination, prefix, of_wanted = destination[is_wanted], prefix[is_wanted], rtt_ms[is_wanted]
    query_prefix = _prefixes(queries["src_hi"], queries["src_lo"])
    return TrainingMedians(
        prefix_ms=_medians_of(
            destination << _PREFIX_BITS | prefix, of_wanted, number << _PREFIX_BITS | query_prefix
        ),
        destination_ms=_medians_of(destination, of_wanted, number),
        global_ms=float(np.median(rtt_ms[is_success])),
        num_rows=len(rows),
        num_rtts=int(is_success.sum()),
    )


def predict(history: History, medians: TrainingMedians) -> dict[str, np.ndarray]:
    """Returns each baseline's predictions in ms, [queries]."""

    def else_of(values: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(values), other, values)

    everywhere = np.full(len(history.last_ms), medians.global_ms)
    destination = else_of(medians.destination_ms, everywhere)
    return {
        "last seen": else_of(history.last_ms, destination),
        "context median": else_of(history.median_ms, destination),
        "prefix × destination": else_of(medians.prefix_ms, destination),
        "destination": destination,
        "global": everywhere,
    }


def _choose_rows(rows: RowTable, limit: int, rng: np.random.Generator) -> np.ndarray:
    """Draws rows, one at least, of at most _MOST_BYTES; in the order of the shards."""
    drawn = rng.permutation(len(rows))[:limit]
    num_within = int(np.searchsorted(rows.num_bytes[drawn].cumsum(), _MOST_BYTES, "right"))
    return np.sort(drawn[: max(1, num_within)])


def _unique_addresses(hi: np.ndarray, lo: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the different addresses, sorted, uint64 [n, 2], and the number of each given one."""
    unique, number = np.unique(np.stack([hi, lo], axis=1), axis=0, return_inverse=True)
    return unique, number.reshape(-1)


def _read_row(
    reader: ShardReader, row: int, wanted: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns of some measurements the destination's number in `wanted`, or -1, and the code."""
    columns = reader.locate(row).columns
    n = columns.layout.num_measurements
    count = min(n, _MOST_MEASUREMENTS)
    # One at random of each stretch: evenly spaced ones could all be to the same destination.
    places = ((np.arange(count) + rng.random(count)) * n / count).astype(np.int64)
    destinations, codes = np.empty(count, np.int64), np.empty(count, np.uint16)
    if not _read_measurements(*columns, np.minimum(places, n - 1), wanted, destinations, codes):
        raise reader.bad_row(row, "a destination is damaged")
    return destinations, codes


@kernel
def _read_measurements(raw, layout, places, wanted, destinations, codes):
    for i in range(len(places)):
        codes[i] = rtt_code_at(raw, layout, places[i])
        hi, lo, is_ipv6 = dst_at(raw, layout, places[i])
        if is_ipv6 < 0:
            return False
        destinations[i] = _find(wanted, hi, lo if is_ipv6 else lo | uint64(MAPPED_IPV4))
    return True


@njit
def _find(addresses, hi, lo):
    """Returns where an address stands among sorted ones, -1 if it does not."""
    begin, end = 0, len(addresses)
    while begin < end:
        middle = (begin + end) // 2
        other_hi, other_lo = addresses[middle, 0], addresses[middle, 1]
        if other_hi < hi or (other_hi == hi and other_lo < lo):
            begin = middle + 1
        else:
            end = middle
    if begin < len(addresses) and addresses[begin, 0] == hi and addresses[begin, 1] == lo:
        return begin
    return -1


def _prefixes(hi: np.ndarray, lo: np.ndarray) -> np.ndarray:
    """Returns the /16 of IPv4 and the /32 of IPv6 addresses, below 2 ** _PREFIX_BITS: int64."""
    is_ipv4 = (hi == 0) & (lo >> np.uint64(32) == np.uint64(0xFFFF))
    of_ipv4 = (lo >> np.uint64(16)) & np.uint64(0xFFFF) | np.uint64(1 << 33)
    return np.where(is_ipv4, of_ipv4, hi >> np.uint64(32)).astype(np.int64)


def _medians_of(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the median of the values with each wanted key, nan where there is none."""
    if not len(keys):
        return np.full(len(wanted), np.nan)
    order = np.lexsort([values, keys])
    values = values[order]
    found, begins = np.unique(keys[order], return_index=True)
    ends = np.append(begins[1:], len(keys))
    medians = (values[(begins + ends - 1) // 2] + values[(begins + ends) // 2]) / 2
    places = np.minimum(np.searchsorted(found, wanted), len(found) - 1)
    return np.where(found[places] == wanted, medians[places], np.nan)
