"""The loading bench: its cases, how a run is measured, its tables."""

import dataclasses
import itertools
import json
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from benchmarks import loading_process, loading_table, results
from benchmarks.loading import LoadingBench
from benchmarks.loading_cases import Case, cases, obstacle
from benchmarks.results import Results, Run
from tests.support.benches import BURN, run_module, run_the_bench, shown_in_a_document
from tests.support.engines import Gcs


def test_cases_vary_workers_threads_and_the_step_on_the_first_dataset_only():
    datasets = ["arrow-256k-zstd", "arrow-8m-zstd", "arrow-8m-none", "small"]
    found = cases(datasets, ["seed", "plan1", "shards"], [0, 2], [0, 3], 100)
    assert len(found) == len(set(found)) == 4 + 3 + 4 + 3
    varied = [case for case in found if case != Case(case.dataset, case.loader)]
    first = datasets[0]
    assert varied == [
        Case(first, "shards", num_workers=2),
        Case(first, "shards", num_threads=3),
        Case(first, "shards", num_workers=2, step_ms=100),
    ]
    chunked = [case.dataset for case in found if case.loader == "plan1"]
    assert chunked == ["arrow-256k-zstd", "arrow-8m-none", "small"]


def test_requests_are_slow_for_the_first_two_datasets_on_gs():
    datasets, slow = ["arrow-8m-none", "mixed", "small"], partial(Case, request_ms=50)
    found = cases(datasets, ["cache", "gcs"], [0], [0], 0, 50)
    assert [case for case in found if case.request_ms] == [
        *(slow("arrow-8m-none", "gcs"), slow("arrow-8m-none", "cache")),
        *(slow("mixed", "gcs"), slow("mixed", "cache")),
    ]
    assert not any(case.request_ms for case in cases(datasets, ["cache"], [0], [0], 0, 50))


def test_what_cannot_run_is_told(monkeypatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    assert "STORAGE_EMULATOR_HOST" in str(obstacle(Case("small", "gcs")))
    assert "STORAGE_EMULATOR_HOST" in str(obstacle(Case("small", "cache", request_ms=50)))
    assert "arrow rows only" in str(obstacle(Case("compact-8m-none", "seed")))
    assert obstacle(Case("arrow-8m-none", "seed")) is None
    monkeypatch.setattr(LoadingBench, "stored", {"small": {"cache": {}}, "mixed": {}})
    bench = LoadingBench.__new__(LoadingBench)
    assert bench.empty_cache(Case("small", "cache")) is None
    assert bench.empty_cache(Case("mixed", "cache")) == "its cache was not filled"
    assert bench.obstacle(Case("small", "plan1")) == "its chunks could not be made"


def make_batch(num_real: int) -> dict[str, np.ndarray]:
    shape = (4, loading_process.CROP_SIZE)
    batch = {name: np.zeros(shape, np.int32) for name in loading_process.NAMES}
    batch["targets_segmentation"].flat[:num_real] = 1
    return batch


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"weights": np.zeros(4)}, "a batch has"),
        ({"inputs": np.zeros((4, 1024), np.int64)}, "inputs is int64"),
        ({"targets": np.zeros((3, 1024), np.int32)}, "targets is int32"),
        ({"inputs": np.full((4, 1024), 267, np.int32)}, "vocabulary"),
        ({"targets": np.full((4, 1024), -1, np.int32)}, "vocabulary"),
        ({"targets_segmentation": np.zeros((4, 1024), np.int32)}, "no real token"),
    ],
)
def test_a_batch_of_another_form_is_at_fault(change, message):
    found = loading_process.fault(make_batch(7) | change, 4)
    assert found is None if message is None else message in str(found)


def test_a_run_that_fails_says_why(tmp_path):
    output = tmp_path / "figures.json"
    flags = ["--loader=seed", "--files=/nowhere", f"--output={output}"]
    assert run_module("benchmarks.loading_process", *flags).returncode == 1
    assert json.loads(output.read_text()) == {
        "error": "ValueError: no records in /nowhere/*.arrayrecord"
    }


