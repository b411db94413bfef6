"""Staging: the payloads of records stay in files, only references travel to the writers.

Records that go to shards by key, each with its reference:

  | Record(key, payload)
  v  StageRecords   writes payloads to files of this attempt; small ones travel inline
  | StagedRecords   columns: a batch of references

References are emitted only after their file is closed. The writer of a shard holds everything but
the payloads, which it reads some MiB at a time (`ShardRecords`, `ArrivingRecords`).

Records that keep their order, in blocks with one reference:

  BlockWriter → StagedBlock, all of them in order → plan_shards → ShardPlan → read_part → batches

A block is the bytes of its records, concatenated, followed by a table of the length and checksum of
each. A shard may thus begin anywhere, and memory depends neither on the number of records nor on
the number of shards.
"""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from apache_beam.utils.windowed_value import WindowedValue

from beam_pipeline.dataset.addresses import string_buffers
from beam_pipeline.dataset.layout import shard_of
from beam_pipeline.jobs.messages import Message
from beam_pipeline.shards.claim_checks import ClaimReader, ClaimWriter, StoredPayload
from beam_pipeline.storage.files import crc32c

STAGING_FILE_BYTES = 128 << 20
_INLINE_BYTES = 8 << 20  # of a batch
_MAX_STAGED_IN_MEMORY = 50_000
_BATCH_BYTES = 4 << 20  # of payloads that are read and encoded together
_FRAMING_BYTES = 1 << 10  # that a record may add to its payload
BLOCK_BYTES = 64 << 20
MAX_BLOCK_RECORDS = 1 << 18
_TABLE = np.dtype([("length", "<u8"), ("crc32c", "<u4")])  # of a block
_COLUMNS = pa.schema(
    [
        ("key", pa.binary()),
        ("inline", pa.binary()),  # the payload, null if it is stored
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("crc32c", pa.uint32()),
    ]
)


class Record(Message, frozen=True):
    """A record to write; `key` determines its shard and its place there."""

    key: bytes
    payload: bytes


class StagedRecords(Message, frozen=True):
    """Records whose payloads are inline or in one file."""

    path: str
    columns: bytes  # a batch of _COLUMNS as an Arrow message, without its schema

    @classmethod
    def of(cls, path: str, batch: pa.RecordBatch) -> Self:
        """Returns the records of a batch."""
        return cls(path, batch.serialize().to_pybytes())

    def batch(self) -> pa.RecordBatch:
        """Returns the columns."""
        return pa.ipc.read_record_batch(pa.py_buffer(self.columns), _COLUMNS)

    def payload_bytes(self) -> int:
        """Returns the size of all payloads."""
        return pc.sum(self.batch().column("length")).as_py()


class StagedPayloads:
    """The payloads of a batch of staged records."""

    def __init__(self, path: str, batch: pa.RecordBatch, reader: ClaimReader):
        self._path = path
        self._reader = reader
        self._ends, data = string_buffers(batch.column("inline"))
        self._inline = memoryview(data)
        self._is_stored = batch.column("inline").is_null().to_numpy(zero_copy_only=False)
        self._places = [batch.column(name).to_numpy() for name in ("offset", "length", "crc32c")]

    def prefetch(self, rows: np.ndarray) -> Callable[[], list[bytes]]:
        """Prefetches payloads; the callable raises ProbelineError if they have changed."""
        stored = rows[self._is_stored[rows]]
        if not len(stored):
            return partial(self._with_inline, rows.tolist(), list)
        places = (column[stored].tolist() for column in self._places)
        wait = self._reader.prefetch_in(self._path, *places)
        return wait if len(stored) == len(rows) else partial(self._with_inline, rows.tolist(), wait)

    def _with_inline(self, rows: list[int], wait: Callable[[], list[bytes]]) -> list[bytes]:
        stored = iter(wait())
        return [
            next(stored)
            if self._is_stored[row]
            else bytes(self._inline[self._ends[row] : self._ends[row + 1]])
            for row in rows
        ]


