"""A sample: nested, stable, and accounted for to the last row."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.data_card import CARD_NAME
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.sources import reading
from beam_pipeline.sources.inputs import inspect, match_files, plan_units
from beam_pipeline.sources.measurements import Block, check
from beam_pipeline.sources.options import COLUMNS, ReadOptions, Sample, parse_time, time_text
from beam_pipeline.sources.reading import read_piece
from beam_pipeline.sources.sampling import sampled
from tests.support.helpers import YEAR_2024_US, as_number, measurements_table
from tests.support.job_runs import files_of, history, make_dataset, read_rows, write_input
from tests.support.properties import num_examples

Measurement = tuple[int, int, int, float]  # time, source, destination, RTT


def block_of(table: pa.Table) -> Block:
    return check(table.select(list(COLUMNS)).combine_chunks().to_batches()[0])[0]


def measurements_of(block: Block | None) -> list[Measurement]:
    if block is None:
        return []
    src, dst = (
        [int(column.hi[code]) << 64 | int(column.lo[code]) for code in column.codes]
        for column in (block.src, block.dst)
    )
    return list(zip(block.event_time.tolist(), src, dst, block.rtt.tolist(), strict=True))


def sequential_probes(count: int) -> Block:
    """Returns a measurement of each of consecutive addresses."""
    packed = [f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(count)]
    row = {"event_time": YEAR_2024_US, "dst_addr": "9.9.9.9", "ip_version": 4, "rtt": 1.0}
    columns = [packed if name == "src_addr" else [row[name]] * count for name in COLUMNS]
    types = [pa.timestamp("us"), pa.string(), pa.string(), pa.int8(), pa.float32()]
    return check(pa.RecordBatch.from_arrays(list(map(pa.array, columns, types)), list(COLUMNS)))[0]


# --- which measurements -------------------------------------------------------------------------


def test_golden_sample() -> None:
    """A changed hash would break every dataset that is a sample of another."""
    block = sequential_probes(1000)
    probes = sampled(block, Sample(probes=0.01))
    assert [src & 0xFFFF for _, src, _, _ in measurements_of(probes)] == GOLDEN_PROBES
    measurements = sampled(block, Sample(measurements=0.01))
    assert [src & 0xFFFF for _, src, _, _ in measurements_of(measurements)] == GOLDEN_MEASUREMENTS


GOLDEN_PROBES = [53, 120, 200, 273, 303, 453, 607, 650, 746, 913, 930, 962, 970]
GOLDEN_MEASUREMENTS = [121, 289, 339, 375, 538, 572, 626, 785, 833]


@pytest.mark.parametrize("what", ["probes", "measurements"])
def test_samples_are_nested(what: str) -> None:
    block = block_of(measurements_table(4000, seed=3, num_probes=300))
    larger = measurements_of(block)
    for share in (0.5, 0.3, 0.1, 0.01):
        shares = (share, 1) if what == "probes" else (1, share)
        smaller = measurements_of(sampled(block, Sample(*shares)))
        assert set(smaller) < set(larger) and smaller
        larger = smaller
    both = measurements_of(sampled(block, Sample(probes=0.3, measurements=0.3)))
    for alone in (Sample(probes=0.5, measurements=0.3), Sample(probes=0.3)):
        assert set(both) < set(measurements_of(sampled(block, alone)))


def test_probes_and_duplicates_are_kept_together() -> None:
    block = block_of(measurements_table(4000, seed=4, num_probes=50))
    everything = measurements_of(block)
    kept = measurements_of(sampled(block, Sample(probes=0.5)))
    probes = {src for _, src, _, _ in kept}
    assert kept == [one for one in everything if one[1] in probes]
    kept = measurements_of(sampled(block, Sample(measurements=0.5)))
    assert len(set(kept)) < len(kept) and kept == [one for one in everything if one in set(kept)]


# --- reading ------------------------------------------------------------------------------------


TIMES = st.one_of(
    st.none(), st.integers(-(10**7), 10**7), st.sampled_from([-1, 0, 10**6, 2 * 10**6, 2**62])
)


@settings(max_examples=num_examples(300, quick=20))
@given(
    times=st.lists(TIMES, min_size=1, max_size=12),
    bad=st.lists(st.booleans(), min_size=12, max_size=12),
    unit=st.sampled_from(["ms", "us", "ns"]),
    row_group_size=st.integers(1, 6),
    statistics=st.booleans(),
    window=st.tuples(st.integers(0, 3 * 10**6), st.none() | st.integers(1, 4 * 10**6)),
    encoding=st.sampled_from(["arrow", "compact"]),
)
def test_window_is_independent_of_statistics(
    tmp_path_factory: pytest.TempPathFactory,
    times: list[int | None],
    bad: list[bool],
    unit: str,
    row_group_size: int,
    statistics: bool,
    window: tuple[int, int | None],
    encoding: Any,
) -> None:
    """Rows, dead letters and what is left out follow from the rows, not from row groups."""
    count = len(times)
    table = pa.table(
        {
            "event_time": pa.array(times, pa.int64()).cast(pa.timestamp(unit)),
            "src_addr": ["nowhere" if is_bad else "192.0.2.1" for is_bad in bad[:count]],
            "dst_addr": ["198.51.100.7"] * count,
            "ip_version": [4] * count,
            "rtt": [float(n) for n in range(count)],
        }
    )
    path = tmp_path_factory.mktemp("window") / "in.parquet"
    pq.write_table(table, path, row_group_size=row_group_size, write_statistics=statistics)
    batches = read(path, ReadOptions(sample=Sample(1, 1, *window), encoding=encoding))

    since, until = window
    block, faults = check(table.to_batches()[0], encoding)
    inside = [one for one in measurements_of(block) if since <= one[0] < (until or 2**63)]
    letters = {
        (row, reason)
        for row, reason in zip(faults.rows.tolist(), faults.reasons, strict=True)
        if reason.startswith("event_time")
        or since <= in_us(times[row] or 0, unit) < (until or 2**63)
    }
    assert [one for batch in batches for one in measurements_of(batch.block)] == inside
    found = {(letter.row, letter.reason) for batch in batches for letter in batch.letters}
    assert found == letters
    left_out = sum(batch.num_left_out for batch in batches)
    assert sum(batch.num_rows for batch in batches) == count
    assert count == left_out + len(inside) + len(letters)


def in_us(value: int, unit: str) -> int:
    return value * 1000 if unit == "ms" else value // 1000 if unit == "ns" else value


def read(path: Path, options: ReadOptions) -> list[reading.CheckedBatch]:
    files = [inspect(file, options) for file in match_files([str(path)])]
    pieces = [piece for unit in plan_units(files) for piece in unit.pieces]
    return [batch for piece in pieces for batch in read_piece(piece, options)]


def test_row_groups_outside_the_window_are_skipped(tmp_path: Path, monkeypatch) -> None:
    table = measurements_table(1000, seed=1).sort_by("event_time")
    write_input(tmp_path, table, row_group_size=100)
    times = table["event_time"].cast(pa.int64()).to_pylist()
    groups: list[int] = []
    batches = reading._batches

    def noted(file: Any, row_groups: Any, columns: Any) -> Any:
        groups.extend(row_groups)
        return batches(file, row_groups, columns)

    monkeypatch.setattr(reading, "_batches", noted)
    sample = Sample(since_us=times[250], until_us=times[600])
    found = read(tmp_path / "part-0.parquet", ReadOptions(sample=sample))
    assert groups == [2, 3, 4, 5, 6][: len(groups)] and len(groups) in (4, 5)
    assert sum(len(batch.block) for batch in found if batch.block) == 350
    assert sum(batch.num_left_out for batch in found) == 650


# --- a run --------------------------------------------------------------------------------------


def test_a_run_of_a_sample(tmp_path: Path) -> None:
    """It is what the rules say of the input, or of its dataset, and counts what it leaves out."""
    table = measurements_table(3000, seed=9, num_probes=40)
    bad = pa.Table.from_pylist(
        [{**table.slice(0, 1).to_pylist()[0], "rtt": None}] * 5, table.schema
    )
    table = pa.concat_tables([table, bad])
    since, until = YEAR_2024_US + 10**11, YEAR_2024_US + 9 * 10**11
    flags = (f"--since={time_text(since)}", f"--until={until / 1e6:.6f}")
    shares = ("--sample_probes=0.5", "--sample_measurements=0.8")
    one = make_dataset(write_input(tmp_path / "in", table), tmp_path / "one", *flags, *shares)
    cut = write_input(tmp_path / "cut", table[2000:], table[:2000], row_group_size=70)
    whole = make_dataset(cut, tmp_path / "whole")
    assert files_of(one) == files_of(make_dataset(whole, tmp_path / "other", *flags, *shares))

    sample = Sample(0.5, 0.8, since, until)
    expected = sorted(measurements_of(sampled(block_of(table), sample)))
    probes = history(read_rows(one)).items()
    found = [(time, as_number(src), dst, rtt) for src, rows in probes for time, dst, rtt in rows]
    assert sorted(found) == expected

    manifest = open_dataset(str(one)).manifest
    counts = manifest.counts
    letters = 5 if since <= bad["event_time"][0].value < until else 0
    assert (counts.rows_read, counts.measurements) == (3005, len(expected))
    assert counts.num_dead_letters == letters
    assert counts.rows_left_out == 3005 - len(expected) - letters
    options = manifest.options
    assert (options["sample_probes"], options["sample_measurements"]) == (0.5, 0.8)
    assert [parse_time(name, options[name]) for name in ("since", "until")] == [since, until]
    assert f"{counts.rows_left_out:,} rows are not in the sample" in (one / CARD_NAME).read_text()


# --- flags --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("1970-01-01", 0),
        ("2026-11-01T12:00:00+02:00", 1_793_527_200_000_000),
        ("2026-11-01T00:00:00.000001", 1_793_491_200_000_001),
        ("1793491200.25", 1_793_491_200_250_000),
    ],
)
def test_times_of_flags(text: str, time_us: int) -> None:
    assert parse_time("since", text) == time_us
    assert parse_time("since", time_text(time_us)) == time_us
