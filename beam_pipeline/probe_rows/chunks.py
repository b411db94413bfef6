"""Chunks: the probes of one bucket in one work unit, as sent to the bucket's worker.

  chunk     packed table of probes | narrow runs | wide runs     three payloads

At 35 billion measurements a chunk has a few thousand bytes. Such chunks are joined as they arrive,
so that a bucket handles few large ones.

With many probes, tables are a large part of a chunk. A packed table stores values as differences
from the smallest of their column, in the bytes that the largest of the work unit needs. An IPv4
address thus takes 4 bytes instead of 16, and a count mostly one or two:

  | number of probes | smallest value of each column | width of each, all uint64 | probe by probe |
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numba import uint64

from beam_pipeline.dataset.sorted_run import NARROW, WIDE, sort_groups
from beam_pipeline.jobs.messages import Message
from beam_pipeline.kernels import kernel
from beam_pipeline.probe_rows.pregroup import Grouped, rank
from beam_pipeline.shards.claim_checks import ClaimWriter, Payload, payload_bytes

LARGE_RUN_RECORDS = 70_000  # a chunk of its own, so that others of the bucket may stay inline
SPAN_RECORDS = 1000  # of a probe with a span, which takes a thousandth of their bytes


class Chunk(Message, frozen=True):
    """Some consecutive probes of a bucket in one work unit."""

    probes: Payload  # a packed table of addresses and numbers of narrow and wide records
    narrow: Payload  # NARROW, the probes' sorted runs, concatenated
    wide: Payload  # WIDE, the same
    spans: bytes  # int64 [n, 2], first and last time of each probe of SPAN_RECORDS or more

    @property
    def num_bytes(self) -> int:
        return sum(map(payload_bytes, (self.probes, self.narrow, self.wide)))

    @property
    def is_small(self) -> bool:
        """Whether it is inline and no probe has a span."""
        payloads = self.probes, self.narrow, self.wide
        return not self.spans and all(isinstance(payload, bytes) for payload in payloads)


def store_chunks(grouped: Grouped, writer: ClaimWriter) -> list[tuple[int, Chunk]]:
    """Returns a work unit's chunks with their buckets, valid once the writer is closed."""
    table = grouped.table()
    counts = counts_of(table).sum(axis=0)
    is_large = counts >= LARGE_RUN_RECORDS
    is_first = np.ones(len(counts) + 1, bool)
    is_first[1:-1] = (np.diff(grouped.buckets) != 0) | is_large[1:] | is_large[:-1]
    starts = np.flatnonzero(is_first)
    of_span, spans = spans_of(grouped, counts)
    parts = [
        _pieces(data, bounds)
        for data, bounds in (
            (grouped.narrow, grouped.narrow_bounds[starts]),
            (grouped.wide, grouped.wide_bounds[starts]),
            (spans, np.searchsorted(of_span, starts)),
        )
    ]
    buckets, tables = grouped.buckets[starts[:-1]].tolist(), pack(table, starts)
    put = writer.put
    return [
        (bucket, Chunk(put(probes), put(narrow), put(wide), bytes(its_spans)))
        for bucket, probes, narrow, wide, its_spans in zip(buckets, tables, *parts, strict=True)
    ]


def _pieces(data: np.ndarray, bounds: np.ndarray) -> Iterator[memoryview]:
    """Yields the bytes of consecutive ranges of rows."""
    whole = memoryview(data.reshape(-1).view(np.uint8))
    row_bytes = data.nbytes // max(len(data), 1)
    for start, end in itertools.pairwise((bounds * row_bytes).tolist()):
        yield whole[start:end]


def have_span(counts: np.ndarray) -> np.ndarray:
    """Returns which probes have a span in their chunk, bool [p], given their measurements in it."""
    return counts >= SPAN_RECORDS


