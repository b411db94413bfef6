"""A sample of the training split: probes, destinations and RTTs of some measurements."""

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
from training.rows.row_table import RowTable
from training.rows.shard_reader import ShardReader

_MAX_MEASUREMENTS = 1000  # of a row
_MAX_BYTES = 1 << 30  # that are read
_SAMPLE = np.dtype([("dst_hi", np.uint64), ("dst_lo", np.uint64), ("code", np.uint16)])


class Sample(NamedTuple):
    """Answered pings of training probes: arrays [rtts].

    Attributes:
      probe: the number of the probe, int64; rows of one probe share it.
      destination: its number, int64.
      rtt_ms: float64.
      destinations: the addresses by number, binary of 16 bytes.
      probe_hi, probe_lo: the addresses, uint64 [probes].
      num_rows: the rows that were read.
    """

    probe: np.ndarray
    destination: np.ndarray
    rtt_ms: np.ndarray
    destinations: pa.Array
    probe_hi: np.ndarray
    probe_lo: np.ndarray
    num_rows: int

    def numbers_of(self, measurements: np.ndarray) -> np.ndarray:
        """Returns the numbers of the destinations of `kinds.MEASUREMENT`s, −1 for unknown ones."""
        return _numbers(_destinations(measurements), self.destinations)


def draw_sample(train: Split, extent: Extent) -> Sample:
    """Draws rows of the training split, and measurements of each.

    Raises:
      ProbelineError: a row cannot be read.
    """
    rng = np.random.default_rng(extent.seed)
    rows = _choose_rows(train.rows, extent.num_train_rows, rng)
    reader = ShardReader(train.shards, train.rows)
    samples = [_sample_row(reader, row, rng) for row in rows.tolist()]
    (hi, lo), probes = np.unique(_sources(train.rows, rows), axis=1, return_inverse=True)
    probe, drawn = np.repeat(probes, list(map(len, samples))), np.concatenate(samples)
    is_answered = drawn["code"] != FAILED_RTT
    probe, drawn = probe[is_answered], drawn[is_answered]
    addresses = _destinations(drawn)
    destinations = addresses.unique()
    return Sample(
        probe=probe,
        destination=_numbers(addresses, destinations),
        rtt_ms=decode_rtt(drawn["code"]).astype(np.float64),
        destinations=destinations,
        probe_hi=hi,
        probe_lo=lo,
        num_rows=len(rows),
    )


def _choose_rows(rows: RowTable, limit: int, rng: np.random.Generator) -> np.ndarray:
    """Draws one row or more, of at most _MAX_BYTES, in the order of the shards."""
    drawn = rng.permutation(len(rows))[:limit]
    num_within = int(np.searchsorted(rows.num_bytes[drawn].cumsum(), _MAX_BYTES, "right"))
    return np.sort(drawn[: max(1, num_within)])


def _sources(table: RowTable, rows: np.ndarray) -> np.ndarray:
    """Returns the halves of the addresses of some rows' probes: uint64 [2, rows]."""
    lo = table.src_lo[rows]
    return np.stack([table.src_hi[rows] if len(table.src_hi) else np.zeros_like(lo), lo])


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


def _destinations(table: np.ndarray) -> pa.Array:
    halves = np.stack([table["dst_hi"], table["dst_lo"]], axis=1)
    buffers = [None, pa.py_buffer(halves)]
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(table), buffers)


def _numbers(addresses: pa.Array, among: pa.Array) -> np.ndarray:
    return pc.index_in(addresses, among).fill_null(-1).to_numpy().astype(np.int64)
