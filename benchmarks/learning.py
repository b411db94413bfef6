"""Bench: what `tiny` learns of a simulated network on a CPU, through MaxText, over several seeds.

    python -m benchmarks.learning --seeds 0 1 2

Makes the network and its dataset once, of 8,000 probes in cities with address prefixes of their own
that ping 50 destinations. For each seed, of weights and of all that is drawn, one after the other:
trains, then evaluates on held-out probes. Curves, figures and commands go to results/.
"""

import argparse
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks import learning_report
from benchmarks import results as results_files
from benchmarks.contenders import ROOT
from benchmarks.measure import measure
from benchmarks.results import LearningRun, Results

_PACKAGES = ("maxtext", "jax", "flax", "optax", "grain", "numpy", "numba")
NETWORK = ("--num_measurements=10000000", "--num_probes=8000", "--num_anchors=50", "--seed=1")
RECIPE = ("network_curriculum=128x2700,512x1600", "steps=4800", "network_mixed_rows=none")
_CURVE_POINTS = 72


def main(argv: list[str] | None = None) -> int:
    """Runs the bench; returns 1 if a seed failed."""
    parser = argparse.ArgumentParser(description="What tiny learns.", allow_abbrev=False)
    add = parser.add_argument
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--recipe", nargs="*", default=[], help="further key=value of training.train")
    add("--data_dir", type=Path, default=ROOT / "build" / "learning", help="data and runs")
    add("--results", type=Path, default=results_files.FOLDER)
    args = parser.parse_args(argv)
    console = Console()
    work = args.data_dir.absolute()
    rows = _make_dataset(work)
    results = Results(
        bench="learning",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        options={"network": [*NETWORK], "recipe": [*RECIPE, *args.recipe], "rounds": 1},
        versions=results_files.versions(_PACKAGES),
    )
    path = results_files.path_for(results, args.results)
    for seed in args.seeds:
        run = _run(seed, rows, work, args.recipe)
        results.runs.append(run)
        console.print(f"seed {seed}: {run.error or run.figures}", highlight=False)
        results_files.save(results, path)
    console.print(learning_report.markdown(results), markup=False, soft_wrap=True)
    return 1 if any(run.error for run in results.runs) else 0


def _make_dataset(work: Path) -> Path:
    measurements, rows = work / "measurements", work / "rows"
    if not (rows / "_SUCCESS").exists():
        _python("beam_pipeline.generate", [f"--output={measurements}", *NETWORK, "--overwrite"])
        flags = [f"--input={measurements}/*.parquet", f"--output={rows}", "--overwrite"]
        _python("beam_pipeline.main", flags)
    return rows


def _python(module: str, arguments: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, check=True)


def _run(seed: int, rows: Path, work: Path, recipe: Sequence[str]) -> LearningRun:
    """Trains and evaluates with one seed."""
    name = f"seed-{seed}-{datetime.now(UTC):%Y%m%d%H%M%S}"
    folder = work / "runs" / name
    folder.mkdir(parents=True)
    metrics = folder / "metrics.jsonl"
    arguments = [
        "tiny",
        f"network_train_files={rows / 'train'}",
        f"network_cache_dir={work / 'cache'}",
        f"base_output_directory={work / 'runs'}",
        f"run_name={name}",
        f"metrics_file={metrics}",
        f"init_weights_seed={seed}",
        f"data_shuffle_seed={100 * seed}",
        *RECIPE,
        *recipe,
    ]
    command = [sys.executable, "-m", "training.train", *arguments]
    with open(folder / "train.log", "w") as log:
        usage = measure(command, log.fileno(), ROOT)
    printed = (folder / "train.log").read_text()
    run = LearningRun(
        case={"seed": seed},
        command=shlex.join(["python", "-m", "training.train", *map(_nameless, arguments)]),
        figures={"minutes": usage.wall_s / 60, "cpu_minutes": usage.cpu_s / 60},
        error=None,
    )
    if usage.exit_code:
        last_line = printed.splitlines()[-1]
        return replace(run, error=f"training ended with {usage.exit_code}: {last_line}")
    _python("training.evaluate", [f"--checkpoint={folder}", f"--data={rows}", "--num_rtt=1000"])
    evaluation = json.loads(_nameless((folder / "evaluation" / "evaluation.json").read_text()))
    run.figures.update(learning_report.figures_of(evaluation))
    run.figures.update(peak_mib=usage.peak_mib, waiting=_waiting(printed))
    run.curve.extend(_curve(metrics))
    run.evaluation.update(evaluation)
    return run


def _nameless(text: str) -> str:
    """Writes folders of this checkout as a reader has them."""
    return text.replace(f"{ROOT}/", "")


def _waiting(printed: str) -> float:
    """Returns which share of its stages the training waited for data, by its own lines."""
    found = re.findall(r"waited for data ([0-9.]+)% of ([0-9]+) s", printed)
    stages = [(float(percent) / 100, int(seconds)) for percent, seconds in found]
    return sum(share * seconds for share, seconds in stages) / sum(s for _, s in stages)


def _curve(metrics: Path) -> list[dict[str, float]]:
    """Averages the loss of a run's steps, in bits a token, and tells when, in minutes."""
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    size = max(1, len(steps) // _CURVE_POINTS)
    points, seconds = [], 0.0
    for begin in range(0, len(steps), size):
        part = steps[begin : begin + size]
        seconds += sum(step["perf/step_time_seconds"] for step in part)
        bits = sum(step["learning/loss"] for step in part) / len(part) / math.log(2)
        points.append({"step": part[-1]["step"] + 1, "minutes": seconds / 60, "bits": bits})
    return points


if __name__ == "__main__":
    sys.exit(main())
