"""The sampling bench: its table, and a run on a small network."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import planetlab, sampling
from benchmarks.results import Results, Run

VARIANTS = ["strides, each half as often"]
COLUMNS = ("with source", "all", *sampling.MODES, *sampling.WINDOWS)


def run_of(variant: str, seed: int, bits: float) -> Run:
    figures = {name: bits + 0.1 * place for place, name in enumerate(COLUMNS)}
    return Run({"variant": variant, "seed": seed}, figures)


def test_a_variant_has_its_median_and_range_over_the_seeds():
    runs = [run_of("strides", seed, bits) for seed, bits in enumerate((1.5, 1.25, 2.0))]
    runs.append(Run({"variant": "full timestamps", "seed": 0}, {}, "training ended with 1"))
    runs.append(run_of("full timestamps", 1, 1.0))
    results = Results("sampling", "2026-11-24T20:00:00+00:00", {"rounds": 1}, runs=runs)
    text = sampling.markdown(results)
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert lines[0] == ["| how contexts were drawn", *COLUMNS[:-1], f"{COLUMNS[-1]} |"]
    found = {cells[0].removeprefix("| "): cells[1:3] for cells in lines[2:]}
    assert found == {
        "full timestamps": ["1.00 ± 0.00", "1.10 ± 0.00"],
        "strides": ["1.50 ± 0.38", "1.60 ± 0.38"],
    }
    assert "the median of 3 seeds" in text


@pytest.mark.slow
def test_models_are_trained_and_evaluated(tmp_path: Path):
    rng = np.random.default_rng(1)
    for number in (1, 2):
        matrix = rng.uniform(1, 300, size=(300, 300))
        np.savetxt(tmp_path / f"PlanetLabData_{number}", matrix, fmt="%g", delimiter="\t")
    measured = tmp_path / "planetlab.parquet"
    assert planetlab.main([str(tmp_path), str(measured)]) == 0
    arguments = [
        *(f"--planetlab={measured}", f"--data_dir={tmp_path / 'work'}"),
        *(f"--results={tmp_path / 'results'}", "--seeds", "3"),
        *("--variants", *VARIANTS),
        *("--recipe", "network_curriculum=128x2", "steps=4", "checkpoint_period=2"),
    ]
    assert sampling.main(arguments) == 0
    (path,) = (tmp_path / "results").glob("sampling_planetlab-*.json")
    runs = json.loads(path.read_text())["runs"]
    assert [run["case"]["variant"] for run in runs] == VARIANTS
    for run in runs:
        assert run["error"] is None and run["case"]["seed"] == 3
        bits = [run["figures"][name] for name in COLUMNS]
        assert all(2 < each < 12 for each in bits)
        # Figures are rounded to six digits.
        for part in (bits[2:5], bits[5:]):
            assert np.mean(part) == pytest.approx(bits[1], rel=1e-5)
        assert bits[0] != bits[1]
