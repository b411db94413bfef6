"""The stateful cut against the plain one: all of a history at once, row by row with `fit`."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import RowFormat
from beam_pipeline.dataset.row_codec import RowKey, content_bytes
from beam_pipeline.dataset.row_encoder import encode_row
from beam_pipeline.dataset.sorted_run import WIDE, widen
from beam_pipeline.errors import ProbelineError
from beam_pipeline.probe_rows.external_sort import SortedRun
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.packets import Packet
from beam_pipeline.probe_rows.row_splitting import Segment, SplitRows
from beam_pipeline.shards.claim_checks import ClaimWriter, StoredPayload
from tests.support.codec_rows import both_encodings
from tests.support.helpers import eager, make_run, records_as_tuples, runs_strategy
from tests.support.probe_rows_on_disk import options_of, plain_cut, rows_in
from tests.support.properties import num_examples


class FakeState:
    """One cell of user state, a value and a bag in one, in memory."""

    def __init__(self) -> None:
        self.values: list = []

    def read(self) -> Any:
        return self.values[0] if self.values else None

    def write(self, value: Any) -> None:
        self.values = [value]

    def clear(self) -> None:
        self.values = []


class FakeBag(FakeState):
    """A bag in memory; it gives its values back in reverse, since bags promise no order."""

    def read(self) -> list:
        return self.values[::-1]

    def add(self, value: Any) -> None:
        self.values.append(value)


def segments_of(run: np.ndarray, bounds: list[int], encoding) -> list[Segment]:
    """Cuts a run at these places; what is numbered here is what `SortBucket` sends."""
    parts = [run[start:end] for start, end in pairwise([0, *bounds, len(run)])]
    return [
        Segment(
            seq,
            seq == len(parts) - 1,
            content_bytes(part, encoding),
            SortedRun(part.dtype == WIDE, part.tobytes()),
        )
        for seq, part in enumerate(parts)
    ]


PROBE = "192.0.2.1"


def evenly(run: np.ndarray, step: int, encoding) -> list[Segment]:
    return segments_of(run, list(range(step, len(run), step)), encoding)


def limit_for(run: np.ndarray, count: int, encoding) -> int:
    """Returns a row size that the first `count` measurements fill to the last byte."""
    return len(encode_row(run[:count], RowKey(PROBE, 0), encoding))


class Probe:
    """A SplitRows and the user state of one probe."""

    def __init__(self, encoding, max_row_bytes: int, folder: str = "", inline_bytes: int = 1 << 30):
        self.next_seq, self.row_index, self.first_early = FakeState(), FakeState(), FakeState()
        self.early, self.open = FakeBag(), FakeBag()
        options = options_of(RowFormat(encoding, max_row_bytes))
        self._do_fn = SplitRows(Workspace(folder, inline_bytes), options)
        self._do_fn.setup()

    @property
    def states(self) -> list[Any]:
        return [self.next_seq, self.row_index, self.first_early, self.early, self.open]

    def receive(self, segment: Segment) -> list[Packet]:
        return list(self._do_fn.process((PROBE, segment), *self.states))

    def receive_all(self, segments: list[Segment]) -> list[Packet]:
        return [row for segment in segments for row in self.receive(segment)]


def values_of(rows: list[tuple[RowKey, np.ndarray]]) -> list[tuple]:
    """Rows that hold the same measurements, however wide their records are."""
    return [(key, records_as_tuples(run)) for key, run in rows]


# --- the order of arrival -----------------------------------------------------------------------


@both_encodings
@settings(max_examples=num_examples(100))
@given(run=runs_strategy(min_size=2, max_size=50), data=st.data())
def test_any_segments_in_any_order_give_the_rows_of_the_plain_cut(encoding, run, data):
    bounds = data.draw(st.lists(st.integers(1, len(run) - 1), max_size=8, unique=True))
    segments = segments_of(run, sorted(bounds), encoding)
    limit = limit_for(run, data.draw(st.integers(1, len(run))), encoding)
    limit = max([limit, *(limit_for(run[at:], 1, encoding) for at in range(len(run)))])
    probe = Probe(encoding, limit)
    rows = probe.receive_all(data.draw(st.permutations(segments)))
    assert values_of(rows_in(rows)) == values_of(plain_cut(run, encoding, limit))
    assert [state.values for state in probe.states] == [[]] * 5


@both_encodings
def test_a_narrow_and_a_wide_segment_may_share_a_row(encoding):
    run = make_run(100, seed=3)
    narrow = evenly(run, 25, encoding)
    widened = SortedRun(True, widen(run[25:50]).tobytes())
    mixed = [narrow[0], msgspec.structs.replace(narrow[1], run=widened), *narrow[2:]]
    limit = limit_for(run, 40, encoding)
    rows = Probe(encoding, limit).receive_all(mixed)
    assert values_of(rows_in(rows)) == values_of(plain_cut(run, encoding, limit))


# --- where a row ends ---------------------------------------------------------------------------


def test_a_measurement_that_fits_no_row_ends_the_run():
    run = make_run(3, seed=8)
    with pytest.raises(ProbelineError, match="over the limit of 50 bytes per row"):
        Probe("compact", 50).receive_all(evenly(run, 1, "compact"))


# --- state --------------------------------------------------------------------------------------


@both_encodings
def test_a_row_leaves_with_the_segment_that_shows_it_is_full(encoding):
    """Nothing waits for the end of the history, and state stays below a row and a segment."""
    run = make_run(1_000, seed=9)
    limit = limit_for(run, 100, encoding)
    probe = Probe(encoding, limit)
    received = emitted = 0
    for segment in evenly(run, 25, encoding):
        rows = probe.receive(segment)
        received += 25
        emitted += sum(len(run) for _, run in rows_in(rows))
        assert received - emitted <= 100 + 4 * 25
        waiting = sum(segment.run.count for segment in probe.open.values)
        assert waiting == (0 if segment.is_last else received - emitted)
    assert emitted == 1_000


# --- on a runner --------------------------------------------------------------------------------


@both_encodings
def test_several_probes_at_once_on_a_runner(encoding):
    limit = limit_for(make_run(50, seed=0), 40, encoding)
    wanted, elements = [], []
    for number in range(4):
        src_addr = f"2001:db8::{number + 1}"
        run = make_run(150 + 100 * number, seed=number, wide=number == 2, ties=True)
        wanted += plain_cut(run, encoding, limit, src_addr)
        elements += [(src_addr, segment) for segment in evenly(run, 23, encoding)]
    order = np.random.default_rng(1).permutation(len(elements))
    split = SplitRows(Workspace("", 1 << 30), options_of(RowFormat(encoding, limit)))
    rows = rows_in(eager([elements[i] for i in order], beam.ParDo(split)))
    assert sorted(values_of(rows)) == sorted(values_of(wanted))


# --- segments on storage ------------------------------------------------------------------------


def stored(folder: Path, given: list[Segment], per_file: int = 100) -> list[Segment]:
    segments = []
    for number, segment in enumerate(given):
        if number % per_file == 0:
            writer = ClaimWriter(f"{folder}/segments", "segments", root=str(folder))
        claim = writer.put(segment.run.payload)  # type: ignore[arg-type]
        run = SortedRun(segment.run.is_wide, claim)
        segments.append(msgspec.structs.replace(segment, run=run))
        if number % per_file == per_file - 1 or segment.is_last:
            writer.close()
    return segments


@pytest.mark.parametrize("wide", [False, True])
def test_stored_segments_are_cut_as_inline_ones_and_found_where_they_lie(tmp_path, wide):
    run = make_run(200, seed=13, wide=wide)
    limit = limit_for(run, 30, "compact")
    segments = stored(tmp_path, evenly(run, 17, "compact"))
    rows = Probe("compact", limit, str(tmp_path), 0).receive_all(segments)
    assert len(rows) > 4
    wanted = plain_cut(run, "compact", limit)
    assert values_of(rows_in(rows, str(tmp_path))) == values_of(wanted)
    assert rows == Probe("compact", limit, str(tmp_path), 0).receive_all(segments[::-1])
    assert [path.name for path in tmp_path.iterdir()] == ["segments"]
    assert isinstance(rows[0].run, StoredPayload) and rows[0].run.crc32c is not None


def test_rows_in_two_files_are_stored_again(tmp_path):
    run = make_run(200, seed=13)
    limit = limit_for(run, 30, "compact")
    segments = stored(tmp_path, evenly(run, 40, "compact"), per_file=1)
    rows = Probe("compact", limit, str(tmp_path), 0).receive_all(segments)
    cut = plain_cut(run, "compact", limit)
    ends = np.cumsum([len(own) for _, own in cut]).tolist()
    borders = range(40, 200, 40)  # of the files, in measurements
    crossing = [any(start < at < end for at in borders) for start, end in pairwise([0, *ends])]
    assert any(crossing)
    assert [not is_found(row) for row in rows] == crossing
    assert values_of(rows_in(rows, str(tmp_path))) == values_of(cut)


def test_rows_of_widened_segments_are_stored_again(tmp_path):
    """Narrow ones lie in one file with wide ones."""
    run = make_run(200, seed=13)
    parts = [*evenly(run[:75], 25, "compact"), *evenly(widen(run[75:]), 25, "compact")]
    segments = [
        msgspec.structs.replace(segment, seq=seq, is_last=seq == 7)
        for seq, segment in enumerate(parts)
    ]
    limit = limit_for(run, 200, "compact")
    rows = Probe("compact", limit, str(tmp_path), 0).receive_all(stored(tmp_path, segments))
    assert [(row.is_wide, is_found(row)) for row in rows] == [(True, False)]
    wanted = [(RowKey(PROBE, 0), records_as_tuples(run))]
    assert values_of(rows_in(rows, str(tmp_path))) == wanted


def is_found(row: Packet) -> bool:
    """Whether a row is read where its segments lie."""
    return isinstance(row.run, StoredPayload) and "segments-" in row.run.path
