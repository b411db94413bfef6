"""Decodes many records at a time, as columns.

Records of one form are joined to one Arrow stream of many batches, which Arrow reads much faster
than many streams; the same holds for the measurements inside them.
"""
# pyarrow and kernels are untyped.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset import addresses, arrow_record, tf_example
from beam_pipeline.dataset.arrow_record import END_OF_STREAM, RECORD_HEAD, RECORD_SCHEMA
from beam_pipeline.dataset.layout import Encoding, RecordEncoding
from beam_pipeline.dataset.row_codec import (
    COMPACT_HEADER,
    COMPACT_MAGIC,
    MAX_FIRST_SECOND,
    MEASUREMENT_SCHEMA,
    MEASUREMENTS_HEAD,
    compact_measurements_bytes,
    to_batch,
)
from beam_pipeline.dataset.rtt import decode_rtt
from beam_pipeline.dataset.sorted_run import WIDE
from beam_pipeline.kernels import kernel

_US_PER_SECOND = 1_000_000
_END = END_OF_STREAM.to_bytes(8, "little")
_HEADERS = np.dtype([("magic", "S4"), ("n", "<u4"), ("num_ipv6", "<u4"), ("first", "<u8")])
_BATCH_BYTES, _BATCH_RECORDS = 4 << 20, 4096  # of records decoded together
# Raised by `decode_together` for bytes that are not records.
UNREADABLE_RECORD = (ValueError, OSError, pa.ArrowException, struct.error)


class DecodedRows(NamedTuple):
    """r records of the same two encodings, and their m measurements one after another.

    Row i has the measurements bounds[i]:bounds[i + 1].
    """

    columns: pa.Table  # RECORD_SCHEMA [r]
    num_bytes: np.ndarray  # int64 [r], sizes of the records
    record_encoding: RecordEncoding
    encoding: Encoding
    bounds: np.ndarray  # int64 [r + 1]
    measurements: np.ndarray | pa.RecordBatch  # compact: WIDE [m]; arrow: MEASUREMENT_SCHEMA [m]

    def to_run(self) -> np.ndarray:
        """Returns the measurements as WIDE [m]; ValueError if a destination is no address."""
        found = self.measurements
        if isinstance(found, np.ndarray):
            return found
        run = np.empty(found.num_rows, WIDE)
        run["dst_hi"], run["dst_lo"], status = addresses.parse(found.column("dst_addr"))
        if not np.isin(status, (addresses.FAMILY_IPV4, addresses.FAMILY_IPV6)).all():
            raise ValueError("a destination is not an IP address")
        run["event_time"] = found.column("event_time").cast(pa.int64()).to_numpy()
        run["rtt"] = found.column("rtt").to_numpy()
        return run

    def to_batch(self) -> pa.RecordBatch:
        """Returns the measurements as MEASUREMENT_SCHEMA."""
        found = self.measurements
        return to_batch(found) if isinstance(found, np.ndarray) else found


def in_batches[T: bytes | Exception](records: Iterable[T]) -> Iterator[list[T]]:
    """Yields records in lists of a few MiB, or of one; an error of reading comes after the last."""
    batch: list[T] = []
    num_bytes, failure = 0, None
    try:
        for record in records:
            size = len(record) if isinstance(record, bytes) else 0
            if batch and (num_bytes + size > _BATCH_BYTES or len(batch) == _BATCH_RECORDS):
                yield batch
                batch, num_bytes = [], 0
            batch.append(record)
            num_bytes += size
    except (ValueError, OSError) as error:
        failure = error
    if batch:
        yield batch
    if failure is not None:
        raise failure


def decode(records: Sequence[bytes | Exception]) -> Iterator[DecodedRows | Exception]:
    """Yields records in order, decoded as many at a time as possible, or why one is unreadable.

    An exception in place of a record is yielded as it is.
    """
    together: list[bytes] = []
    for record in records:
        if isinstance(record, bytes):
            together.append(record)
            continue
        yield from _decode(together)
        yield record
        together = []
    yield from _decode(together)


