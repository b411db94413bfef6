"""One probe's chunks in order, in bounded memory, however long its history is.

What fits in `memory_bytes` is sorted in memory. Otherwise small chunks are first joined into
stored runs, then all runs are merged block by block: of the heads of all runs, everything up to
the smallest last record is final.

  run 1  |==a==|=======        a, b, c: the block in memory of each run; the bound is the
  run 2  |==b==|====           smallest of their last records; what is up to it leaves sorted,
  run 3  |==c==|==========     and the run that the bound came from is read on.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from beam_pipeline.dataset.sorted_run import NARROW, WIDE, count_up_to, merge, widen
from beam_pipeline.shards.claim_checks import (
    ClaimReader,
    ClaimWriter,
    Payload,
    changed,
    decode_claim,
    encode_claim,
    payload_bytes,
)
from beam_pipeline.storage.checksum import crc32c

MAX_FAN_IN = 128
_LARGE_RUN_SHARE = 16  # a chunk of 1/16 of the memory is a run of its own


class StoredRun(NamedTuple):
    """A sorted run, inline or stored."""

    is_wide: bool
    payload: Payload

    @property
    def num_bytes(self) -> int:
        return payload_bytes(self.payload)

    @property
    def count(self) -> int:
        return self.num_bytes // (WIDE if self.is_wide else NARROW).itemsize

    def encode(self, folder: str = "") -> bytes:
        """Returns the run as an element's value, its path less `folder`."""
        return (b"w" if self.is_wide else b"n") + encode_claim(self.payload, folder)

    @staticmethod
    def decode(value: bytes, folder: str = "") -> "StoredRun":
        """Inverts `encode`, given the same folder."""
        return StoredRun(value[:1] == b"w", decode_claim(value[1:], folder))

    def part(self, start: int, count: int) -> "StoredRun":
        """Returns the run of `count` records from record `start` on."""
        itemsize = (WIDE if self.is_wide else NARROW).itemsize
        first, size = start * itemsize, count * itemsize
        if isinstance(self.payload, bytes):
            return StoredRun(self.is_wide, self.payload[first : first + size])
        return StoredRun(self.is_wide, self.payload.part(first, size))

    def load(self, reader: ClaimReader) -> np.ndarray:
        """Reads the records; they may not be written to."""
        return as_run(self.is_wide, reader.read(self.payload))


def as_run(is_wide: bool, data: bytes) -> np.ndarray:
    """Views the bytes of a run as its records."""
    return np.frombuffer(data, WIDE if is_wide else NARROW)


class ExternalSort:
    """Sorts the chunks of one probe after the other.

    Args:
      folder: where intermediate runs go.
      reader: reads chunks and intermediate runs.
      memory_bytes: how many bytes of records are held at a time; a small multiple is used.
    """

    def __init__(self, folder: str, reader: ClaimReader, memory_bytes: int):
        self._folder = folder
        self._reader = reader
        self._memory_bytes = memory_bytes
        self.spilled_bytes = 0

    def sort(self, chunks: Iterable[StoredRun]) -> Iterator[np.ndarray]:
        """Yields the records of sorted chunks, at least one record, as consecutive runs."""
        runs: list[StoredRun] = []
        small: list[StoredRun] = []
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

    def _merge_in_memory(self, runs: Sequence[StoredRun]) -> np.ndarray:
        return merge([run.load(self._reader) for run in runs])

    def _store(self, blocks: Iterable[np.ndarray]) -> StoredRun:
        """Writes consecutive blocks as one run; all are widened if the first one is."""
        writer = ClaimWriter(self._folder, "run")
        is_wide, checksum = False, 0
        for block in blocks:
            is_wide = block.dtype == WIDE
            data = memoryview(block.view(np.uint8))
            writer.put(data)
            checksum = crc32c(data, checksum)
        writer.close()
        self.spilled_bytes += writer.num_bytes
        return StoredRun(is_wide, writer.everything(checksum))

    def _merge_stored(self, runs: Sequence[StoredRun]) -> Iterator[np.ndarray]:
        any_wide = any(run.is_wide for run in runs)
        # What is merged is copied twice; half of the memory keeps that within bounds.
        block_bytes = max(self._memory_bytes // 2 // max(1, len(runs)), WIDE.itemsize)
        heads = [_Head(run, self._reader, block_bytes, any_wide) for run in runs]
        while heads := [head for head in heads if head.fill()]:
            unread = [head.last for head in heads if not head.is_at_end]
            if not unread:
                yield merge([head.take_all() for head in heads])
                return
            bound = min(unread, key=_order)
            taken = [head.take_up_to(bound) for head in heads]
            yield merge([block for block in taken if len(block)])


def _order(record: np.void) -> tuple:
    halves = (record["dst_hi"],) if "dst_hi" in (record.dtype.names or ()) else ()
    return (record["event_time"], *halves, record["dst_lo"], record["rtt"])


class _Head:
    """The block of a run that is in memory."""

    def __init__(self, run: StoredRun, reader: ClaimReader, block_bytes: int, make_wide: bool):
        self._run = run
        self._reader = reader
        self._make_wide = make_wide
        itemsize = (WIDE if run.is_wide else NARROW).itemsize
        self._block_records = max(1, block_bytes // itemsize)
        self._read = self._checksum = 0
        self._block = np.zeros(0, NARROW)

    def fill(self) -> bool:
        """Reads the next block if this one is used up; False at the end of the run."""
        if len(self._block) == 0 and not self.is_at_end:
            count = min(self._block_records, self._run.count - self._read)
            block = self._run.part(self._read, count).load(self._reader)
            self._block = widen(block) if self._make_wide else block
            self._read += count
            self._check(block)
        return len(self._block) > 0

    def _check(self, block: np.ndarray) -> None:
        """Raises ProbelineError at the end of a run whose blocks are not what was stored."""
        payload = self._run.payload
        if isinstance(payload, bytes) or payload.crc32c is None:
            return
        self._checksum = crc32c(memoryview(block.view(np.uint8)), self._checksum)
        if self.is_at_end and self._checksum != payload.crc32c:
            raise changed(payload)

    @property
    def is_at_end(self) -> bool:
        """Whether nothing of the run lies behind the block in memory."""
        return self._read == self._run.count

    @property
    def last(self) -> np.void:
        return self._block[-1]

    def take_all(self) -> np.ndarray:
        return self._take(len(self._block))

    def take_up_to(self, bound: np.void) -> np.ndarray:
        return self._take(count_up_to(self._block, bound))

    def _take(self, count: int) -> np.ndarray:
        taken, self._block = self._block[:count], self._block[count:]
        return taken
