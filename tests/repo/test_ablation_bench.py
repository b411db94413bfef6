"""The ablation bench: its table. tests/repo/test_sampling_bench.py trains with the same code."""

import pytest

from benchmarks import ablation, learning
from benchmarks.results import Results, Run

KINDS = [{"name": "RTT, first byte", "bits": 3.125}, {"name": "RTT, second byte", "bits": 5.375}]


def run_of(variant: str, seed: int, bits: float) -> Run:
    figures = {"bits": bits, "rtt_error_seen": 0.0215, "rtt_error_new": 0.1, "within_80": 0.8}
    details = {"evaluation": {"loss": {"kinds": KINDS}}}
    return Run({"variant": variant, "seed": seed}, figures, details=details)


def test_a_line_for_each_variant_and_seed():
    failed = Run({"variant": "linear RTTs", "seed": 0}, {}, "training ended with 1")
    runs = [run_of("random order", 1, 1.5), failed, run_of("random order", 0, 1.25)]
    runs.append(run_of("the recipe", 0, 1.0))
    results = Results("ablation", "2026-11-25T20:00:00+00:00", {"rounds": 1}, runs=runs)
    lines = [line for line in ablation.markdown(results).splitlines() if line.startswith("| ")]
    assert lines[2:] == [
        "| the recipe | 0 | 1.000 | 3.12 | 5.38 | 2.1% | 10.0% | 80.0% |",
        "| linear RTTs | 0 | failed |  |  |  |  |  |",
        "| random order | 0 | 1.250 | 3.12 | 5.38 | 2.1% | 10.0% | 80.0% |",
        "| random order | 1 | 1.500 | 3.12 | 5.38 | 2.1% | 10.0% | 80.0% |",
    ]


@pytest.mark.parametrize("variant", [*ablation.VARIANTS][1:])
def test_a_variant_changes_what_the_recipe_sets(variant: str):
    recipe = dict(item.split("=", 1) for item in learning.RECIPE)
    changed = dict(item.split("=", 1) for item in ablation.VARIANTS[variant])
    assert changed and all(recipe[name] != value for name, value in changed.items())
