"""The planning bench: a run on a small dataset, and its table."""

import json
from pathlib import Path

from benchmarks import planning
from benchmarks.results import Results, Run


def test_the_first_batch_of_a_host_is_measured(tmp_path: Path):
    arguments = [
        *(f"--data_dir={tmp_path / 'work'}", f"--results={tmp_path / 'results'}", "--rounds=1"),
        *("--num_probes", "3000", "--hosts", "8", "--num_workers", "1"),
    ]
    assert planning.main(arguments) == 0
    (path,) = (tmp_path / "results").glob("planning-*.json")
    (run,) = json.loads(path.read_text())["runs"]
    assert run["error"] is None and run["case"] == {"num_probes": 3000, "hosts": 8, "workers": 1}
    figures = run["figures"]
    assert 2900 < figures["num_rows"] <= 3000  # of probes drawn at random, five times each
    assert 0 < figures["plan_cpu_s"] <= figures["batch_cpu_s"]
    assert 0 < figures["plan_mib"] <= figures["host_mib"]
    assert 0 < figures["batch_s"] < figures["wall_s"]
    assert 0 < figures["host_mib"] < 1000 and 10 < figures["worker_mib"] < 1000


def test_a_line_has_the_medians_of_a_case():
    case = {"num_probes": 10, "hosts": 8, "workers": 0}
    figures = {
        "num_rows": 9,
        "plan_cpu_s": 0.5,
        "plan_mib": 20.0,
        "batch_s": 1.0,
        "batch_cpu_s": 2.0,
        "host_mib": 30.0,
    }
    runs = [Run(case, figures | {"batch_s": seconds, "worker_mib": 0.0}) for seconds in (1, 3, 2)]
    runs.append(Run(case | {"workers": 2}, figures | {"worker_mib": 20.0}))
    results = Results("planning", "2026-11-25T20:00:00+00:00", {"rounds": 3}, runs=runs)
    lines = [line for line in planning.markdown(results).splitlines() if line.startswith("| ")]
    assert lines[2:] == [
        "| 10 | 8 | 0 | 9 | 0.5 | 20 | 2.0 | 2.0 | 30 |  |",
        "| 10 | 8 | 2 | 9 | 0.5 | 20 | 1.0 | 2.0 | 30 | 20 |",
    ]
