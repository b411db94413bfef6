"""Sorts one probe's runs in bounded memory, however long its history is.

Runs are opened in order of their first records and merged block by block. A record in memory is
final once no unread record can precede it. Runs that do not overlap, such as those of files that
each cover one period, are thus read once and whole.

  run 1  |==a==|=======        a, b: the block in memory of each open run. Records are final up to
  run 2  |==b==|====           the smallest of the last records of a and b, and before the first
  run 3           |========    record of the next run.

Only the size and time span of a run are known in advance. If more runs overlap than there are
blocks in memory, some are merged first (`merged_first`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

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


class SortedRun(Message, frozen=True):
    """A sorted run as packed bytes, inline or stored."""

    is_wide: bool  # WIDE rather than NARROW records
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
        """Returns `count` records, from record `start` on, as a run."""
        first, size = start * self.itemsize, count * self.itemsize
        if isinstance(self.payload, bytes):
            return SortedRun(self.is_wide, self.payload[first : first + size])
        return SortedRun(self.is_wide, self.payload.part(first, size))


def load_all(runs: Iterable[SortedRun], reader: ClaimReader) -> list[np.ndarray]:
    """Reads runs as read-only arrays, several in parallel."""
    begun = [(run.is_wide, reader.prefetch(run.payload)) for run in runs]
    return [as_array(is_wide, wait()) for is_wide, wait in begun]


def as_array(is_wide: bool, data: bytes | bytearray) -> np.ndarray:
    """Views the bytes of a run as records; read-only if the bytes are."""
    return np.frombuffer(data, WIDE if is_wide else NARROW)


class Span(NamedTuple):
    """The times of a run's first and last record."""

    first: int
    last: int


class UnreadRun(NamedTuple):
    """A sorted run of at least one record: the next bytes of a payload."""

    is_wide: bool
    num_bytes: int
    records: PayloadReader
    span: Span | None  # None for a small run, which is read at once


