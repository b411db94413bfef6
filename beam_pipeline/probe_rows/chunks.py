"""Chunks: the probes of a bucket in one work unit, as they travel to the bucket's worker.

  chunk     packed table of probes | narrow runs | wide runs     each a payload of its own

A run of 35 B measurements has chunks of few thousand bytes. Those are joined as they arrive, so
that a bucket deals with few large ones.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from beam_pipeline.dataset.sorted_run import NARROW, WIDE, sort_groups
from beam_pipeline.jobs.messages import Message
from beam_pipeline.kernels import kernel
from beam_pipeline.probe_rows.pregroup import Grouped, rank
from beam_pipeline.probe_rows.probe_table import counts_of, pack, unpack
from beam_pipeline.shards.claim_checks import ClaimWriter, Payload, payload_bytes

LARGE_RUN_RECORDS = 70_000  # a chunk of its own, so that others of the bucket may stay inline
SPAN_RECORDS = 1000  # of a probe whose span the chunk has; a thousandth of their bytes


class Chunk(Message, frozen=True):
    """Some consecutive probes of a bucket in one work unit."""

    probes: Payload  # a packed table of addresses and numbers of narrow and wide records
    narrow: Payload  # NARROW, the sorted runs of the probes, one after another
    wide: Payload  # WIDE, likewise
    spans: bytes  # int64 [n, 2], first and last time of each probe of SPAN_RECORDS or more

    @property
    def payloads(self) -> tuple[Payload, Payload, Payload]:
        """All that may be stored elsewhere."""
        return self.probes, self.narrow, self.wide

    @property
    def num_bytes(self) -> int:
        return sum(map(payload_bytes, self.payloads))

    @property
    def is_small(self) -> bool:
        """Whether it is inline, and no probe's run is long enough to be told apart by its span."""
        return not self.spans and all(isinstance(payload, bytes) for payload in self.payloads)


def store_chunks(grouped: Grouped, writer: ClaimWriter) -> list[tuple[int, Chunk]]:
    """Returns the chunks of a work unit with their buckets, valid once the writer is closed."""
    table = grouped.table()
    counts = counts_of(table).sum(axis=0)
    is_large = counts >= LARGE_RUN_RECORDS
    is_first = np.ones(len(counts) + 1, bool)
    is_first[1:-1] = (np.diff(grouped.buckets) != 0) | is_large[1:] | is_large[:-1]
    starts = np.flatnonzero(is_first)
    tables, table_bounds = pack(table, starts)
    of_span, spans = spans_of(grouped, counts)
    parts = [
        _pieces(data, bounds)
        for data, bounds in (
            (tables, table_bounds),
            (grouped.narrow, grouped.narrow_bounds[starts]),
            (grouped.wide, grouped.wide_bounds[starts]),
            (spans, np.searchsorted(of_span, starts)),
        )
    ]
    buckets = grouped.buckets[starts[:-1]].tolist()
    put = writer.put
    return [
        (bucket, Chunk(put(probes), put(narrow), put(wide), bytes(its_spans)))
        for bucket, probes, narrow, wide, its_spans in zip(buckets, *parts, strict=True)
    ]


def _pieces(data: np.ndarray, bounds: np.ndarray) -> Iterator[memoryview]:
    """Yields the bytes of some rows after others, given where they begin and end."""
    whole = memoryview(data.reshape(-1).view(np.uint8))
    row_bytes = data.nbytes // max(len(data), 1)
    for start, end in itertools.pairwise((bounds * row_bytes).tolist()):
        yield whole[start:end]


def have_span(counts: np.ndarray) -> np.ndarray:
    """Returns which probes have a span in their chunk, bool [p], given their measurements in it."""
    return counts >= SPAN_RECORDS


def spans_of(grouped: Grouped, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which probes have a span, given how many measurements each has.

    Returns:
      Their numbers, int64 [n], and their first and last times, int64 [n, 2].
    """
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
    """Joins small chunks of a bucket to one sorted run per probe."""
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
    """Copies each probe's records to its place in `run`, and moves the place on."""
    at = 0
    for probe in range(len(lengths)):
        if is_here[probe]:
            to = place_at[ranks[probe]]
            for i in range(lengths[probe]):
                run[to + i] = records[at + i]
            place_at[ranks[probe]] = to + lengths[probe]
        at += lengths[probe]
