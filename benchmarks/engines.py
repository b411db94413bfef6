"""Bench: the same job on every engine for a single machine, and with its output on GCS.

    python -m benchmarks.engines --sizes 1m 10m --rounds 3

Every run is a separate process tree, measured from start to end, including Prism or the job server
with its Flink, but not the GCS emulator. All datasets of a size must have the same bytes, or the
run counts as failed. All runs and their medians go to results/.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import markdown as md
from benchmarks import runner
from benchmarks.engine_servers import (
    FLINK,
    GCS_EMULATOR,
    gcs_client,
    prism_binary,
    prism_flags,
    running_gcs_emulator,
)
from benchmarks.grouping import generated
from benchmarks.results import Results, Run, medians
from benchmarks.runner import WARM_UP_MEASUREMENTS, Bench, Found

_BUCKET = "bench"
_SHUFFLED = ("grouped_by_probe_bytes", "cut_bytes", "grouped_by_shard_bytes")


@dataclass(frozen=True)
class Engine:
    """A way to run the job: flags, a command prefix, and a required file."""

    title: str
    flags: Callable[[], tuple[str, ...]] = tuple  # none
    before: tuple[str, ...] = ()
    on_gcs: bool = False
    needs: Callable[[], Path] | None = None


def _on_flink(parallelism: int) -> Engine:
    server = ("-m", "benchmarks.engine_servers", f"--parallelism={parallelism}", "--")
    title = f"Flink, parallelism {parallelism}"
    return Engine(title, before=(sys.executable, *server), needs=lambda: FLINK)


ENGINES = {
    "memory": Engine("in-memory runner"),
    "memory-1": Engine("in-memory runner, one core", lambda: ("--direct_num_workers=1",)),
    "prism": Engine("Prism", prism_flags, needs=prism_binary),
    "flink-1": _on_flink(1),
    "flink-2": _on_flink(2),
    "memory-gcs": Engine(
        "in-memory runner, output on `gs://` (emulator)", on_gcs=True, needs=lambda: GCS_EMULATOR
    ),
}


def obstacle(name: str) -> str | None:
    """Returns the reason why the job cannot run on an engine here, or None."""
    needs = ENGINES[name].needs
    if needs is None or needs().exists():
        return None
    return f"{needs().name} is not there: make engines builds it"


def job_command(name: str, endpoint: str, **flags: Any) -> list[str]:
    """Returns the command line of counted_job on an engine."""
    engine = ENGINES[name]
    before = ["env", f"STORAGE_EMULATOR_HOST={endpoint}"] if engine.on_gcs else []
    job = runner.module_command("benchmarks.counted_job", **flags)
    return [*before, *engine.before, *job, *engine.flags()]


def _run(argv: Sequence[str]) -> int:
    parser = runner.bench_parser("engines", "Runs the same job on every engine.")
    add = parser.add_argument
    add("--sizes", nargs="+", type=runner.number, default=[1_000_000, 10_000_000])
    runner.add_choices(parser, "--engines", ENGINES)
    add("--num_probes", type=int, default=5000)
    args = parser.parse_args(argv)
    bench = Bench("engines", args, {"num_probes": args.num_probes, "seed": args.seed})
    engines = [name for name in args.engines if bench.can_run({"engine": name}, obstacle(name))]
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


def _measured(
    bench: Bench, name: str, size: int, number: int, endpoint: str, expected: str | None
) -> Run:
    """Runs the job on an engine; its dataset must have the expected digest."""
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # for equal manifests
    data, on_gcs = generated(bench, size), ENGINES[name].on_gcs

    def command(folder: Path) -> list[str]:
        output = f"gs://{_BUCKET}/{folder.name}/rows" if on_gcs else folder / "rows"
        return job_command(name, endpoint, input=f"{data}/*.parquet", output=output)

    def check(folder: Path, printed: str) -> Found:
        if on_gcs:
            _download(endpoint, folder)
        dataset = digest(folder / "rows")
        error = None
        if expected not in (None, dataset):
            error = "its dataset has other bytes than those of the runs before"
        counters = runner.json_lines(printed)[-2]
        figures = {"shuffled_mb": sum(counters.get(count, 0) for count in _SHUFFLED) / 1e6}
        return Found(figures, error, {"dataset": dataset})

    return bench.measured({"engine": name, "num_measurements": size}, number, command, check)


def _download(endpoint: str, folder: Path) -> None:
    """Moves the objects of a run to its folder."""
    for blob in list(gcs_client(endpoint).list_blobs(_BUCKET, prefix=folder.name)):
        path = folder.parent / blob.name
        path.parent.mkdir(parents=True, exist_ok=True)
        blob.download_to_filename(str(path))
        blob.delete()


def digest(folder: Path) -> str:
    """Returns a digest of the names and bytes of all files below a folder."""
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
    "measurements": lambda line: md.size(line.case["num_measurements"]),
    **md.COSTS,
    "shuffled MB": md.figure("shuffled_mb", "{:,.1f}"),
}


def markdown(results: Results) -> str:
    """Returns the table of the largest size, with notes on what was measured and did not run."""
    notes = [
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
        notes.append(f"At {md.size(size)}, {len(good)} of {len(runs)} runs wrote {same}.")
    notes += md.shortfalls(results, _title, lambda case: "")
    largest = max(run.case["num_measurements"] for run in results.runs)
    lines = [line for line in medians(results.runs) if line.case["num_measurements"] == largest]
    return md.page([md.results_table(_COLUMNS, lines)], notes)


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
