"""What the command says is true, bounded, the same each time, and said in one line if it fails."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.dataset.manifest import Counts, Generation, write_success
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.inspect import __main__ as inspect
from beam_pipeline.inspect import sample as inspect_sample
from beam_pipeline.inspect.comparison import Side, probe_changes, sides_of
from beam_pipeline.inspect.figures import gather
from beam_pipeline.inspect.findings import Report, report_on
from beam_pipeline.inspect.sample import draw, plan
from beam_pipeline.inspect.tables import tables
from beam_pipeline.main import main
from tests.support.helpers import YEAR_2024_US, measurements_table, reference_rows
from tests.support.inspected import HOUR_US, day_of_pings, many_probes, refusal, said
from tests.support.probe_rows_on_disk import RowSpec, ipv4_probe, make_measurements, write_dataset
from tests.support.repository import ROOT


def report_of(folder: Path) -> Report:
    return report_on(gather(open_dataset(str(folder))))


def verdicts(report: Report) -> dict[str, str]:
    return {one.name: one.verdict for one in report.comparisons if one.verdict}


def cells(report: Report, name: str) -> dict[str, list[str]]:
    """Returns the rows of a table by their first cell."""
    found = next(one for one in tables(report) if one.name == name)
    return {row[0]: row[1:] for row in found.cells}


# --- the figures are true -----------------------------------------------------------------------


@pytest.mark.parametrize("flags", [
    pytest.param([], marks=pytest.mark.slow),
    ["--output_format=tfrecord", "--record_encoding=tf_example"],
])  # fmt: skip
def test_figures_equal_plain_python(flags: list[str], tmp_path: Path) -> None:
    """Against the plain answer to the input, through the job itself, in every format."""
    table = measurements_table(4000, seed=3, num_probes=25)
    bad = table.slice(0, 5).to_pylist()
    for row in bad:
        row["rtt"] = None
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(type(table).from_pylist(bad, table.schema), tmp_path / "b.parquet")
    output = tmp_path / "rows"
    flags = [*flags, "--train_ratio=0.6", "--max_row_size_mb=0.01", "--num_shards=3"]
    assert main([f"--input={tmp_path}/*.parquet", f"--output={output}", *flags]) == 0
    report = report_of(output)
    facts = report.figures
    expected = reference_rows(table)
    probes = {
        split: set(pq.read_table(output / split / "rows.parquet")["src_addr"].to_pylist())
        for split in ("train", "test")
    }
    for place, split in enumerate(("train", "test")):
        own = {probe: expected[probe] for probe in probes[split]}
        flat = [one for rows in own.values() for one in rows]
        rtts = sorted(rtt for _, _, rtt in flat if rtt >= 0)
        overview = {name: row[place] for name, row in cells(report, "comparison").items()}
        assert overview["probes"] == str(len(own))
        assert overview["measurements"] == f"{len(flat):,}"
        assert overview["failed pings"] == f"{100 * (1 - len(rtts) / len(flat)):.2f} %"
        figures = facts.splits[split]
        assert figures.sample.is_whole and len(figures.sample) == len(flat)
        median = figures.rtts.quantiles_ms[1]
        assert median == pytest.approx(rtts[(len(rtts) - 1) // 2], rel=1e-3, abs=1e-3)
        busiest = max(own, key=lambda probe: len(own[probe]))
        assert figures.busiest[0]["probe"] == busiest
        assert figures.busiest[0]["measurements"] == len(own[busiest])
        assert figures.busiest[0]["span_us"] == own[busiest][-1][0] - own[busiest][0][0]
        index = pq.read_table(output / split / "rows.parquet")["src_addr"].to_pylist()
        assert figures.busiest[0]["rows"] == index.count(busiest)
        for hour, group in enumerate(figures.hours):
            own_hour = [one for one in flat if one[0] // HOUR_US % 24 == hour]
            assert group.count == pytest.approx(len(own_hour))
            failed = sum(rtt < 0 for _, _, rtt in own_hour)
            assert group.failed_share == pytest.approx(failed / len(own_hour))
        ipv6 = sum(destination >> 32 != 0xFFFF for _, destination, _ in flat)
        assert overview["IPv6 destinations"] == f"{100 * ipv6 / len(flat):.2f} %"
    counts: dict[int, int] = {}
    for rows in expected.values():
        for _, destination, _ in rows:
            counts[destination] = counts.get(destination, 0) + 1
    assert len(facts.destinations) == len(counts)
    top = next(iter(facts.busiest_destinations.values()))
    assert sum(there.count for there in top.values()) == pytest.approx(max(counts.values()))
    assert cells(report, "dead_letters") == {"rtt_null": ["5", "0.125 %"]}


def test_gaps_in_time(tmp_path: Path, capsys, wide) -> None:
    within = [RowSpec(f"192.0.2.{i}", day_of_pings(3000, i, gap=True)) for i in range(4)]
    facts = gather(open_dataset(str(write_dataset(tmp_path / "within", within, "compact"))))
    assert [np.datetime64(end, "us").item().hour for end in facts.empty[0]] == [6, 9]
    assert facts.samples["train"].num_silences.tolist() == [1] * 4
    lengths = facts.samples["train"].longest_silence_us / HOUR_US
    assert ((lengths >= 3) & (lengths < 3.2)).all()
    between = [
        RowSpec("192.0.2.1", make_measurements(300, 1)),
        RowSpec("192.0.2.2", make_measurements(300, 2, start_s=30 * 86400)),
    ]
    write_dataset(tmp_path / "between", between, "compact")
    text = said(capsys, str(tmp_path / "between"))
    assert re.search(r"! There is no sampled measurement from 2024-01-\d+ .* \(2\d.* days\)", text)


# --- the sample ---------------------------------------------------------------------------------


def test_sample_is_bounded_and_independent_of_shards(tmp_path: Path, monkeypatch) -> None:
    rows = [*many_probes(80, 0), RowSpec("192.0.2.9", day_of_pings(20_000, 5))]
    for name, number in (("one", 1), ("five", 5)):
        write_dataset(tmp_path / name, rows, "compact", number)
    monkeypatch.setattr(inspect_sample, "MAX_ROWS", 32)
    monkeypatch.setattr(inspect_sample, "MAX_MEASUREMENTS", 3000)
    found = []
    for name in ("one", "five"):
        dataset = open_dataset(str(tmp_path / name))
        rows = dataset.rows("train")
        sample, index = draw(rows), rows.lines
        assert not sample.is_whole
        assert 1 < len(sample.lines) <= 32
        assert 2500 < len(sample) <= 3000 + 32
        assert sample.weight.sum() == pytest.approx(index.n_measurements.sum())
        found.append(sorted(sample.run.tolist()))
    assert found[0] == found[1]


def test_bytes_are_bounded(tmp_path: Path, monkeypatch) -> None:
    dataset = open_dataset(str(write_dataset(tmp_path / "rows", many_probes(60, 0), "compact")))
    index = dataset.rows("train").lines
    largest = int(index.num_bytes.max())
    monkeypatch.setattr(inspect_sample, "MAX_BYTES", 5 * largest)
    chosen = plan(index)
    assert len(chosen.lines) >= 1 and index.num_bytes[chosen.lines].sum() <= 5 * largest
    monkeypatch.setattr(inspect_sample, "MAX_BYTES", 1)
    assert len(plan(index).lines) == 1  # one row is always read


def test_a_measurement_is_as_likely_in_a_large_row_as_in_a_small_one(tmp_path, monkeypatch) -> None:
    """Of half of all measurements in one row and half in 300, either half of the weight is seen."""
    small = [RowSpec(f"10.0.{i // 200}.{i % 200}", day_of_pings(40, i, rtt_ms=10.0, failed=0))
             for i in range(300)]  # fmt: skip
    large = RowSpec("192.0.2.1", day_of_pings(12_000, 1, rtt_ms=500.0, failed=0))
    dataset = open_dataset(str(write_dataset(tmp_path / "rows", [*small, large], "compact")))
    monkeypatch.setattr(inspect_sample, "MAX_ROWS", 100)
    monkeypatch.setattr(inspect_sample, "MAX_MEASUREMENTS", 5000)
    sample = draw(dataset.rows("train"))
    assert len(sample.lines) == 51  # the large one, and a point for each 240 of the others
    share = sample.weight[sample.run["rtt"] > 70].sum() / sample.weight.sum()
    assert share == pytest.approx(0.5, abs=0.01)


# --- train against test -------------------------------------------------------------------------


def test_a_test_set_like_the_train_set_is_called_so(alike: Path, capsys, wide) -> None:
    assert set(verdicts(report_of(alike)).values()) == {"alike"}
    text = said(capsys, str(alike))
    assert "The test set is like the train set in all 8 respects compared." in text
    assert "UNLIKE" not in text


def test_a_test_set_unlike_the_train_set_is_shown_first(unlike: Path, capsys, wide) -> None:
    report = report_of(unlike)
    found = verdicts(report)
    assert found.pop("RTT") == "unlike" and found.pop("failed pings") == "unlike"
    assert set(found.values()) == {"alike"}
    assert report.findings[0].is_warning
    lines = said(capsys, str(unlike)).splitlines()
    assert re.fullmatch(
        r"! In RTT, train and test are UNLIKE each other: 40(\.\d)? ms \(.*\) against 1[12]\d ms "
        r"\(.*\) \(distance 0\.8\d\); chance alone goes up to 0\.\d\d\.", lines[2]
    ), lines[2]  # fmt: skip
    assert any("failed pings, train and test are UNLIKE" in line for line in lines[:5])
    assert lines[-1] == (  # and last, where a terminal stands when all has gone by
        "The test set is unlike the train set in RTT, failed pings; is like it in 6 of 8 respects."
    )


@pytest.mark.parametrize("kind", ["empty", "all failed"])
def test_tiny_datasets(kind: str, tmp_path: Path, capsys) -> None:
    failed = [RowSpec("192.0.2.1", day_of_pings(30, 1, failed=1.1))]
    rows = ([], []) if kind == "empty" else (failed, [RowSpec("192.0.2.2", day_of_pings(9, 2))])
    write_dataset(tmp_path / "rows", rows[0], "compact", 2, rows[1])
    text = said(capsys, str(tmp_path / "rows"), f"--html={tmp_path}/page.html")
    assert ("! There is no test set" in text) == (kind == "empty") != ("verdict" in text)
    assert "Train and test" in text and (tmp_path / "page.html").stat().st_size > 5000
    assert "nan" not in text.lower()
    assert "nan" not in re.sub("<[^>]*>", "", (tmp_path / "page.html").read_text()).lower()


# --- in a terminal ------------------------------------------------------------------------------


@pytest.mark.slow
def test_page_is_written_when_stdout_is_closed(alike: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "beam_pipeline.inspect", str(alike), f"--html={page}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.close()  # as head does
        assert process.stderr.read() == b""
    assert page.stat().st_size > 100_000


# --- comparison of datasets and generations -------------------------------------------------------


def shown_by(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert inspect.main(list(arguments)) == 0
    return " ".join(capsys.readouterr().out.split())


def write(folder: Path, sizes: dict[int, int], encoding: str = "compact") -> Path:
    """Writes a dataset of probes, by their numbers, with as many measurements each."""
    rows = [RowSpec(ipv4_probe(probe), day_of_pings(n, probe)) for probe, n in sizes.items()]
    return write_dataset(folder, rows[1:], encoding, 2, rows[:1])  # type: ignore[arg-type]


def state(probes: dict[int, tuple[int, int]]) -> Side:
    ids = np.array(sorted(probes), np.int64)
    values = np.array([probes[each] for each in ids.tolist()], np.int64).reshape(-1, 2)
    splits = np.array(["train", "test"])[values[:, 0]]
    table = pa.table({"src_id": ids, "split": splits, "num_measurements": values[:, 1]})
    return Side("rows", {}, probes=table)


_PROBES = st.dictionaries(st.integers(0, 8), st.tuples(st.integers(0, 1), st.integers(1, 4)))


@given(before=_PROBES, now=_PROBES)
def test_probe_changes_equal_those_of_dicts(
    before: dict[int, tuple[int, int]], now: dict[int, tuple[int, int]]
) -> None:
    both = before.keys() & now.keys()
    groups = {
        "new": now.keys() - before.keys(),
        "grown": {p for p in both if now[p][1] > before[p][1]},
        "with as many measurements": {p for p in both if now[p][1] == before[p][1]},
        "with fewer measurements": {p for p in both if now[p][1] < before[p][1]},
        "no longer there": before.keys() - now.keys(),
        "of these, in the other split": {p for p in both if now[p][0] != before[p][0]},
    }
    wanted = [
        (
            *(what, len(probes), sum(before[p][1] for p in probes if p in before)),
            sum(now[p][1] for p in probes if p in now),
        )
        for what, probes in groups.items()
    ]
    assert probe_changes(state(before), state(now)) == wanted


def test_compare_datasets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old", {1: 30, 2: 40, 3: 50}, "arrow")
    new = write(tmp_path / "new", {1: 30, 2: 90, 3: 50, 4: 25, 5: 5})
    shown = shown_by(capsys, str(new), f"--compare={old}")
    assert f"{new} against {old}: +80 measurements, +2 probes." in shown
    assert "IPv6 destinations 0.00 % 0.00 % 0.00 alike" in shown
    assert "measurements 120 200 +80" in shown and "probes 3 5 +2" in shown
    assert "new 2 0 30 grown 1 40 90 with as many measurements 2 80 80" in shown
    assert "measurement_encoding arrow compact" in shown
    shown = shown_by(capsys, str(old), f"--compare={new}")
    assert ": -80 measurements" in shown and "no longer there 2 30 0" in shown
    assert "Options that differ" not in shown_by(capsys, str(new), f"--compare={new}")


def test_different_anonymization_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (write(tmp_path / name, {1: 30, 2: 40}) for name in ("old", "new"))
    manifest = open_dataset(str(new)).manifest
    named = {"anonymize": "prefix_preserving", "anonymize_key_fingerprint": "00" * 8}
    keyed = {**manifest.options, **named}
    write_success(str(new), replace(manifest, options=keyed).to_json())
    shown = shown_by(capsys, str(new), f"--compare={old}")
    assert "replaced by different keys" in shown and "grown" not in shown
    told = "Addresses are not the real ones (--anonymize=prefix_preserving): "
    assert [told in shown_by(capsys, str(folder)) for folder in (old, new)] == [False, True]


def test_compare_generations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write(tmp_path / "rows", {1: 30, 2: 90, 3: 50})
    assert "has no list of generations" in refusal(capsys, 2, str(rows), "--compare=1")
    manifest = open_dataset(str(rows)).manifest
    first = Generation(
        *("2026-11-01T00:00:00Z", ["a"], {"input_format": "auto"}, {"numpy": "1.0"}),
        *(Counts(2, 105, 100, {"rtt_null": 5}), 2, 2, YEAR_2024_US, YEAR_2024_US + HOUR_US),
    )
    second = replace(
        first, options={"input_format": "parquet"}, counts=Counts(1, 70, 70, {}),
        num_probes=3, num_records=3, last_us=YEAR_2024_US + 9 * HOUR_US,
    )  # fmt: skip
    grown = replace(manifest, counts=first.counts.plus(second.counts), versions={"numpy": "2.0"})
    write_success(str(rows), replace(grown, generations=[first, second]).to_json())
    shown = shown_by(capsys, str(rows), "--compare=1")
    assert "rows against generation 1: +70 measurements, +1 probes. Only a copy" in shown
    assert "measurements 100 170 +70" in shown and "dead letters 5 5 +0" in shown
    assert "last measurement, UTC 2024-01-01 01:00:00 2024-01-01 23:" in shown
    assert "input_format auto parquet" in shown and "version of numpy 1.0 2.0" in shown
    assert "What was added" in shown and "2: 2026-11-01" in shown
    before, now = sides_of(open_dataset(str(rows)), "2")
    assert before.facts["dead letters"] == now.facts["dead letters"] == 5 and before.later == []
    assert "has generations 1 to 2; write a folder" in refusal(capsys, 2, str(rows), "--compare=3")
    line = refusal(capsys, 2, str(rows), "--compare=1", "--html=page.html")
    assert "excludes --html, --row and --context" in line
