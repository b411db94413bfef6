"""The ablation bench: its table, its variants, and a run on a small network."""

import json
from pathlib import Path

import pytest

from benchmarks import ablation, learning
from benchmarks.results import Results, Run

KINDS = [{"name": "RTT, first byte", "bits": 3.125}, {"name": "RTT, second byte", "bits": 5.375}]


def run_of(variant: str, seed: int, bits: float, num_steps: int = 4000) -> Run:
    figures = {"bits": bits, "rtt_error_seen": 0.0215, "rtt_error_new": 0.1, "within_80": 0.8}
    curve = [{"step": step} for step in (100, num_steps)]
    details = {"evaluation": {"loss": {"kinds": KINDS}}, "curve": curve}
    return Run({"variant": variant, "seed": seed}, figures, details=details)


def test_a_line_for_each_number_of_steps_variant_and_seed():
    failed = Run({"variant": "linear RTTs", "seed": 0}, {}, "training ended with 1")
    runs = [run_of("random order", 1, 1.5), failed, run_of("random order", 0, 1.25)]
    runs.append(run_of("the recipe", 0, 1.0))
    longer = [run_of("linear RTTs", 0, 0.875, num_steps=12500)]
    day = [
        Results("ablation", f"2026-11-25T{hour}:00:00+00:00", {"rounds": 1}, runs=some)
        for hour, some in ((19, longer), (20, runs))
    ]
    lines = [line for line in ablation.markdown(day).splitlines() if line.startswith("| ")]
    assert lines[2:] == [
        "| linear RTTs | 0 | failed |  |  |  |  |  |  |",
        "| the recipe | 0 | 4,000 | 1.000 | 3.12 | 5.38 | 2.1% | 10.0% | 80.0% |",
        "| random order | 0 | 4,000 | 1.250 | 3.12 | 5.38 | 2.1% | 10.0% | 80.0% |",
        "| random order | 1 | 4,000 | 1.500 | 3.12 | 5.38 | 2.1% | 10.0% | 80.0% |",
        "| linear RTTs | 0 | 12,500 | 0.875 | 3.12 | 5.38 | 2.1% | 10.0% | 80.0% |",
    ]


@pytest.mark.parametrize("variant", [*ablation.VARIANTS][1:])
def test_a_variant_changes_what_the_recipe_sets(variant: str):
    recipe = dict(item.split("=", 1) for item in learning.RECIPE)
    changed = dict(item.split("=", 1) for item in ablation.VARIANTS[variant])
    assert changed and all(recipe[name] != value for name, value in changed.items())


def test_planetlab_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = [f"--planetlab={tmp_path}", f"--data_dir={tmp_path}", f"--results={tmp_path}"]
    assert ablation.main(arguments) != 0
    assert "--planetlab is given" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_variant_is_trained_and_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    network = ("--num_measurements=30000", "--num_probes=200", "--num_anchors=50", "--seed=1")
    less = ("--num_contexts=8", "--num_rtt=50", "--num_train_contexts=8", "--num_train_rows=50")
    monkeypatch.setattr(learning, "NETWORK", network)
    monkeypatch.setattr(learning, "EXTENT", less)
    arguments = [
        *(f"--data_dir={tmp_path / 'work'}", f"--results={tmp_path / 'results'}", "--seeds", "3"),
        *("--variants", "no repeats", "fixed order, then random"),
        *("--recipe", "network_curriculum=128x2,512x2", "steps=6", "checkpoint_period=2"),
    ]
    (tmp_path / "work").mkdir()
    assert ablation.main(arguments) == 0
    (path,) = (tmp_path / "results").glob("ablation-*.json")
    runs = json.loads(path.read_text())["runs"]
    assert [run["case"]["variant"] for run in runs] == ["no repeats", "fixed order, then random"]
    for run, changed in zip(runs, ("repeat_share=0", "fixed_order_share=[1,0.5,0]"), strict=True):
        assert run["error"] is None and run["case"]["seed"] == 3
        assert changed in run["details"]["command"] and 2 < run["figures"]["bits"] < 12
