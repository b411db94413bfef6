"""One probe's chunks in order, in bounded memory, however long its history is.

Chunks that fit in `memory_bytes` are sorted in memory. Otherwise small chunks are first merged
into stored runs, and then all runs are merged block by block: of the blocks in memory, everything
up to the smallest last record is final.

  run 1  |==a==|=======        a, b, c: the block in memory of each run; the bound is the
  run 2  |==b==|====           smallest of their last records. Records up to the bound leave in
  run 3  |==c==|==========     order, and the run that the bound came from reads its next block.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from beam_pipeline.dataset.sorted_run import NARROW, WIDE, count_up_to, merge, widen
from beam_pipeline.jobs.messages import Message
from beam_pipeline.shards.claim_checks import (
    ClaimReader,
    ClaimWriter,
    Payload,
    PayloadReader,
    payload_bytes,
)
from beam_pipeline.storage.files import crc32c

MAX_FAN_IN = 128
_LARGE_RUN_SHARE = 16  # a chunk of 1/16 of the memory is a run of its own


class SortedRun(Message, frozen=True):
    """A sorted run as packed bytes, inline or stored; `is_wide` tells WIDE records from NARROW."""

    is_wide: bool
    payload: Payload

    @property
    def num_bytes(self) -> int:
        return payload_bytes(self.payload)

    @property
    def itemsize(self) -> int:
        return (WIDE if self.is_wide else NARROW).itemsize

    @property
    def count(self) -> int:
        return self.num_bytes // self.itemsize

    def part(self, start: int, count: int) -> "SortedRun":
        """Returns the run of `count` records from record `start` on."""
        first, size = start * self.itemsize, count * self.itemsize
        if isinstance(self.payload, bytes):
            return SortedRun(self.is_wide, self.payload[first : first + size])
        return SortedRun(self.is_wide, self.payload.part(first, size))

    def load(self, reader: ClaimReader) -> np.ndarray:
        """Reads the records, as a read-only array."""
        return as_array(self.is_wide, reader.read(self.payload))


def as_array(is_wide: bool, data: bytes | bytearray) -> np.ndarray:
    """Views the bytes of a run as its records, read-only as they are."""
    return np.frombuffer(data, WIDE if is_wide else NARROW)


class ExternalSort:
    """Sorts the chunks of a probe, one probe after another.

    Args:
      folder: for intermediate runs.
      memory_bytes: of records held at a time; the process uses a small multiple.
    """

    def __init__(self, folder: str, reader: ClaimReader, memory_bytes: int):
        self._folder = folder
        self._reader = reader
        self._memory_bytes = memory_bytes
        self.spilled_bytes = 0

    def sort(self, chunks: Iterable[SortedRun]) -> Iterator[np.ndarray]:
        """Yields the records of sorted chunks, which hold at least one, as consecutive runs."""
        runs: list[SortedRun] = []
        small: list[SortedRun] = []
        small_bytes = 0
        for chunk in chunks:
            if chunk.num_bytes * _LARGE_RUN_SHARE >= self._memory_bytes:
                runs.append(chunk)
                continue
            small.append(chunk)
            small_bytes += chunk.num_bytes
            if small_bytes >= self._memory_bytes:
                runs.append(self._store([self._merge_in_memory(small)]))
                small, small_bytes = [], 0
        if small_bytes + sum(run.num_bytes for run in runs) <= self._memory_bytes:
            yield self._merge_in_memory(runs + small)
            return
        if small:
            runs.append(self._store([self._merge_in_memory(small)]))
        while len(runs) > MAX_FAN_IN:
            merged = [runs[at : at + MAX_FAN_IN] for at in range(0, len(runs), MAX_FAN_IN)]
            runs = [self._store(self._merge_stored(group)) for group in merged]
        yield from self._merge_stored(runs)

    def _merge_in_memory(self, runs: Sequence[SortedRun]) -> np.ndarray:
        return merge([run.load(self._reader) for run in runs])

    def _store(self, blocks: Iterable[np.ndarray]) -> SortedRun:
        """Writes consecutive blocks, all of one record type, as one run."""
        writer = ClaimWriter(self._folder, "run", root=self._reader.root)
        is_wide, checksum = False, 0
        for block in blocks:
            is_wide = block.dtype == WIDE
            data = memoryview(block.view(np.uint8))
            writer.put(data)
            checksum = crc32c(data, checksum)
        writer.close()
        self.spilled_bytes += writer.num_bytes
        return SortedRun(is_wide, writer.everything(checksum))

    def _merge_stored(self, runs: Sequence[SortedRun]) -> Iterator[np.ndarray]:
        any_wide = any(run.is_wide for run in runs)
        # What is merged is copied twice; half of the memory keeps that within bounds.
        block_bytes = max(self._memory_bytes // 2 // max(1, len(runs)), WIDE.itemsize)
        heads = [_Head(run, self._reader, block_bytes, any_wide) for run in runs]
        while heads := [head for head in heads if head.fill()]:
            unread = [head.block[-1] for head in heads if not head.is_at_end]
            if not unread:
                yield merge([head.block for head in heads])
                return
            bound = min(unread, key=np.void.item)  # the fields of a record are its order
            taken = [head.take(count_up_to(head.block, bound)) for head in heads]
            yield merge([block for block in taken if len(block)])


class _Head:
    """A run of which one block is in memory."""

    def __init__(self, run: SortedRun, reader: ClaimReader, block_bytes: int, make_wide: bool):
        self._is_wide = run.is_wide
        self._records = PayloadReader(run.payload, reader)
        self._make_wide = make_wide
        self._block_bytes = max(1, block_bytes // run.itemsize) * run.itemsize
        self.block = np.zeros(0, NARROW)

    def fill(self) -> bool:
        """Reads the next block if this one is used up; False at the end of the run."""
        if len(self.block) == 0 and not self.is_at_end:
            data = self._records.read(min(self._block_bytes, self._records.unread_bytes))
            block = as_array(self._is_wide, data)
            self.block = widen(block) if self._make_wide else block
        return len(self.block) > 0

    @property
    def is_at_end(self) -> bool:
        """Whether the block in memory is the run's last."""
        return not self._records.unread_bytes

    def take(self, count: int) -> np.ndarray:
        """Removes the first records from the block and returns them."""
        taken, self.block = self.block[:count], self.block[count:]
        return taken
