"""The bytes of a probe row: an Arrow IPC stream of one row, with its measurements as binary.

Alternatively, a record is a `tf_example` with the same columns, recognised by its first bytes. The
first bytes of `measurements` identify one of two encodings:

  arrow    an Arrow IPC stream of MEASUREMENT_SCHEMA: lossless, 30 bytes per IPv4 measurement.
  compact  COMPACT_HEADER, then columns: uint32 [n] seconds since the header's first second,
           uint16 [n] RTT (see `rtt`), [n / 8] bits "is IPv6" if the row has both families,
           then the addresses in network order, 4 bytes each IPv4, then 16 bytes each IPv6:
           10 or 22 bytes. Time is floored to whole seconds; the error of an RTT is at most
           0.049 % (2**-11) above 2 ms and 0.5 µs below; a row spans less than 2**32 s (136
           years).
"""
# pyarrow is untyped.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

import bisect
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset import addresses, arrow_record, layout, tf_example
from beam_pipeline.dataset.arrow_record import (
    RowColumns,
    Template,
    make_template,
    padded,
    primitive,
    read_stream,
    record_bytes,
)
from beam_pipeline.dataset.layout import Encoding, RecordEncoding, RowFormat
from beam_pipeline.dataset.rtt import decode_rtt
from beam_pipeline.dataset.sorted_run import NARROW, WIDE
from beam_pipeline.errors import ProbelineError

MEASUREMENT_SCHEMA = pa.schema(
    [
        ("event_time", pa.timestamp("us")),
        ("dst_addr", pa.string()),
        ("ip_version", pa.int8()),
        ("rtt", pa.float32()),
    ]
)
RECORD_SCHEMA = arrow_record.RECORD_SCHEMA

COMPACT_MAGIC = b"PLc1"
COMPACT_HEADER = struct.Struct("<4sIIQ")  # magic, n, number of IPv6 destinations, first second
COMPACT_MAX_SPAN_SECONDS = 2**32 - 1
_US_PER_SECOND = 1_000_000
_MORE_THAN_FRAMING = 4096
MAX_FIRST_SECOND = 2**63 // _US_PER_SECOND - COMPACT_MAX_SPAN_SECONDS


class RowKey(NamedTuple):
    """Identifies a row; the rows of a probe are numbered from 0 in time order."""

    src_addr: str
    row_index: int


def arrow_measurements_bytes(n: np.ndarray | int, text_bytes: np.ndarray | int) -> np.ndarray | int:
    """Returns the size of n measurements in arrow encoding, with `text_bytes` of addresses."""
    buffers = padded(8 * n) + padded(4 * (n + 1)) + padded(text_bytes)
    return len(arrow_template().words) * 8 + buffers + padded(n) + padded(4 * n) + 8


