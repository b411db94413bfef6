"""One small run of every bench, and the tables that they write; how runs are measured and kept."""

import importlib
import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.dataset.layout import split_of
from benchmarks import ROOT, arena, estimate, networks, results, table
from benchmarks.results import Results, Run
from tests.support.training_runs import MODEL
from tests.support.warm_python import TRAINING, warm_python

BURN = "import time\nwhile time.process_time() < 0.4: pass\n"  # takes 0.4 s of CPU
LESS_TRAINING = (
    "network_curriculum=''",
    "network_repeat_share=0",
    "steps=4",
    "checkpoint_period=2",
    *MODEL,
)
RUNS = {
    "grouping": "--sizes 3k --num_probes=50 --contenders main duckdb polars",
    "growing": "--base 20k --days 10k --num_probes=50",
    "engines": "--sizes 5k --engines memory --num_probes=20",
    "loading": "--datasets arrow-64k-zstd --loaders seed cache --num_workers 0 1 "
    "--num_threads 0 --step_ms 1 --seconds 0.1 --batch_size 8 --num_measurements 20000",
    "planning": "--num_probes 3000 --hosts 8 --num_workers 1",
    "overlap": "--parts peers formats --mb=10 --peer_mb=10 --lengths=5 --formats=parquet "
    "--contenders joined",
    "reading": "--num_rows 2k",
    "sources": "--size 2k --num_probes=20 --forms csv scamper.jsonl",
    "recall": "--num_rows=48 --num_per_kind=4 --num_background=9 --contenders=probeline",
}
MODULES = {"overlap": "bench_overlap", "recall": "overlap_recall"}


def check_results(name: str, folder: Path) -> Results:
    """Checks that a bench left good runs, no path of this machine, and a table for the docs."""
    (path,) = folder.glob(f"results/{name}-*.json")
    assert str(folder) not in path.read_text() and str(ROOT) not in path.read_text()
    found = results.load(path)
    assert found.runs and [run.error for run in found.runs if run.error] == []
    document = folder / "document.md"
    document.write_text(f"before\n<!-- bench:{name} -->\nold\n<!-- /bench:{name} -->\nafter\n")
    flags = [f"--bench={name}", f"--document={document}", f"--results={folder}/results"]
    assert table.main(flags) == 0
    text = document.read_text()
    assert "\nold\n" not in text and "\n| " in text
    return found


