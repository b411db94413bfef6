"""The stateful cut: sorted segments of a probe to rows of at most the wanted size.

A probe whose history fits one row never comes here. The others arrive as segments numbered by
`seq`, in any order, since Beam promises none; they are consumed in the order of `seq`, and a row
leaves as soon as what follows it is known. State holds references and a few numbers:

  early   segments that arrived before their turn     next_seq    whose turn it is
  open    segments, in order, not yet in a full row   row_index   of the next row
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam import coders
from apache_beam.transforms.userstate import (
    BagRuntimeState,
    BagStateSpec,
    ReadModifyWriteRuntimeState,
    ReadModifyWriteStateSpec,
)

from beam_pipeline.dataset.row_codec import RowFormat, RowKey, fit
from beam_pipeline.dataset.sorted_run import WIDE, join
from beam_pipeline.jobs.monitoring import counter, logged
from beam_pipeline.probe_rows.external_sort import StoredRun
from beam_pipeline.shards.claim_checks import ClaimReader

_SEGMENT = struct.Struct("<QQ?")  # seq, size, is_last; the run follows


class Segment(NamedTuple):
    """A part of a probe's sorted history; `size` is what it takes in a row, less the framing."""

    seq: int
    is_last: bool
    size: int
    run: StoredRun

    def encode(self) -> bytes:
        """Returns the segment as an element's value."""
        return _SEGMENT.pack(self.seq, self.size, self.is_last) + self.run.encode()

    @staticmethod
    def decode(value: bytes) -> "Segment":
        """Inverts `encode`."""
        seq, size, is_last = _SEGMENT.unpack_from(value)
        return Segment(seq, is_last, size, StoredRun.decode(value[_SEGMENT.size :]))


class CutRow(NamedTuple):
    """The measurements of one row, not yet encoded: the bytes of a NARROW or WIDE run."""

    key: RowKey
    is_wide: bool
    data: bytes


def make_row(key: RowKey, run: np.ndarray) -> CutRow:
    """Returns a run as an element."""
    return CutRow(key, run.dtype == WIDE, run.tobytes())


class OpenRows:
    """Cuts the segments of one probe, given in order: the pure part of `SplitRows`.

    Args:
      segments: what is left of earlier segments, in order.
      row_index: the index of the next row.
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
        """Takes the next segment and yields the rows that it completes."""
        self.segments.append(segment)
        held_bytes = sum(part.size for part in self.segments)
        if segment.is_last or held_bytes >= self._row_format.max_row_bytes:
            yield from self._cut(is_last=segment.is_last)

    def _cut(self, is_last: bool) -> Iterator[CutRow]:
        run = join([segment.run.load(self._reader) for segment in self.segments])
        start = 0
        while start < len(run):
            key = RowKey(self._src_addr, self.row_index)
            count, is_full = fit(run[start:], key, self._row_format)
            if not is_full and not is_last:
                break
            yield make_row(key, run[start : start + count])
            self.row_index += 1
            start += count
        self.segments = list(_after(self.segments, start))


def _after(segments: Iterable[Segment], count: int) -> Iterator[Segment]:
    """Yields what is left of segments after their first `count` measurements."""
    for segment in segments:
        kept = segment.run.count - count
        if kept > 0:
            # Rounded up, so that a full row is never missed.
            size = -(-segment.size * min(kept, segment.run.count) // segment.run.count)
            start = max(0, count)
            run = segment.run.part(start, segment.run.count - start)
            yield segment._replace(size=size, run=run)
        count -= segment.run.count


class SplitRows(beam.DoFn):
    """(src_addr, segment) in any order of a probe's segments → CutRow."""

    NEXT_SEQ = ReadModifyWriteStateSpec("next_seq", coders.VarIntCoder())
    ROW_INDEX = ReadModifyWriteStateSpec("row_index", coders.VarIntCoder())
    FIRST_EARLY = ReadModifyWriteStateSpec("first_early", coders.VarIntCoder())
    EARLY = BagStateSpec("early", coders.BytesCoder())
    OPEN = BagStateSpec("open", coders.BytesCoder())

    def __init__(self, row_format: RowFormat):
        self._row_format = row_format
        self._splits = counter("row_splits")

    def setup(self) -> None:
        self._reader = ClaimReader()

    def teardown(self) -> None:
        self._reader.close()

    def process(
        self,
        element: tuple[str, bytes],
        next_seq: ReadModifyWriteRuntimeState = beam.DoFn.StateParam(NEXT_SEQ),  # type: ignore[assignment]
        row_index: ReadModifyWriteRuntimeState = beam.DoFn.StateParam(ROW_INDEX),  # type: ignore[assignment]
        first_early: ReadModifyWriteRuntimeState = beam.DoFn.StateParam(FIRST_EARLY),  # type: ignore[assignment]
        early: BagRuntimeState = beam.DoFn.StateParam(EARLY),  # type: ignore[assignment]
        open_segments: BagRuntimeState = beam.DoFn.StateParam(OPEN),  # type: ignore[assignment]
    ) -> Iterator[CutRow]:
        with logged("Cut rows", src_addr=element[0]):
            yield from self._cut(*element, next_seq, row_index, first_early, early, open_segments)

    def _cut(
        self,
        src_addr: str,
        value: bytes,
        next_seq: ReadModifyWriteRuntimeState,
        row_index: ReadModifyWriteRuntimeState,
        first_early: ReadModifyWriteRuntimeState,
        early: BagRuntimeState,
        open_segments: BagRuntimeState,
    ) -> Iterator[CutRow]:
        seq = Segment.decode(value).seq
        expected = next_seq.read() or 0
        if seq != expected:
            early.add(value)
            earliest = first_early.read()
            first_early.write(seq if earliest is None else min(earliest, seq))
            return
        ready = [value]
        if first_early.read() == expected + 1:
            ready += self._take_early(expected + 1, first_early, early)
        # Bags promise no order either: seq restores it.
        held = sorted(Segment.decode(segment) for segment in open_segments.read())
        rows = OpenRows(src_addr, held, row_index.read() or 0, self._row_format, self._reader)
        for value in ready:
            segment = Segment.decode(value)
            for row in rows.append(segment):
                self._splits.inc()
                yield row
            if segment.is_last:
                for state in (next_seq, row_index, first_early, early, open_segments):
                    state.clear()
                return
        next_seq.write(expected + len(ready))
        row_index.write(rows.row_index)
        if rows.segments[: len(held)] == held:
            added = rows.segments[len(held) :]
        else:
            open_segments.clear()
            added = rows.segments
        for segment in added:
            open_segments.add(segment.encode())

    @staticmethod
    def _take_early(
        seq: int, first_early: ReadModifyWriteRuntimeState, early: BagRuntimeState
    ) -> list[bytes]:
        """Removes from `early` and returns the segments from `seq` on that have no gap."""
        waiting = {Segment.decode(value).seq: value for value in early.read()}
        taken = []
        while seq in waiting:
            taken.append(waiting.pop(seq))
            seq += 1
        early.clear()
        first_early.clear()
        for value in waiting.values():
            early.add(value)
        if waiting:
            first_early.write(min(waiting))
        return taken
