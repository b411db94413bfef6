"""From work units to rows: pre-group, GroupByKey on src_addr, bounded sort, row split.

Probes are grouped into buckets by a hash of src_addr, so the shuffle does not pay for one element
per probe. A probe is in one bucket only.

| MeasurementUnit
v  PreGroup      reads, checks, sorts one chunk per bucket; large chunks stay on storage
| (bucket, Chunk)         | names of ends          | dead letters in files, counts: UnitSummary
v  GroupByKey
| (bucket, [Chunk])
v  SortBucket    merges each probe's runs in bounded memory
| Packet   | duplicates dropped     | (src_addr, Segment), of probes that exceed the memory
|                                   v  SplitRows, stateful, see `row_splitting`
|                                   | Packet
"""

import itertools
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import apache_beam as beam
import msgspec
import numpy as np
from apache_beam.pvalue import TaggedOutput

from beam_pipeline.dataset.layout import DatasetOptions
from beam_pipeline.dataset.row_codec import RowKey, content_bytes, surely_fit
from beam_pipeline.dataset.sorted_run import WIDE, join
from beam_pipeline.jobs.beam_options import in_memory_only
from beam_pipeline.jobs.monitoring import count_dead_letters, counter, distribution, logged
from beam_pipeline.probe_rows.bucket import (
    Bucket,
    DuplicateFilter,
    History,
    LargeHistory,
    num_buckets,
)
from beam_pipeline.probe_rows.chunks import Chunk, store_chunks
from beam_pipeline.probe_rows.external_sort import ExternalSort, SortedRun
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.outcome import UnitSummary, UnitTally
from beam_pipeline.probe_rows.packets import ROW, Packet, PacketWriter
from beam_pipeline.probe_rows.pregroup import pregroup
from beam_pipeline.probe_rows.row_splitting import Segment, SplitRows, cut
from beam_pipeline.shards.claim_checks import ClaimReader, ClaimWriter
from beam_pipeline.shards.letters import LetterBox
from beam_pipeline.sources.inputs import UNIT_ROWS, MeasurementUnit, Piece
from beam_pipeline.sources.measurements import Block, as_stored
from beam_pipeline.sources.options import ReadOptions
from beam_pipeline.sources.reading import CheckedBatch, UnreadableInputError, read_piece

SORT_MEMORY_BYTES = 32 << 20
SEGMENT_BYTES = 1 << 20
_SEGMENT_FILE_BYTES = 64 << 20


PreGrouped = (
    tuple[int, Chunk]
    | TaggedOutput[Literal["summary"], UnitSummary]
    | TaggedOutput[Literal["names"], list[str]]
)


class PreGroup(beam.DoFn):
    """MeasurementUnit → (bucket, Chunk); tagged SUMMARY: UnitSummary.

    Tagged NAMES: the distinct names of ends of a unit, if any.
    """

    SUMMARY, NAMES = "summary", "names"

    def __init__(self, options: ReadOptions, workspace: Workspace):
        self._options = options
        self._workspace = workspace
        self._unit_rows = UNIT_ROWS
        self._read = counter("rows_read")
        self._left_out = counter("rows_left_out")
        self._unreadable = counter("files_unreadable")
        self._chunks = counter("chunks")
        self._grouped_bytes = counter("grouped_by_probe_bytes")

    def process(self, unit: MeasurementUnit) -> Iterator[PreGrouped]:
        blocks: list[Block] = []
        names: set[str] = set()
        waiting = 0
        letters = LetterBox(self._workspace.below("dead_letters"), f"unit-{unit.index:06d}")
        tally = UnitTally(unit.index)
        for piece in unit.pieces:
            next_row = 0
            for batch in self._read_piece(piece):
                next_row = batch.next_row
                letters.add(batch.letters)
                tally.add(piece, batch)
                names.update(batch.names)
                if batch.block is None:
                    continue
                blocks.append(as_stored(batch.block) if self._options.as_stored else batch.block)
                waiting += len(batch.block)
                if waiting >= self._unit_rows:
                    yield from self._store_chunks(unit, blocks)
                    blocks, waiting = [], 0
            tally.end(piece, next_row)  # all rows were read, or read_piece has raised
        yield from self._store_chunks(unit, blocks)
        letters.flush()
        for reason, count in letters.counts.items():
            count_dead_letters(reason, count)
        summary = tally.summary(letters)
        self._read.inc(summary.num_rows)
        self._left_out.inc(summary.num_left_out)
        yield TaggedOutput(self.SUMMARY, summary)
        if names:
            yield TaggedOutput(self.NAMES, sorted(names))

    def _read_piece(self, piece: Piece) -> Iterator[CheckedBatch]:
        with logged("Read, check and pre-group", file=piece.path):
            try:
                yield from read_piece(piece, self._options)
            except UnreadableInputError as error:
                if not self._options.skip_bad_files:
                    raise error.as_error() from error
                self._unreadable.inc()
                yield CheckedBatch(1, None, [error.as_letter()], error.row)

    def _store_chunks(self, unit: MeasurementUnit, blocks: list[Block]) -> list[tuple[int, Chunk]]:
        """Returns the chunks of blocks, keyed by bucket, after closing their file.

        The largest come first: Beam's in-memory runner assigns keys to workers in that order.
        """
        folder, inline_bytes = self._workspace
        name = f"unit-{unit.index:06d}"
        writer = ClaimWriter(f"{folder}/chunks", name, inline_bytes, root=folder)
        rows_in_all = int(unit.rows_in_all * self._options.sample.share)
        chunks = store_chunks(pregroup(blocks, num_buckets(rows_in_all)), writer)
        writer.close()
        self._chunks.inc(len(chunks))
        self._grouped_bytes.inc(sum(8 + len(chunk.encode()) for _, chunk in chunks))
        return sorted(chunks, key=lambda keyed: -keyed[1].num_bytes)


