"""Bench: the same job on every engine that runs on one machine, and with its output on GCS.

    python -m benchmarks.engines --sizes 1m 10m --rounds 3

Every run is a process tree of its own, measured from start to end: Prism, and the job server with
the Flink inside, are part of it; the emulator of GCS is not. All datasets of a size must have the
same bytes, or the run counts as failed. All runs and their medians go to results/.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client
from rich.console import Console

from benchmarks import engines_table
from benchmarks import results as results_files
from benchmarks.contenders import ROOT, prism_binary
from benchmarks.engine_servers import running_gcs_emulator
from benchmarks.grouping import generated, parse_size
from benchmarks.measure import last_line, measure
from benchmarks.results import EngineRun, Results

_WARM_UP_MEASUREMENTS = 20_000
_BUCKET = "bench"
_SHUFFLED = ("grouped_by_probe_bytes", "cut_bytes", "grouped_by_shard_bytes")
_GCS_EMULATOR = ROOT / ".engines" / "fake-gcs-server"
_FLINK = ROOT / ".engines" / "flink"


@dataclass(frozen=True)
class Engine:
    """A way to run the job: flags, a command that goes before it, and what must be there."""

    flags: Callable[[], tuple[str, ...]] = tuple  # none
    before: tuple[str, ...] = ()
    on_gcs: bool = False
    needs: Callable[[], Path] | None = None


def _on_flink(parallelism: int) -> Engine:
    server = ("-m", "benchmarks.engine_servers", f"--parallelism={parallelism}", "--")
    return Engine(before=(sys.executable, *server), needs=lambda: _FLINK)


def _two_processes() -> tuple[str, ...]:
    return "--direct_num_workers=2", "--direct_running_mode=multi_processing"


def _on_prism() -> tuple[str, ...]:
    return "--runner=PrismRunner", f"--prism_location={prism_binary()}"


ENGINES = {
    "memory": Engine(),
    "memory-2": Engine(_two_processes),
    "prism": Engine(_on_prism, needs=prism_binary),
    "flink-1": _on_flink(1),
    "flink-2": _on_flink(2),
    "memory-gcs": Engine(on_gcs=True, needs=lambda: _GCS_EMULATOR),
}


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    console = Console(highlight=False)
    results = Results(
        bench="engines",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        options={"rounds": args.rounds, "num_probes": args.num_probes, "seed": args.seed},
    )
    path = results_files.path_for(results, args.results)
    taking_part = _taking_part(args.engines, results)
    with ExitStack() as stack:
        endpoint = ""
        if any(ENGINES[name].on_gcs for name in taking_part):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gcs-")))
            endpoint = stack.enter_context(running_gcs_emulator(str(_GCS_EMULATOR), folder))
            _client(endpoint).create_bucket(_BUCKET)
        for name in taking_part:
            _run(name, _WARM_UP_MEASUREMENTS, 0, args, endpoint)
        for num_measurements in args.sizes:
            expected = None
            for number in range(args.rounds):
                turn = number % max(len(taking_part), 1)
                for name in taking_part[turn:] + taking_part[:turn]:
                    run = _run(name, num_measurements, number, args, endpoint, expected)
                    if run.error is None:
                        expected = run.dataset
                    results.runs.append(run)
                    console.print(_line(run))
                    # After every run: a bench that is cut off keeps what it has.
                    results_files.save(results, path)
    console.print(engines_table.markdown(results), markup=False, soft_wrap=True)
    console.print(f"written to {path.name}; python -m benchmarks.table --bench=engines shows it")
    return 1 if any(run.error for run in results.runs) else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Runs the same job on every engine.", allow_abbrev=False
    )
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--engines", nargs="+", choices=[*ENGINES], default=[*ENGINES], metavar="NAME",
        help=f"of {', '.join(ENGINES)}",
    )  # fmt: skip
    parser.add_argument(
        "--data_dir", type=Path, default=ROOT / "build" / "benchmarks", help="data and outputs"
    )
    parser.add_argument("--results", type=Path, default=results_files.FOLDER)
    parser.add_argument("--num_probes", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    args.data_dir = args.data_dir.absolute()  # the job runs in the repository's root
    return args


def _taking_part(names: list[str], results: Results) -> list[str]:
    """Returns the engines that are there; notes which are not."""
    taking_part = []
    for name in names:
        needs = ENGINES[name].needs
        if needs is None or needs().exists():
            taking_part.append(name)
        else:
            reason = f"{needs().name} is not there: make engines builds it"
            results.skipped.append({"engine": name, "reason": reason})
    return taking_part


def _run(
    name: str,
    num_measurements: int,
    number: int,
    args: argparse.Namespace,
    endpoint: str,
    expected: str | None = None,
) -> EngineRun:
    """Runs the job on an engine, takes a digest of its dataset and removes it."""
    data, engine = generated(args, num_measurements), ENGINES[name]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=args.data_dir) as folder:
        output = f"gs://{_BUCKET}/rows" if engine.on_gcs else f"{folder}/rows"
        before = ["env", f"STORAGE_EMULATOR_HOST={endpoint}"] if engine.on_gcs else []
        command = [
            *before, *engine.before, sys.executable, "-m", "benchmarks.counted",
            f"--input={data}/*.parquet", f"--output={output}", *engine.flags(),
        ]  # fmt: skip
        with open(Path(folder) / "log", "w+", encoding="utf-8", errors="replace") as log:
            usage = measure(command, log, cwd=ROOT)
            log.seek(0)
            said = log.read()
        if engine.on_gcs:
            _download(endpoint, Path(folder) / "rows")
        dataset = digest(Path(folder) / "rows")
    error = None
    if usage.exit_code:
        error = f"exit code {usage.exit_code}: {last_line(said)}"
        error = error.replace(str(args.data_dir), "DATA").replace(str(ROOT), "ROOT")
    elif expected is not None and dataset != expected:
        error = "its dataset has other bytes than those of the runs before"
    figures = {
        "wall_s": usage.wall_s,
        "cpu_s": usage.cpu_s,
        "peak_mib": usage.peak_mib,
        "shuffled_mb": 0 if usage.exit_code else _shuffled_bytes(said) / 1e6,
    }
    return EngineRun(
        case={"engine": name, "num_measurements": num_measurements},
        round=number,
        load_before=round(load, 2),
        figures={key: round(value, 2) for key, value in figures.items()},
        error=error,
        dataset=dataset,
    )


def _shuffled_bytes(said: str) -> int:
    """Returns how many bytes of elements went into a GroupByKey or a stateful step."""
    counted = json.loads(next(line for line in said.splitlines()[::-1] if line.startswith("{")))
    return sum(counted[name] for name in _SHUFFLED if name in counted)


def _client(endpoint: str) -> Client:
    return Client("bench", AnonymousCredentials(), client_options={"api_endpoint": endpoint})


def _download(endpoint: str, folder: Path) -> None:
    """Moves all objects of the bucket to a folder."""
    for blob in list(_client(endpoint).list_blobs(_BUCKET)):
        path = folder.parent / blob.name
        path.parent.mkdir(parents=True, exist_ok=True)
        blob.download_to_filename(str(path))
        blob.delete()


def digest(folder: Path) -> str:
    """Returns a digest of the names and the bytes of all files below a folder."""
    total = hashlib.blake2b(digest_size=16)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with open(path, "rb") as file:
            of_file = hashlib.file_digest(file, "blake2b").hexdigest()
        total.update(f"{path.relative_to(folder)} {of_file}\n".encode())
    return total.hexdigest()


def _line(run: EngineRun) -> str:
    figures = run.figures
    text = f"{figures['cpu_s']:8.2f} CPU s {figures['wall_s']:8.2f} wall s"
    end = f"  FAILED: {run.error}" if run.error else ""
    head = f"{run.case['num_measurements']:>12,}  round {run.round}  {run.case['engine']:11}"
    return f"{head}{text} {figures['peak_mib']:8,.0f} MiB{end}"


if __name__ == "__main__":
    sys.exit(main())
