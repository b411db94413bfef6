"""Staged records: work units become blocks of records, and parts of blocks become shards.

  WorkUnit → stage_unit → StagedUnit: closed files of records, and counts
  all StagedBlocks, in input order → plan_shards → ShardPlan → read_part → batches

A block is the bytes of its records, concatenated, followed by a table of the length and checksum of
each. A shard may thus begin anywhere, and memory depends neither on the number of records nor on
the number of shards.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from beam_pipeline.convert.options import RecordOptions
from beam_pipeline.convert.records import Batch, read_batches
from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.documents.files import WorkUnit
from beam_pipeline.errors import ProbelineError, explained_os_errors
from beam_pipeline.jobs.messages import Message
from beam_pipeline.shards.claim_checks import ClaimWriter
from beam_pipeline.shards.letters import LetterBox, LetterPart
from beam_pipeline.sources.reading import UnreadableInputError
from beam_pipeline.storage.files import crc32c, open_file

BLOCK_BYTES = 64 << 20
MAX_BLOCK_RECORDS = 1 << 18
_BATCH_BYTES = 4 << 20
_TABLE = np.dtype([("length", "<u8"), ("crc32c", "<u4")])


# --- blocks ---------------------------------------------------------------------------------------


class StagedBlock(Message, frozen=True):
    """A closed file of consecutive records."""

    path: str
    num_records: int
    record_bytes: int  # where its table begins
    table_crc32c: int


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
        data, num_bytes = table.tobytes(), self._file.num_bytes
        self._file.append(data)
        self._file.close()
        self.blocks.append(StagedBlock(self._file.path, len(table), num_bytes, crc32c(data)))
        self._begin()


# --- work units to blocks -------------------------------------------------------------------------


class StagedUnit(Message, frozen=True):
    """The records of a work unit, and the counts that prove that none was lost."""

    file: int  # its number
    unit: int
    num_units: int  # of the file
    is_whole: bool  # not truncated by damage
    num_read: int
    num_blank: int
    num_bytes: int  # of plain JSON lines
    dead_letters: dict[str, int]
    letter_files: list[LetterPart]
    blocks: list[StagedBlock]

    @property
    def num_staged(self) -> int:
        """The number of records for the output."""
        return sum(block.num_records for block in self.blocks)


def stage_unit(unit: WorkUnit, options: RecordOptions, folder: str) -> StagedUnit:
    """Reads a work unit and writes its records to files below `folder`."""
    name = f"file-{unit.file.number:06d}-{unit.number:06d}"
    writer, letters = BlockWriter(f"{folder}/records", name), LetterBox(f"{folder}/letters", name)
    num_read = num_blank = num_bytes = 0
    is_whole = True
    batches = read_batches(unit, options)
    while is_whole:
        try:
            batch = next(batches, None)
            if batch is None:
                break
        except UnreadableInputError as error:
            if options.on_bad_file == "fail":
                raise error.as_error() from error
            is_whole, batch = False, Batch(1, [], [error.as_letter()])
        else:
            if batch.letters and options.on_bad_record == "fail":
                raise bad_record(batch.letters[0], unit.start)
        writer.write(batch.records)
        letters.add(batch.letters)
        num_read += batch.num_read
        num_blank += batch.num_blank
        num_bytes += batch.num_bytes
    writer.close()
    letters.flush()
    return StagedUnit(
        unit.file.number,
        unit.number,
        unit.num_units,
        is_whole,
        num_read,
        num_blank,
        num_bytes,
        dict(letters.counts),
        letters.files,
        writer.blocks,
    )


def bad_record(letter: DeadLetter, first_byte: int) -> ProbelineError:
    """Returns the error for a record that cannot be converted."""
    place = f" after byte {first_byte}" if first_byte else ""
    shown = f": {letter.value[:80]!r}" if letter.value else ""
    return ProbelineError(
        f"{letter.file} (row {letter.row}{place}) cannot be converted, {letter.reason}{shown}; "
        "repair the file, or pass --on_bad_record=dead_letter to continue without such records"
    )


# --- blocks to shards -----------------------------------------------------------------------------


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


def read_part(part: BlockPart) -> Iterator[list[bytes]]:
    """Yields the records of a part, some MiB at a time; ProbelineError if they have changed."""
    block = part.block
    with explained_os_errors("read back", block.path), open_file(block.path) as file:
        file.seek(block.record_bytes)
        data = file.read(block.num_records * _TABLE.itemsize)
        if crc32c(data) != block.table_crc32c:
            raise _damaged(block)
        table = np.frombuffer(data, _TABLE)
        ends = np.cumsum(table["length"], dtype=np.int64)
        at = int(ends[part.start] - table["length"][part.start].astype(np.int64))
        file.seek(at)
        start = part.start
        while start < part.stop:
            stop = int(np.searchsorted(ends[: part.stop], at + _BATCH_BYTES, "right"))
            stop = max(start + 1, stop)
            yield _read(file, block, at, ends[start:stop].tolist(), table["crc32c"][start:stop])
            at, start = int(ends[stop - 1]), stop


def _read(
    file: BinaryIO, block: StagedBlock, at: int, ends: list[int], checksums: np.ndarray
) -> list[bytes]:
    data = file.read(ends[-1] - at)
    bounds = itertools.pairwise([0, *(end - at for end in ends)])
    records = [data[start:end] for start, end in bounds] if len(ends) > 1 else [data]
    if list(map(crc32c, records)) != checksums.tolist():
        raise _damaged(block)
    return records


def _damaged(block: StagedBlock) -> ProbelineError:
    return ProbelineError(
        f"{block.path} has changed since it was written: another program changes files of the "
        "output, or its storage is faulty; run the command again"
    )