RowsOrSegment = Packet | TaggedOutput[Literal["segments"], tuple[str, Segment]]
SortedBucket = RowsOrSegment | TaggedOutput[Literal["dropped"], int]


class SortBucket(beam.DoFn):
    """(bucket, [Chunk]) → Packet; tagged SEGMENTS: (src_addr, Segment) of very long histories.

    Tagged DROPPED: the number of duplicates dropped from a bucket, if any.
    """

    SEGMENTS, DROPPED = "segments", "dropped"

    def __init__(self, workspace: Workspace, options: DatasetOptions):
        self._workspace = workspace
        self._options = options
        self._row_format = options.row_format
        self._memory_bytes = SORT_MEMORY_BYTES
        self._segment_bytes = SEGMENT_BYTES
        self._probes = counter("probes")
        self._measurements = distribution("measurements_per_probe")
        self._splits = counter("row_splits")
        self._spilled = counter("spilled_bytes")
        self._cut_bytes = counter("cut_bytes")
        self._dropped = counter("duplicates_dropped")

    def setup(self) -> None:
        self._reader = ClaimReader(self._workspace.folder)
        self._sorter = ExternalSort(self._workspace.below("runs"), self._reader, self._memory_bytes)

    def finish_bundle(self) -> None:
        self._reader.close()

    def process(self, element: tuple[int, Iterable[Chunk]]) -> Iterator[SortedBucket]:
        number, chunks = element
        duplicates = DuplicateFilter() if self._options.duplicates == "drop" else None
        packets = PacketWriter(self._workspace, self._options)
        with (
            logged("Sort each bucket", bucket=number),
            tempfile.TemporaryDirectory(prefix="probeline-") as local_folder,
        ):
            bucket = Bucket(chunks, self._reader, self._memory_bytes, local_folder)
            self._probes.inc(len(bucket.src_hi))
            for history in bucket.histories():
                if isinstance(history, LargeHistory):
                    yield from self._sort_large(history, duplicates)
                else:
                    history = duplicates.filter_history(history) if duplicates else history
                    packets.add(self._cut(history), history.run)
            yield from packets.close()
        if duplicates and duplicates.num_dropped:
            self._dropped.inc(duplicates.num_dropped)
            yield TaggedOutput(self.DROPPED, duplicates.num_dropped)

    def _sort_large(
        self, history: LargeHistory, duplicates: DuplicateFilter | None
    ) -> Iterator[RowsOrSegment]:
        spilled_before = self._sorter.spilled_bytes
        blocks = self._sorter.sort(history.runs)
        if duplicates:
            blocks = duplicates.filter_blocks(blocks)
        yield from self._as_segments(history.src_addr, blocks)
        self._spilled.inc(self._sorter.spilled_bytes - spilled_before)

    def _cut(self, history: History) -> np.ndarray:
        """Returns the rows of histories in memory, ROW [r], in the order of their run."""
        counts = np.diff(history.bounds)
        rows = np.zeros(len(counts), ROW)
        rows["src_hi"], rows["src_lo"] = history.src_hi, history.src_lo
        rows["count"] = counts
        for count in counts.tolist():
            self._measurements.update(count)
        unsure = np.flatnonzero(~surely_fit(history.run, history.bounds, self._row_format))
        parts, done = [], 0
        for probe in unsure.tolist():
            run = history.run[slice(*history.bounds[probe : probe + 2].tolist())]
            key = RowKey(history.src_addr(probe), 0)
            its_rows = list(cut(run, key, self._row_format))
            if len(its_rows) > 1:
                self._splits.inc(len(its_rows))
                several = np.repeat(rows[probe : probe + 1], len(its_rows))
                several["row_index"] = np.arange(len(its_rows))
                several["count"] = [len(row.run) for row in its_rows]
                parts += [rows[done:probe], several]
                done = probe + 1
        return np.concatenate([*parts, rows[done:]])

    def _as_segments(self, src_addr: str, blocks: Iterable[np.ndarray]) -> Iterator[RowsOrSegment]:
        for segment in self._store_segments(blocks):
            self._cut_bytes.inc(len(src_addr) + len(segment.encode()))
            yield TaggedOutput(self.SEGMENTS, (src_addr, segment))

    def _store_segments(self, blocks: Iterable[np.ndarray]) -> Iterator[Segment]:
        """Yields numbered segments of about SEGMENT_BYTES, each after its file is closed."""
        writer = self._segment_writer()
        closed: list[Segment] = []
        num_measurements = 0
        for seq, run in enumerate(_pieces(blocks, self._segment_bytes)):
            # The newest segment is held back, since it may be the last one.
            if writer.num_bytes >= _SEGMENT_FILE_BYTES:
                writer.close()
                writer = self._segment_writer()
                yield from closed[:-1]
                closed = closed[-1:]
            stored = SortedRun(run.dtype == WIDE, writer.put(memoryview(run).cast("B")))
            size = content_bytes(run, self._row_format.encoding)
            closed.append(Segment(seq, False, size, stored))
            num_measurements += len(run)
        writer.close()
        self._measurements.update(num_measurements)
        yield from closed[:-1]
        yield msgspec.structs.replace(closed[-1], is_last=True)

    def _segment_writer(self) -> ClaimWriter:
        folder = self._workspace.below("segments")
        return ClaimWriter(folder, "segments", root=self._workspace.folder)


