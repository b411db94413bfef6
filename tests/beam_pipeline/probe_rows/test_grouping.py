"""Buckets become rows: those of the plain cut, whichever way a probe takes."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from apache_beam.pvalue import TaggedOutput
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import ENCODINGS, RowFormat
from beam_pipeline.dataset.row_codec import RowKey
from beam_pipeline.probe_rows import grouping, packets
from beam_pipeline.probe_rows.chunks import Chunk
from beam_pipeline.probe_rows.grouping import SortBucket
from beam_pipeline.probe_rows.job import Workspace
from beam_pipeline.probe_rows.packets import Packet
from beam_pipeline.probe_rows.row_splitting import OpenRows, Segment
from beam_pipeline.shards.claim_checks import ClaimReader, payload_bytes
from tests.support.buckets import MEASUREMENTS, SOURCES, Record, reference, store
from tests.support.helpers import records_as_tuples, run_do_fn, run_of_tuples
from tests.support.probe_rows_on_disk import options_of, plain_cut, rows_in
from tests.support.properties import num_examples

Rows = dict[RowKey, list[Record]]


class Sorted(NamedTuple):
    """What SortBucket gives: packets, the segments of each other probe, and dropped duplicates."""

    packets: list[Packet]
    segments: dict[str, list[Segment]]
    num_dropped: int = 0


def sort_bucket(
    folder: Path, chunks: list[Chunk], row_format: RowFormat, drop: bool = False
) -> Sorted:
    packets, segments, num_dropped = [], defaultdict(list), 0
    sort = SortBucket(Workspace(str(folder), 0), options_of(row_format, drop))
    for out in run_do_fn(sort, [(0, chunks)]):
        if isinstance(out, TaggedOutput) and out.tag == SortBucket.DROPPED:
            num_dropped += out.value
        elif isinstance(out, TaggedOutput):
            src_addr, segment = out.value
            segments[src_addr].append(Segment.decode(segment.encode()))
        else:
            packets.append(Packet.decode(out.encode()))
    return Sorted(packets, segments, num_dropped)


def rows_of_segments(
    folder: Path, segments: dict[str, list[Segment]], row_format: RowFormat
) -> Iterator[tuple[RowKey, np.ndarray]]:
    reader = ClaimReader(str(folder))
    for src_addr, of_probe in segments.items():
        assert [segment.seq for segment in of_probe] == list(range(len(of_probe)))
        assert [segment.is_last for segment in of_probe[:-1]] == [False] * (len(of_probe) - 1)
        open_rows = OpenRows(src_addr, [], 0, row_format, reader)
        for segment in of_probe:
            for row in open_rows.append(segment):
                yield RowKey(src_addr, row.row_index), row.run
        assert open_rows.segments == []
    reader.close()


def as_rows(cut: Iterable[tuple[RowKey, np.ndarray]]) -> Rows:
    listed = [(key, records_as_tuples(run)) for key, run in cut]
    assert len(dict(listed)) == len(listed)
    return dict(listed)


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
    max_examples=num_examples(300, quick=30),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    measurements=MEASUREMENTS.filter(len),
    num_sources=st.sampled_from([1, 2, len(SOURCES)]),
    num_rounds=st.sampled_from([1, 1, 5]),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    longer=st.lists(st.integers(0, 30), min_size=13, max_size=13),
    times=st.sampled_from([1, 20, 1 << 62]),
    limit=st.one_of(st.integers(2000, 3000), st.just(1 << 20)),
    memory_bytes=st.one_of(st.integers(1, 100), st.integers(1, 3000)),
    fan_in=st.sampled_from([2, 3, 64]),
    inline_bytes=st.sampled_from([0, 50, 1 << 20]),
    with_span=st.sampled_from([1, 3, 100_000]),
    packet_bytes=st.sampled_from([1, 500, 1 << 20]),
    packet_rows=st.sampled_from([1, 3, 1000]),
    segment_bytes=st.sampled_from([1, 100, 1 << 20]),
    large=st.sampled_from([1, 5, 100_000]),
    drop=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_rows_and_segments_make_the_rows_of_the_plain_cut(
    tmp_path_factory,
    monkeypatch,
    encoding,
    measurements,
    num_sources,
    num_rounds,
    cuts,
    longer,
    times,
    limit,
    memory_bytes,
    fan_in,
    inline_bytes,
    with_span,
    packet_bytes,
    packet_rows,
    segment_bytes,
    large,
    drop,
    random,
):
    """Work units are stretches of time, prolonged into those behind them: borders tie.

    Duplicates that are dropped are those of a set, within a work unit and between them.
    """
    monkeypatch.setattr(grouping, "SORT_MEMORY_BYTES", memory_bytes)
    monkeypatch.setattr(grouping, "SEGMENT_BYTES", segment_bytes)
    monkeypatch.setattr(packets, "_MAX_BYTES", packet_bytes)
    monkeypatch.setattr(packets, "_MAX_ROWS", packet_rows)
    monkeypatch.setattr("beam_pipeline.probe_rows.chunks.LARGE_RUN_RECORDS", large)
    monkeypatch.setattr("beam_pipeline.probe_rows.chunks.SPAN_RECORDS", with_span)
    monkeypatch.setattr("beam_pipeline.probe_rows.external_sort.MAX_FAN_IN", fan_in)
    folder, row_format = tmp_path_factory.mktemp("grouping"), RowFormat(encoding, limit)
    few = [
        (SOURCES[SOURCES.index(source) % num_sources], ((time + number) % times, *others))
        for source, (time, *others) in measurements
        for number in range(num_rounds)
    ]
    few.sort(key=lambda each: each[1])
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(few)}), len(few)]
    stretches = zip(pairwise(bounds), longer, strict=False)
    units = [few[start : end + more] for (start, end), more in stretches]
    ((_, chunks),) = store(folder, units, inline_bytes=inline_bytes).items()
    random.shuffle(chunks)
    cut, segments, num_dropped = sort_bucket(folder, chunks, row_format, drop)
    histories = reference(units)
    wanted = {s: sorted(set(records)) if drop else records for s, records in histories.items()}
    rest = rows_of_segments(folder, segments, row_format)
    assert as_rows([*rows_in(cut, str(folder)), *rest]) == wanted_rows(wanted, row_format)
    assert num_dropped == sum(len(histories[source]) - len(wanted[source]) for source in wanted)
    for src_addr, records in histories.items():
        assert (src_addr in segments) == (run_of_tuples(records).nbytes > memory_bytes)
    for packet in cut:
        run_bytes = payload_bytes(packet.run)
        assert packet.num_rows == 1 or (
            run_bytes <= packet_bytes and packet.num_rows <= packet_rows
        )