def _decode(records: Sequence[bytes]) -> Iterator[DecodedRows | Exception]:
    if not records:
        return
    try:
        yield decode_together(records)
    except UNREADABLE_RECORD as error:
        if len(records) == 1:
            yield error
            return
        yield from _decode(records[: len(records) // 2])
        yield from _decode(records[len(records) // 2 :])


def decode_together(records: Sequence[bytes]) -> DecodedRows:
    """Decodes at least one record; UNREADABLE_RECORD if any is damaged, or of another encoding."""
    is_example = records[0].startswith(tf_example.MAGIC)
    if is_example:
        columns = _columns_of_examples(records)
    else:
        columns, num_rows = _read_streams(records, RECORD_HEAD, RECORD_SCHEMA)
        if (num_rows != 1).any():
            raise ValueError(f"a record of {num_rows[0]} rows, not of 1 row")
    measurements = columns["measurements"].combine_chunks()
    if measurements[0].as_buffer()[: len(COMPACT_MAGIC)] == COMPACT_MAGIC:
        encoding: Encoding = "compact"
        bounds, decoded = _read_compact(measurements)
    else:
        encoding = "arrow"
        inside = measurements.to_pylist() if len(records) > 1 else [measurements[0].as_buffer()]
        table, sizes = _read_streams(inside, MEASUREMENTS_HEAD, MEASUREMENT_SCHEMA)
        bounds, decoded = _bounds(sizes), table.to_batches()[0] if table.num_rows else _NONE
    num_bytes = np.array(list(map(len, records)), np.int64)
    record_encoding: RecordEncoding = "tf_example" if is_example else "arrow_ipc"
    return DecodedRows(columns, num_bytes, record_encoding, encoding, bounds, decoded)


_NONE = pa.RecordBatch.from_pylist([], MEASUREMENT_SCHEMA)


def _bounds(sizes: np.ndarray) -> np.ndarray:
    return np.append(0, np.cumsum(sizes, dtype=np.int64))


def _read_streams(
    streams: Sequence[bytes], head: bytes, schema: pa.Schema
) -> tuple[pa.Table, np.ndarray]:
    """Returns Arrow streams of one batch each as a table of one chunk, and their sizes in rows.

    Several streams must begin with `head`, the bytes of the schema.
    """
    if len(streams) == 1:
        batch = arrow_record.read_stream(streams[0], schema)
        table, sizes = pa.Table.from_batches([batch]), np.array([batch.num_rows])
    else:
        if not all(each.startswith(head) and each.endswith(_END) for each in streams):
            raise ValueError("a stream of another form")
        batches = [each[len(head) : -len(_END)] for each in streams]
        joined = pa.BufferReader(b"".join([head, *batches, _END]))
        with pa.ipc.open_stream(joined) as reader:
            table = reader.read_all()
        table.validate(full=True)
        sizes = np.array([len(chunk) for chunk in table.column(0).iterchunks()], np.int64)
        if len(sizes) != len(streams) or not all(batches) or joined.tell() != joined.size():
            raise ValueError("streams of several batches, of none, or with something after them")
        table = table.combine_chunks()
    if any(column.null_count for column in table.columns):
        raise ValueError("a record or measurements with nulls")
    return table, sizes


def _columns_of_examples(records: Sequence[bytes]) -> pa.Table:
    if not all(record.startswith(tf_example.MAGIC) for record in records):
        raise ValueError("a record of another encoding")
    values = zip(*map(tf_example.decode_example, records), strict=True)
    return pa.Table.from_arrays(
        [pa.array(each, field.type) for each, field in zip(values, RECORD_SCHEMA, strict=True)],
        schema=RECORD_SCHEMA,
    )


def _read_compact(measurements: pa.BinaryArray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds of the measurements of compact rows, and all measurements, WIDE."""
    offsets, data = addresses.string_buffers(measurements)
    starts, sizes = offsets[:-1].astype(np.int64), np.diff(offsets)
    if sizes.min() < COMPACT_HEADER.size:
        raise ValueError(f"{sizes.min()} bytes of compact measurements, less than a header")
    heads = data[starts[:, np.newaxis] + np.arange(COMPACT_HEADER.size)].view(_HEADERS)[:, 0]
    n, num_ipv6 = heads["n"].astype(np.int64), heads["num_ipv6"].astype(np.int64)
    expected = compact_measurements_bytes(n, num_ipv6)
    for at in np.flatnonzero((sizes != expected) | (num_ipv6 > n)).tolist():
        raise ValueError(f"{sizes[at]} bytes of compact measurements, not {expected[at]}")
    if (heads["magic"] != COMPACT_MAGIC).any():
        raise ValueError("measurements of another encoding")
    if heads["first"].max() > MAX_FIRST_SECOND:
        raise ValueError("compact measurements past the last date")
    bounds = _bounds(n)
    run, codes = np.zeros(bounds[-1], WIDE), np.empty(bounds[-1], np.uint16)
    first_us = heads["first"].astype(np.int64) * _US_PER_SECOND
    columns = (run["event_time"], run["dst_hi"], run["dst_lo"])
    found = _read_all(data, starts + COMPACT_HEADER.size, bounds, num_ipv6, codes, *columns)
    if (found != num_ipv6).any():
        raise ValueError("the families of compact measurements contradict their header")
    run["event_time"] += np.repeat(first_us, n)
    run["rtt"] = decode_rtt(codes)
    return bounds, run


@kernel
def _read_all(data, starts, bounds, num_ipv6, codes, times, hi, lo):
    """Reads the columns of rows, each from a byte of `data`; returns their numbers of IPv6.

    A row whose bits disagree with its number of IPv6 destinations is read up to that point.
    """
    found = np.zeros(len(starts), np.int64)
    for row in range(len(starts)):
        first, n, at = bounds[row], bounds[row + 1] - bounds[row], starts[row]
        mixed = 0 < num_ipv6[row] < n
        bits = at + 6 * n
        ipv4 = bits + ((n + 7) // 8 if mixed else 0)
        ipv6 = ipv4 + 4 * (n - num_ipv6[row])
        for i in range(n):
            seconds = np.int64(0)
            for byte in range(4):
                seconds |= np.int64(data[at + 4 * i + byte]) << (8 * byte)
            times[first + i] = seconds * _US_PER_SECOND
            code = at + 4 * n + 2 * i
            codes[first + i] = np.uint16(data[code]) | np.uint16(data[code + 1]) << np.uint16(8)
        for i in range(n):
            is_ipv6 = num_ipv6[row] > 0
            if mixed:
                is_ipv6 = (data[bits + i // 8] >> (i % 8)) & 1 == 1
            if is_ipv6 and found[row] < num_ipv6[row]:
                for byte in range(8):
                    hi[first + i] = hi[first + i] << np.uint64(8) | np.uint64(data[ipv6 + byte])
                    lo[first + i] = lo[first + i] << np.uint64(8) | np.uint64(data[ipv6 + 8 + byte])
                ipv6 += 16
            elif not is_ipv6 and i - found[row] < n - num_ipv6[row]:
                value = np.uint64(0xFFFF)
                for byte in range(4):
                    value = value << np.uint64(8) | np.uint64(data[ipv4 + byte])
                lo[first + i] = value
                ipv4 += 4
            found[row] += is_ipv6
    return found