def test_measuring_counts_real_tokens_and_the_cpu_of_workers():
    def batches():
        while True:
            subprocess.run([sys.executable, "-c", BURN], check=True)
            yield make_batch(1024)

    figures = loading_process.measure(batches(), seconds=0, num_workers=2)
    assert figures["num_batches"] == 1
    assert figures["padding"] == 0.75
    # The kernel counts a worker's time in ticks of 10 ms, user's and system's rounded down.
    assert figures["tokens_per_cpu_s"] <= 1024 / 0.37
    wall_s = 1024 / figures["tokens_per_s"]
    assert 0.19 <= figures["worker_cpu"] * wall_s < 0.4 * 5
    assert figures["waiting"] > 0.5
    slept = loading_process.measure(itertools.repeat(make_batch(1)), seconds=0, step_s=0.2)
    assert slept["waiting"] < 0.5


def test_measuring_takes_whole_cycles_unless_they_are_too_long():
    endless = itertools.repeat(make_batch(1))
    assert loading_process.measure(endless, seconds=0, cycle=7)["num_batches"] == 7
    assert loading_process.measure(endless, seconds=0.01, cycle=7)["num_batches"] % 7 == 0
    cut = loading_process.measure(endless, seconds=0, step_s=0.02, cycle=10**9, longest_s=0.05)
    assert 1 <= cut["num_batches"] <= 3


@pytest.mark.slow
def test_loading_bench_writes_results_that_the_table_shows(tmp_path):
    flags = ["--datasets", "arrow-64k-zstd", "small", "--loaders", "seed", "plan1"]
    flags += ["shards", "cache"]
    flags += ["--num_workers", "0", "1", "--num_threads", "0", "--step_ms", "1", "--rounds", "1"]
    flags += ["--seconds", "0.1", "--batch_size", "8", "--num_measurements", "20000"]
    found = run_the_bench("loading", tmp_path, *flags)
    first = "arrow-64k-zstd"
    loaders = ("seed", "plan1", "shards", "cache")
    expected = {Case(dataset, loader) for dataset in (first, "small") for loader in loaders}
    expected |= {Case(first, "shards", 1), Case(first, "shards", 1, step_ms=1)}
    expected.add(Case(first, "cache", 1))
    assert {Case(**run.case) for run in found.runs} == expected
    assert len(found.runs) == len(expected) and not found.skipped
    assert found.options["stored"][first]["measurements"] == 20_000
    assert found.options["stored"][first]["cache"]["file_bytes"] > 10 * 20_000
    padding = {Case(**line.case): line.figures["padding"] for line in results.medians(found.runs)}
    for dataset in (first, "small"):
        of = [padding[Case(dataset, loader)] for loader in ("shards", "seed", "plan1")]
        assert 0 <= of[0] < of[1] < of[2] < 1
    for run in found.runs:
        assert run.figures["first_batch_s"] > run.figures["first_batch_of_build_s"] > 0
        assert run.figures["tokens_per_s"] > 0 and run.figures["peak_mib"] > 20

    assert loading_table.markdown(found) in shown_in_a_document("loading", tmp_path)


@pytest.mark.slow
def test_a_cache_is_filled_by_few_slow_requests(gcs: Gcs, tmp_path):
    dataset, request_ms = "compact-64k-none", 20
    flags = [f"--datasets={dataset}", "--loaders", "cache", "gcs", f"--request_ms={request_ms}"]
    flags += ["--num_workers=0", "--num_threads=0", "--rounds=1", "--seconds=0.1"]
    found = run_the_bench("loading", tmp_path, *flags, "--batch_size=8", "--num_measurements=20000")
    figures = {Case(**run.case): run.figures for run in found.runs}
    assert set(figures) == {
        *(Case(dataset, "cache"), Case(dataset, "gcs")),
        *(Case(dataset, loader, request_ms=request_ms) for loader in ("cache", "gcs")),
    }
    num_shards = found.options["stored"][dataset]["shards"]
    filled, read = (figures[Case(dataset, n, request_ms=request_ms)] for n in ("cache", "gcs"))
    # One for each shard, after those that find and describe the dataset.
    assert num_shards <= filled["first_batch_requests"] <= num_shards + 9
    assert filled["requests_per_batch"] == 0 < read["requests_per_batch"]
    assert read["first_batch_of_build_s"] > 3 * request_ms / 1000  # some wait for one another
    assert "first_batch_requests" not in figures[Case(dataset, "cache")]