class StageRecords(beam.DoFn):
    """Record → StagedRecords; payloads of up to `inline_bytes` travel with their record."""

    def __init__(self, folder: str, inline_bytes: int) -> None:
        self._folder = folder
        self._inline_bytes = inline_bytes

    def start_bundle(self) -> None:
        self._writer = ClaimWriter(self._folder, "records")
        self._columns: list[list[Any]] = [[] for _ in _COLUMNS]
        self._held_bytes = 0

    def process(
        self,
        record: Record,
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
    ) -> Iterator[StagedRecords]:
        self._where = (timestamp, window)
        self._put(record)
        if (
            self._writer.num_bytes >= STAGING_FILE_BYTES
            or self._held_bytes >= _INLINE_BYTES
            or len(self._columns[0]) >= _MAX_STAGED_IN_MEMORY
        ):
            yield from self._close()
            self.start_bundle()

    def _put(self, record: Record) -> None:
        payload, length = record.payload, len(record.payload)
        is_inline = length <= self._inline_bytes
        at = 0 if is_inline else self._writer.append(payload)
        values = record.key, payload if is_inline else None, at, length, crc32c(payload)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        self._held_bytes += length if is_inline else 0

    def _close(self) -> Iterator[StagedRecords]:
        self._writer.close()
        if not self._columns[0]:
            return
        arrays = [pa.array(values, field.type) for values, field in zip(self._columns, _COLUMNS)]
        columns = pa.RecordBatch.from_arrays(arrays, schema=_COLUMNS)
        yield StagedRecords.of(self._writer.path, columns)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for staged in self._close():
            timestamp, window = self._where
            yield WindowedValue(staged, timestamp, (window,))


@dataclass(frozen=True)
class StagedShards:
    """How staged records become shards, the `ShardInput` of records with keys.

    If not `ordered`, records are written as they arrive, one batch in memory at a time.
    """

    ordered: bool
    root = ""
    nothing = StagedRecords("", b"")

    def assign(
        self, staged: StagedRecords, num_shards: Sequence[int]
    ) -> Iterator[tuple[int, int, StagedRecords]]:
        """Yields (0, shard, records): a hash of its key determines a record's shard."""
        batch = staged.batch()
        keys, (count,) = batch.column("key").to_pylist(), num_shards
        shards = np.array([shard_of(key, count) for key in keys])
        order = np.argsort(shards, kind="stable")
        batch = batch.take(pa.array(order))
        starts = [0, *(np.flatnonzero(np.diff(shards[order])) + 1).tolist(), len(shards)]
        for start, end in itertools.pairwise(starts):
            part = StagedRecords.of(staged.path, batch.slice(start, end - start))
            yield 0, int(shards[order[start]]), part

    def content(
        self, staged: Iterable[StagedRecords], shard: int, num_shards: int, reader: ClaimReader
    ) -> "ShardRecords | ArrivingRecords":
        """Returns the records of a shard."""
        return (ShardRecords if self.ordered else ArrivingRecords)(staged, reader)


class ShardRecords:
    """The staged records of a shard, ordered by key, equal keys by size and checksum."""

    def __init__(self, staged: Iterable[StagedRecords], reader: ClaimReader):
        parts = [(part.path, part.batch()) for part in staged if part.columns]
        batches = [batch for _, batch in parts]
        columns = pa.Table.from_batches(batches, schema=_COLUMNS)
        # The inline payloads are not copied, so that they are in memory once.
        small = columns.select(["key", "length", "crc32c"]).combine_chunks()
        sort_keys = [(name, "ascending") for name in small.column_names]
        self._order = pc.sort_indices(small, sort_keys).to_numpy().astype(np.int64)
        self.lengths: list[int] = small["length"].take(pa.array(self._order)).to_pylist()
        self._parts = [StagedPayloads(path, batch, reader) for path, batch in parts]
        self._starts = np.cumsum([0, *(batch.num_rows for batch in batches)])

    def payloads(self, start: int, end: int) -> list[bytes]:
        """Reads some payloads; ProbelineError if they are not as staged."""
        rows = self._order[start:end]
        parts = np.searchsorted(self._starts, rows, "right") - 1
        by_part = np.argsort(parts, kind="stable")
        borders = np.flatnonzero(np.diff(parts[by_part])) + 1
        waits = []
        for at in np.split(by_part, borders):
            part = parts[at[0]]
            waits.append((at.tolist(), self._parts[part].prefetch(rows[at] - self._starts[part])))
        payloads = [b""] * len(rows)
        for at, wait in waits:
            for place, payload in zip(at, wait(), strict=True):
                payloads[place] = payload
        return payloads

    def batches(self) -> Iterator[tuple[list[bytes], None]]:
        """Yields all payloads in order, about _BATCH_BYTES at a time."""
        for start, end in _batches(self.lengths):
            yield self.payloads(start, end), None


class ArrivingRecords:
    """The staged records of a shard in order of arrival, read once."""

    def __init__(self, staged: Iterable[StagedRecords], reader: ClaimReader):
        self._staged = staged
        self._reader = reader

    def batches(self) -> Iterator[tuple[list[bytes], None]]:
        """Yields the payloads of each batch."""
        for part in self._staged:
            if part.columns:
                batch = part.batch()
                payloads = StagedPayloads(part.path, batch, self._reader)
                yield payloads.prefetch(np.arange(batch.num_rows))(), None


