"""The learning bench: PlanetLab's matrices as measurements; figures, bars, tables, curves."""

import json
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.layout import split_of
from beam_pipeline.probe_rows.options import Options
from beam_pipeline.simulation import network
from beam_pipeline.simulation.options import NetworkOptions
from benchmarks import learning, planetlab, table
from benchmarks import results as results_files
from benchmarks.results import Results, Run


def make_evaluation(error: float = 0.1) -> dict[str, Any]:
    kinds = {"source, again": 0.05, "destination": 1.1, "role": 1.0}
    methods = dict.fromkeys(learning.METHODS, 0.4) | {"model": error}
    return {
        "loss": {
            "overall": {"bits": 1.5, "kind_unigram_bits": 5.5},
            "kinds": [
                {"name": name, "bits": bits, "kind_unigram_bits": 7.0}
                for name, bits in kinds.items()
            ],
        },
        "rtt": {
            "errors": [
                {
                    "method": name,
                    "group": group,
                    "median_relative": value,
                    "model_nearer": 60,
                    "model_farther": 40,
                }
                for name, value in methods.items()
                for group in ("all", "first", "repeat")
            ]
        },
        "calibration": {"coverage": {"80%": 0.79}},
    }


def make_results(*errors: float, bench: str = "learning") -> Results:
    runs = [
        Run(
            case={"seed": seed},
            figures={"minutes": 14.2, "cpu_minutes": 20.1, "waiting": 0.003}
            | learning.figures_of(make_evaluation(error)),
            details={
                "command": f"python -m training.train tiny init_weights_seed={seed}",
                "curve": [
                    {"step": 10, "minutes": 0.1, "bits": 4},
                    {"step": 20, "minutes": 0.2, "bits": 3},
                ],
                "evaluation": make_evaluation(error),
            },
        )
        for seed, error in enumerate(errors)
    ]
    options = {"network": ["--seed=1"], "recipe": [], "rounds": 1}
    return Results(bench, "2026-11-21T20:00:00+00:00", options, runs=runs)


def test_figures_of_an_evaluation():
    figures = learning.figures_of(make_evaluation())
    assert figures["bits"] == 1.5
    assert figures["source_again_bits"] == 0.05
    assert figures["unigram_destination_bits"] == 7.0
    assert figures["rtt_error_seen"] == figures["rtt_error_new"] == 0.1
    assert figures["sigmas"] == pytest.approx(2)
    assert figures["within_80"] == 0.79
    assert {bar.figure for bar in learning.BARS} <= set(figures)


def test_a_missed_bar_is_marked():
    text = learning.markdown(make_results(0.02, 0.1, 0.21))
    lines = [line for line in text.splitlines() if line.startswith(("| the same, d", "| true"))]
    assert lines == [
        "| the same, destination new to the context |  | ≤ 10.0% | 2.0% | 10.0% | 21.0% ✗ |",
        "| true RTTs in the central 80 % |  | 78.0% to 82.0% | 79.0% | 79.0% | 79.0% |",
    ]
    assert text.count("✗") == 3 + 2 + 1  # 1.5 bits thrice, both errors above 2.2 %
    assert "init_weights_seed=0" in text


def test_minutes_and_waiting_over_their_bars_are_marked():
    results = make_results(0.01)
    results.runs[0].figures.update(minutes=16, waiting=0.06)
    lines = learning.markdown(results).splitlines()
    assert "| minutes of training, start and compiling included |  | ≤ 15.0 | 16.0 ✗ |" in lines
    assert "| share of the time that training waited for data |  | ≤ 5.0% | 6.0% ✗ |" in lines


def test_a_failed_seed_is_told():
    results = make_results(0.1)
    results.runs.append(Run({"seed": 7}, {}, "training ended with 1: error: no rows"))
    assert "Seed 7 failed: training ended with 1: error: no rows." in learning.markdown(results)


def test_methods_that_an_older_evaluation_lacks_have_no_line():
    results = make_results(0.1, 0.2)
    assert "| Vivaldi |" in learning.markdown(results)
    errors = results.runs[1].details["evaluation"]["rtt"]["errors"]
    errors[:] = [error for error in errors if error["method"] != "Vivaldi"]
    text = learning.markdown(results)
    assert "| Vivaldi |" not in text and "| five nearest |" in text


def test_planetlab_has_bars_of_its_own_and_no_simulation():
    results = make_results(0.01, 0.9, bench="planetlab")
    results.options["recipe"] = ["steps=4800", "network_mixed_rows=none", "steps=150"]
    text = learning.markdown(results)
    assert "Recipe: `steps=150 network_mixed_rows=none`." in text  # the later one holds
    assert "| held-out probes | unigram by kind | bar | seed 0 | seed 1 |" in text
    for line in (
        "| bits a token, all | 5.50 |  | 1.500 | 1.500 |",
        "| RTT: median error, destination seen before |  | ≤ 1.0% | 1.0% | 90.0% ✗ |",
        # Its factorisation is at 40 %.
        "| the same, destination new to the context |  | ≤ factorisation | 1.0% | 90.0% ✗ |",
        "| true RTTs in the central 80 % |  | 78.0% to 82.0% | 79.0% | 79.0% |",
        "| minutes of training, start and compiling included |  |  | 14.2 | 14.2 |",
    ):
        assert line in text
    assert text.count("✗") == 2 and "generate" not in text


