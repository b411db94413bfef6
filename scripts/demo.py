"""Five minutes with Probeline: measurements, the job, the check, a look, a model's first steps.

make demo                 into demo/
python scripts/demo.py FOLDER
"""

import json
import math
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from beam_pipeline.cli.probeline import main

NUM_MEASUREMENTS, NUM_PROBES = 1_000_000, 1000
NUM_STEPS, CROP, BATCH = 240, 128, 8  # so many steps, of 8 crops of 128 tokens
_CURVE_LINES, _BAR = 12, 40


def run(folder: Path) -> int:
    """Makes a dataset below `folder`; returns the exit code."""
    console = Console(highlight=False)
    started = time.monotonic()
    measurements, rows, runs = folder / "measurements", folder / "rows", folder / "runs"
    page = folder / "report.html"
    # A demo is for running again; it removes its own folders only.
    for old in (measurements, rows, runs):
        shutil.rmtree(old, ignore_errors=True)
    steps = (
        (
            "generate",
            [
                f"--output={measurements}",
                f"--num_measurements={NUM_MEASUREMENTS}",
                f"--num_probes={NUM_PROBES}",
            ],
        ),
        (
            "rows",
            [f"--input={measurements}/*.parquet", f"--output={rows}", "--max_row_size_mb=1"],
        ),
        ("verify", [str(rows)]),
    )
    for command, arguments in steps:
        code = probeline(command, arguments, console)
        if code:
            return code
    code = look(rows, page, console) or train(rows, runs, console)
    if code:
        return code
    console.print(
        f"\nAll of it took {time.monotonic() - started:.0f} s. The dataset is in {rows}: shards in "
        f"train/ and test/, what they hold in */rows.parquet, what it is in README.md. The "
        f"run is in {runs / 'demo'}, with pictures of what it was fed.\n"
        f"To look at in a browser: {page}\n"
        f"Next, on data of your own: .venv/bin/probeline rows --input "
        f"'data/*.parquet' --output rows --columns event_time=ts\n"
        f"What models learn of a network, and how that is measured: docs/learning.md",
        soft_wrap=True,
    )
    return 0


def probeline(command: str, arguments: list[str], console: Console) -> int:
    """Shows and runs a command in this process; returns the exit code."""
    console.print(f"\n$ probeline {command} {shlex.join(arguments)}", soft_wrap=True)
    return main([command, *arguments])


def look(rows: Path, page: Path, console: Console) -> int:
    """Shows a row that is the second of its probe, found in rows.parquet; writes the page."""
    index = pq.read_table(rows / "train" / "rows.parquet").to_pylist()
    line = max(
        range(len(index)),
        key=lambda at: (index[at]["row_index"] == 1, index[at]["n_measurements"]),
    )
    arguments = [str(rows), f"--row=train:{line}", f"--html={page}"]
    return probeline("inspect", arguments, console)


def train(rows: Path, runs: Path, console: Console) -> int:
    """Trains `tiny` for some steps and shows the loss and what it was fed."""
    run = runs / "demo"
    run.mkdir(parents=True)
    metrics, log = run / "metrics.jsonl", run / "train.log"
    arguments = [
        "tiny",
        f"network_train_files={rows / 'train'}",
        f"base_output_directory={runs}",
        "run_name=demo",
        f"steps={NUM_STEPS}",
        f"max_target_length={CROP}",
        f"per_device_batch_size={BATCH}",
        f"metrics_file={metrics}",
        f"grain_visualization_dir={run / 'pictures'}",
    ]
    command = ["-m", "beam_pipeline.cli.probeline", "train", *arguments]
    console.print(f"\n$ probeline train {shlex.join(arguments)}", soft_wrap=True)
    with open(log, "w") as output, Progress(console=console, transient=True) as progress:
        task = progress.add_task("MaxText starts and compiles", total=NUM_STEPS)
        process = subprocess.Popen(
            [sys.executable, *command], stdout=output, stderr=subprocess.STDOUT
        )
        while process.poll() is None:
            if done := len(losses_of(metrics)):
                progress.update(task, description="training", completed=done)
            time.sleep(0.2)
    if process.returncode:
        console.print(f"{log.read_text()[-2000:]}\ntraining failed: {log}", markup=False)
        return process.returncode
    show_losses(losses_of(metrics), console)
    decoded = (run / "pictures" / "decoded-host0.txt").read_text().splitlines()
    console.print("\nWhat the model read in its first step, decoded:")
    console.print("\n".join(decoded[:8]), markup=False, soft_wrap=True)
    return 0


def losses_of(metrics: Path) -> list[float]:
    """Returns the loss of each step so far, in bits a token."""
    lines = metrics.read_text().splitlines(keepends=True) if metrics.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith("\n")]
    return [line["learning/loss"] / math.log(2) for line in whole]


def show_losses(losses: list[float], console: Console) -> None:
    """Draws the losses, averaged over a few steps each, as bars."""
    size = len(losses) // _CURVE_LINES
    means = [sum(losses[at : at + size]) / size for at in range(0, len(losses), size)]
    table = Table("steps", "bits a token", "", box=None)
    for number, mean in enumerate(means):
        steps = f"{number * size} to {number * size + size - 1}"
        table.add_row(steps, f"{mean:.2f}", "█" * round(_BAR * mean / max(means)))
    console.print(table)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1] if len(sys.argv) > 1 else "demo")))