def _batches(lengths: Sequence[int] | np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields the bounds of batches of consecutive records, about _BATCH_BYTES each."""
    return bounds_within(np.array(lengths, np.int64) + _FRAMING_BYTES, _BATCH_BYTES)


def bounds_within(
    sizes: np.ndarray, max_bytes: int, max_count: int = sys.maxsize
) -> Iterator[tuple[int, int]]:
    """Yields the bounds of consecutive items of at most that size and number, or of one item."""
    ends = np.cumsum(sizes, dtype=np.int64)
    start = 0
    while start < len(ends):
        limit = max_bytes + (int(ends[start - 1]) if start else 0)
        end = max(start + 1, int(np.searchsorted(ends, limit, "right")))
        end = min(end, start + max_count)
        yield start, end
        start = end


# --- blocks ---------------------------------------------------------------------------------------


class StagedBlock(Message, frozen=True):
    """A closed file of consecutive records, followed by a table of their lengths and checksums."""

    num_records: int
    table: StoredPayload

    @property
    def record_bytes(self) -> int:
        """The size of all records."""
        return self.table.offset


class BlockWriter:
    """Writes records to blocks of about BLOCK_BYTES in a folder."""

    def __init__(self, folder: str, name: str):
        self.blocks: list[StagedBlock] = []
        self._folder = folder
        self._name = name
        self._begin()

    def _begin(self) -> None:
        self._file = ClaimWriter(self._folder, self._name)
        self._lengths: list[int] = []
        self._checksums: list[int] = []

    def write(self, records: Sequence[bytes]) -> None:
        """Appends records, which are in `blocks` after `close`."""
        if not records:
            return
        self._file.append(b"".join(records) if len(records) > 1 else records[0])
        self._lengths += map(len, records)
        self._checksums += map(crc32c, records)
        if self._file.num_bytes >= BLOCK_BYTES or len(self._lengths) >= MAX_BLOCK_RECORDS:
            self.close()

    def close(self) -> None:
        """Closes the current block."""
        if not self._lengths:
            return
        table = np.empty(len(self._lengths), _TABLE)
        table["length"], table["crc32c"] = self._lengths, self._checksums
        claim = self._file.put(table.tobytes())
        assert isinstance(claim, StoredPayload)
        self._file.close()
        self.blocks.append(StagedBlock(len(table), claim))
        self._begin()


class BlockPart(Message, frozen=True):
    """The records [start, stop) of a block."""

    block: StagedBlock
    start: int
    stop: int


class ShardPlan(Message, frozen=True):
    """The parts that make up a shard."""

    shard: int
    num_shards: int
    first_record: int  # its index among all records
    parts: list[BlockPart]

    @property
    def num_records(self) -> int:
        return sum(part.stop - part.start for part in self.parts)


def plan_shards(
    blocks: Sequence[StagedBlock], num_shards: int, shard_bytes: int
) -> list[ShardPlan]:
    """Divides all records, in order, among shards whose record counts differ by at most 1.

    If `num_shards` is 0, it is derived from `shard_bytes`, at least 1.
    """
    total = sum(block.num_records for block in blocks)
    num_bytes = sum(block.record_bytes for block in blocks)
    count = num_shards or max(1, -(-num_bytes // shard_bytes))
    plans, at, rest = [], 0, iter(blocks)
    block, taken = next(rest, None), 0  # records of the current block that are in a shard
    for shard in range(count):
        first, end, parts = at, (shard + 1) * total // count, []
        while at < end and block is not None:
            stop = min(block.num_records, taken + end - at)
            parts.append(BlockPart(block, taken, stop))
            at += stop - taken
            taken = stop
            if taken == block.num_records:
                block, taken = next(rest, None), 0
        plans.append(ShardPlan(shard, count, first, parts))
    return plans


def read_part(part: BlockPart, reader: ClaimReader) -> Iterator[list[bytes]]:
    """Yields the records of a part, some MiB at a time; ProbelineError if they have changed."""
    claim = part.block.table
    table = np.frombuffer(reader.read(claim), _TABLE)
    at = int(np.sum(table["length"][: part.start]))
    table = table[part.start : part.stop]
    waiting: Callable[[], list[bytes]] | None = None
    for start, end in _batches(table["length"]):
        lengths = table["length"][start:end].tolist()
        wait = reader.prefetch_adjacent(
            claim.path, at, lengths, table["crc32c"][start:end].tolist()
        )
        if waiting is not None:
            yield waiting()
        waiting, at = wait, at + sum(lengths)
    if waiting is not None:
        yield waiting()
