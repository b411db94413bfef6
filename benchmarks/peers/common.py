"""Common to the peers: ordered measurements as Arrow batches become records in ArrayRecord.

A batch has src_addr, event_time, dst_addr, ip_version, rtt and is sorted by them. Records are those
of `beam_pipeline.dataset.row_codec` in arrow encoding, built from slices of the batch: Python runs
per record, never per measurement. The schemas are repeated here, and a test compares them, because
importing row_codec loads numba, which takes a second of CPU.
"""

import argparse
import hashlib
import os
import socket
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

MEASUREMENT_SCHEMA = pa.schema(
    [
        ("event_time", pa.timestamp("us")),
        ("dst_addr", pa.string()),
        ("ip_version", pa.int8()),
        ("rtt", pa.float32()),
    ]
)
RECORD_SCHEMA = pa.schema(
    [
        ("src_id", pa.int64()),
        ("measurements", pa.binary()),
        ("n_measurements", pa.int32()),
        ("time_span_seconds", pa.float64()),
        ("first_timestamp", pa.timestamp("us")),
        ("last_timestamp", pa.timestamp("us")),
        ("src_addr", pa.string()),
        ("row_index", pa.int32()),
    ]
)
_MEASUREMENTS_HEAD = MEASUREMENT_SCHEMA.serialize().to_pybytes()
_RECORD_HEAD = RECORD_SCHEMA.serialize().to_pybytes()
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

_FIXED_BYTES = 8 + 4 + 1 + 4  # of one measurement: time, text offset, version, rtt
_LONGEST_ADDRESS = 39
_FRAME_BYTES = 4096  # upper bound of Arrow's messages, padding and the record's other columns
_MAX_WAITING_ROWS, _MAX_WAITING_MEASUREMENTS = 512, 1 << 18  # about 8 MiB until encoded
_SPLITS = ("train", "test")
_RECORDS_AT_ONCE = 16


