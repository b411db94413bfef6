"""Buckets of probes: what is grouped by key, and sorted in bounded memory.

A probe's bucket is a hash of its address. So every probe's history meets in one place, and the
shuffle moves one chunk for each bucket of a work unit, however many probes there are:

  chunk     packed table of probes | narrow runs | wide runs     each a payload of its own

The probes of a chunk are in order, so a bucket of any size is sorted by consecutive reads, some
probes at a time. Only a probe that exceeds the memory alone is sorted by `external_sort`.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeGuard

import numpy as np

from beam_pipeline.dataset.addresses import format_any
from beam_pipeline.dataset.sorted_run import NARROW, WIDE, sort_groups, widen
from beam_pipeline.jobs.messages import Message
from beam_pipeline.kernels import kernel
from beam_pipeline.probe_rows.external_sort import Span, UnreadRun, as_array
from beam_pipeline.probe_rows.pregroup import Grouped, rank
from beam_pipeline.probe_rows.probe_table import pack, unpack
from beam_pipeline.shards.claim_checks import ClaimReader, ClaimWriter, Payload, PayloadReader

BUCKET_ROWS = 500_000
MAX_BUCKETS = 10_000
_LARGE_RUN_RECORDS = 70_000  # a chunk of its own, so that others of the bucket may stay inline
SPAN_RECORDS = 1000  # of a probe whose span the chunk has; a thousandth of their bytes


class Chunk(Message, frozen=True):
    """Some consecutive probes of a bucket in one work unit."""

    probes: Payload  # PROBE, packed
    narrow: Payload  # NARROW, the sorted runs of the probes, one after another
    wide: Payload  # WIDE, likewise
    spans: bytes  # int64 [n, 2], first and last time of each probe of SPAN_RECORDS or more


def num_buckets(rows_in_all: int) -> int:
    """Returns the number of buckets for an input of that many rows."""
    return min(max(1, -(-rows_in_all // BUCKET_ROWS)), MAX_BUCKETS)


def store_chunks(grouped: Grouped, writer: ClaimWriter) -> list[tuple[int, Chunk]]:
    """Returns the chunks of a work unit with their buckets, valid once the writer is closed."""
    narrow, wide = np.diff(grouped.narrow_bounds), np.diff(grouped.wide_bounds)
    of_span = np.flatnonzero(narrow + wide >= SPAN_RECORDS)
    spans = _spans(grouped, of_span)
    is_large = narrow + wide >= _LARGE_RUN_RECORDS
    is_first = np.ones(len(narrow) + 1, bool)
    is_first[1:-1] = (np.diff(grouped.buckets) != 0) | is_large[1:] | is_large[:-1]
    starts = np.flatnonzero(is_first)
    tables, table_bounds = pack((grouped.src_hi, grouped.src_lo, narrow, wide), starts)
    chunks = []
    for number, (start, end) in enumerate(itertools.pairwise(starts.tolist())):
        table = writer.put(memoryview(tables[slice(*table_bounds[number : number + 2])]))
        narrow_runs, wide_runs = (
            writer.put(memoryview(records[bounds[start] : bounds[end]].view(np.uint8)))
            for records, bounds in (
                (grouped.narrow, grouped.narrow_bounds),
                (grouped.wide, grouped.wide_bounds),
            )
        )
        its_spans = spans[slice(*np.searchsorted(of_span, (start, end)))].tobytes()
        chunk = Chunk(table, narrow_runs, wide_runs, its_spans)
        chunks.append((int(grouped.buckets[start]), chunk))
    return chunks


def _spans(grouped: Grouped, probes: np.ndarray) -> np.ndarray:
    """Returns the first and the last time of some probes, int64 [len(probes), 2]."""
    ends = np.iinfo(np.int64)
    spans = np.tile([ends.max, ends.min], (len(probes), 1))
    kinds = ((grouped.narrow, grouped.narrow_bounds), (grouped.wide, grouped.wide_bounds))
    for records, bounds in kinds:
        has = bounds[probes] < bounds[probes + 1]
        first = records["event_time"][bounds[probes[has]]]
        last = records["event_time"][bounds[probes[has] + 1] - 1]
        spans[has, 0] = np.minimum(spans[has, 0], first)
        spans[has, 1] = np.maximum(spans[has, 1], last)
    return spans


class History(NamedTuple):
    """The whole histories of probes, each as a sorted run."""

    src_addrs: list[str]  # [p], canonical
    run: np.ndarray  # NARROW or WIDE [n]
    bounds: np.ndarray  # int64 [p + 1], where each probe's run begins and ends


class LargeHistory(NamedTuple):
    """The history of one probe that exceeds the memory, as sorted runs that are not read."""

    src_addr: str
    runs: Iterator[UnreadRun]  # to be used up and read before the bucket goes on


class Bucket:
    """The chunks of a bucket, read once from their beginning to their end.

    Memory: the tables of probes, 24 bytes for each probe of a work unit; of the measurements a
    small multiple of `memory_bytes`.

    Args:
      reader: reads what is stored in the job run's folder.
      local_folder: for inline payloads that exceed the memory.
    """

    def __init__(
        self, chunks: Iterable[Chunk], reader: ClaimReader, memory_bytes: int, local_folder: str
    ):
        self._memory_bytes = memory_bytes
        readers = _readers(chunks, reader, memory_bytes, local_folder)
        tables = [chunk.table for chunk in readers]
        probes = np.concatenate(tables)
        firsts, ranks = rank(probes["hi"], probes["lo"])
        self.src_addrs: list[str] = format_any(
            probes["hi"][firsts], probes["lo"][firsts]
        ).to_pylist()
        narrow, wide = (
            np.bincount(ranks, probes[kind], len(firsts)).astype(np.int64)
            for kind in ("narrow", "wide")
        )
        self._is_wide = wide > 0
        self._counts = narrow + wide
        self._num_bytes = self._counts * np.where(self._is_wide, WIDE.itemsize, NARROW.itemsize)
        parts = np.split(ranks, np.cumsum([len(table) for table in tables])[:-1])
        for chunk, its_ranks in zip(readers, parts, strict=True):
            chunk.ranks = its_ranks
        self._chunks = readers

    def histories(self) -> Iterator[History | LargeHistory]:
        """Yields the histories of all probes, as many at a time as the memory holds."""
        ends = np.cumsum(self._num_bytes)
        start = 0
        while start < len(ends):
            limit = self._memory_bytes + (ends[start - 1] if start else 0)
            end = int(np.searchsorted(ends, limit, "right"))
            if end > start:
                yield from self._in_memory(start, end)
            else:
                end = start + 1
                yield LargeHistory(self.src_addrs[start], self._runs_of(start))
            start = end

    def _runs_of(self, rank: int) -> Iterator[UnreadRun]:
        for chunk in self._chunks:
            yield from chunk.runs_of(rank)

    def _in_memory(self, start: int, end: int) -> Iterator[History]:
        """Yields the histories of probes from `start` to `end`: the narrow, then the wide ones."""
        begun = [part for chunk in self._chunks for part in chunk.take(end)]
        parts = [(as_array(is_wide, wait()), *whose) for is_wide, wait, *whose in begun]
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
                    _place(records, lengths, ranks - start, is_here, run, place_at)
            bounds = np.append(bounds[of_kind - start], bounds[-1])
            sort_groups(run, bounds)
            yield History([self.src_addrs[probe] for probe in of_kind.tolist()], run, bounds)


def _is_inline(payload: Payload) -> TypeGuard[bytes]:
    return isinstance(payload, bytes) and len(payload) > 0


class _Aside:
    """Inline payloads in memory, and beyond `memory_bytes` in a local file."""

    def __init__(self, memory_bytes: int, folder: str):
        self._memory_bytes = memory_bytes
        self._writer = ClaimWriter(folder, "inline")
        self._reader = ClaimReader()

    def put(self, payload: Payload, reader: ClaimReader) -> tuple[Payload, ClaimReader]:
        """Returns what a payload is kept as, and its reader, once the file is closed."""
        if not _is_inline(payload):
            return payload, reader
        self._memory_bytes -= len(payload)
        if self._memory_bytes >= 0:
            return payload, reader
        return self._writer.put(payload), self._reader

    def close(self) -> None:
        """Makes the payloads readable."""
        self._writer.close()


def _readers(
    chunks: Iterable[Chunk], reader: ClaimReader, memory_bytes: int, local_folder: str
) -> "list[_ChunkReader]":
    aside = _Aside(memory_bytes, local_folder)
    readers = [_ChunkReader(chunk, reader, aside) for chunk in chunks]
    aside.close()
    return readers


class _Part(NamedTuple):
    """The runs of some probes in a chunk, which are being read."""

    is_wide: bool
    wait: Callable[[], bytes]
    ranks: np.ndarray  # int32 [p]
    lengths: np.ndarray  # uint32 [p]


class _ChunkReader:
    """The runs of a chunk, read in the order of its probes."""

    ranks: np.ndarray  # int32 [p], of its probes in the bucket

    def __init__(self, chunk: Chunk, reader: ClaimReader, aside: "_Aside"):
        self.table = unpack(reader.read(chunk.probes))
        self._at = 0
        payloads = (chunk.narrow, chunk.wide)
        self._spans = np.frombuffer(chunk.spans, np.int64).reshape(-1, 2)
        self._payloads = [
            (dtype, PayloadReader(*aside.put(payload, reader)))
            for dtype, payload in zip((NARROW, WIDE), payloads, strict=True)
        ]

    def take(self, end_rank: int) -> Iterator[_Part]:
        """Begins to read the runs of the next probes, those below a rank."""
        end = int(np.searchsorted(self.ranks, end_rank))
        probes, ranks = self.table[self._at : end], self.ranks[self._at : end]
        self._at = end
        for name, (dtype, payload) in zip(("narrow", "wide"), self._payloads, strict=True):
            if count := int(probes[name].sum(dtype=np.int64)):
                wait = payload.ahead(count * dtype.itemsize)
                yield _Part(dtype == WIDE, wait, ranks, probes[name])

    def runs_of(self, rank: int) -> Iterator[UnreadRun]:
        """Yields the runs of a probe, which is the next one if it is in this chunk at all."""
        if self._at == len(self.ranks) or self.ranks[self._at] != rank:
            return
        counts = self.table["narrow"] + self.table["wide"]
        has_span = counts[: self._at + 1] >= SPAN_RECORDS
        span = Span(*self._spans[np.count_nonzero(has_span) - 1].tolist()) if has_span[-1] else None
        probe = self.table[self._at]
        self._at += 1
        for name, (dtype, payload) in zip(("narrow", "wide"), self._payloads, strict=True):
            if probe[name]:
                num_bytes = int(probe[name]) * dtype.itemsize
                yield UnreadRun(dtype == WIDE, num_bytes, payload, span)


@kernel
def _place(records, lengths, ranks, is_here, run, place_at):
    """Copies each probe's records to its place in `run`, and moves the place on."""
    at = 0
    for probe in range(len(lengths)):
        if is_here[probe]:
            to = place_at[ranks[probe]]
            for i in range(lengths[probe]):
                run[to + i] = records[at + i]
            place_at[ranks[probe]] = to + lengths[probe]
        at += lengths[probe]