def compact_measurements_bytes(n: np.ndarray | int, num_ipv6: np.ndarray | int):
    mixed = (num_ipv6 > 0) & (num_ipv6 < n)
    bitmap = np.where(mixed, (np.asarray(n) + 7) // 8, 0)
    return COMPACT_HEADER.size + 10 * n + 12 * num_ipv6 + bitmap


class RowStart(NamedTuple):
    """The beginning of a sorted run that makes one row."""

    count: int  # pyright: ignore[reportIncompatibleMethodOverride] of tuple
    is_full: bool  # False if the run ended before the row was full


def fit(run: np.ndarray, key: RowKey, row_format: RowFormat) -> RowStart:
    """Returns how many leading measurements fit into a row; ProbelineError if none."""
    # The minimum size of a measurement, so a row cannot contain later ones.
    smallest = 24 if row_format.encoding == "arrow" else 10
    max_row_bytes = row_format.max_row_bytes
    run = run[: max_row_bytes // smallest + 1]
    end = len(run)
    if row_format.encoding == "arrow":
        measurements_bytes, of_each = arrow_measurements_bytes, _text_lengths(run)
    else:
        measurements_bytes, of_each = compact_measurements_bytes, is_ipv6(run)
        seconds = run["event_time"] // _US_PER_SECOND
        end = int(np.searchsorted(seconds, seconds[0] + COMPACT_MAX_SPAN_SECONDS, "right"))
    so_far = np.cumsum(of_each, dtype=np.int64)

    def size_up_to(at: int) -> int:
        inside = int(measurements_bytes(at + 1, int(so_far[at])))
        if row_format.record_encoding == "arrow_ipc":
            return int(record_bytes(inside, len(key.src_addr)))
        return tf_example.example_bytes(columns_of(b"", run[: at + 1], key), inside)

    count = bisect.bisect_right(range(len(run)), max_row_bytes, key=size_up_to)
    if count == 0:
        raise ProbelineError(
            f"one measurement of {key.src_addr} takes {size_up_to(0)} bytes, over the limit of "
            f"{max_row_bytes} bytes per row: raise --max_row_size_mb"
        )
    count = min(count, end)
    return RowStart(count, is_full=count < len(run))


def surely_fit(run: np.ndarray, bounds: np.ndarray, row_format: RowFormat) -> np.ndarray:
    """Returns whether each sorted run[bounds[i]:bounds[i + 1]] surely fits into a row.

    Uses only lengths and ends, so other runs may fit as well.
    """
    widest = 17 + (15 if run.dtype == NARROW else addresses.MAX_TEXT_BYTES)
    if row_format.encoding == "compact":
        widest = 10 if run.dtype == NARROW else 23
    fits = np.diff(bounds) * widest + _MORE_THAN_FRAMING <= row_format.max_row_bytes
    if row_format.encoding == "compact":
        times = run["event_time"]
        span = (times[bounds[1:] - 1] - times[bounds[:-1]]) // _US_PER_SECOND
        fits &= span < COMPACT_MAX_SPAN_SECONDS
    return fits


def content_bytes(run: np.ndarray, encoding: Encoding) -> int:
    """Returns the approximate size of measurements in a row, without framing and padding."""
    if encoding == "arrow":
        return 17 * len(run) + int(_text_lengths(run).sum(dtype=np.int64))
    return 10 * len(run) + 12 * int(np.count_nonzero(is_ipv6(run)))


def is_ipv6(run: np.ndarray) -> np.ndarray:
    """Returns which destinations are IPv6, bool [n]."""
    if run.dtype == NARROW:
        return np.zeros(len(run), bool)
    return (run["dst_hi"] != 0) | (run["dst_lo"] >> np.uint64(32) != 0xFFFF)


def format_destinations(run: np.ndarray) -> pa.StringArray:
    if run.dtype == NARROW:
        return addresses.format_ipv4(run["dst_lo"])
    return addresses.format_any(run["dst_hi"], run["dst_lo"])


def _text_lengths(run: np.ndarray) -> np.ndarray:
    if run.dtype == NARROW:
        return addresses.ipv4_text_lengths(run["dst_lo"])
    return np.diff(addresses.string_buffers(format_destinations(run))[0])


MEASUREMENTS_HEAD = arrow_record.schema_message(MEASUREMENT_SCHEMA)
RECORD_HEAD = arrow_record.RECORD_HEAD


def to_batch(run: np.ndarray) -> pa.RecordBatch:
    """Returns a run as MEASUREMENT_SCHEMA, in compact buffers."""
    columns = [
        primitive(pa.timestamp("us"), run["event_time"]),
        format_destinations(run),
        primitive(pa.int8(), np.where(is_ipv6(run), np.int8(6), np.int8(4))),
        primitive(pa.float32(), run["rtt"]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MEASUREMENT_SCHEMA)


@cache
def arrow_template() -> Template:
    return make_template(MEASUREMENT_SCHEMA, to_batch(np.zeros(54_321, NARROW)))


def columns_of(measurements: bytes, run: np.ndarray, key: RowKey) -> RowColumns:
    first, last = int(run["event_time"][0]), int(run["event_time"][-1])
    src_id, span = layout.src_id(key.src_addr), (last - first) / _US_PER_SECOND
    return RowColumns(src_id, measurements, len(run), span, first, last, *key)


@dataclass(frozen=True)
class ProbeRow:
    """A probe row: the columns of its record. The measurements are decoded on first use.

    Attributes:
      src_id: id of the probe, a hash of its address (63 bits).
      measurements: the encoded bytes; `to_arrow` and `run` decode them.
      n_measurements: number of measurements.
      time_span_seconds: from the first to the last; a float32 in a tf_example.
      first_timestamp_us: time of the first, µs since 1970 UTC.
      last_timestamp_us: time of the last, µs since 1970 UTC.
      src_addr: the probe's address, canonical text.
      row_index: number of the row within its probe, from 0 in time order.
      num_bytes: size of the record.
      record_encoding: arrow_ipc or tf_example.

    Example:

        row = open_dataset("rows").rows("train")[0]
        row.src_addr, row.n_measurements, row.to_arrow()["rtt"]
    """

    src_id: int
    measurements: memoryview
    n_measurements: int
    time_span_seconds: float
    first_timestamp_us: int
    last_timestamp_us: int
    src_addr: str
    row_index: int
    num_bytes: int
    record_encoding: RecordEncoding

    @property
    def encoding(self) -> Encoding:
        """The encoding of the measurements."""
        is_compact = bytes(self.measurements[:4]) == COMPACT_MAGIC
        return "compact" if is_compact else "arrow"

    @cached_property
    def run(self) -> np.ndarray:
        """The measurements as a structured array, a NARROW or WIDE sorted run.

        Its fields are event_time (int64, µs since 1970 UTC; compact rows have whole seconds), rtt
        (float32, ms), and the destination as integers.
        """
        if self.encoding == "compact":
            return next(_decode_compact(self.measurements, sys.maxsize))
        return _decode_arrow(self.measurements)

    def to_arrow(self) -> pa.RecordBatch:
        """Returns the measurements in time order; zero-copy in arrow encoding.

        Returns:
          MEASUREMENT_SCHEMA: event_time (timestamp[us], UTC), dst_addr (string), ip_version
          (int8, 4 or 6), rtt (float32, ms; -1.0 is a failed ping).
        """
        if self.encoding == "compact":
            return to_batch(self.run)
        return read_stream(self.measurements, MEASUREMENT_SCHEMA)

    def to_batches(self, max_measurements: int) -> Iterator[pa.RecordBatch]:
        """Yields `to_arrow` in parts, decoded one by one; `max_measurements` is a multiple of 8."""
        if self.encoding == "compact":
            return map(to_batch, _decode_compact(self.measurements, max_measurements))
        batch = self.to_arrow()
        begins = range(0, batch.num_rows, max_measurements)
        return (batch.slice(begin, max_measurements) for begin in begins)


def decode_record(record: bytes) -> ProbeRow:
    """Reads a record of a shard; ValueError if it is damaged.

    Args:
      record: an Arrow IPC stream or a tf.train.Example.

    Example:

        from array_record.python.array_record_module import ArrayRecordReader

        dataset = open_dataset("rows")
        reader = ArrayRecordReader(dataset.file(dataset.manifest.splits["train"].shards[0].path))
        row = decode_record(reader.read([0])[0])
    """
    is_example = record.startswith(tf_example.MAGIC)
    row = (tf_example.decode_example if is_example else arrow_record.decode_record)(record)
    encoding: RecordEncoding = "tf_example" if is_example else "arrow_ipc"
    return ProbeRow(row.src_id, memoryview(row.measurements), *row[2:], len(record), encoding)


def _decode_arrow(measurements: memoryview) -> np.ndarray:
    batch = read_stream(measurements, MEASUREMENT_SCHEMA)
    hi, lo, status = addresses.parse(batch.column("dst_addr"))
    if not np.isin(status, (addresses.FAMILY_IPV4, addresses.FAMILY_IPV6)).all():
        raise ValueError("a destination is not an IP address")
    times = batch.column("event_time").cast(pa.int64()).to_numpy()
    return _make_run(times, hi, lo, batch.column("rtt").to_numpy())


def _make_run(times: np.ndarray, hi: np.ndarray, lo: np.ndarray, rtt: np.ndarray) -> np.ndarray:
    """Returns the narrowest run of int64 µs, address halves and float32 ms, [n] each."""
    narrow = not hi.any() and bool(np.all(lo >> np.uint64(32) == 0xFFFF))
    run = np.empty(len(times), NARROW if narrow else WIDE)
    run["event_time"], run["rtt"] = times, rtt
    run["dst_lo"] = lo & np.uint64(0xFFFFFFFF) if narrow else lo
    if not narrow:
        run["dst_hi"] = hi
    return run


def _decode_compact(measurements: memoryview, max_measurements: int) -> Iterator[np.ndarray]:
    if len(measurements) < COMPACT_HEADER.size:
        raise ValueError(f"{len(measurements)} bytes of compact measurements, less than a header")
    _, n, num_ipv6, first_second = COMPACT_HEADER.unpack_from(measurements)
    expected = int(compact_measurements_bytes(n, num_ipv6))
    if len(measurements) != expected or num_ipv6 > n:
        raise ValueError(f"{len(measurements)} bytes of compact measurements, not {expected}")
    if first_second > MAX_FIRST_SECOND:
        raise ValueError(f"compact measurements from second {first_second}, past the last date")
    at = COMPACT_HEADER.size
    seconds = np.frombuffer(measurements, "<u4", n, at)
    codes = np.frombuffer(measurements, "<u2", n, at + 4 * n)
    at += 6 * n
    bits = np.zeros(0, np.uint8)
    if 0 < num_ipv6 < n:
        bits = np.frombuffer(measurements, np.uint8, (n + 7) // 8, at)
        at += len(bits)
    ipv4 = np.frombuffer(measurements, ">u4", n - num_ipv6, at)
    ipv6 = np.frombuffer(measurements, ">u8", 2 * num_ipv6, at + 4 * len(ipv4)).reshape(-1, 2)
    end_ipv6 = 0
    for begin in range(0, max(n, 1), max_measurements):
        end = min(begin + max_measurements, n)
        is_ipv6 = np.full(end - begin, num_ipv6 > 0)
        if len(bits):
            some = bits[begin // 8 : (end + 7) // 8]
            is_ipv6 = np.unpackbits(some, count=end - begin, bitorder="little").astype(bool)
        begin_ipv6, end_ipv6 = end_ipv6, end_ipv6 + int(np.count_nonzero(is_ipv6))
        if not 0 <= num_ipv6 - end_ipv6 <= n - end:
            raise ValueError("the families of compact measurements contradict their header")
        hi, lo = np.zeros((2, end - begin), np.uint64)
        some = ipv4[begin - begin_ipv6 : end - end_ipv6]
        lo[~is_ipv6] = some.astype(np.uint64) | np.uint64(addresses.MAPPED_IPV4)
        hi[is_ipv6], lo[is_ipv6] = ipv6[begin_ipv6:end_ipv6].T
        times = (seconds[begin:end].astype(np.int64) + first_second) * _US_PER_SECOND
        yield _make_run(times, hi, lo, decode_rtt(codes[begin:end]))