def arguments(description: str | None) -> argparse.Namespace:
    """Parses the flags common to all peers; `threads` is for the peer's engine."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--input", required=True, help="glob of Parquet files")
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--array_record_options", default="group_size:1,zstd:1")
    parser.add_argument("--max_row_size_mb", type=float, default=8)
    parser.add_argument("--train_ratio", type=float, default=0.9)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def read_records(paths: Iterable[str | Path]) -> Iterator[bytes]:
    """Yields the records of ArrayRecord files, a few at a time: each has up to 8 MiB."""
    for path in paths:
        reader = ArrayRecordReader(str(path))
        num_records = reader.num_records()
        for start in range(0, num_records, _RECORDS_AT_ONCE):
            yield from reader.read(start, min(start + _RECORDS_AT_ONCE, num_records))
        reader.close()


def src_id(src_addr: str) -> int:
    """Returns the probe's 63-bit identifier, as `beam_pipeline.dataset.layout.src_id`."""
    family = socket.AF_INET6 if ":" in src_addr else socket.AF_INET
    digest = hashlib.blake2b(socket.inet_pton(family, src_addr), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Row(NamedTuple):
    """The contents of one record."""

    src_addr: str
    row_index: int
    measurements: pa.RecordBatch


class Shards:
    """One ArrayRecord file per split; a probe's split follows from a hash of its address."""

    def __init__(self, args: argparse.Namespace, shard: str = "00000-of-00001"):
        self._train_ratio = args.train_ratio
        self._writers = {}
        for split in _SPLITS:
            folder = args.output / split
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{split}_shard_{shard}.arrayrecord"
            self._writers[split] = ArrayRecordWriter(str(path), args.array_record_options)

    def write(self, rows: list[Row]) -> None:
        for row, record in zip(rows, encode(rows), strict=True):
            salted = hashlib.blake2b(row.src_addr.encode(), digest_size=8, key=b"split").digest()
            is_train = int.from_bytes(salted, "big") / 2**64 < self._train_ratio
            self._writers["train" if is_train else "test"].write(record)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def write_ordered(batches: Iterable[pa.RecordBatch], args: argparse.Namespace) -> None:
    """Writes a whole stream sorted by src_addr, event_time and the other columns."""
    max_row_bytes = int(args.max_row_size_mb * 2**20)
    shards = Shards(args)
    rows: list[Row] = []
    num_waiting = 0
    for row in _rows(batches, max_row_bytes):
        rows.append(row)
        num_waiting += row.measurements.num_rows
        if len(rows) == _MAX_WAITING_ROWS or num_waiting >= _MAX_WAITING_MEASUREMENTS:
            shards.write(rows)
            rows, num_waiting = [], 0
    shards.write(rows)
    shards.close()


def _rows(batches: Iterable[pa.RecordBatch], max_row_bytes: int) -> Iterator[Row]:
    """Cuts the stream into rows, each as soon as its end is known."""
    current, parts, row_index = "", [], 0
    for src_addr, part in _slices(batches):
        if src_addr != current:
            yield from cut(current, parts, max_row_bytes, row_index)
            current, parts, row_index = src_addr, [], 0
        parts.append(part)
        if sum(part.num_rows for part in parts) > max_row_bytes // _FIXED_BYTES:
            *full, rest = cut(current, parts, max_row_bytes, row_index)
            yield from full
            parts, row_index = [rest.measurements], rest.row_index
    yield from cut(current, parts, max_row_bytes, row_index)


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields (src_addr, its measurements) in order, from every batch that has some."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        measurements = _measurements(batch)
        addresses, bounds = _runs(batch.column("src_addr"))
        for src_addr, (start, end) in zip(addresses, pairwise(bounds), strict=True):
            yield src_addr, measurements.slice(start, end - start)


def _runs(column: pa.Array) -> tuple[list[str], list[int]]:
    """Returns the k distinct neighbours of a sorted column and their k + 1 bounds."""
    if not pa.types.is_dictionary(column.type):
        runs = pc.run_end_encode(column)
        return runs.values.to_pylist(), [0, *runs.run_ends.to_pylist()]
    codes = column.indices.to_numpy()
    starts = np.concatenate([[0], np.flatnonzero(codes[1:] != codes[:-1]) + 1])
    addresses = column.dictionary.take(pa.array(codes[starts])).to_pylist()
    return addresses, [*starts.tolist(), len(codes)]


def _measurements(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch as MEASUREMENT_SCHEMA, converting only differing types."""
    columns = []
    for field in MEASUREMENT_SCHEMA:
        column = batch.column(field.name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=MEASUREMENT_SCHEMA)


def cut(
    src_addr: str, parts: list[pa.RecordBatch], max_row_bytes: int, row_index: int = 0
) -> Iterator[Row]:
    """Yields a probe's rows from number `row_index`, each as full as allowed (less a page)."""
    if not parts:
        return
    run = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    start = 0
    while start < run.num_rows:
        count = _fitting(run, start, max_row_bytes - _FRAME_BYTES)
        yield Row(src_addr, row_index, run.slice(start, count))
        start, row_index = start + count, row_index + 1


def _fitting(run: pa.RecordBatch, start: int, num_bytes: int) -> int:
    """Returns how many measurements from `start` take at most `num_bytes`."""
    rest = run.num_rows - start
    if rest * (_FIXED_BYTES + _LONGEST_ADDRESS) <= num_bytes:
        return rest
    texts = run.column("dst_addr")
    offsets = np.frombuffer(texts.buffers()[1], np.int32)
    offsets = offsets[texts.offset + start : texts.offset + run.num_rows + 1]
    offsets = offsets[: num_bytes // _FIXED_BYTES + 1].astype(np.int64)
    sizes = offsets - offsets[0] + _FIXED_BYTES * np.arange(len(offsets))
    return max(int(np.searchsorted(sizes, num_bytes, "right")) - 1, 1)


def encode(rows: list[Row]) -> Iterator[bytes]:
    """Yields the rows' records; columns are built for all at once, then sliced."""
    times = [row.measurements.column("event_time") for row in rows]
    first = np.array([column[0].value for column in times], np.int64)
    last = np.array([column[-1].value for column in times], np.int64)
    columns = [
        [src_id(row.src_addr) for row in rows],
        [_stream(_MEASUREMENTS_HEAD, row.measurements) for row in rows],
        [row.measurements.num_rows for row in rows],
        (last - first) / 1e6,
        first,
        last,
        [row.src_addr for row in rows],
        [row.row_index for row in rows],
    ]
    arrays = [
        pa.array(values, field.type) for values, field in zip(columns, RECORD_SCHEMA, strict=True)
    ]
    table = pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)
    for index in range(len(rows)):
        yield _stream(_RECORD_HEAD, table.slice(index, 1))


def _stream(head: bytes, batch: pa.RecordBatch) -> bytes:
    # IPC writes only the slice, not the buffers around it.
    return b"".join((head, memoryview(batch.serialize()), _END_OF_STREAM))
