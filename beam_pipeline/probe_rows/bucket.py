"""Buckets of probes: grouped by key, then sorted in bounded memory.

A probe's bucket is a hash of its address. A probe's whole history thus meets in one place, and the
shuffle moves one chunk per bucket and work unit, however many probes there are.

The probes of a chunk are ordered, so a bucket of any size is sorted by sequential reads, some
probes at a time. Only a probe that exceeds the memory alone is sorted by `external_sort`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from beam_pipeline.dataset.addresses import format_any
from beam_pipeline.dataset.sorted_run import NARROW, WIDE, distinct, sort_groups, widen
from beam_pipeline.probe_rows.chunks import (
    Chunk,
    counts_of,
    have_span,
    join_chunks,
    place,
    spans_of,
    unpack,
)
from beam_pipeline.probe_rows.external_sort import Span, UnreadRun, as_array
from beam_pipeline.probe_rows.pregroup import rank
from beam_pipeline.shards.claim_checks import ClaimReader, ClaimWriter, PayloadReader

BUCKET_ROWS = 500_000  # of the first _EVEN_BUCKETS
_EVEN_BUCKETS = 200
MAX_BUCKETS = 10_000


def num_buckets(rows_in_all: int) -> int:
    """Returns the number of buckets for an input of `rows_in_all` rows.

    The number of chunks is that of buckets times that of work units, and a runner in memory holds a
    kilobyte for each. From 100 M rows on, buckets grow as well, so that it is not quadratic.
    """
    number = max(1, -(-rows_in_all // BUCKET_ROWS))
    if number > _EVEN_BUCKETS:
        number = round(_EVEN_BUCKETS * (number / _EVEN_BUCKETS) ** (2 / 3))
    return min(number, MAX_BUCKETS)


class History(NamedTuple):
    """Complete histories of probes, each as a sorted run."""

    src_hi: np.ndarray  # uint64 [p]; probes ascend by hash
    src_lo: np.ndarray  # uint64 [p]
    run: np.ndarray  # NARROW or WIDE [n]
    bounds: np.ndarray  # int64 [p + 1], of each probe's run

    def src_addr(self, probe: int) -> str:
        """Returns the canonical address of a probe."""
        one = slice(probe, probe + 1)
        return format_any(self.src_hi[one], self.src_lo[one])[0].as_py()


class LargeHistory(NamedTuple):
    """The history of one probe that exceeds the memory, as unread sorted runs."""

    src_addr: str  # canonical
    runs: Iterator[UnreadRun]  # must be read completely before the bucket advances


class Bucket:
    """The chunks of a bucket, read once from start to end.

    Memory: tables with 32 bytes for each probe of a stored or joined chunk, and a small multiple of
    `memory_bytes` of measurements. Inline payloads that exceed it go to `local_folder`.
    """

    def __init__(
        self, chunks: Iterable[Chunk], reader: ClaimReader, memory_bytes: int, local_folder: str
    ):
        self._memory_bytes = memory_bytes
        self._chunks = _readers(chunks, reader, memory_bytes, local_folder)
        tables = [chunk.table for chunk in self._chunks]
        probes = np.concatenate(tables, axis=1)
        src_hi, src_lo = probes[:2]
        firsts, ranks = rank(src_hi, src_lo)
        self.src_hi, self.src_lo = src_hi[firsts], src_lo[firsts]
        narrow, wide = (
            np.bincount(ranks, of_kind, len(firsts)).astype(np.int64)
            for of_kind in counts_of(probes)
        )
        self._is_wide = wide > 0
        self._counts = narrow + wide
        self._num_bytes = self._counts * np.where(self._is_wide, WIDE.itemsize, NARROW.itemsize)
        parts = np.split(ranks, np.cumsum([table.shape[1] for table in tables])[:-1])
        for chunk, its_ranks in zip(self._chunks, parts, strict=True):
            chunk.ranks = its_ranks

    def histories(self) -> Iterator[History | LargeHistory]:
        """Yields the histories of all probes, as many at a time as fit in memory."""
        ends = np.cumsum(self._num_bytes)
        start = 0
        while start < len(ends):
            limit = self._memory_bytes + (ends[start - 1] if start else 0)
            end = int(np.searchsorted(ends, limit, "right"))
            if end > start:
                yield from self._in_memory(start, end)
            else:
                end = start + 1
                src_addr = format_any(self.src_hi[start:end], self.src_lo[start:end])[0].as_py()
                yield LargeHistory(src_addr, self._runs_of(start))
            start = end

    def _runs_of(self, rank: int) -> Iterator[UnreadRun]:
        for chunk in self._chunks:
            yield from chunk.runs_of(rank)

    def _in_memory(self, start: int, end: int) -> Iterator[History]:
        """Yields the histories of probes [start, end): the narrow ones, then the wide ones."""
        begun = [part for chunk in self._chunks for part in chunk.take(end)]
        parts = [(as_array(is_wide, wait()), ranks, n) for is_wide, wait, ranks, n in begun]
        # Usually each file covers one period: placed in time order, the runs of a probe are sorted.
        parts.sort(key=lambda part: int(part[0]["event_time"][0]))
        for wide in (False, True):
            of_kind = np.flatnonzero(self._is_wide[start:end] == wide) + start
            if not len(of_kind):
                continue
            counts = np.where(self._is_wide == wide, self._counts, 0)[start:end]
            bounds = np.concatenate([[0], np.cumsum(counts)])
            run = np.empty(bounds[-1], WIDE if wide else NARROW)
            place_at = bounds[:-1].copy()
            for records, ranks, lengths in parts:
                if wide or records.dtype == NARROW:
                    records = widen(records) if wide else records
                    is_here = self._is_wide[ranks] == wide
                    place(records, lengths, ranks - start, is_here, run, place_at)
            bounds = np.append(bounds[of_kind - start], bounds[-1])
            sort_groups(run, bounds)
            yield History(self.src_hi[of_kind], self.src_lo[of_kind], run, bounds)


class _SpillBuffer:
    """Keeps payloads in memory, and beyond `memory_bytes` in a local file."""

    def __init__(self, memory_bytes: int, folder: str):
        self._memory_bytes = memory_bytes
        self._writer = ClaimWriter(folder, "inline")
        self._reader = ClaimReader()

    def put(self, payload: bytes | memoryview) -> PayloadReader:
        """Keeps a payload, which can be read after `close`."""
        self._memory_bytes -= len(payload)
        kept = bytes(payload) if self._memory_bytes >= 0 else self._writer.put(payload)
        return PayloadReader(kept, self._reader)

    def close(self) -> None:
        """Makes the payloads readable."""
        self._writer.close()


def _readers(
    chunks: Iterable[Chunk], reader: ClaimReader, memory_bytes: int, local_folder: str
) -> "list[_ChunkReader]":
    """Returns the readers of chunks; small chunks are joined as they arrive."""
    buffer = _SpillBuffer(memory_bytes, local_folder)
    readers, small, small_bytes = [], [], 0
    for chunk in chunks:
        if not chunk.is_small:
            readers.append(_ChunkReader.of_chunk(chunk, reader, buffer))
            continue
        small.append(chunk)
        small_bytes += chunk.num_bytes
        if small_bytes >= memory_bytes // 4:  # joining takes three times as much
            readers.append(_ChunkReader.of_joined(small, buffer))
            small, small_bytes = [], 0
    if small:
        readers.append(_ChunkReader.of_joined(small, buffer))
    buffer.close()
    return readers


# The runs of consecutive probes, being read: is wide; ranks, int32 [p]; lengths, int64 [p].
_Part = tuple[bool, Callable[[], bytes], np.ndarray, np.ndarray]


class _ChunkReader:
    """Reads the runs of a chunk, or of joined chunks, in the order of their probes.

    Args:
      table: uint64 [NUM_COLUMNS, p], the probes.
      spans: int64 [n, 2], of each probe with SPAN_RECORDS or more measurements.
    """

    ranks: np.ndarray  # int32 [p], the ranks of its probes within the bucket

    def __init__(
        self, table: np.ndarray, spans: np.ndarray, narrow: PayloadReader, wide: PayloadReader
    ):
        self.table = table
        self._counts = counts_of(table)
        self._spans = spans
        self._runs = ((NARROW, narrow), (WIDE, wide))
        self._at = 0

    @classmethod
    def of_chunk(cls, chunk: Chunk, reader: ClaimReader, buffer: _SpillBuffer) -> Self:
        """Returns the reader of a single chunk."""
        narrow, wide = (
            buffer.put(run) if isinstance(run, bytes) else PayloadReader(run, reader)
            for run in (chunk.narrow, chunk.wide)
        )
        spans = np.frombuffer(chunk.spans, np.int64).reshape(-1, 2)
        return cls(unpack([reader.read(chunk.probes)]), spans, narrow, wide)

    @classmethod
    def of_joined(cls, chunks: Sequence[Chunk], buffer: _SpillBuffer) -> Self:
        """Returns the reader of small chunks, joined into one."""
        joined = join_chunks(chunks)
        table = joined.table()
        spans = spans_of(joined, counts_of(table).sum(axis=0))[1]
        narrow, wide = (
            buffer.put(memoryview(run.view(np.uint8))) for run in (joined.narrow, joined.wide)
        )
        return cls(table, spans, narrow, wide)

    def take(self, end_rank: int) -> Iterator[_Part]:
        """Starts reading the runs of the next probes, those below `end_rank`."""
        end = int(np.searchsorted(self.ranks, end_rank))
        probes = slice(self._at, end)
        self._at = end
        for (dtype, runs), lengths in zip(self._runs, self._counts, strict=True):
            if count := int(lengths[probes].sum()):
                wait = runs.prefetch(count * dtype.itemsize)
                yield dtype == WIDE, wait, self.ranks[probes], lengths[probes]

    def runs_of(self, rank: int) -> Iterator[UnreadRun]:
        """Yields the runs of a probe, which is the next one if the chunk contains it."""
        at = self._at
        if at == len(self.ranks) or self.ranks[at] != rank:
            return
        self._at += 1
        has_span = have_span(self._counts[:, : at + 1].sum(axis=0))
        span = Span(*self._spans[np.count_nonzero(has_span) - 1].tolist()) if has_span[-1] else None
        for (dtype, runs), lengths in zip(self._runs, self._counts, strict=True):
            if count := int(lengths[at]):
                yield UnreadRun(dtype == WIDE, count * dtype.itemsize, runs, span)


class DuplicateFilter:
    """Drops all but one of a probe's equal measurements; counts them in `num_dropped`.

    Measurements are equal if their records are: time, destination and RTT as stored. Equal records
    are adjacent in a merged run, whatever file, work unit or generation they came from.
    """

    def __init__(self) -> None:
        self.num_dropped = 0

    def filter_history(self, history: History) -> History:
        """Returns complete histories without duplicates; overwrites their records."""
        run, bounds = distinct(history.run, history.bounds)
        self.num_dropped += len(history.run) - len(run)
        return history._replace(run=run, bounds=bounds)

    def filter_blocks(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yields consecutive blocks of one sorted run without duplicates, omitting empty ones."""
        last = None
        for block in blocks:
            rest, _ = distinct(block, np.array([0, len(block)]))
            if last is not None and rest[:1].tobytes() == last:
                rest = rest[1:]
            self.num_dropped += len(block) - len(rest)
            if len(rest):
                last = rest[-1:].tobytes()
                yield rest
