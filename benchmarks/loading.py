"""Bench: probe rows to batches of tokens, `training` beside its peers.

    python -m benchmarks.loading --rounds 3

Datasets are made once. Every round runs all cases, each as a process of its own, beginning with
another one each time. On the first dataset given, workers and threads are varied, too, and a
consumer that sleeps stands for a training step; elsewhere the loader has neither worker nor
thread. Before the first round caches are filled and each loader that compiles code runs once on
each dataset, unmeasured. All runs, also those that failed, and their medians go to results/.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import loading_table
from benchmarks import results as results_files
from benchmarks.contenders import ROOT
from benchmarks.loading_cases import (
    DEFAULT_DATASETS,
    LOADERS,
    OF_TRAINING,
    SHAPES,
    Case,
    cases,
    chunked,
    folder_name,
    obstacle,
)
from benchmarks.measure import measure
from benchmarks.results import CaseRun, Results

_PACKAGES = ("array-record", "grain", "numba", "numpy", "pyarrow")
# A batch of 256 takes the seed's sampler 16 rows, of 8 MiB some six seconds. And 20 M measurements
# make some 30 rows of 8 MiB, too few for 256 examples, each of which has rows of its own.
_SMALL_BATCH_SIZE = 32
_FILE_WIDTH = 120


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    console = Console()
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    results = Results(
        bench="loading",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        options={
            name: getattr(args, name)
            for name in ("rounds", "seconds", "batch_size", "num_measurements", "seed")
        }
        | {"small_batch_size": min(_SMALL_BATCH_SIZE, args.batch_size), "stored": {}},
        versions=results_files.versions(_PACKAGES),
    )
    path = results_files.path_for(results, args.results)
    for dataset in args.datasets:
        _make(dataset, args, results, console)
    wanted = cases(args.datasets, args.loaders, args.num_workers, args.num_threads, args.step_ms)
    taking_part = [case for case in wanted if _can_run(case, results)]
    _warm_up(taking_part, args, results, console)
    taking_part = [case for case in taking_part if _has_its_cache(case, results)]
    results_files.save(results, path)
    for number in range(args.rounds):
        turn = number * len(taking_part) // args.rounds
        for case in taking_part[turn:] + taking_part[:turn]:
            run = _run(case, number, args)
            results.runs.append(run)
            console.print(_line(run), highlight=False)
            # After every run: a bench that is cut off keeps what it has.
            results_files.save(results, path)
    console.print(loading_table.markdown(results), highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"written to {path.name}; python -m benchmarks.table --bench=loading puts it into "
        "docs/training_speed.md",
        soft_wrap=True,
    )
    return 1 if any(run.error for run in results.runs) else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares loaders.", allow_abbrev=False)
    add = parser.add_argument
    add("--datasets", nargs="+", choices=[*SHAPES], default=[*DEFAULT_DATASETS], metavar="NAME",
        help=f"of {', '.join(SHAPES)}")  # fmt: skip
    add("--loaders", nargs="+", choices=[*LOADERS], default=[*LOADERS][:-1], metavar="NAME",
        help=f"of {', '.join(LOADERS)}; --gcs adds gcs")  # fmt: skip
    add("--gcs", action="store_true", help="read from the emulator at $STORAGE_EMULATOR_HOST, too")
    add("--num_workers", nargs="+", type=int, default=[0, 1, 2], help="on the first dataset")
    add("--num_threads", nargs="+", type=int, default=[0, 2], help="on the first dataset")
    add("--step_ms", type=float, default=100, help="simulated training step; 0: leave it out")
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=2, help="measured in each run")
    add("--batch_size", type=int, default=256)
    add("--num_measurements", type=int, default=20_000_000, help="small, mixed: a tenth of it")
    add("--chunked_measurements", type=int, default=1_000_000, help="at most, of plan1")
    add("--seed", type=int, default=1, help="of the data")
    add("--data_dir", type=Path, default=ROOT / "build" / "benchmarks", help="data and caches")
    add("--results", type=Path, default=results_files.FOLDER)
    args = parser.parse_args(argv)
    args.data_dir = args.data_dir.absolute()  # loaders run in the repository's root
    if args.gcs and "gcs" not in args.loaders:
        args.loaders.append("gcs")
    return args


def _can_run(case: Case, results: Results) -> bool:
    """Tells whether a case can run; notes why it cannot."""
    stored = results.options["stored"]
    reason = obstacle(case)
    if reason is None and case.dataset not in stored:
        reason = "the dataset could not be made"
    if reason is None and case.loader == "plan1" and "plan1" not in stored[case.dataset]:
        reason = "its chunks could not be made"
    if reason:
        results.skipped.append(asdict(case) | {"reason": reason})
    return reason is None


# --- data ---------------------------------------------------------------------------------------


def _make(dataset: str, args: argparse.Namespace, results: Results, console: Console) -> None:
    """Makes a dataset and padded buckets of it, and notes what they take on disk."""
    console.print(f"making {dataset}", highlight=False)
    flags = [f"--dataset={dataset}", f"--num_measurements={args.num_measurements}"]
    flags += [f"--seed={args.seed}", f"--data_dir={args.data_dir}"]
    if "gcs" in args.loaders and obstacle(Case(dataset, "gcs")) is None:
        flags.append(f"--upload_to={_bucket_folder(dataset, args)}")
    described = _ask("benchmarks.loading_data", flags, console)
    if described is None:
        return
    folder = Path(described.pop("folder"))
    results.options["stored"][dataset] = described
    is_chunked = "plan1" in args.loaders and dataset in chunked(args.datasets)
    if is_chunked and (counts := _make_chunks(dataset, folder, args, console)):
        described["plan1"] = counts
    for path in folder.rglob("*.arrayrecord"):  # into the page cache, for the first as the last
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass


def _make_chunks(
    dataset: str, rows: Path, args: argparse.Namespace, console: Console
) -> dict[str, Any] | None:
    """Makes padded buckets of a dataset if they are not there yet and returns their counts."""
    chunks = _folder("chunks", dataset, args)
    counts = chunks / "counts.json"
    if counts.exists():
        return json.loads(counts.read_text())
    flags = [f"--rows={rows}/train/*.arrayrecord", f"--output={chunks}"]
    flags.append(f"--max_measurements={args.chunked_measurements}")
    flags.append(f"--array_record_options={SHAPES[dataset].array_record_options}")
    return _ask("benchmarks.peers.plan1_buckets", flags, console)


def _ask(module: str, flags: list[str], console: Console) -> dict[str, Any] | None:
    """Returns what a module prints as JSON; None, having said why, if it fails."""
    command = [sys.executable, "-m", module, *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout)
    console.print(f"{module} failed: {_last_line(done.stderr)}", highlight=False, markup=False)
    return None


def _folder(kind: str, dataset: str, args: argparse.Namespace) -> Path:
    if kind == "chunks":
        kind = f"chunks-{args.chunked_measurements}"
    return args.data_dir / folder_name(kind, dataset, args.num_measurements, args.seed)


def _bucket_folder(dataset: str, args: argparse.Namespace) -> str:
    return f"gs://probeline-bench/{_folder('rows', dataset, args).name}"


# --- runs ---------------------------------------------------------------------------------------


def _warm_up(
    taking_part: list[Case], args: argparse.Namespace, results: Results, console: Console
) -> None:
    """Compiles what gets compiled and fills the caches, noting how long that took."""
    for case in taking_part:
        if case.loader not in OF_TRAINING or case != Case(case.dataset, case.loader):
            continue
        cache = _folder("cache", case.dataset, args)
        if case.loader == "cache":
            shutil.rmtree(cache, ignore_errors=True)
        run = _run(case, 0, args, fill_only=True)
        if run.error:
            message = f"warm-up of {case.loader} on {case.dataset} failed: {run.error}"
            console.print(message, highlight=False, markup=False)
        elif case.loader == "cache":
            files = [path for path in cache.rglob("*") if path.is_file()]
            if num_bytes := sum(path.stat().st_size for path in files):
                filled = {"fill_s": run.figures["first_batch_of_build_s"], "file_bytes": num_bytes}
                results.options["stored"][case.dataset]["cache"] = filled


def _has_its_cache(case: Case, results: Results) -> bool:
    """Tells whether a case's cache, if it has one, is filled; notes where it is not.

    Without this a loader that leaves the cache alone would be shown as one that reads it.
    """
    is_filled = case.loader != "cache" or "cache" in results.options["stored"][case.dataset]
    if not is_filled:
        results.skipped.append(asdict(case) | {"reason": "its cache was not filled"})
    return is_filled


def _run(case: Case, number: int, args: argparse.Namespace, *, fill_only: bool = False) -> CaseRun:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="loading-") as folder:
        output = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "benchmarks.loading_process", *_flags(case, args)]
        command += [f"--output={output}", *(["--fill_only"] if fill_only else [])]
        with open(Path(folder) / "log", "w+", encoding="utf-8", errors="replace") as log:
            usage = measure([*command, f"--started={time.monotonic()}"], log, cwd=ROOT)
            log.seek(0)
            said = _last_line(log.read())
        figures = json.loads(output.read_text()) if output.exists() else {}
    error = None
    if usage.exit_code:
        error = f"exit code {usage.exit_code}: {figures.get('error', said)}"
        figures = {}
    else:
        figures = {name: float(f"{value:.5g}") for name, value in figures.items()}
        figures["peak_mib"] = round(usage.peak_mib, 1)
    return CaseRun(
        case=asdict(case),
        round=number,
        load_before=round(load, 2),
        figures=figures,
        error=error and error.replace(str(args.data_dir), "DATA").replace(str(ROOT), "ROOT"),
    )


def _flags(case: Case, args: argparse.Namespace) -> list[str]:
    flags = {
        "loader": case.loader,
        "files": _folder("rows", case.dataset, args) / "train",
        "batch_size": args.batch_size,
        "num_workers": case.num_workers,
        "num_threads": case.num_threads,
        "step_ms": case.step_ms,
        "seconds": args.seconds,
    }
    if case.loader not in OF_TRAINING:
        flags["cycle"] = 1  # what they take does not come in bursts
    if case.loader == "seed" or "8m" in case.dataset:
        flags["batch_size"] = min(_SMALL_BATCH_SIZE, args.batch_size)
    if case.loader == "plan1":
        flags["files"] = _folder("chunks", case.dataset, args)
    elif case.loader == "cache":
        flags["cache_dir"] = _folder("cache", case.dataset, args)
    elif case.loader == "gcs":
        flags["files"] = f"{_bucket_folder(case.dataset, args)}/train"
    return [f"--{name}={value}" for name, value in flags.items()]


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def _line(run: CaseRun) -> str:
    case = Case(**run.case)
    parts = [f"{case.dataset:18} round {run.round}  {loading_table.title(run.case):32}"]
    if run.error:
        return f"{parts[0]} FAILED: {run.error}"
    figures = run.figures
    parts.append(f"{figures['tokens_per_s'] / 1e6:8.2f} M/s")
    parts.append(f"{figures['tokens_per_cpu_s'] / 1e6:8.2f} M/CPU s")
    parts.append(f"{figures['peak_mib']:8,.0f} MiB")
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(main())