def test_published_matrices_become_measurements(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    slices = rng.uniform(1, 300, size=(2, 300, 300)).round(3)
    for number, matrix in enumerate(slices, 1):
        np.savetxt(tmp_path / f"PlanetLabData_{number}", matrix, fmt="%g", delimiter="\t")
    (tmp_path / "README").write_text("not a matrix")
    output = tmp_path / "planetlab.parquet"
    assert planetlab.main([str(tmp_path), str(output)]) == 0
    found = pq.read_table(output).to_pylist()
    assert len(found) == 2 * 300 * 299
    # The last pair of the first slice: 299 = 256 + 43.
    line = found[300 * 299 - 1]
    assert (line["src_addr"], line["dst_addr"], line["ip_version"]) == ("10.1.1.43", "10.1.1.42", 4)
    assert line["rtt"] == pytest.approx(slices[0, 299, 298], rel=1e-5)
    assert line["event_time"].replace(tzinfo=UTC).timestamp() == 1_400_000_000 + 298 * 108
    assert found[300 * 299]["event_time"] - found[0]["event_time"] == timedelta(hours=14.7)

    # Held-out nodes ping, and nobody pings them.
    known = tmp_path / "known.parquet"
    planetlab.write_without_held_out(output, known)
    table = pq.read_table(known)
    sources, destinations = (set(table[name].to_pylist()) for name in ("src_addr", "dst_addr"))
    held_out = {node for node in sources if split_of(node, 0.9, 0)}
    assert 10 < len(held_out) < 60 and destinations == sources - held_out
    assert table.num_rows == 2 * (300 - len(held_out)) * 299


def test_the_split_of_planetlab() -> None:
    """docs/learning.md: 55 of the 490 nodes are held out."""
    nodes = [f"10.1.{i >> 8}.{i & 255}" for i in range(490)]
    assert sum(split_of(node, Options.train_ratio, Options.split_seed) for node in nodes) == 55


def test_a_folder_without_matrices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert planetlab.main([str(tmp_path), str(tmp_path / "out.parquet")]) == 1
    assert "has no file PlanetLabData_1: name the folder" in capsys.readouterr().err


def test_the_table_and_the_curves_go_into_the_document(tmp_path: Path):
    document = tmp_path / "learning.md"
    document.write_text("# x\n<!-- bench:learning -->\n<!-- /bench:learning -->\n")
    results_files.save(make_results(0.1, 0.12), tmp_path / "learning-2026-11-21.json")
    arguments = ["--bench=learning", f"--document={document}", f"--results={tmp_path}"]
    assert table.main(arguments) == 0
    assert "| bits a token, all | 5.50 | ≤ 1.200 | 1.500 ✗ | 1.500 ✗ |" in document.read_text()
    assert "<svg" in (tmp_path / "learning.svg").read_text()


def test_curves_and_waiting_are_read_from_what_training_leaves(tmp_path: Path):
    metrics = tmp_path / "metrics.jsonl"
    lines = [
        {"step": step, "learning/loss": 0.6931471805599453, "perf/step_time_seconds": 6.0}
        for step in range(144)
    ]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = learning._curve(metrics)
    assert len(curve) == learning._CURVE_POINTS
    assert curve[-1] == {"step": 144, "minutes": pytest.approx(14.4), "bits": pytest.approx(1.0)}
    printed = "crops: waited for data 1.0% of 30 s\ndone: waited for data 2.0% of 40 s\n"
    assert learning._waiting(printed) == pytest.approx(0.02)


def test_what_detours_leave_to_who_knows_place_and_delays():
    """docs/learning.md: some 7 % of an RTT to a new destination."""
    assert {"--num_probes=8000", "--num_anchors=50", "--seed=1"} < set(learning.NETWORK)
    options = NetworkOptions(num_measurements=10_000_000, num_probes=8000, num_anchors=50, seed=1)
    found = network.build_network(options)
    probe = found.pairs.probe.astype(int)
    anchor = found.pairs.destination.astype(int) % options.num_anchors
    km = network._distance_km(found.probes.nodes.take(probe), found.anchors.nodes.take(anchor))
    delays_ms = (found.probes.access_delay_ms + found.probes.load_ms)[probe]
    known_ms = 2 * km / network._KM_PER_MS * 1.5 + delays_ms + found.anchors.load_ms[anchor]
    noise = 1 + 0.02 * np.random.default_rng(1).standard_normal(len(probe))
    errors = np.abs(known_ms / (found.pairs.mean_ms * noise) - 1)
    assert np.median(errors) == pytest.approx(0.067, abs=0.002)