def run_module(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def start_warm(folder: Path, monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Has benches start programs whose imports are done."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(warm_python(*modules))} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_bench_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_warm(tmp_path, monkeypatch)
    folders = [f"--data_dir={tmp_path}/data", f"--results={tmp_path}/results", "--rounds=1"]
    bench = importlib.import_module(f"benchmarks.{MODULES.get(name, name)}")
    if name == "overlap":
        monkeypatch.setattr(bench, "EVALUATION_ROWS", 200)
    assert bench.main([*RUNS[name].split(), *folders]) == 0
    check_results(name, tmp_path)


def test_the_networks_are_made(tmp_path: Path) -> None:
    pings = networks.Pings(np.arange(4000.0), np.full(4000, 50.0), np.arange(4000) % 10, 10)
    noisy, rerouted = (networks.NETWORKS[name].changed for name in ("small", "reroute"))
    assert noisy and rerouted
    of_pair = noisy(pings).reshape(-1, 10)
    assert 0.4 < np.log(of_pair).std(axis=0).min() < 0.6 and of_pair.min() >= 10
    before, after = np.split(rerouted(pings).reshape(-1, 10), 2)
    assert (before == 50).all() and (after == after[0]).all() and 2 < (after[0] != 50).sum() < 8
    rng = np.random.default_rng(1)
    for number in (1, 2):
        matrix = rng.uniform(1, 300, size=(60, 60))
        np.savetxt(tmp_path / f"PlanetLabData_{number}", matrix, fmt="%g", delimiter="\t")
    table = networks.read_planetlab(tmp_path)
    for made, num_nodes in ((table, 60), (networks.drifting_pings(), 99)):
        sources, pinged = (
            set(made[name].unique().to_pylist()) for name in ("src_addr", "dst_addr")
        )
        held_out = {node for node in sources if split_of(node, 0.9, 0)}
        assert len(sources) == num_nodes and held_out and pinged == sources - held_out
    row = table.slice(0, 1).to_pylist()[0]
    assert (row["src_addr"], row["ip_version"]) == ("10.1.0.0", 4) and row["rtt"] > 0


@pytest.mark.slow
def test_the_arena_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("--num_measurements=30000", "--num_probes=200", "--num_anchors=50")
    monkeypatch.setitem(networks.NETWORKS, "small", networks.NETWORKS["small"]._replace(flags=few))
    less = {"num_contexts": 8, "num_rtt": 50, "num_train_contexts": 8, "num_train_rows": 50}
    monkeypatch.setattr(arena, "EXTENT", less)
    start_warm(tmp_path, monkeypatch, *TRAINING)
    folders = ["--networks=small", f"--data_dir={tmp_path}", f"--results={tmp_path}/results"]
    # The simple methods' contexts, so that all are asked for the same RTTs.
    contexts = "network_fixed_order_share=1", "network_log_rtt=true"
    flags = ["--seeds=3", "--ablate", "learning_rate=0", "--recipe", *LESS_TRAINING, *contexts]
    assert arena.main([*folders, *flags]) == 0
    simple, trained, changed = check_results("arena", tmp_path).runs
    assert simple.details["errors"] == trained.details["errors"] and "all" not in simple.figures
    assert 2 < trained.figures["bits"] < changed.figures["bits"] < 12


def test_a_failed_run_is_kept(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("no JSON\n")
    flags = [f"--corpus={tmp_path}/in.jsonl", f"--evaluation={tmp_path}/in.jsonl", "--rounds=1"]
    folders = [f"--data_dir={tmp_path}/data", f"--results={tmp_path}/results"]
    done = run_module("bench_overlap", *flags, "--lengths=5", "--contenders=joined", *folders)
    assert done.returncode == 1
    (path,) = (tmp_path / "results").glob("overlap-*.json")
    assert "JSONDecodeError" in str(results.load(path).runs[-1].error)


# --- measuring ------------------------------------------------------------------------------------


def measured(script: str) -> dict:
    done = run_module("measure", "--", sys.executable, "-c", script)
    usage = json.loads(done.stderr.splitlines()[-1])
    assert usage["exit_code"] == done.returncode
    return usage


def test_measure_counts_children_and_orphans() -> None:
    child = f"subprocess.run([sys.executable, '-c', {BURN!r}])"
    orphan = f"subprocess.Popen([sys.executable, '-c', {BURN!r}], start_new_session=True)"
    nested = f"import subprocess, sys\n{orphan}\n"
    script = f"import subprocess, sys\n{child}\nsubprocess.run([sys.executable, '-c', {nested!r}])"
    usage = measured(script)
    assert usage["exit_code"] == 0 and usage["cpu_s"] >= 0.8


def test_measure_sees_peaks_and_exit_codes() -> None:
    script = "b = bytearray(200 << 20); b[::4096] = b'x' * len(b[::4096]); raise SystemExit(3)"
    usage = measured(script)
    assert usage["exit_code"] == 3 and usage["peak_mib"] >= 200


@pytest.mark.parametrize("bench", ["bench_overlap", "grouping"])
def test_a_bench_imports_nothing_large(bench: str) -> None:
    """The peak memory of a child is never below what its parent used."""
    script = f"import sys, benchmarks.{bench}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not {"apache_beam", "numba", "jax"} & {*done.stdout.split()}


# --- results --------------------------------------------------------------------------------------


def make_results(*seconds: float | None, hour: int = 10) -> Results:
    """Returns runs of one case, some of which failed."""
    case = {"contender": "main", "num_measurements": 1_000_000}
    runs = [
        Run(case, {} if s is None else {"cpu_s": s}, "no" if s is None else None, number)
        for number, s in enumerate(seconds)
    ]
    found = Results("grouping", f"2026-11-21T{hour}:00:00+00:00", {"rounds": 3}, runs=runs)
    found.machine |= {"cores": 2, "memory_gib": 24}
    return found


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    early, late = make_results(1.0), make_results(2.0, hour=11)
    for found, name in ((early, ""), (late, "-2")):
        path = results.path_for(found, tmp_path)
        assert path.name == f"grouping-2026-11-21-2cpu-24gib{name}.json"
        results.save(found, path)
        assert results.load(path) == found
    both = replace(late, runs=[*early.runs, *late.runs])
    assert results.newest("grouping", tmp_path) == both
    with pytest.raises(FileNotFoundError, match="run the bench first"):
        results.newest("overlap", tmp_path)


# --- estimates and peers --------------------------------------------------------------------------


def test_costs_are_use_times_price() -> None:
    use = estimate.Use(
        vcpu_hours=100,
        wall_hours=1,
        commit_hours=0.1,
        shuffle_gb=100,
        temporary_gb=300,
        output_gb=1,
        class_a=10_000,
        class_b=100_000,
    )
    costs = estimate.costs_of(use, estimate.Prices(), estimate.Assumptions())
    assert sum(costs.values()) == pytest.approx(5.6 + 1.4228 + 0.0675 + 0.275 + 0.09 + 1.4)
