"""Bench: what the job takes a measurement, for runs that no machine here can hold.

    python -m benchmarks.scale --sizes 10m 100m

A run of 35 B measurements is seen in two parts of it: all of its probes for a slice of time, whose
chunks and units are those of the whole, and some of its probes for all of the time, whose histories
are. Besides: a hot probe, the job on Prism and against an emulator of GCS, and one worker's thread
step by step. All with --inline_bytes=65536, Dataflow's, and otherwise with the defaults. Figures go
to results/; `benchmarks.estimate` computes costs from them.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client
from rich.console import Console

from benchmarks import results as results_files
from benchmarks.contenders import ROOT, prism_binary
from benchmarks.engine_servers import running_gcs_emulator
from benchmarks.grouping import parse_size
from benchmarks.measure import last_line, measure
from benchmarks.results import CaseRun, Results
from benchmarks.worker import CHUNK_RECORDS, INLINE_BYTES, LEAST_MEASUREMENTS

NUM_PROBES = 10_000  # about as many as RIPE Atlas has
PROBE_MEASUREMENTS = 2_500_000  # of each of few probes
MANY_SHARDS = 100
_GCS_EMULATOR = ROOT / ".engines" / "fake-gcs-server"


@dataclass(frozen=True)
class Shape:
    """Measurements to run the job on, and how.

    Attributes:
      place: where it runs or what it reads and writes: memory, prism or gcs.
      group_rows: rows that are pre-grouped at a time; 0 is the job's own.
    """

    name: str
    num_measurements: int
    num_probes: int
    hot_share: float = 0.0
    place: str = "memory"
    group_rows: int = 0
    num_shards: int = 0

    @property
    def case(self) -> dict[str, str | int]:
        """What tells it from the others in the results."""
        return {"shape": self.name, "place": self.place, "num_measurements": self.num_measurements}


def shapes(sizes: list[int]) -> list[Shape]:
    """Returns what is run: two shapes at every size, the rest at the smallest or the largest."""
    small, large = min(sizes), max(sizes)
    wanted = [shape for size in sorted(sizes) for shape in (_all_probes(size), _few_probes(size))]
    wanted.append(Shape("a hot probe", large // 2, 1000, hot_share=0.96))
    wanted.append(_all_probes(small, "prism"))
    tenth = small // 10  # what does not grow with the input shows beside it
    wanted += [
        shape(size, "gcs") for shape in (_all_probes, _few_probes) for size in (tenth, small)
    ]
    wanted.append(Shape("many shards", tenth, NUM_PROBES, place="gcs", num_shards=MANY_SHARDS))
    return wanted


def _all_probes(size: int, place: str = "memory") -> Shape:
    return Shape("all probes", size, NUM_PROBES, place=place)


def _few_probes(size: int, place: str = "memory") -> Shape:
    num_probes = max(2, size // PROBE_MEASUREMENTS)
    return Shape("few probes", size, num_probes, 0.0, place, num_probes * CHUNK_RECORDS)


def main(argv: list[str] | None = None) -> int:
    args = _arguments(argv)
    console = Console(highlight=False)
    results = Results(
        bench="scale",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        options={"rounds": args.rounds, "seed": args.seed, "inline_bytes": INLINE_BYTES},
    )
    path = results_files.path_for(results, args.results)
    warm_up = _data(args, _all_probes(20_000))
    _job(_all_probes(20_000), warm_up, args.data_dir, 0)
    for number in range(args.rounds):
        for run in _runs(args, number, results):
            results.runs.append(run)
            console.print(_line(run), soft_wrap=True)
            results_files.save(results, path)  # a bench that is cut off keeps what it has
    console.print(
        f"written to {path.name}; python -m benchmarks.table --bench=scale shows it", soft_wrap=True
    )
    return 1 if any(run.error for run in results.runs) else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measures what a far larger run would take.", allow_abbrev=False
    )
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[10_000_000, 100_000_000])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--data_dir", type=Path, default=ROOT / "build" / "benchmarks", help="data and outputs"
    )
    parser.add_argument("--results", type=Path, default=results_files.FOLDER)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    args.data_dir = args.data_dir.absolute()  # the job runs in the repository's root
    return args


def _runs(args: argparse.Namespace, number: int, results: Results) -> Iterator[CaseRun]:
    """Yields a round's runs; notes in the results what cannot run."""
    needed = {"prism": prism_binary(), "gcs": _GCS_EMULATOR}
    for shape in shapes(args.sizes):
        if shape.place in needed and not needed[shape.place].exists():
            reason = f"{needed[shape.place].name} is not there: run the tests once, they build it"
            results.skipped.append({**shape.case, "reason": reason})
            continue
        yield _job(shape, _data(args, shape), args.data_dir, number)
    size = max(LEAST_MEASUREMENTS, max(args.sizes) // 2)
    yield _worker(_data(args, _all_probes(max(args.sizes))), size, number)


def _data(args: argparse.Namespace, shape: Shape) -> Path:
    """Returns a folder with the shape's measurements, generated if it is not there yet."""
    name = f"scale-{shape.num_measurements}-{shape.num_probes}-{shape.hot_share:g}-{args.seed}"
    folder = args.data_dir / name
    if not folder.exists():
        being_made = folder.with_name(folder.name + ".tmp")
        shutil.rmtree(being_made, ignore_errors=True)
        command = [
            sys.executable, "-m", "beam_pipeline.generate", f"--output={being_made}",
            f"--num_measurements={shape.num_measurements}", f"--num_probes={shape.num_probes}",
            f"--hot_share={shape.hot_share}", f"--seed={args.seed}",
        ]  # fmt: skip
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        being_made.rename(folder)
    return folder


def _job(shape: Shape, data: Path, data_dir: Path, number: int) -> CaseRun:
    """Runs the job on a shape and removes its output."""
    with tempfile.TemporaryDirectory(prefix="scale-", dir=data_dir) as folder:
        if shape.place != "gcs":
            return _measured(shape, [], f"{data}/*.parquet", f"{folder}/rows", number)
        with running_gcs_emulator(str(_GCS_EMULATOR), Path(folder)) as endpoint:
            client = Client(
                "bench", AnonymousCredentials(), client_options={"api_endpoint": endpoint}
            )
            bucket = client.create_bucket("bench")
            for path in sorted(data.glob("*.parquet")):
                bucket.blob(f"in/{path.name}").upload_from_filename(str(path))
            before = ["env", f"STORAGE_EMULATOR_HOST={endpoint}"]
            return _measured(shape, before, "gs://bench/in/*", "gs://bench/rows", number)


def _measured(shape: Shape, before: list[str], source: str, output: str, number: int) -> CaseRun:
    command = [
        *before, sys.executable, "-m", "benchmarks.scaled_job",
        f"--input={source}", f"--output={output}", f"--inline_bytes={INLINE_BYTES}",
    ]  # fmt: skip
    if shape.group_rows:
        command.append(f"--group_rows={shape.group_rows}")
    if shape.num_shards:
        command.append(f"--num_shards={shape.num_shards}")
    if shape.place == "prism":
        command += ["--runner=PrismRunner", f"--prism_location={prism_binary()}"]
    load = os.getloadavg()[0]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        usage = measure(command, log, cwd=ROOT)
        log.seek(0)
        said = log.read()
    figures = {"wall_s": usage.wall_s, "cpu_s": usage.cpu_s, "peak_mib": usage.peak_mib}
    error = None
    if usage.exit_code:
        error = f"exit code {usage.exit_code}: {last_line(said)}"
    else:
        figures |= _counters(said)
        if figures["rows_read"] != shape.num_measurements:
            error = f"{figures['rows_read']:,} rows were read, not {shape.num_measurements:,}"
    return _run_of(shape.case, number, load, figures, error)


def _counters(said: str) -> dict[str, float]:
    """Returns what scaled_job printed last: counters, and requests to GCS."""
    counters, requests = (orjson.loads(line) for line in said.strip().splitlines()[-2:])
    return counters | requests


def _worker(data: Path, num_measurements: int, number: int) -> CaseRun:
    """Measures one thread of a worker; its first step reads a unit of `data`."""
    command = [
        sys.executable, "-m", "benchmarks.worker",
        f"--input={data}/*.parquet", f"--num_measurements={num_measurements}",
    ]  # fmt: skip
    load = os.getloadavg()[0]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    case = {"shape": "one thread", "place": "memory", "num_measurements": num_measurements}
    if done.returncode:
        error = f"exit code {done.returncode}: {last_line(done.stderr)}"
        return _run_of(case, number, load, {}, error)
    return _run_of(case, number, load, orjson.loads(last_line(done.stdout)), None)


def _run_of(
    case: dict[str, str | int],
    number: int,
    load: float,
    figures: dict[str, float],
    error: str | None,
) -> CaseRun:
    if error:
        error = error.replace(str(ROOT), "ROOT")
    rounded = {name: round(value, 3) for name, value in figures.items()}
    return CaseRun(case, number, round(load, 2), rounded, error)


def _line(run: CaseRun) -> str:
    case, figures = run.case, run.figures
    head = f"{case['num_measurements']:>12,}  {case['shape']:20} {case['place']:7}"
    if run.error:
        return f"{head} FAILED: {run.error}"
    return head + "".join(
        f" {figures[name]:9.1f} {label}"
        for name, label in (("cpu_s", "CPU s"), ("wall_s", "wall s"), ("peak_mib", "MiB"))
        if name in figures
    )


if __name__ == "__main__":
    sys.exit(main())
