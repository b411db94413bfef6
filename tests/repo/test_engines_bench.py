"""The engines bench runs the real job, compares bytes, and its table says what happened."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import engines
from benchmarks.results import Results, Run
from tests.support.benches import run_the_bench


@pytest.mark.slow
def test_two_engines_write_the_same_bytes(tmp_path: Path, prism: str) -> None:
    flags = ["--sizes", "5k", "--rounds", "1", "--engines", "memory", "prism"]
    saved = run_the_bench("engines", tmp_path, *flags, "--num_probes=20")
    assert [run.case["engine"] for run in saved.runs] == ["memory", "prism"]
    assert len({run.details["dataset"] for run in saved.runs}) == 1
    assert all(run.figures["cpu_s"] > 0 and run.error is None for run in saved.runs)
    # Not equal: claims hold offsets, which take more bytes the later a payload is written.
    memory, prism_run = (run.figures["shuffled_mb"] for run in saved.runs)
    assert memory == pytest.approx(prism_run, rel=0.01) and memory > 0


def test_a_digest_is_of_names_and_bytes(tmp_path: Path) -> None:
    digests = set()
    for number, (name, content) in enumerate((("a", "1"), ("b", "1"), ("a", "2"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_text(content)
        digests.add(engines.digest(folder))
        assert engines.digest(folder) in digests
    assert len(digests) == 3


@pytest.fixture
def measured() -> Results:
    figures = {"wall_s": 2.0, "cpu_s": 3.0, "peak_mib": 1400.0, "shuffled_mb": 7.25}
    case = {"engine": "memory", "num_measurements": 1_000_000}
    run = Run(case, figures, details={"dataset": "abc"})
    runs = [run, replace(run, case={**case, "engine": "flink-2"})]
    skipped = [{"engine": "prism", "reason": "prism is not there"}]
    options = {"rounds": 1, "num_probes": 10, "seed": 1}
    return Results("engines", "2026-01-01T00:00:00+00:00", options, skipped=skipped, runs=runs)


def test_the_table_has_a_row_an_engine(measured: Results) -> None:
    shown = engines.markdown(measured)
    assert "| Flink, parallelism 2 | 1 M | 2.0 | 3.0 | 1,400 | 7.2 |" in shown
    assert "At 1 M, 2 of 2 runs wrote the same bytes." in shown
    assert "Prism did not run: prism is not there." in shown


def test_the_table_tells_of_failures_and_other_bytes(measured: Results) -> None:
    memory, flink = measured.runs
    measured.runs = [memory, replace(flink, error="exit code 1: error: no")]
    shown = engines.markdown(measured)
    assert "| Flink, parallelism 2 | 1 M | failed |  |  |  |" in shown
    assert "At 1 M, 1 of 2 runs wrote the same bytes." in shown
    measured.runs = [memory, replace(flink, details={"dataset": "other"})]
    assert "DIFFERENT BYTES" in engines.markdown(measured)
