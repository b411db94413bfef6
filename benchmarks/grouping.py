"""Bench: measurements in Parquet to probe rows in ArrayRecord, Probeline beside its peers.

    python -m benchmarks.grouping --sizes 1m 10m --rounds 3

Data is generated once a size. Every round runs all contenders on it, each as a process of its
own, beginning with another one each time; an output is counted before its figure is. Before the
first round each contender runs once on a small input, unmeasured, so that compiled code is cached
as on any machine where it has run before. All runs, also those that failed, and their medians go
to results/.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import results as results_files
from benchmarks import table
from benchmarks.contenders import CONTENDERS, MAX_ROW_SIZE_MB, ROOT, TRAIN_RATIO, Job
from benchmarks.measure import last_line, measure
from benchmarks.results import Results, Run

_WARM_UP_MEASUREMENTS = 20_000
_FILE_WIDTH = 120


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    console = Console()
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    results = Results(
        bench="grouping",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        options={
            "rounds": args.rounds,
            "num_probes": args.num_probes,
            "seed": args.seed,
            "threads": args.threads,
            "array_record_options": args.array_record_options,
            "measurement_encoding": "arrow",
            "max_row_size_mb": MAX_ROW_SIZE_MB,
            "train_ratio": TRAIN_RATIO,
        },
    )
    path = results_files.path_for(results, args.results)
    _warm_up(args, console)
    for size in args.sizes:
        taking_part = _taking_part(args.contenders, size, results)
        data = generated(args, size)
        for number in range(args.rounds):
            turn = number % max(len(taking_part), 1)
            for name in taking_part[turn:] + taking_part[:turn]:
                run = _run(name, data, size, number, args)
                results.runs.append(run)
                console.print(_line(run), highlight=False)
                # After every run: a bench that is cut off keeps what it has.
                results_files.save(results, path)
    _print(results, console)
    console.print(f"written to {path.name}; python -m benchmarks.table puts it into docs/")
    return 1 if any(run.error for run in results.runs) else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compares ways to group measurements by probe.", allow_abbrev=False
    )
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--contenders", nargs="+", choices=[*CONTENDERS], default=[*CONTENDERS], metavar="NAME",
        help=f"of {', '.join(CONTENDERS)}",
    )  # fmt: skip
    parser.add_argument(
        "--data_dir", type=Path, default=ROOT / "build" / "benchmarks", help="data and outputs"
    )
    parser.add_argument("--results", type=Path, default=results_files.FOLDER)
    parser.add_argument("--num_probes", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--array_record_options", default="group_size:1,zstd:1")
    args = parser.parse_args(argv)
    args.data_dir = args.data_dir.absolute()  # contenders run in the repository's root
    return args


def parse_size(text: str) -> int:
    """Parses a number such as 50k or 100m; argparse shows what is wrong with it."""
    match = re.fullmatch(r"(\d+)([km]?)", text.lower())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 50k, 1m or 100m")
    return int(match[1]) * {"": 1, "k": 1000, "m": 1_000_000}[match[2]]


def _taking_part(names: list[str], size: int, results: Results) -> list[str]:
    """Returns the contenders that run at this size; notes why the others do not."""
    taking_part = []
    for name in names:
        contender = CONTENDERS[name]
        reason = contender.obstacle()
        if contender.max_measurements is not None and size > contender.max_measurements:
            reason = f"left out above {contender.max_measurements:,} measurements: too slow"
        if reason is None:
            taking_part.append(name)
        else:
            skip = {"contender": name, "num_measurements": size, "reason": reason}
            results.skipped.append(skip)
    return taking_part


def generated(args: argparse.Namespace, size: int) -> Path:
    """Returns the folder of so many measurements, generated if it is not there yet."""
    folder = args.data_dir / f"measurements-{size}-{args.num_probes}-{args.seed}"
    if not folder.exists():
        being_made = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(being_made, ignore_errors=True)
        command = [sys.executable, "-m", "beam_pipeline.generate", f"--output={being_made}"]
        command += [f"--num_measurements={size}", f"--num_probes={args.num_probes}"]
        command += [f"--seed={args.seed}"]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        being_made.rename(folder)
    for path in folder.glob("*.parquet"):  # into the page cache, for the first as for the last
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass
    return folder


def _warm_up(args: argparse.Namespace, console: Console) -> None:
    data = generated(args, _WARM_UP_MEASUREMENTS)
    for name in args.contenders:
        if CONTENDERS[name].obstacle() is None:
            run = _run(name, data, _WARM_UP_MEASUREMENTS, 0, args)
            if run.error:
                console.print(f"warm-up of {name} failed: {run.error}", highlight=False)


def _run(name: str, data: Path, size: int, number: int, args: argparse.Namespace) -> Run:
    """Runs a contender, counts its output and removes it."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=args.data_dir) as folder:
        output = Path(folder) / "rows"
        job = Job(f"{data}/*.parquet", output, args.threads, args.array_record_options)
        with open(Path(folder) / "log", "w+", encoding="utf-8", errors="replace") as log:
            usage = measure(CONTENDERS[name].command(job), log, cwd=ROOT)
            log.seek(0)
            said = log.read()
        if usage.exit_code:
            counted, error = {}, f"exit code {usage.exit_code}: {last_line(said)}"
        else:
            counted, error = _count(output, size)
    return Run(
        contender=name,
        num_measurements=size,
        round=number,
        load_before=round(load, 2),
        wall_s=round(usage.wall_s, 3),
        cpu_s=round(usage.cpu_s, 3),
        peak_mib=round(usage.peak_mib, 1),
        error=error and error.replace(str(args.data_dir), "DATA").replace(str(ROOT), "ROOT"),
        output=counted,
    )


def _count(output: Path, size: int) -> tuple[dict[str, int], str | None]:
    """Returns what an output holds, and what is wrong with it or None."""
    command = [sys.executable, "-m", "benchmarks.check", str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return {}, f"the output cannot be read: {last_line(done.stderr)}"
    counted = json.loads(done.stdout)
    return counted, fault(counted, size)


def fault(counted: dict[str, int], size: int) -> str | None:
    """Says what is wrong with an output of which benchmarks.check counted this, or None."""
    if counted["measurements"] != size:
        return f"the output holds {counted['measurements']:,} measurements, not {size:,}"
    if counted["largest_record"] > MAX_ROW_SIZE_MB * 2**20:
        return f"a record takes {counted['largest_record']:,} bytes, over {MAX_ROW_SIZE_MB} MiB"
    return None


def _line(run: Run) -> str:
    figures = f"{run.cpu_s:8.2f} CPU s {run.wall_s:8.2f} wall s {run.peak_mib:8,.0f} MiB"
    end = f"  FAILED: {run.error}" if run.error else ""
    return f"{run.num_measurements:>12,}  round {run.round}  {run.contender:11}{figures}{end}"


def _print(results: Results, console: Console) -> None:
    shown = Table(*table.COLUMNS, title="Grouping by probe")
    for column in shown.columns[1:]:
        column.justify = "right"
    for cells in table.rows(results):
        shown.add_row(*cells)
    console.print(shown)
    for note in table.notes(results):
        console.print(note, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
