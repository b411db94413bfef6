"""The stateful row split: sorted segments of a probe become rows of at most the max size.

A history that fits in memory is cut where it is sorted. The others arrive as segments numbered by
`seq`, in any order, since Beam guarantees none. They are consumed in order of `seq`, and a row is
emitted as soon as it is known to be full. State holds references and a few numbers:

  seq      0    1    2    3    4    5    6          next_seq     3
           |=== row 0 ====|= row 1 |                row_index    2
                          +-------+  -    +          open         segment 2, cut off at row 1
                                open      early       early        segments ahead of next_seq
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import apache_beam as beam
import msgspec
import numpy as np
from apache_beam import coders
from apache_beam.transforms import userstate
from apache_beam.transforms.userstate import BagRuntimeState, ReadModifyWriteRuntimeState

from beam_pipeline.dataset.layout import DatasetOptions, RowFormat
from beam_pipeline.dataset.row_codec import RowKey, fit
from beam_pipeline.dataset.sorted_run import WIDE, join
from beam_pipeline.jobs.messages import Message, MessageCoder
from beam_pipeline.jobs.monitoring import counter, logged
from beam_pipeline.probe_rows.external_sort import SortedRun, load_all
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.packets import Packet, PacketWriter
from beam_pipeline.shards.claim_checks import ClaimReader, StoredPayload


class Segment(Message, frozen=True):
    """Part of a probe's sorted history; `size` is its share of a row's bytes, without framing."""

    seq: int
    is_last: bool
    size: int
    run: SortedRun


class CutRow(NamedTuple):
    """A row before encoding."""

    row_index: int
    run: np.ndarray  # NARROW or WIDE
    stored: StoredPayload | None = None  # where the run is already stored, if it is


def cut(
    run: np.ndarray, key: RowKey, row_format: RowFormat, is_last: bool = True
) -> Iterator[CutRow]:
    """Cuts a run into rows, the first with that key; the rest is a row only if it is the last."""
    while len(run):
        count, is_full = fit(run, key, row_format)
        if not is_full and not is_last:
            break
        yield CutRow(key.row_index, run[:count])
        key = key._replace(row_index=key.row_index + 1)
        run = run[count:]


class OpenRows:
    """Cuts the segments of one probe, given in order: the pure part of `SplitRows`.

    `segments` are those left over from before, `row_index` is that of the next row.
    """

    def __init__(
        self,
        src_addr: str,
        segments: Sequence[Segment],
        row_index: int,
        row_format: RowFormat,
        reader: ClaimReader,
    ):
        self.segments = list(segments)
        self.row_index = row_index
        self._src_addr = src_addr
        self._row_format = row_format
        self._reader = reader

    def append(self, segment: Segment) -> Iterator[CutRow]:
        """Takes the next segment; yields the rows that it completes."""
        self.segments.append(segment)
        held_bytes = sum(held.size for held in self.segments)
        if segment.is_last or held_bytes >= self._row_format.max_row_bytes:
            yield from self._cut(is_last=segment.is_last)

    def _cut(self, is_last: bool) -> Iterator[CutRow]:
        runs = [segment.run for segment in self.segments]
        run = join(load_all(runs, self._reader))
        num_cut = 0
        for row in cut(run, RowKey(self._src_addr, self.row_index), self._row_format, is_last):
            yield row._replace(stored=_stored(row.run, runs, num_cut))
            self.row_index += 1
            num_cut += len(row.run)
        self.segments = list(_after(self.segments, num_cut))


def _stored(row: np.ndarray, runs: Iterable[SortedRun], start: int) -> StoredPayload | None:
    """Returns where a row's run is stored that starts at record `start` of consecutive runs.

    None unless it is in one piece, as records of its kind, in one file.
    """
    found: StoredPayload | None = None
    missing = len(row)
    for run in runs:
        count = min(missing, run.count - start)
        if count > 0:
            part = run.part(start, count).payload
            if run.is_wide != (row.dtype == WIDE) or isinstance(part, bytes):
                return None
            if found and (part.path, part.offset) != (found.path, found.offset + found.length):
                return None
            offset, length = (found.offset, found.length) if found else (part.offset, 0)
            found = StoredPayload(part.path, offset, length + part.length, None)
            missing -= count
        start = max(0, start - run.count)
    return found


def _after(segments: Iterable[Segment], count: int) -> Iterator[Segment]:
    """Yields the rest of segments after their first `count` measurements."""
    for segment in segments:
        kept = segment.run.count - count
        if kept > 0:
            # Rounded up, so that a full row is never missed.
            size = -(-segment.size * min(kept, segment.run.count) // segment.run.count)
            start = max(0, count)
            run = segment.run.part(start, segment.run.count - start)
            yield msgspec.structs.replace(segment, size=size, run=run)
        count -= segment.run.count


class SplitRows(beam.DoFn):
    """(src_addr, Segment), a probe's segments in any order → Packet."""

    NEXT_SEQ = userstate.ReadModifyWriteStateSpec("next_seq", coders.VarIntCoder())
    ROW_INDEX = userstate.ReadModifyWriteStateSpec("row_index", coders.VarIntCoder())
    FIRST_EARLY = userstate.ReadModifyWriteStateSpec("first_early", coders.VarIntCoder())
    EARLY = userstate.BagStateSpec("early", MessageCoder(Segment))
    OPEN = userstate.BagStateSpec("open", MessageCoder(Segment))

    def __init__(self, workspace: Workspace, options: DatasetOptions):
        self._workspace = workspace
        self._options = options
        self._splits = counter("row_splits")

    def setup(self) -> None:
        self._reader = ClaimReader(self._workspace.folder)

    def finish_bundle(self) -> None:
        self._reader.close()

    def process(
        self,
        element: tuple[str, Segment],
        next_seq: ReadModifyWriteRuntimeState = beam.DoFn.StateParam(NEXT_SEQ),  # type: ignore[assignment]
        row_index: ReadModifyWriteRuntimeState = beam.DoFn.StateParam(ROW_INDEX),  # type: ignore[assignment]
        first_early: ReadModifyWriteRuntimeState = beam.DoFn.StateParam(FIRST_EARLY),  # type: ignore[assignment]
        early: BagRuntimeState = beam.DoFn.StateParam(EARLY),  # type: ignore[assignment]
        open_segments: BagRuntimeState = beam.DoFn.StateParam(OPEN),  # type: ignore[assignment]
    ) -> Iterator[Packet]:
        src_addr, segment = element
        expected = next_seq.read() or 0
        if segment.seq != expected:
            early.add(segment)
            earliest = first_early.read()
            first_early.write(segment.seq if earliest is None else min(earliest, segment.seq))
            return
        ready = [segment]
        if first_early.read() == expected + 1:
            ready += _take_early(expected + 1, first_early, early)
        held = sorted(open_segments.read())  # by seq: bags are unordered
        row_format = self._options.row_format
        rows = OpenRows(src_addr, held, row_index.read() or 0, row_format, self._reader)
        packets = PacketWriter(self._workspace, self._options)
        with logged("Cut rows", src_addr=src_addr):
            for segment in ready:
                for row in rows.append(segment):
                    self._splits.inc()
                    packets.add_row(src_addr, *row)
            yield from packets.close()
        if ready[-1].is_last:
            for state in (next_seq, row_index, first_early, early, open_segments):
                state.clear()
            return
        next_seq.write(expected + len(ready))
        row_index.write(rows.row_index)
        added = rows.segments[len(held) :]
        if rows.segments[: len(held)] != held:
            open_segments.clear()
            added = rows.segments
        for segment in added:
            open_segments.add(segment)


def _take_early(
    seq: int, first_early: ReadModifyWriteRuntimeState, early: BagRuntimeState
) -> list[Segment]:
    """Removes from `early` and returns the segments from `seq` up to the first gap."""
    waiting = {segment.seq: segment for segment in early.read()}
    taken = []
    while seq in waiting:
        taken.append(waiting.pop(seq))
        seq += 1
    early.clear()
    first_early.clear()
    for segment in waiting.values():
        early.add(segment)
    if waiting:
        first_early.write(min(waiting))
    return taken
