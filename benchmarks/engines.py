"""Bench: the same job on every engine that runs on one machine, and with its output on GCS.

    python -m benchmarks.engines --sizes 1m 10m --rounds 3

Every run is a process tree of its own, measured from start to end: Prism, and the job server with
its Flink, are part of it; the emulator of GCS is not. All datasets of a size must have the same
bytes, or the run counts as failed. All runs and their medians go to results/.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from beam_pipeline.cli.command import run_command
from benchmarks import markdown as md
from benchmarks import runner
from benchmarks.contenders import prism_binary, prism_flags
from benchmarks.engine_servers import FLINK, GCS_EMULATOR, gcs_client, running_gcs_emulator
from benchmarks.grouping import generated
from benchmarks.results import Results, Run, medians
from benchmarks.runner import WARM_UP_MEASUREMENTS, Bench, Found

_BUCKET = "bench"
_SHUFFLED = ("grouped_by_probe_bytes", "cut_bytes", "grouped_by_shard_bytes")


@dataclass(frozen=True)
class Engine:
    """A way to run the job: flags, a command that goes before it, and a file that it needs."""

    title: str
    flags: Callable[[], tuple[str, ...]] = tuple  # none
    before: tuple[str, ...] = ()
    on_gcs: bool = False
    needs: Callable[[], Path] | None = None


def _on_flink(parallelism: int) -> Engine:
    server = ("-m", "benchmarks.engine_servers", f"--parallelism={parallelism}", "--")
    title = f"Flink, parallelism {parallelism}"
    return Engine(title, before=(sys.executable, *server), needs=lambda: FLINK)


def _two_processes() -> tuple[str, ...]:
    return "--direct_num_workers=2", "--direct_running_mode=multi_processing"


ENGINES = {
    "memory": Engine("in-memory runner"),
    "memory-2": Engine("in-memory runner, 2 processes", _two_processes),
    "prism": Engine("Prism", prism_flags, needs=prism_binary),
    "flink-1": _on_flink(1),
    "flink-2": _on_flink(2),
    "memory-gcs": Engine(
        "in-memory runner, output on `gs://` (emulator)", on_gcs=True, needs=lambda: GCS_EMULATOR
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the bench; returns its exit code, 1 if a run failed."""
    return run_command(argv, _run, "stopped; the runs so far are kept")


def _run(argv: Sequence[str]) -> int:
    parser = runner.bench_parser("engines", "Runs the same job on every engine.")
    add = parser.add_argument
    add("--sizes", nargs="+", type=runner.number, default=[1_000_000, 10_000_000])
    runner.add_choices(parser, "--engines", [*ENGINES])
    add("--num_probes", type=int, default=5000)
    args = parser.parse_args(argv)
    bench = Bench("engines", args, {"num_probes": args.num_probes, "seed": args.seed})
    engines = [name for name in args.engines if bench.can_run({"engine": name}, _obstacle(name))]
    with ExitStack() as stack:
        endpoint = ""
        if any(ENGINES[name].on_gcs for name in engines):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gcs-")))
            endpoint = stack.enter_context(running_gcs_emulator(str(GCS_EMULATOR), folder))
            gcs_client(endpoint).create_bucket(_BUCKET)
        for name in engines:
            bench.warm_up(name, _measured(bench, name, WARM_UP_MEASUREMENTS, 0, endpoint, None))
        for size in args.sizes:
            expected = None
            for number, name in bench.rounds(engines):
                run = _measured(bench, name, size, number, endpoint, expected)
                expected = expected if run.error else run.details["dataset"]
                bench.keep(run)
    return bench.end(markdown(bench.results))


def _obstacle(name: str) -> str | None:
    needs = ENGINES[name].needs
    if needs is None or needs().exists():
        return None
    return f"{needs().name} is not there: make engines builds it"


def _measured(
    bench: Bench, name: str, size: int, number: int, endpoint: str, expected: str | None
) -> Run:
    """Runs the job on an engine; its dataset must have the digest that is expected."""
    data, engine = generated(bench, size), ENGINES[name]

    def command(folder: Path) -> list[str]:
        output = f"gs://{_BUCKET}/{folder.name}/rows" if engine.on_gcs else f"{folder}/rows"
        before = ["env", f"STORAGE_EMULATOR_HOST={endpoint}"] if engine.on_gcs else []
        job = runner.module_command(
            "benchmarks.counted_job", input=f"{data}/*.parquet", output=output
        )
        return [*before, *engine.before, *job, *engine.flags()]

    def check(folder: Path, printed: str) -> Found:
        if engine.on_gcs:
            _download(endpoint, folder)
        dataset = digest(folder / "rows")
        error = None
        if expected not in (None, dataset):
            error = "its dataset has other bytes than those of the runs before"
        figures = {"shuffled_mb": _shuffled_bytes(printed) / 1e6}
        return Found(figures, error, {"dataset": dataset})

    return bench.measured({"engine": name, "num_measurements": size}, number, command, check)


def _shuffled_bytes(printed: str) -> int:
    """Returns how many bytes of elements went into a GroupByKey or a stateful step."""
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    counted = json.loads(lines[-2])  # the last line counts requests to GCS
    return sum(counted[name] for name in _SHUFFLED if name in counted)


def _download(endpoint: str, folder: Path) -> None:
    """Moves the objects of a run to its folder."""
    for blob in list(gcs_client(endpoint).list_blobs(_BUCKET, prefix=folder.name)):
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


# --- the table ------------------------------------------------------------------------------------


def _title(case: dict) -> str:
    return ENGINES[case["engine"]].title


_COLUMNS: md.Columns = {
    "engine": lambda line: _title(line.case),
    "measurements": lambda line: md.millions(line.case["num_measurements"]),
    "wall s": md.figure("wall_s", "{:.1f}"),
    "CPU s": md.figure("cpu_s", "{:.1f}"),
    "peak MiB": md.figure("peak_mib"),
    "shuffled MB": md.figure("shuffled_mb", "{:,.1f}"),
}


def _notes(results: Results) -> list[str]:
    """Returns the circumstances, whether the bytes were the same, and what did not run."""
    lines = [
        md.circumstances(results),
        f"Simulated measurements of {results.options['num_probes']:,} probes, default options. "
        "CPU, wall and memory are of the whole process tree, start of Python, Prism and Java "
        "included; the emulator of GCS is not in it. Shuffled are the elements that go into a "
        "GroupByKey or the stateful cut; what they refer to stays on storage.",
    ]
    for size in sorted({run.case["num_measurements"] for run in results.runs}):
        runs = [run for run in results.runs if run.case["num_measurements"] == size]
        good = [run.details["dataset"] for run in runs if run.error is None]
        same = "the same bytes" if len({*good}) == 1 else "DIFFERENT BYTES"
        lines.append(f"At {md.millions(size)}, {len(good)} of {len(runs)} runs wrote {same}.")
    return [*lines, *md.shortfalls(results, _title, lambda case: "")]


def markdown(results: Results) -> str:
    """Returns the table, sizes ascending, and its notes."""
    lines = sorted(medians(results.runs), key=lambda line: line.case["num_measurements"])
    return "\n".join([md.table(_COLUMNS, md.rows(_COLUMNS, lines)), "", *_notes(results)])


if __name__ == "__main__":
    sys.exit(main())
