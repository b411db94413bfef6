"""Measuring, results and tables of all benches; the grouping bench."""

import itertools
import json
import sys
from dataclasses import replace

import pytest

from beam_pipeline.errors import UsageError
from benchmarks import check, grouping, growing, markdown, results, runner
from benchmarks.results import Results, Run
from tests.support.benches import BURN, run_module, run_the_bench, shown_in_a_document


def measured(script: str) -> dict:
    done = run_module("benchmarks.measure", "--", sys.executable, "-c", script)
    usage = json.loads(done.stderr.splitlines()[-1])
    assert usage["exit_code"] == done.returncode
    return usage


def test_measure_counts_children_and_what_is_left_behind():
    child = f"subprocess.run([sys.executable, '-c', {BURN!r}])"
    orphan = f"subprocess.Popen([sys.executable, '-c', {BURN!r}], start_new_session=True)"
    nested = f"import subprocess, sys\n{orphan}\n"
    script = f"import subprocess, sys\n{child}\nsubprocess.run([sys.executable, '-c', {nested!r}])"
    usage = measured(script)
    assert usage["exit_code"] == 0
    assert usage["cpu_s"] >= 0.8


def test_measure_sees_peaks_and_exit_codes():
    usage = measured(
        "b = bytearray(200 << 20); b[::4096] = b'x' * len(b[::4096]); raise SystemExit(3)"
    )
    assert usage["exit_code"] == 3
    assert usage["peak_mib"] >= 200


# --- the bench --------------------------------------------------------------------------------


@pytest.mark.slow
def test_bench_writes_results_that_the_table_shows(tmp_path):
    flags = ["--sizes", "3k", "--rounds", "2", "--contenders", "duckdb", "polars"]
    found = run_the_bench("grouping", tmp_path, *flags, "--num_probes=50")
    cases = [(run.case["contender"], run.round) for run in found.runs]
    assert cases == [("duckdb", 0), ("polars", 0), ("polars", 1), ("duckdb", 1)]
    assert all(run.error is None for run in found.runs)
    assert all(run.details["output"]["measurements"] == 3000 for run in found.runs)
    lines = shown_in_a_document("grouping", tmp_path).splitlines()
    assert sum(line.startswith("| ") for line in lines) == 4


@pytest.mark.slow
def test_the_bench_of_growing_writes_results_that_the_table_shows(tmp_path):
    flags = ["--base", "20k", "--days", "10k", "--rounds", "1", "--num_probes=50"]
    found = run_the_bench("growing", tmp_path, *flags)
    assert [run.case["contender"] for run in found.runs] == [*growing.CONTENDERS]
    assert all(run.error is None for run in found.runs), found.runs
    assert {run.details["output"]["measurements"] for run in found.runs} == {30_000}
    lines = shown_in_a_document("growing", tmp_path).splitlines()
    assert sum(line.startswith("| ") for line in lines) == 2 + len(growing.CONTENDERS)


def test_an_output_that_lacks_measurements_or_has_a_large_record_is_at_fault(tmp_path):
    good = {"measurements": 5, "largest_record": 8 << 20}
    assert grouping.fault(good, 5) is None
    assert "5 measurements, not 6" in str(grouping.fault(good, 6))
    assert "over 8 MiB" in str(grouping.fault(good | {"largest_record": (8 << 20) + 1}, 5))
    assert check.count(str(tmp_path))["measurements"] == 0


def test_prism_is_left_out_where_there_is_none(monkeypatch):
    monkeypatch.setenv("PRISM_BINARY", "/nowhere/prism")
    assert "PRISM_BINARY" in str(grouping.obstacle("main-prism", 1))


# --- results and table --------------------------------------------------------------------------


def make_run(contender: str, cpu_s: float, round: int = 0, error: str | None = None) -> Run:
    figures = {"wall_s": cpu_s / 2, "cpu_s": cpu_s, "peak_mib": 1234.5}
    return Run({"contender": contender, "num_measurements": 1_000_000}, figures, error, round)


