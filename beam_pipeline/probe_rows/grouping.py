"""From work units to rows: pre-group, GroupByKey on src_addr, bounded sort, row split.

| WorkUnit
v  PreGroup      reads, checks, sorts one chunk per probe; large chunks stay on storage
| (src_addr, chunk)                               | dead letters in files, counts: UnitSummary
v  GroupByKey
| (src_addr, [chunk])
v  SortProbe     merges a probe's chunks in bounded memory
| CutRow, the probe's only one    | (src_addr, Segment)
|                                 v  SplitRows, stateful, see `row_splitting`
|                                 | CutRow
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

import apache_beam as beam
import msgspec
import numpy as np
from apache_beam.pvalue import TaggedOutput

from beam_pipeline.dataset import dead_letters
from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.dataset.options import RowFormat
from beam_pipeline.dataset.row_codec import RowKey, content_bytes, fit, surely_fits
from beam_pipeline.dataset.sorted_run import WIDE
from beam_pipeline.errors import explained_os_errors
from beam_pipeline.jobs.messages import Message
from beam_pipeline.jobs.monitoring import count_dead_letters, counter, distribution, logged
from beam_pipeline.probe_rows.external_sort import ExternalSort, SortedRun
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.pregroup import pregroup
from beam_pipeline.probe_rows.row_splitting import CutRow, Segment, SplitRows, make_row
from beam_pipeline.shards.claim_checks import ClaimReader, ClaimWriter
from beam_pipeline.sources.inputs import UNIT_ROWS, Piece, WorkUnit
from beam_pipeline.sources.measurements import Block
from beam_pipeline.sources.options import ReadOptions
from beam_pipeline.sources.reading import UnreadableInputError, read_piece
from beam_pipeline.storage.files import create_file, unique_path

SORT_MEMORY_BYTES = 32 << 20
SEGMENT_BYTES = 1 << 20
_SEGMENT_FILE_BYTES = 64 << 20
_MAX_LETTERS_IN_MEMORY = 20_000


class UnitSummary(Message, frozen=True):
    """What became of the rows of a work unit: the counts that prove that none was lost."""

    unit: int
    planned_rows: int  # of its Parquet files that were read, or are behind a file_unreadable
    num_rows: int
    num_measurements: int
    dead_letters: dict[str, int]
    dead_letter_files: list[str]  # Parquet, in order


class PreGroup(beam.DoFn):
    """WorkUnit → (src_addr, chunk); tagged SUMMARY: UnitSummary."""

    SUMMARY = "summary"

    def __init__(self, options: ReadOptions, workspace: Workspace):
        self._options = options
        self._workspace = workspace
        self._unit_rows = UNIT_ROWS
        self._read = counter("rows_read")
        self._unreadable = counter("files_unreadable")
        self._chunks = counter("chunks")
        self._grouped_bytes = counter("grouped_by_probe_bytes")

    def process(
        self, unit: WorkUnit
    ) -> Iterator[tuple[str, SortedRun] | TaggedOutput[Literal["summary"], UnitSummary]]:
        blocks: list[Block] = []
        waiting = num_measurements = num_rows = planned_rows = 0
        letters = _LetterBox(unit.index, self._workspace)
        for piece in unit.pieces:
            for num_read, block in self._read_piece(piece, letters):
                num_rows += num_read
                if block is None:
                    continue
                blocks.append(block)
                waiting += len(block)
                num_measurements += len(block)
                if waiting >= self._unit_rows:
                    yield from self._store_chunks(unit.index, blocks)
                    blocks, waiting = [], 0
            planned_rows += piece.num_rows  # all of them were read, or read_piece has raised
        yield from self._store_chunks(unit.index, blocks)
        letters.flush()
        self._read.inc(num_rows)
        for reason, count in letters.counts.items():
            count_dead_letters(reason, count)
        summary = UnitSummary(
            unit.index,
            planned_rows,
            num_rows,
            num_measurements,
            dict(letters.counts),
            letters.files,
        )
        yield TaggedOutput(self.SUMMARY, summary)

    def _read_piece(
        self, piece: Piece, letters: "_LetterBox"
    ) -> Iterator[tuple[int, Block | None]]:
        with logged("Read, check and pre-group", file=piece.path):
            try:
                for batch in read_piece(piece, self._options):
                    letters.add(batch.letters)
                    yield batch.num_rows, batch.block
            except UnreadableInputError as error:
                if not self._options.skip_bad_files:
                    raise error.as_error() from error
                self._unreadable.inc()
                letters.add([error.as_letter()])
                yield 1, None

    def _store_chunks(self, unit: int, blocks: list[Block]) -> list[tuple[str, SortedRun]]:
        """Returns the chunks of some blocks as elements, once their file is closed."""
        folder, inline_bytes = self._workspace
        writer = ClaimWriter(f"{folder}/chunks", f"unit-{unit:06d}", inline_bytes, root=folder)
        grouped = pregroup(blocks)
        chunks = []
        for records, bounds in (
            (grouped.narrow, grouped.narrow_bounds),
            (grouped.wide, grouped.wide_bounds),
        ):
            in_bytes = (bounds * records.itemsize).tolist()
            payloads = writer.put_parts(memoryview(records.view(np.uint8)), in_bytes)
            chunks += [
                (src_addr, SortedRun(records.dtype == WIDE, payload))
                for src_addr, payload in zip(grouped.src_addrs, payloads, strict=True)
                if payload  # not every probe has records of both kinds
            ]
        writer.close()
        self._chunks.inc(len(chunks))
        self._grouped_bytes.inc(sum(len(probe) + len(run.encode()) for probe, run in chunks))
        return chunks


class _LetterBox:
    """Collects the dead letters of a work unit and writes them to files of bounded size."""

    def __init__(self, unit: int, workspace: Workspace):
        self.counts: Counter[str] = Counter()
        self.files: list[str] = []
        self._unit = unit
        self._folder = workspace.below("dead_letters")
        self._letters: list[DeadLetter] = []

    def add(self, letters: list[DeadLetter]) -> None:
        self.counts.update(dead_letters.count_by_reason(letters))
        self._letters += letters
        if len(self._letters) > _MAX_LETTERS_IN_MEMORY:
            self.flush()

    def flush(self) -> None:
        if not self._letters:
            return
        path = unique_path(self._folder, f"unit-{self._unit:06d}")
        with explained_os_errors("write", path), create_file(path) as file:
            file.write(dead_letters.to_parquet(self._letters))
        self.files.append(path)
        self._letters = []


RowOrSegment = CutRow | TaggedOutput[Literal["segments"], tuple[str, Segment]]


class SortProbe(beam.DoFn):
    """(src_addr, [chunk]) → CutRow for a probe of one row; tagged SEGMENTS: (src_addr, Segment)."""

    SEGMENTS = "segments"

    def __init__(self, workspace: Workspace, row_format: RowFormat):
        self._workspace = workspace
        self._row_format = row_format
        self._memory_bytes = SORT_MEMORY_BYTES
        self._segment_bytes = SEGMENT_BYTES
        self._probes = counter("probes")
        self._measurements = distribution("measurements_per_probe")
        self._spilled = counter("spilled_bytes")
        self._cut_bytes = counter("cut_bytes")

    def setup(self) -> None:
        self._reader = ClaimReader(self._workspace.folder)
        self._sorter = ExternalSort(self._workspace.below("runs"), self._reader, self._memory_bytes)

    def teardown(self) -> None:
        self._reader.close()

    def process(self, element: tuple[str, Iterable[SortedRun]]) -> Iterator[RowOrSegment]:
        with logged("Sort each probe", src_addr=element[0]):
            yield from self._sort(*element)

    def _sort(self, src_addr: str, chunks: Iterable[SortedRun]) -> Iterator[RowOrSegment]:
        spilled_before = self._sorter.spilled_bytes
        blocks = self._sorter.sort(chunks)
        first = next(blocks)
        second = next(blocks, None)
        key, row_format = RowKey(src_addr, 0), self._row_format
        self._probes.inc()
        if second is None and (
            surely_fits(first, row_format) or not fit(first, key, row_format).is_full
        ):
            self._measurements.update(len(first))
            yield make_row(key, first)
            return
        blocks = itertools.chain([first] if second is None else [first, second], blocks)
        del first, second  # or these two blocks would stay in memory
        for segment in self._store_segments(blocks):
            self._cut_bytes.inc(len(src_addr) + len(segment.encode()))
            yield TaggedOutput(self.SEGMENTS, (src_addr, segment))
        self._spilled.inc(self._sorter.spilled_bytes - spilled_before)

    def _store_segments(self, blocks: Iterable[np.ndarray]) -> Iterator[Segment]:
        """Yields numbered segments of about SEGMENT_BYTES, each once its file is closed."""
        writer = ClaimWriter(self._workspace.below("segments"), "segments")
        closed: list[Segment] = []
        num_measurements = 0
        for seq, run in enumerate(_pieces(blocks, self._segment_bytes)):
            # The newest segment is held back: it may turn out to be the last one.
            if writer.num_bytes >= _SEGMENT_FILE_BYTES:
                writer.close()
                writer = ClaimWriter(self._workspace.below("segments"), "segments")
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


def _pieces(blocks: Iterable[np.ndarray], piece_bytes: int) -> Iterator[np.ndarray]:
    for block in blocks:
        step = max(1, piece_bytes // block.dtype.itemsize)
        for start in range(0, len(block), step):
            yield block[start : start + step]


class GroupedRows(NamedTuple):
    """The outputs of GroupIntoRows."""

    single: beam.PCollection  # CutRow: probes whose history is one row
    split: beam.PCollection  # CutRow: all others
    summaries: beam.PCollection  # UnitSummary


class GroupIntoRows(beam.PTransform):
    """WorkUnit → GroupedRows, three PCollections.

    The two kinds of rows stay apart, since some runners would hold a joined collection in memory.
    """

    def __init__(self, read_options: ReadOptions, workspace: Workspace, row_format: RowFormat):
        super().__init__()
        self._pregroup = PreGroup(read_options, workspace)
        self._sort = SortProbe(workspace, row_format)
        self._split = SplitRows(row_format)

    def expand(self, units: beam.PCollection) -> Any:
        read = units | "Read, check and pre-group" >> beam.ParDo(self._pregroup).with_outputs(
            PreGroup.SUMMARY, main="chunks"
        )
        ordered = (
            read.chunks
            | "Group by probe" >> beam.GroupByKey()
            | "Sort each probe"
            >> beam.ParDo(self._sort).with_outputs(SortProbe.SEGMENTS, main="rows")
        )
        split = ordered.segments | "Cut rows" >> beam.ParDo(self._split)
        return GroupedRows(ordered.rows, split, read.summary)
