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
import pyarrow as pa
import pyarrow.compute as pc
from numba import uint64

from beam_pipeline.dataset.addresses import MAPPED_IPV4
from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt
from beam_pipeline.kernels import kernel
from training.evaluation.examples import Split
from training.evaluation.extent import Extent
from training.rows.measurement_at import dst_at, rtt_code_at
from training.rows.row_source import ShardReader
from training.rows.row_table import RowTable

_MAX_MEASUREMENTS = 1000  # of a row
_MAX_BYTES = 1 << 30  # that are read
_PREFIX_BITS = 34
_SAMPLE = np.dtype([("dst_hi", np.uint64), ("dst_lo", np.uint64), ("code", np.uint16)])


class History(NamedTuple):
    """What precedes queries in their segments: arrays [queries].

    Attributes:
      last_ms, median_ms: of earlier answered pings to the destination, NaN if there are none.
      is_repeat: whether the destination was pinged before.
    """

    last_ms: np.ndarray
    median_ms: np.ndarray
    is_repeat: np.ndarray


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


# --- the training split -------------------------------------------------------------------------


class TrainingMedians(NamedTuple):
    """Medians of the training split: ms, [queries].

    NaN where the sample has no measurement to a destination, or from a prefix to it.
    """

    prefix_ms: np.ndarray
    destination_ms: np.ndarray
    global_ms: float
    num_rows: int
    num_rtts: int


def training_medians(train: Split, queries: np.ndarray, extent: Extent) -> TrainingMedians | None:
    """Returns the medians that baselines need; None if no ping of the sample was answered.

    Args:
      queries: `kinds.MEASUREMENT`.

    Raises:
      ProbelineError: a row cannot be read.
    """
    rng = np.random.default_rng(extent.seed)
    rows = _choose_rows(train.rows, extent.num_train_rows, rng)
    reader = ShardReader(train.shards, train.rows)
    samples = [_sample_row(reader, row, rng) for row in rows.tolist()]
    prefixes = _prefixes(train.rows.src_hi[rows], train.rows.src_lo[rows])
    prefix, sample = np.repeat(prefixes, list(map(len, samples))), np.concatenate(samples)
    asked = _destinations(queries)
    number, destination = (
        pc.index_in(addresses, asked.unique()).fill_null(-1).to_numpy().astype(np.int64)
        for addresses in (asked, _destinations(sample))
    )
    is_success = sample["code"] != FAILED_RTT
    rtt_ms = decode_rtt(sample["code"]).astype(np.float64)
    if not is_success.any():
        return None
    is_wanted = is_success & (destination >= 0)
    destination, prefix, of_wanted = destination[is_wanted], prefix[is_wanted], rtt_ms[is_wanted]
    query_prefix = _prefixes(queries["src_hi"], queries["src_lo"])
    return TrainingMedians(
        prefix_ms=_medians(
            destination << _PREFIX_BITS | prefix, of_wanted, number << _PREFIX_BITS | query_prefix
        ),
        destination_ms=_medians(destination, of_wanted, number),
        global_ms=float(np.median(rtt_ms[is_success])),
        num_rows=len(rows),
        num_rtts=int(is_success.sum()),
    )


def predict(history: History, medians: TrainingMedians) -> dict[str, np.ndarray]:
    """Returns each baseline's predictions in ms, [queries]."""

    def fill(values: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(values), other, values)

    everywhere = np.full(len(history.last_ms), medians.global_ms)
    destination = fill(medians.destination_ms, everywhere)
    return {
        "last seen": fill(history.last_ms, destination),
        "context median": fill(history.median_ms, destination),
        "prefix × destination": fill(medians.prefix_ms, destination),
        "destination": destination,
        "global": everywhere,
    }


def _choose_rows(rows: RowTable, limit: int, rng: np.random.Generator) -> np.ndarray:
    """Draws one row or more, of at most _MAX_BYTES, in the order of the shards."""
    drawn = rng.permutation(len(rows))[:limit]
    num_within = int(np.searchsorted(rows.num_bytes[drawn].cumsum(), _MAX_BYTES, "right"))
    return np.sort(drawn[: max(1, num_within)])


def _destinations(table: np.ndarray) -> pa.Array:
    halves = np.stack([table["dst_hi"], table["dst_lo"]], axis=1)
    buffers = [None, pa.py_buffer(halves)]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(table), buffers)


def _sample_row(reader: ShardReader, row: int, rng: np.random.Generator) -> np.ndarray:
    """Returns destinations and RTTs of some measurements of a row: _SAMPLE."""
    columns = reader.locate(row).columns
    n = columns.layout.num_measurements
    sample = np.zeros(min(n, _MAX_MEASUREMENTS), _SAMPLE)
    # One at random of each stretch: evenly spaced ones could all be to the same destination.
    places = (np.arange(len(sample)) + rng.random(len(sample))) * n / len(sample)
    if not _read_measurements(*columns, np.minimum(places.astype(np.int64), n - 1), sample):
        raise reader.bad_row(row, "a destination is damaged")
    return sample


@kernel
def _read_measurements(raw, layout, places, sample):
    for i in range(len(places)):
        hi, lo, is_ipv6 = dst_at(raw, layout, places[i])
        if is_ipv6 < 0:
            return False
        sample[i].dst_hi, sample[i].dst_lo = hi, lo if is_ipv6 else lo | uint64(MAPPED_IPV4)
        sample[i].code = rtt_code_at(raw, layout, places[i])
    return True


def _prefixes(hi: np.ndarray, lo: np.ndarray) -> np.ndarray:
    """Returns the /16 of IPv4 and the /32 of IPv6 addresses, below 2 ** _PREFIX_BITS: int64."""
    is_ipv4 = (hi == 0) & (lo >> np.uint64(32) == np.uint64(0xFFFF))
    of_ipv4 = (lo >> np.uint64(16)) & np.uint64(0xFFFF) | np.uint64(1 << 33)
    return np.where(is_ipv4, of_ipv4, hi >> np.uint64(32)).astype(np.int64)


def _medians(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the median of the values with each wanted key, NaN where there are none."""
    if not len(keys):
        return np.full(len(wanted), np.nan)
    order = np.lexsort([values, keys])
    values = values[order]
    found, begins = np.unique(keys[order], return_index=True)
    ends = np.append(begins[1:], len(keys))
    medians = (values[(begins + ends - 1) // 2] + values[(begins + ends) // 2]) / 2
    places = np.minimum(np.searchsorted(found, wanted), len(found) - 1)
    return np.where(found[places] == wanted, medians[places], np.nan)
