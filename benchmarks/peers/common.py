"""What the peers share: measurements in order, as Arrow batches, become records in ArrayRecord.

A batch has src_addr, event_time, dst_addr, ip_version, rtt and is sorted by them. Records are
those of `beam_pipeline.row_codec` in arrow encoding, built from slices of the batch: Python runs
per record, never per measurement. The schemas stand here once more, and a test compares them,
because importing row_codec loads numba, a second of CPU that no peer should pay for.
"""

import argparse
import hashlib
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from array_record.python.array_record_module import ArrayRecordWriter

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
_FRAME_BYTES = 4096  # more than Arrow's messages, padding and the record's other columns take
_SPLITS = ("train", "test")


def arguments(description: str | None) -> argparse.Namespace:
    """Parses the flags that every peer takes; `threads` is for the peer's engine."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--input", required=True, help="glob of Parquet files")
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--array_record_options", default="group_size:1,zstd:1")
    parser.add_argument("--max_row_size_mb", type=float, default=8)
    parser.add_argument("--train_ratio", type=float, default=0.9)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


def src_id(src_addr: str) -> int:
    """Returns the probe's 63-bit identifier, as `beam_pipeline.addresses.src_id` does."""
    family = socket.AF_INET6 if ":" in src_addr else socket.AF_INET
    digest = hashlib.blake2b(socket.inet_pton(family, src_addr), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Shards:
    """One ArrayRecord file a split; a probe's split follows from a hash of its address."""

    def __init__(self, args: argparse.Namespace, shard: str = "00000-of-00001"):
        self._train_ratio = args.train_ratio
        self._writers = {}
        for split in _SPLITS:
            folder = args.output / split
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{split}_shard_{shard}.arrayrecord"
            self._writers[split] = ArrayRecordWriter(str(path), args.array_record_options)

    def write(self, src_addr: str, record: bytes) -> None:
        salted = hashlib.blake2b(src_addr.encode(), digest_size=8, key=b"split").digest()
        is_train = int.from_bytes(salted, "big") / 2**64 < self._train_ratio
        self._writers["train" if is_train else "test"].write(record)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def write_ordered(batches: Iterable[pa.RecordBatch], args: argparse.Namespace) -> None:
    """Writes all of a stream that is sorted by src_addr, event_time and the other columns."""
    max_row_bytes = int(args.max_row_size_mb * 2**20)
    shards = Shards(args)
    for src_addr, parts in _probes(batches):
        for record in records(src_addr, parts, max_row_bytes):
            shards.write(src_addr, record)
    shards.close()


def _probes(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, list[pa.RecordBatch]]]:
    """Yields every probe with its measurements, a slice from each batch that holds some."""
    current, parts = None, []
    for batch in batches:
        if batch.num_rows == 0:
            continue
        measurements = _measurements(batch)
        addresses, bounds = _runs(batch.column("src_addr"))
        for index, src_addr in enumerate(addresses):
            if src_addr != current:
                if current is not None:
                    yield current, parts
                current, parts = src_addr, []
            start, end = bounds[index], bounds[index + 1]
            parts.append(measurements.slice(start, end - start))
    if current is not None:
        yield current, parts


def _runs(column: pa.Array) -> tuple[list[str], list[int]]:
    """Returns the k different neighbours of a sorted column and their k + 1 bounds."""
    if not pa.types.is_dictionary(column.type):
        runs = pc.run_end_encode(column)
        return runs.values.to_pylist(), [0, *runs.run_ends.to_pylist()]
    codes = column.indices.to_numpy()
    starts = np.concatenate([[0], np.flatnonzero(codes[1:] != codes[:-1]) + 1])
    addresses = column.dictionary.take(pa.array(codes[starts])).to_pylist()
    return addresses, [*starts.tolist(), len(codes)]


def _measurements(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the batch as MEASUREMENT_SCHEMA; only what has another type is converted."""
    columns = []
    for field in MEASUREMENT_SCHEMA:
        column = batch.column(field.name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=MEASUREMENT_SCHEMA)


def records(
    src_addr: str, parts: list[pa.RecordBatch], max_row_bytes: int
) -> Iterator[bytes]:
    """Yields a probe's records, each as full as `max_row_bytes` (less a page) allows."""
    run = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    start = row_index = 0
    while start < run.num_rows:
        count = _fitting(run, start, max_row_bytes - _FRAME_BYTES)
        yield _record(src_addr, row_index, run.slice(start, count))
        start, row_index = start + count, row_index + 1


def _fitting(run: pa.RecordBatch, start: int, num_bytes: int) -> int:
    """Returns how many measurements from `start` on take at most `num_bytes`."""
    rest = run.num_rows - start
    if rest * (_FIXED_BYTES + _LONGEST_ADDRESS) <= num_bytes:
        return rest
    texts = run.column("dst_addr")
    offsets = np.frombuffer(texts.buffers()[1], np.int32)
    offsets = offsets[texts.offset + start : texts.offset + run.num_rows + 1]
    offsets = offsets[: num_bytes // _FIXED_BYTES + 1].astype(np.int64)
    sizes = offsets - offsets[0] + _FIXED_BYTES * np.arange(len(offsets))
    return max(int(np.searchsorted(sizes, num_bytes, "right")) - 1, 1)


def _record(src_addr: str, row_index: int, measurements: pa.RecordBatch) -> bytes:
    # A slice is written as if it stood alone: IPC leaves out what lies around it.
    stream = b"".join(
        (_MEASUREMENTS_HEAD, memoryview(measurements.serialize()), _END_OF_STREAM)
    )
    times = measurements.column("event_time")
    first, last = times[0].value, times[-1].value
    values = (
        src_id(src_addr),
        stream,
        measurements.num_rows,
        (last - first) / 1e6,
        first,
        last,
        src_addr,
        row_index,
    )
    columns = [
        pa.array([value], field.type) for value, field in zip(values, RECORD_SCHEMA, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)
    return b"".join((_RECORD_HEAD, memoryview(batch.serialize()), _END_OF_STREAM))
