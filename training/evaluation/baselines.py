"""Predictions of RTTs without a model, from the segment so far and from the training split.

  last seen        the last RTT to the destination in the segment
  context median   the median of all earlier RTTs to the destination in the segment
  destination      the destination's median in the training split

The first two fall back to the third, and that to the median of all training RTTs. They use a sample
of rows of the training split, and of measurements in each row. Of a segment they see only what
precedes the query, through `look_back`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import uint64

from beam_pipeline.dataset.addresses import MAPPED_IPV4
from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt
from beam_pipeline.kernels import kernel
from training.evaluation.examples import Split
from training.extent import EvaluationExtent
from training.rows.measurement_at import dst_at, rtt_code_at
from training.rows.shard_reader import ShardReader

_MAX_MEASUREMENTS = 1000  # per row
_MAX_BYTES = 1 << 30  # read in total
_SAMPLE = np.dtype([("dst_hi", np.uint64), ("dst_lo", np.uint64), ("code", np.uint16)])


class Baselines(NamedTuple):
    """The baselines' predictions for the queries, and the size of their training sample."""

    predicted_ms: dict[str, np.ndarray]  # by name, [queries]; empty without answered pings
    is_repeat: np.ndarray  # whether the destination occurs earlier in the segment
    num_rows: int
    num_rtts: int


class Sample(NamedTuple):
    """Answered pings of the training split: arrays [rtts]."""

    row: np.ndarray  # int64, number of the row
    destination: np.ndarray  # int64, index into destinations
    rtt_ms: np.ndarray  # float64
    destinations: pa.Array  # addresses, binary of 16 bytes
    num_rows: int  # rows read

    def numbers_of(self, measurements: np.ndarray) -> np.ndarray:
        """Returns the numbers of the destinations of `kinds.MEASUREMENT`s, −1 if unknown."""
        return _numbers(_addresses(measurements), self.destinations)


# Additional baselines: a function of the sample, training split, measurements, queries and seed
# that returns predictions in ms by name, NaN where there is none.
MoreBaselines = Callable[[Sample, Split, np.ndarray, np.ndarray, int], Mapping[str, np.ndarray]]


def predict_baselines(
    measurements: np.ndarray,
    queries: np.ndarray,
    train: Split,
    extent: EvaluationExtent,
    more: MoreBaselines | None = None,
) -> Baselines:
    """Predicts the RTTs of queries, int64 indices into `kinds.MEASUREMENT` of whole segments.

    NaN of `more` falls back to the destination's median.
    """
    history = look_back(measurements, queries)
    sample = draw_sample(train, extent)
    if not len(sample.rtt_ms):
        return Baselines({}, history.is_repeat, sample.num_rows, 0)
    destinations = sample.numbers_of(measurements[queries])
    medians = medians_of(sample.destination, sample.rtt_ms, destinations)
    medians = np.where(np.isnan(medians), np.median(sample.rtt_ms), medians)
    predicted = {
        "last seen": history.last_ms,
        "context median": history.median_ms,
        "destination": medians,
        **(more(sample, train, measurements, queries, extent.seed) if more else {}),
    }
    return Baselines(
        {name: np.where(np.isnan(ms), medians, ms) for name, ms in predicted.items()},
        history.is_repeat,
        sample.num_rows,
        len(sample.rtt_ms),
    )


def grouped_medians(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct keys, ascending, and the median of each key's values."""
    order = np.lexsort([values, keys])
    values = values[order]
    found, begins = np.unique(keys[order], return_index=True)
    ends = np.append(begins[1:], len(keys))
    return found, (values[(begins + ends - 1) // 2] + values[(begins + ends) // 2]) / 2


def medians_of(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the median of the values of each wanted key, NaN where there are none."""
    found, medians = grouped_medians(keys, values)
    places = np.minimum(np.searchsorted(found, wanted), len(found) - 1)
    return np.where(found[places] == wanted, medians[places], np.nan)


# --- segments -------------------------------------------------------------------------------------


class History(NamedTuple):
    """What precedes queries in their segments: arrays [queries]."""

    last_ms: np.ndarray  # of earlier answered pings to the destination, or NaN
    median_ms: np.ndarray  # the same
    is_repeat: np.ndarray  # whether the destination was pinged before


def look_back(measurements: np.ndarray, queries: np.ndarray) -> History:
    """Collects what precedes queries, indices into `kinds.MEASUREMENT` of whole segments."""
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


# --- the training split ---------------------------------------------------------------------------


def draw_sample(train: Split, extent: EvaluationExtent) -> Sample:
    """Draws rows of the training split, at most _MAX_BYTES, and measurements of each."""
    rng = np.random.default_rng(extent.seed)
    drawn = rng.permutation(len(train.rows))[: extent.num_train_rows]
    num_within = int(np.searchsorted(train.rows.num_bytes[drawn].cumsum(), _MAX_BYTES, "right"))
    rows = np.sort(drawn[: max(1, num_within)])  # in the order of the shards
    reader = ShardReader(train.shards, train.rows)
    samples = [_sample_row(reader, row, rng) for row in rows.tolist()]
    row, measurements = np.repeat(rows, list(map(len, samples))), np.concatenate(samples)
    is_answered = measurements["code"] != FAILED_RTT
    row, measurements = row[is_answered], measurements[is_answered]
    addresses = _addresses(measurements)
    destinations = addresses.unique()
    return Sample(
        row=row,
        destination=_numbers(addresses, destinations),
        rtt_ms=decode_rtt(measurements["code"]).astype(np.float64),
        destinations=destinations,
        num_rows=len(rows),
    )


def _sample_row(reader: ShardReader, row: int, rng: np.random.Generator) -> np.ndarray:
    """Returns destinations and RTTs of a sample of a row's measurements: _SAMPLE."""
    columns = reader.locate(row).columns
    n = columns.layout.num_measurements
    sample = np.zeros(min(n, _MAX_MEASUREMENTS), _SAMPLE)
    # One random place per stretch: evenly spaced ones could all have one destination.
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


def _addresses(table: np.ndarray) -> pa.Array:
    halves = np.stack([table["dst_hi"], table["dst_lo"]], axis=1)
    buffers = [None, pa.py_buffer(halves)]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(table), buffers)


def _numbers(addresses: pa.Array, among: pa.Array) -> np.ndarray:
    return pc.index_in(addresses, among).fill_null(-1).to_numpy().astype(np.int64)
