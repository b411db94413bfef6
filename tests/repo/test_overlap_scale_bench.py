"""The bench of large overlap runs: its differences and estimates are the sums that they claim."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import overlap_scale, overlap_scale_table
from benchmarks.estimate import Assumptions, Prices
from benchmarks.overlap_estimate import (
    OverlapFigures,
    OverlapRun,
    overlap_costs,
    overlap_figures,
    overlap_use,
)
from benchmarks.overlap_scale import Case, cases
from benchmarks.results import Median, Run, medians
from tests.support.benches import run_the_bench, shown_in_a_document
from tests.support.engines import Gcs
from tests.support.repository import ROOT

NAMES: tuple[str, ...] = ("cpu_s", "class_a", "class_b", "deletes", "upload_parts")
BYTES: tuple[str, ...] = ("uploaded_bytes", "downloaded_bytes")
ASSUMED = Assumptions(request_s=0.1, stream_bytes_per_s=50e6, start_s=100.0, vcpu_speed=0.5)


def per_unit(of_each: float, of_bytes: float) -> dict[str, float]:
    return dict.fromkeys(NAMES, of_each) | dict.fromkeys(BYTES, of_bytes)


FIGURES = OverlapFigures(per_unit(1e-2, 1e6), per_unit(1e-3, 1e5), per_unit(1e-6, 10.0))


def run_of(machine_gb: float) -> OverlapRun:
    return OverlapRun(1e12, 10e9, machine_vcpus=16, machine_gb=machine_gb, num_vcpus=128)


@pytest.mark.parametrize(("machine_gb", "passes"), [(32, 8), (128, 2), (512, 1)])
def test_passes_are_those_of_the_job_on_such_machines(machine_gb: float, passes: int) -> None:
    run = run_of(machine_gb)
    assert run.num_ngrams == 1_700_000_000 and run.passes == passes
    assert run.disk_gb == pytest.approx(25 + (10e9 + 1.7e9 * 51) / 2**30)


def test_machines_that_the_docs_name_read_the_training_text_once() -> None:
    gb = {name: (vcpus, memory) for name, vcpus, memory in overlap_scale_table.MACHINES}
    text = (ROOT / "docs/overlap.md").read_text()
    named = re.findall(r"^\| (?:up to )?([\d.]+) ([GM])B \| `(n2-\S+)` \| (\d+) \|$", text, re.M)
    assert len(named) == 3
    for size, unit, machine, disk_gb in named:
        eval_bytes = float(size) * {"G": 1e9, "M": 1e6}[unit]
        run = OverlapRun(1e12, eval_bytes, *gb[machine], num_vcpus=128)
        assert run.passes == 1 and 1.2 * run.disk_gb < int(disk_gb) < 2.1 * run.disk_gb


def test_an_estimate_is_the_sum_of_its_parts() -> None:
    run = run_of(128)  # two passes
    low = overlap_use(run, FIGURES, ASSUMED, is_high=False)
    high = overlap_use(run, FIGURES, ASSUMED, is_high=True)
    each = 1e6 * (1e-2 + 1e-3) + 1.7e9 * 1e-6  # CPU seconds, and requests of each class
    alone_s = 1700 / 0.5
    assert low.vcpu_hours * 3600 == pytest.approx(each / 0.5)
    assert low.commit_hours * 3600 == pytest.approx(alone_s)
    assert low.wall_hours * 3600 == pytest.approx(100 + alone_s + (each / 0.5 - alone_s) / 128)
    assert (low.class_a, low.class_b) == pytest.approx((each, each))
    training, evaluation = 1e6 * (1e-2 + 1e-3), 1.7e9 * 1e-6
    training_bytes = 2 * 1e6 * (1e6 + 1e5)
    fetched = 256 * 1.7e9 * 30  # each group of work units fetches every index shard
    busy_s = training / 0.5 + 4 * training * 0.1 + (training_bytes + fetched) / 50e6
    alone_s += 4 * evaluation * 0.1 + 2 * 1.7e10 / 50e6
    assert high.commit_hours * 3600 == pytest.approx(alone_s)
    assert high.wall_hours * 3600 == pytest.approx(100 + alone_s + busy_s / 128)
    assert high.vcpu_hours == pytest.approx(128 * high.wall_hours)


def test_a_thread_more_hides_waiting_but_no_work() -> None:
    run, threads = run_of(512), replace(ASSUMED, threads_per_vcpu=4)
    low = overlap_use(run, FIGURES, ASSUMED, is_high=False)
    with_threads = overlap_use(run, FIGURES, threads, is_high=True)
    assert low.wall_hours <= with_threads.wall_hours
    assert with_threads.wall_hours < overlap_use(run, FIGURES, ASSUMED, is_high=True).wall_hours


def test_dollars_are_of_the_machines_memory_and_disk() -> None:
    run, prices = run_of(128), Prices()
    use = replace(
        overlap_use(run, FIGURES, ASSUMED, is_high=False),
        class_a=0.0,
        class_b=0.0,
        temporary_gb=0.0,
        vcpu_hours=1.0,
    )
    hour = 0.056 + 8 * prices.memory_gb_hour + run.disk_gb / 16 * prices.disk_gb_hour
    assert overlap_costs(run, use, prices, ASSUMED) == pytest.approx(hour)


def lines() -> list[Median]:
    """Runs of 100 + 0.5 a MB + 0.25 a MB and further pass + 2e-3 an n-gram, of all figures."""
    runs = []
    for case in cases([200, 600], 100, 1000):
        took = 100 + 0.5 * case.mb + 0.25 * (case.passes - 1) * case.mb + 2e-3 * case.eval_rows
        did = {"text_mb": float(case.mb), "eval_ngrams": case.eval_rows}
        runs.append(Run(asdict(case), did | dict.fromkeys((*NAMES, *BYTES), took)))
    return medians(runs)


def test_figures_are_differences_between_runs_that_differ_in_one_thing() -> None:
    figures = overlap_figures(lines())
    assert figures.per_mb == pytest.approx(dict.fromkeys((*NAMES, *BYTES), 0.5))
    assert figures.per_pass_mb == pytest.approx(dict.fromkeys((*NAMES, *BYTES), 0.25))
    assert figures.per_ngram == pytest.approx(dict.fromkeys((*NAMES, *BYTES), 2e-3))
    with pytest.raises(ValueError, match="a run is missing"):
        overlap_figures(lines()[:3])


def test_a_run_that_did_something_else_does_not_count() -> None:
    counts = {"train_text_bytes": 1, "eval_ngrams": 1, "matches": 1}
    summary = {"stage": "done", "num_shards": 4, "counts": counts}
    assert overlap_scale._found(Case(1, 1, 4), 1, {}, summary).error is None
    assert overlap_scale._found(Case(1, 1), 1, {}, summary).error
    assert overlap_scale._found(Case(1, 1, 4), 1, {}, summary | {"stage": "gather"}).error


@pytest.mark.slow
def test_the_bench_runs_and_its_tables_go_into_a_document(tmp_path: Path, gcs: Gcs) -> None:
    flags = ["--mb", "20", "40", "--eval_rows", "20", "200"]
    results = run_the_bench("overlap_scale", tmp_path, *flags)
    assert not [run for run in results.runs if run.error]
    few, many, large, passes = (run.figures for run in results.runs)
    assert few["eval_ngrams"] < many["eval_ngrams"] and many["text_mb"] < large["text_mb"]
    assert passes["class_b"] > large["class_b"] > 0
    text = shown_in_a_document("overlap_scale", tmp_path)
    assert text.strip() == overlap_scale_table.markdown(results)
    assert text.count("n2-highmem-64 | high") == 1