def make_run(case: Case, tokens_per_cpu_s: float, error: str | None = None) -> Run:
    figures = {
        "first_batch_of_build_s": 0.25,
        "first_batch_s": 1.5,
        "tokens_per_s": 2 * tokens_per_cpu_s,
        "tokens_per_cpu_s": tokens_per_cpu_s,
        "padding": 0.5,
        "num_batches": 20,
        "waiting": 0.01,
        "main_cpu": 0.02,
        "worker_cpu": 0.034,
        "peak_mib": 1234.5,
    }
    return Run(vars(case), {} if error else figures, error)


def test_loading_tables_show_ratios_failures_and_storage():
    options = {"rounds": 1, "seconds": 2, "batch_size": 256, "small_batch_size": 32, "stored": {}}
    runs = [
        make_run(Case("small", "seed"), 1e6),
        make_run(Case("small", "shards"), 25e6),
        make_run(Case("small", "shards", 2, step_ms=100), 25e6),
        make_run(Case("mixed", "shards", num_threads=1), 0.5e6),
        make_run(Case("mixed", "plan1"), 0, error="exit code 1: no"),
        make_run(Case("small", "gcs", request_ms=50), 1e6),
    ]
    runs[-1].figures.update(first_batch_requests=12, requests_per_batch=3.25)
    found = Results("loading", "2026-11-21T10:00:00+00:00", options, runs=runs)
    found.options["stored"]["small"] = {
        "measurements": 1000,
        "records": 10,
        "shards": 4,
        "file_bytes": 30_000,
        "cache": {"fill_s": 1.5, "file_bytes": 10_000},
        "plan1": {"measurements": 100, "records": 20, "file_bytes": 40_960, "tokens": 1},
    }
    found.skipped.append(vars(Case("mixed", "gcs")) | {"reason": "no GCS emulator"})
    shown = loading_table.markdown(found).split("\n\n")
    speed, step, slow, padding, storage = ([*table.splitlines()[2:]] for table in shown[:5])
    assert speed == [
        "| small | Probeline, shards | 50.0 | 25.0 | 25 | 1.5 | 0.2 | 1,234 |",
        "| small | sampler in plain Python | 2.00 | 1.00 | 1.0 | 1.5 | 0.2 | 1,234 |",
        "| mixed | Probeline, shards, 1 thread | 1.00 | 0.50 |  | 1.5 | 0.2 | 1,234 |",
        "| mixed | padded buckets | failed |  |  |  |  |  |",
    ]
    assert step == ["| small | Probeline, shards, 2 workers | 100 | 20 | 3.4% | 2.0% | 1.0% |"]
    assert slow == ["| small | Probeline, gs:// emulator | 50 | 4 | 12 | 0.2 | 3.2 | 2.00 |"]
    assert storage == [
        "| small | probe rows | 1,000 | 10 | 30.0 |",
        "| small | column cache | 1,000 | 10 | 10.0 |",
        "| small | padded buckets | 100 | 20 | 409.6 |",
    ]
    assert padding == [
        "| small | sampler in plain Python | 50.000% |",
        "| small | Probeline, shards | 50.000% |",
    ]
    notes = shown[5].splitlines()
    assert "Probeline, gs:// emulator, did not run on mixed: no GCS emulator." in notes
    assert "padded buckets, failed 1 of 1 runs on mixed." in notes
    assert "Filling the cache, first batch included: small 1.5 s." in notes
    assert not any("load average" in note for note in notes)
    busy = [dataclasses.replace(run, load_before=found.machine["cores"] + 3.4) for run in runs]
    shown = loading_table.markdown(dataclasses.replace(found, runs=busy))
    assert f"the load average before a run was {found.machine['cores'] + 3}." in shown
