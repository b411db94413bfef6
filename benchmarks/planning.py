"""Bench: the cost until a host's first batch when a dataset has many rows.

    python -m benchmarks.planning --num_probes 100k 2m 10m --hosts 1 8 --rounds 3

Makes datasets of probes with about five measurements each, one row per probe. Every run is a
process that builds the dataset of one host, takes its first batch and reports the cost beyond its
imports. Linux only.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import ROOT, runner
from benchmarks import markdown as md
from benchmarks import results as results_files
from benchmarks.loading_process import workers_cpu_s
from benchmarks.measure import last_line, memory_mib
from benchmarks.random_probes import write_measurements
from benchmarks.results import Results, medians
from benchmarks.runner import Bench, Found

BATCH_SIZE = 256  # of all hosts together
_MEASUREMENTS_PER_PROBE = 5
_PACKAGES = ("array-record", "grain", "numba", "numpy", "pyarrow")
_SHOWN = {
    "plan_cpu_s": "CPU s of planning",
    "batch_s": "s",
    "batch_cpu_s": "CPU s",
    "host_mib": "MiB",
    "worker_mib": "MiB a worker",
}


@dataclass(frozen=True)
class Case:
    """The probes of a dataset, its hosts and the workers of each."""

    num_probes: int
    hosts: int
    workers: int = 0


def _run(argv: Sequence[str]) -> int:
    parser = runner.bench_parser("planning", "What the first batch of many rows takes.")
    add = parser.add_argument
    add("--num_probes", nargs="+", type=runner.number, default=[100_000, 2_000_000])
    add("--hosts", nargs="+", type=int, default=[1, 8])
    add("--num_workers", nargs="+", type=int, default=[0, 2])
    args = parser.parse_args(argv)
    per_probe = {"measurements_per_probe": _MEASUREMENTS_PER_PROBE}
    options = {"batch_size": BATCH_SIZE, **per_probe, "seed": args.seed}
    bench = Bench("planning", args, options, results_files.versions(_PACKAGES))
    rows = {num_probes: _dataset(bench, num_probes) for num_probes in args.num_probes}
    cases = [
        Case(num_probes, hosts, workers)
        for num_probes in args.num_probes
        for hosts in args.hosts
        for workers in args.num_workers
    ]

    def measured(case: Case, number: int) -> results_files.Run:
        command = runner.call_command(
            "benchmarks.planning:first_batch", rows[case.num_probes], case.hosts, case.workers
        )
        return bench.measured(asdict(case), number, lambda _: command, _figures)

    for workers in args.num_workers:
        case = Case(min(args.num_probes), 1, workers)
        bench.warm_up(str(case), measured(case, 0))
    for number, case in bench.rounds(cases):
        bench.keep(measured(case, number), _SHOWN)
    return bench.end(markdown(bench.results))


def _figures(_: Path, printed: str) -> Found:
    return Found(json.loads(last_line(printed)))


def _dataset(bench: Bench, num_probes: int) -> Path:
    """Returns a dataset of probes, all in the training split, made if missing."""
    seed, folder = bench.args.seed, bench.args.data_dir
    rows = folder / f"planning-{num_probes}-{seed}"
    if not rows.exists():
        measurements = folder / f"planning-measurements-{num_probes}-{seed}"
        if not measurements.exists():
            with runner.appears_whole(measurements) as being_made:
                total = num_probes * _MEASUREMENTS_PER_PROBE
                write_measurements(being_made, total, num_probes, seed)
        # One process has the least memory: with two, ten million rows exceeded 24 GiB.
        flags = {"input": measurements / "*.parquet", "train_ratio": 1, "direct_num_workers": 1}
        with runner.appears_whole(rows) as being_made:
            command = runner.module_command("beam_pipeline.main", output=being_made, **flags)
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    runner.read_all([rows / "train" / "rows.parquet"])
    return rows


def first_batch(rows: str, hosts: int, workers: int) -> dict[str, float]:
    """Takes the first batch of the first host; returns its cost beyond imports.

    Returns:
      num_rows: of the split.
      plan_cpu_s, plan_mib: of planning, which every host does for all rows.
      batch_s, batch_cpu_s: from the configuration to the batch, including the start of workers.
      host_mib: growth of the peak resident memory, including mapped files.
      worker_mib: unshared resident memory of a worker, including its imports.
    """
    import psutil
    import pyarrow.parquet as pq

    from training.dataset import DataConfig, build_dataset

    config = DataConfig(
        f"{rows}/train", batch_size=BATCH_SIZE, host_count=hosts, num_workers=workers
    )
    resident_mib, cpu_s, started = memory_mib("VmRSS"), _cpu_s(), time.perf_counter()
    dataset = build_dataset(config)
    plan_cpu_s, plan_mib = _cpu_s() - cpu_s, memory_mib("VmHWM") - resident_mib
    batches = iter(dataset)
    next(batches)
    children = psutil.Process().children(recursive=True)
    figures = {
        "plan_cpu_s": plan_cpu_s,
        "plan_mib": plan_mib,
        "batch_s": time.perf_counter() - started,
        "batch_cpu_s": _cpu_s() - cpu_s,
        "host_mib": memory_mib("VmHWM") - resident_mib,
        "worker_mib": max((child.memory_full_info().uss for child in children), default=0) / 2**20,
        "num_rows": pq.read_metadata(f"{rows}/train/rows.parquet").num_rows,
    }
    batches.close()
    return figures


def _cpu_s() -> float:
    return time.process_time() + workers_cpu_s()


def markdown(results: Results) -> str:
    """Returns the table: medians of each case of the smallest and of the largest dataset."""
    columns: md.Columns = {
        "probes": lambda line: md.size(line.case["num_probes"]),
        "hosts": lambda line: str(line.case["hosts"]),
        "workers": lambda line: str(line.case["workers"]),
        "planning, CPU s": md.figure("plan_cpu_s", "{:.1f}"),
        "MiB": md.figure("plan_mib"),
        "first batch, wall s": md.figure("batch_s", "{:.1f}"),
        "CPU s": md.figure("batch_cpu_s", "{:.1f}"),
        "MiB of the host’s process": md.figure("host_mib"),
        "MiB of a worker": lambda line: (
            md.figure("worker_mib")(line) if line.case["workers"] else ""
        ),
    }
    lines = medians(results.runs)
    sizes = [line.case["num_probes"] for line in lines]
    shown = [line for line in lines if line.case["num_probes"] in (min(sizes), max(sizes))]
    return f"""{md.results_table(columns, shown, num_named=3)}

One of the hosts, which make batches of {BATCH_SIZE} together. CPU is of its process and its \
workers, from the configuration to the first batch, planning included. Memory is what its \
process grows by, mapped files included, and what one worker shares with no other process, its \
imports included.

{md.circumstances(results)}"""


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