def spans_of(grouped: Grouped, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the probes with a span, int64 [n], and their first and last times, int64 [n, 2]."""
    probes = np.flatnonzero(have_span(counts))
    ends = np.iinfo(np.int64)
    spans = np.tile([ends.max, ends.min], (len(probes), 1))
    kinds = ((grouped.narrow, grouped.narrow_bounds), (grouped.wide, grouped.wide_bounds))
    for records, bounds in kinds:
        has = bounds[probes] < bounds[probes + 1]
        first = records["event_time"][bounds[probes[has]]]
        last = records["event_time"][bounds[probes[has] + 1] - 1]
        spans[has, 0] = np.minimum(spans[has, 0], first)
        spans[has, 1] = np.maximum(spans[has, 1], last)
    return probes, spans


def join_chunks(chunks: Sequence[Chunk]) -> Grouped:
    """Joins small chunks of a bucket into one sorted run per probe."""
    chunks = sorted(chunks, key=_first_time)  # so that most runs are sorted once joined
    table = unpack([_inline(chunk.probes) for chunk in chunks])
    firsts, ranks = rank(table[0], table[1])
    runs = []
    narrow, wide = counts_of(table)
    for dtype, lengths, payloads in (
        (NARROW, narrow, [_inline(chunk.narrow) for chunk in chunks]),
        (WIDE, wide, [_inline(chunk.wide) for chunk in chunks]),
    ):
        bounds = np.concatenate([[0], np.cumsum(np.bincount(ranks, lengths, len(firsts)))])
        bounds = bounds.astype(np.int64)
        run = np.empty(bounds[-1], dtype)
        records = np.frombuffer(b"".join(payloads), dtype)
        place(records, lengths, ranks, np.ones(len(ranks), bool), run, bounds[:-1].copy())
        sort_groups(run, bounds)
        runs += [run, bounds]
    return Grouped(np.zeros(len(firsts), np.int64), table[0][firsts], table[1][firsts], *runs)


def _first_time(chunk: Chunk) -> int:
    """Returns the time of the first record of a small chunk."""
    runs = _inline(chunk.narrow), _inline(chunk.wide)
    return min(int.from_bytes(run[:8], "little", signed=True) for run in runs if run)


def _inline(payload: Payload) -> bytes:
    assert isinstance(payload, bytes)
    return payload


@kernel
def place(records, lengths, ranks, is_here, run, place_at):
    """Copies each probe's records to its place in `run` and advances the place."""
    at = 0
    for probe in range(len(lengths)):
        if is_here[probe]:
            to = place_at[ranks[probe]]
            for i in range(lengths[probe]):
                run[to + i] = records[at + i]
            place_at[ranks[probe]] = to + lengths[probe]
        at += lengths[probe]


NUM_COLUMNS = 4  # upper and lower half of the address, numbers of narrow and of wide records
_HEADER = np.dtype(
    [("count", "<i8"), ("smallest", "<u8", NUM_COLUMNS), ("widths", "<i8", NUM_COLUMNS)]
)
_HEADER_BYTES = _HEADER.itemsize


# --- packed tables ------------------------------------------------------------------------------


def pack(table: np.ndarray, bounds: np.ndarray) -> list[bytes]:
    """Packs the parts of a table, uint64 [NUM_COLUMNS, p], with bounds int64 [parts + 1]."""
    if not table.size:
        return []
    smallest = table.min(axis=1)
    values = np.subtract(table, smallest[:, None], order="C")
    widths = [(largest.bit_length() + 7) // 8 for largest in values.max(axis=1).tolist()]
    columns = values.view(np.uint8).reshape(NUM_COLUMNS, -1, 8)
    lines = np.hstack([column[:, :width] for column, width in zip(columns, widths, strict=True)])
    headers = np.zeros(len(bounds) - 1, _HEADER)
    headers["count"], headers["smallest"], headers["widths"] = np.diff(bounds), smallest, widths
    pairs = itertools.pairwise(bounds.tolist())
    return [
        header.tobytes() + lines[start:end].tobytes()
        for header, (start, end) in zip(headers, pairs, strict=True)
    ]


def counts_of(tables: np.ndarray) -> np.ndarray:
    """Returns the counts of narrow and of wide records of each probe, int64 [2, p]."""
    return tables[2:].view(np.int64)


def unpack(tables: Sequence[bytes]) -> np.ndarray:
    """Unpacks tables into adjacent ones: uint64 [NUM_COLUMNS, p]."""
    headers = np.frombuffer(b"".join(table[:_HEADER_BYTES] for table in tables), _HEADER)
    columns = np.empty((NUM_COLUMNS, headers["count"].sum()), np.uint64)
    _unpack(np.frombuffer(b"".join(tables), np.uint8), headers, columns)
    return columns


@kernel
def _unpack(packed, headers, columns):
    at = first = 0
    for header in headers:
        at += _HEADER_BYTES
        for probe in range(first, first + header.count):
            for column in range(NUM_COLUMNS):
                value = uint64(0)
                for i in range(header.widths[column]):
                    value |= uint64(packed[at + i]) << uint64(8 * i)
                columns[column, probe] = header.smallest[column] + value
                at += header.widths[column]
        first += header.count
