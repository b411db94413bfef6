"""Buckets become rows: those of the plain cut, whichever way a probe takes."""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest
from apache_beam.pvalue import TaggedOutput
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import ENCODINGS, RowFormat
from beam_pipeline.dataset.row_codec import RowKey
from beam_pipeline.probe_rows import grouping
from beam_pipeline.probe_rows.chunks import Chunk
from beam_pipeline.probe_rows.grouping import SortBucket
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.row_splitting import CutRows, OpenRows, Segment
from beam_pipeline.shards.claim_checks import ClaimReader
from tests.support.buckets import MEASUREMENTS, Record, reference, some_units, store
from tests.support.helpers import records_as_tuples, run_do_fn, run_of_tuples
from tests.support.probe_rows_on_disk import plain_cut, rows_in
from tests.support.properties import num_examples

Rows = dict[RowKey, list[Record]]


class Sorted(NamedTuple):
    """What SortBucket gives: rows, the segments of each other probe, and dropped duplicates."""

    rows: list[CutRows]
    segments: dict[str, list[Segment]]
    num_dropped: int = 0


def sort_bucket(
    folder: Path, chunks: list[Chunk], row_format: RowFormat, drop: bool = False
) -> Sorted:
    rows, segments, num_dropped = [], defaultdict(list), 0
    for out in run_do_fn(SortBucket(Workspace(str(folder), 0), row_format, drop), [(0, chunks)]):
        if isinstance(out, TaggedOutput) and out.tag == SortBucket.DROPPED:
            num_dropped += out.value
        elif isinstance(out, TaggedOutput):
            src_addr, segment = out.value
            segments[src_addr].append(Segment.decode(segment.encode()))
        else:
            rows.append(CutRows.decode(out.encode()))
    return Sorted(rows, segments, num_dropped)


def rows_of_segments(segments: dict[str, list[Segment]], row_format: RowFormat) -> list[CutRows]:
    reader, rows = ClaimReader(), []
    for src_addr, of_probe in segments.items():
        assert [segment.seq for segment in of_probe] == list(range(len(of_probe)))
        assert [segment.is_last for segment in of_probe[:-1]] == [False] * (len(of_probe) - 1)
        open_rows = OpenRows(src_addr, [], 0, row_format, reader)
        rows += [row for segment in of_probe for row in open_rows.append(segment)]
        assert open_rows.segments == []
    reader.close()
    return rows


def as_rows(cut: list[CutRows]) -> Rows:
    rows = {key: records_as_tuples(run) for key, run in rows_in(cut)}
    assert len(rows) == sum(len(many.keys) for many in cut)
    return rows


def wanted_rows(histories: dict[str, list[Record]], row_format: RowFormat) -> Rows:
    encoding, limit = row_format.encoding, row_format.max_row_bytes
    return as_rows(
        [
            row
            for src_addr, records in histories.items()
            for row in plain_cut(run_of_tuples(records), encoding, limit, src_addr)
        ]
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
@settings(
    max_examples=num_examples(150, quick=15),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    measurements=MEASUREMENTS.filter(len),
    num_units=st.integers(1, 4),
    limit=st.one_of(st.integers(2000, 3000), st.just(1 << 20)),
    memory_bytes=st.integers(1, 3000),
    cut_rows_bytes=st.sampled_from([1, 500, 1 << 20]),
    segment_bytes=st.sampled_from([1, 100, 1 << 20]),
    large=st.sampled_from([2, 100_000]),
    num_repeated=st.integers(0, 80),
    drop=st.booleans(),
)
def test_rows_and_segments_make_the_rows_of_the_plain_cut(
    tmp_path_factory,
    monkeypatch,
    encoding,
    measurements,
    num_units,
    limit,
    memory_bytes,
    cut_rows_bytes,
    segment_bytes,
    large,
    num_repeated,
    drop,
):
    """Duplicates that are dropped are those of a set, within a work unit and between them."""
    monkeypatch.setattr(grouping, "SORT_MEMORY_BYTES", memory_bytes)
    monkeypatch.setattr(grouping, "SEGMENT_BYTES", segment_bytes)
    monkeypatch.setattr(grouping, "_CUT_ROWS_BYTES", cut_rows_bytes)
    monkeypatch.setattr("beam_pipeline.probe_rows.chunks.LARGE_RUN_RECORDS", large)
    folder, row_format = tmp_path_factory.mktemp("grouping"), RowFormat(encoding, limit)
    units = [measurements[number::num_units] for number in range(num_units)]
    units[-1] += measurements[:num_repeated]
    ((_, chunks),) = store(folder, units).items()
    cut, segments, num_dropped = sort_bucket(folder, chunks, row_format, drop)
    histories = reference(units)
    wanted = {s: sorted(set(records)) if drop else records for s, records in histories.items()}
    assert as_rows([*cut, *rows_of_segments(segments, row_format)]) == wanted_rows(
        wanted, row_format
    )
    assert num_dropped == sum(len(histories[source]) - len(wanted[source]) for source in wanted)
    for src_addr, records in histories.items():
        assert (src_addr in segments) == (run_of_tuples(records).nbytes > memory_bytes)
    for rows in cut:
        itemsize = len(rows.data) // sum(rows.counts)
        assert len(rows.data) - rows.counts[-1] * itemsize < cut_rows_bytes


def test_single_rows_travel_together_up_to_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(grouping, "_CUT_ROWS_BYTES", 4000)
    units = some_units(2, num_probes=100, per_probe=5, wide_share=0.3)
    ((_, chunks),) = store(tmp_path, units).items()
    single, segments, _ = sort_bucket(tmp_path, chunks, RowFormat("compact", 1 << 20))
    assert segments == {}
    assert as_rows(single) == wanted_rows(reference(units), RowFormat("compact", 1 << 20))
    for is_wide, row_bytes, num_probes in ((False, 160, 70), (True, 280, 30)):
        lengths = [len(rows.keys) for rows in single if rows.is_wide == is_wide]
        full = -(-4000 // row_bytes)
        rest = num_probes % full
        assert lengths == [full] * (num_probes // full) + [rest] * (rest > 0)