class ExternalSort:
    """Sorts the runs of a probe, one probe at a time; intermediate runs go to `folder`.

    It holds `memory_bytes` of records; the process uses a small multiple.
    """

    def __init__(self, folder: str, reader: ClaimReader, memory_bytes: int):
        self._folder = folder
        self._reader = reader
        self._memory_bytes = memory_bytes
        # A merge copies its records twice; half of the memory leaves room for that.
        self._open_bytes = max(memory_bytes // 2, 1)
        self.spilled_bytes = 0

    def sort(self, runs: Iterable[UnreadRun]) -> Iterator[np.ndarray]:
        """Merges one or more sorted runs; yields the records in blocks."""
        waiting = _in_order(self._joined(runs))
        while len(chosen := merged_first(*_known(waiting), self._open_bytes)):
            chosen = set(chosen.tolist())
            group = [waiting[number] for number in sorted(chosen)]
            rest = [run for number, run in enumerate(waiting) if number not in chosen]
            waiting = _in_order([*rest, self._store(self._merge(group))])
        yield from self._merge(waiting)

    def _joined(self, runs: Iterable[UnreadRun]) -> Iterator[UnreadRun]:
        """Yields runs with spans: small ones are merged into stored runs of the memory's size."""
        small: list[np.ndarray] = []
        small_bytes = 0
        for run in runs:
            if run.span:
                yield run
                continue
            small.append(as_array(run.is_wide, run.records.read(run.num_bytes)))
            small_bytes += run.num_bytes
            if small_bytes >= self._memory_bytes:
                yield self._store([merge(small)])
                small, small_bytes = [], 0
        if small:
            yield self._store([merge(small)])

    def _store(self, blocks: Iterable[np.ndarray]) -> UnreadRun:
        """Writes consecutive blocks of one record type as one run."""
        writer = ClaimWriter(self._folder, "run", root=self._reader.root)
        is_wide, checksum, times = False, 0, []
        for block in blocks:
            is_wide = block.dtype == WIDE
            times = [*times[:1], *block["event_time"][[0, -1]].tolist()]
            data = memoryview(block.view(np.uint8))
            writer.put(data)
            checksum = crc32c(data, checksum)
        writer.close()
        self.spilled_bytes += writer.num_bytes
        records = PayloadReader(writer.everything(checksum), self._reader)
        return UnreadRun(is_wide, writer.num_bytes, records, Span(times[0], times[-1]))

    def _merge(self, runs: Sequence[UnreadRun]) -> Iterator[np.ndarray]:
        """Merges runs in order of their starts; yields blocks of one record type."""
        any_wide = any(run.is_wide for run in runs)
        waiting = deque(zip(runs, blocks(*_known(runs), self._open_bytes).tolist(), strict=True))
        heads: list[_Head] = []
        is_stuck = False
        while waiting or heads:
            free_bytes = self._open_bytes - sum(head.block_bytes for head in heads)
            while waiting and (waiting[0][1] <= free_bytes or is_stuck):
                heads.append(_Head(*waiting.popleft(), any_wide))
                free_bytes -= heads[-1].block_bytes
                is_stuck = False
            heads = [head for head in heads if head.fill()]
            taken = _take_final(heads, _first(waiting[0][0]) if waiting else None)
            if taken:
                yield merge(taken)
            is_stuck = not taken


def _first(run: UnreadRun) -> int:
    assert run.span is not None
    return run.span.first


def _in_order(runs: Iterable[UnreadRun]) -> list[UnreadRun]:
    return sorted(runs, key=_first)


def _known(runs: Sequence[UnreadRun]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the spans, int64 [n, 2], and sizes, int64 [n], of runs."""
    spans = np.array([run.span for run in runs], np.int64)
    return spans, np.array([run.num_bytes for run in runs], np.int64)


def _take_final(heads: "Sequence[_Head]", before: int | None) -> list[np.ndarray]:
    """Takes the records from the heads that no unread record can precede.

    `before` is the time of the first record that is not in a head, if any.
    """
    unread = [head.block[-1] for head in heads if not head.is_at_end]
    bound = min(unread, key=np.void.item) if unread else None  # records compare by their fields
    taken = []
    for head in heads:
        count = len(head.block) if bound is None else count_up_to(head.block, bound)
        times = head.block["event_time"][:count]
        if before is not None and count and times[-1] >= before:
            count = int(np.searchsorted(times, before))
        if count:
            taken.append(head.take(count))
    return taken


class _Head:
    """An open run: one block in memory while the next one is prefetched."""

    def __init__(self, run: UnreadRun, block_bytes: int, make_wide: bool):
        self.block_bytes = block_bytes
        self.block = np.zeros(0, NARROW)
        self._run = run
        self._make_wide = make_wide
        self._unread_bytes = run.num_bytes
        itemsize = (WIDE if run.is_wide else NARROW).itemsize
        halves = 1 if block_bytes >= run.num_bytes else 2
        self._piece_bytes = max(1, block_bytes // halves // itemsize) * itemsize
        self._wait = self._begin()

    def _begin(self) -> Callable[[], bytes] | None:
        num_bytes = min(self._piece_bytes, self._unread_bytes)
        self._unread_bytes -= num_bytes
        return self._run.records.prefetch(num_bytes) if num_bytes else None

    def fill(self) -> bool:
        """Loads the next block if this one is used up; returns False at the end of the run."""
        if len(self.block) == 0 and self._wait:
            block = as_array(self._run.is_wide, self._wait())
            self.block = widen(block) if self._make_wide else block
            self._wait = self._begin()
        return len(self.block) > 0

    @property
    def is_at_end(self) -> bool:
        """Whether the block in memory is the run's last."""
        return self._wait is None

    def take(self, count: int) -> np.ndarray:
        """Removes and returns the first records of the block."""
        taken, self.block = self.block[:count], self.block[count:]
        return taken


MAX_FAN_IN = 32  # large runs open at a time


# --- the plan of a merge -------------------------------------------------------------------------


def smallest_block(memory_bytes: int) -> int:
    """Returns the min bytes of a large run in memory while it is open."""
    return max(memory_bytes // MAX_FAN_IN, 1)


def merged_first(spans: np.ndarray, num_bytes: np.ndarray, memory_bytes: int) -> np.ndarray:
    """Returns the indices of the runs to merge first, int64 [0, or 2 and more].

    `spans`, int64 [n, 2], are in order of their starts; `num_bytes`, int64 [n], are the sizes.
    """
    block = smallest_block(memory_bytes)
    needed = np.minimum(num_bytes, block)
    open_bytes = _open_at_starts(spans, needed)
    at = int(np.argmax(open_bytes))
    excess = int(open_bytes[at]) - block * MAX_FAN_IN
    if excess <= 0:
        return np.zeros(0, np.int64)
    time = spans[at, 0]
    here = np.flatnonzero((spans[:, 0] <= time) & (spans[:, 1] >= time))
    here = here[np.argsort(num_bytes[here], kind="stable")]  # smallest first: cheapest to merge
    together = np.cumsum(needed[here])
    enough = int(np.searchsorted(together, excess + block)) + 1
    return here[: min(enough, int(np.searchsorted(together, block * MAX_FAN_IN, "right")))]


def blocks(spans: np.ndarray, num_bytes: np.ndarray, memory_bytes: int) -> np.ndarray:
    """Returns the max bytes of each run in memory while it is open, int64 [n].

    Together, open runs take at most `memory_bytes`. Small runs are held whole; large ones share the
    rest. Arguments as for `merged_first`.
    """
    smallest = smallest_block(memory_bytes)
    is_large = num_bytes > smallest
    small = _open_at_starts(spans, np.where(is_large, 0, num_bytes))
    large = _open_at_starts(spans, is_large.astype(np.int64))
    share = np.maximum((memory_bytes - small) // np.maximum(large, 1), smallest)
    ends = np.searchsorted(spans[:, 0], spans[:, 1], "right")
    allowed = num_bytes.copy()
    for run in np.flatnonzero(is_large).tolist():
        allowed[run] = min(num_bytes[run], share[run : ends[run]].min())
    return allowed


def _open_at_starts(spans: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the weight of all runs open at each run's start; ends are inclusive."""
    starts, ends = spans[:, 0], np.sort(spans[:, 1])
    begun = np.append(0, np.cumsum(weights))
    ended = np.append(0, np.cumsum(weights[np.argsort(spans[:, 1], kind="stable")]))
    return (
        begun[np.searchsorted(starts, starts, "right")]
        - ended[np.searchsorted(ends, starts, "left")]
    )