def _pieces(blocks: Iterable[np.ndarray], piece_bytes: int) -> Iterator[np.ndarray]:
    """Recuts consecutive blocks of one type into pieces of `piece_bytes`; the last is smaller."""
    held: list[np.ndarray] = []
    missing = 0
    for block in blocks:
        while len(block):
            missing = missing or max(1, piece_bytes // block.itemsize)
            held.append(block[:missing])
            missing, block = missing - len(held[-1]), block[missing:]
            if not missing:
                yield join(held)
                held = []
        if held:
            held[-1] = held[-1].copy()  # frees the rest of the block
    if held:
        yield join(held)


class GroupedRows(NamedTuple):
    """The outputs of GroupIntoRows."""

    cut: beam.PCollection  # Packet: probes whose history fits in memory
    split: beam.PCollection  # Packet: all others
    summaries: beam.PCollection  # UnitSummary
    dropped: beam.PCollection  # numbers of duplicates
    names: beam.PCollection | None  # of ends, distinct: one list; None if ends are addresses


class GroupIntoRows(beam.PTransform):
    """MeasurementUnit → GroupedRows, four or five PCollections.

    The two kinds of rows stay apart, since some runners would hold a joined collection in memory.
    """

    def __init__(self, read_options: ReadOptions, workspace: Workspace, options: DatasetOptions):
        super().__init__()
        self._has_names = read_options.mapping.ends == "names"
        self._pregroup = PreGroup(read_options, workspace)
        self._sort = SortBucket(workspace, options)
        self._split = SplitRows(workspace, options)

    def expand(self, units: beam.PCollection) -> Any:
        read = units | "Read, check and pre-group" >> beam.ParDo(self._pregroup).with_outputs(
            PreGroup.SUMMARY, PreGroup.NAMES, main="chunks"
        )
        ordered = (
            read.chunks
            | "Group by probe" >> beam.GroupByKey()
            | "Sort each bucket"
            >> beam.ParDo(self._sort).with_outputs(
                SortBucket.SEGMENTS, SortBucket.DROPPED, main="rows"
            )
        )
        # Without a step in between, this runner would sort and cut in one thread.
        spread = in_memory_only(ordered.segments, "Spread segments" >> beam.Reshuffle())
        split = spread | "Cut rows" >> beam.ParDo(self._split)
        names = (
            read.names | "All names" >> beam.CombineGlobally(_union) if self._has_names else None
        )
        return GroupedRows(ordered.rows, split, read.summary, ordered.dropped, names)


def _union(names: Iterable[Iterable[str]]) -> list[str]:
    return sorted(set(itertools.chain.from_iterable(names)))