def make_results(*runs: Run, date: str = "2026-11-21T10:00:00+00:00") -> Results:
    options = {
        "rounds": 3,
        "num_probes": 5000,
        "threads": 2,
        "max_row_size_mb": 8,
        "array_record_options": "group_size:1,zstd:1",
    }
    found = Results(bench="grouping", date=date, options=options, runs=list(runs))
    found.machine |= {"cores": 2, "memory_gib": 24}
    return found


def test_results_come_back_and_a_second_bench_of_a_day_gets_a_number(tmp_path):
    early = make_results(make_run("main", 1.0), date="2026-11-21T10:00:00+00:00")
    late = make_results(make_run("main", 2.0), date="2026-11-21T11:00:00+00:00")
    for found, name in zip((early, late), ("", "-2"), strict=True):
        path = results.path_for(found, tmp_path)
        assert path.name == f"grouping-2026-11-21-2cpu-24gib{name}.json"
        results.save(found, path)
        assert results.load(path) == found
    # Of the same options the day's runs are taken together, of others the latest alone.
    assert results.newest("grouping", tmp_path) == replace(late, runs=[*early.runs, *late.runs])
    early.options["threads"] = 1
    results.save(early, tmp_path / "grouping-2026-11-21-2cpu-24gib.json")
    assert results.newest("grouping", tmp_path) == late
    with pytest.raises(FileNotFoundError, match=r"no overlap-\*\.json .*run the bench first"):
        results.newest("overlap", tmp_path)


def test_table_takes_medians_of_good_runs_and_tells_of_the_others():
    good = [make_run("main", cpu_s, i) for i, cpu_s in enumerate([0.5, 9.0, 0.4])]
    found = make_results(
        *good,
        make_run("main", 0.01, error="exit code 1: no"),
        make_run("duckdb", 1.0),
        make_run("polars", 2.0, error="exit code 1: no"),
    )
    found.skipped.append(
        {"contender": "main-prism", "num_measurements": 1_000_000, "reason": "no Prism"}
    )
    lines = grouping.markdown(found).splitlines()
    assert lines[2:5] == [
        "| Probeline, in-memory runner | 1 M | 2.00 | 0.2 | 0.5 | 1,234 | 2.00 |",
        "| DuckDB, one ordered stream | 1 M | 1.00 | 0.5 | 1.0 | 1,234 | 1.00 |",
        "| Polars, sort in memory | 1 M | failed |  |  |  |  |",
    ]
    assert "Probeline, Prism did not run at 1 M: no Prism." in lines
    assert "Probeline, in-memory runner failed 1 of 4 runs at 1 M." in lines
    for order in itertools.permutations(found.runs[:3]):
        assert results.medians([*order])[0].figures["cpu_s"] == 0.5


def test_a_probe_costs_what_two_numbers_of_probes_differ_by():
    few = make_results(make_run("main", 2.0), make_run("duckdb", 1.0), make_run("polars", 1.0))
    many = make_results(make_run("main", 5.0), make_run("duckdb", 4.0))
    many.options["num_probes"] = 605_000
    (line,) = grouping.per_probe([few, many])
    assert line == (
        "CPU-µs of each probe more, at 1 M: "
        "Probeline, in-memory runner 5.0; DuckDB, one ordered stream 5.0."
    )
    assert not [*grouping.per_probe([few, few])]


@pytest.mark.parametrize(
    "readme",
    [
        "no markers",
        "<!-- bench:grouping -->",
        "<!-- /bench:grouping --> <!-- bench:grouping -->",
        "<!-- bench:grouping --> <!-- /bench:grouping --> <!-- bench:grouping -->",
    ],
)
def test_a_readme_without_its_markers_is_refused(readme):
    with pytest.raises(ValueError, match="bench:grouping"):
        markdown.insert(readme, "grouping", "table")


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7), ("50k", 50_000), ("2M", 2_000_000), ("k", None), ("1.5m", None)]
)
def test_sizes_have_suffixes(text, value):
    if value is None:
        with pytest.raises(UsageError, match="is not a number such as 50k"):
            runner.number(text)
    else:
        assert runner.number(text) == value
