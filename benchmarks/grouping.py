"""Bench: measurements in Parquet to probe rows in ArrayRecord, Probeline beside its peers.

    python -m benchmarks.grouping --sizes 1m 10m --rounds 3

Data is generated once a size. Every round runs all contenders on it, each as a process of its
own, and begins with another one; a run counts only if its output holds all measurements. Before
the first round each contender runs once on a small input, unmeasured, so that compiled code is
cached. All runs, also those that failed, and their medians go to results/.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from beam_pipeline.cli.command import run_command
from benchmarks import markdown as md
from benchmarks import runner
from benchmarks.contenders import CONTENDERS, DUCKDB, MAX_ROW_SIZE_MB, TRAIN_RATIO, Job
from benchmarks.results import Results, Run, medians
from benchmarks.runner import WARM_UP_MEASUREMENTS, Bench, Found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the bench; returns its exit code, 1 if a run failed."""
    return run_command(argv, _run, "stopped; the runs so far are kept")


def _run(argv: Sequence[str]) -> int:
    parser = runner.bench_parser("grouping", "Compares ways to group measurements by probe.")
    add = parser.add_argument
    add("--sizes", nargs="+", type=runner.number, default=[1_000_000, 10_000_000])
    runner.add_choices(parser, "--contenders", [*CONTENDERS])
    add("--num_probes", type=int, default=5000)
    add("--threads", type=int, default=os.cpu_count() or 1)
    add("--array_record_options", default="group_size:1,zstd:1")
    args = parser.parse_args(argv)
    options = ("num_probes", "seed", "threads", "array_record_options")
    bench = Bench(
        "grouping",
        args,
        {name: getattr(args, name) for name in options}
        | {
            "measurement_encoding": "arrow",
            "max_row_size_mb": MAX_ROW_SIZE_MB,
            "train_ratio": TRAIN_RATIO,
        },
    )
    for name in args.contenders:
        if CONTENDERS[name].obstacle() is None:
            bench.warm_up(name, _measured(bench, name, WARM_UP_MEASUREMENTS, 0))
    for size in args.sizes:
        for number, name in bench.rounds([n for n in args.contenders if _can_run(bench, n, size)]):
            bench.keep(_measured(bench, name, size, number))
    return bench.end(markdown(bench.results))


def _can_run(bench: Bench, name: str, size: int) -> bool:
    contender = CONTENDERS[name]
    reason = contender.obstacle()
    if contender.max_measurements is not None and size > contender.max_measurements:
        reason = f"left out above {contender.max_measurements:,} measurements: too slow"
    return bench.can_run({"contender": name, "num_measurements": size}, reason)


def generated(bench: Bench, size: int) -> Path:
    """Returns the folder of so many measurements."""
    num_probes, seed = bench.args.num_probes, bench.args.seed
    folder = bench.args.data_dir / f"measurements-{size}-{num_probes}-{seed}"
    return runner.generated(folder, num_measurements=size, num_probes=num_probes, seed=seed)


def _measured(bench: Bench, name: str, size: int, number: int) -> Run:
    data, args = generated(bench, size), bench.args

    def command(folder: Path) -> list[str]:
        job = Job(f"{data}/*.parquet", folder / "rows", args.threads, args.array_record_options)
        return CONTENDERS[name].command(job)

    def check(folder: Path, printed: str) -> Found:
        try:
            counted = runner.call("benchmarks.check:count", folder / "rows")
        except RuntimeError as error:
            return Found({}, f"the output cannot be read: {error}")
        return Found({}, fault(counted, size), {"output": counted})

    return bench.measured({"contender": name, "num_measurements": size}, number, command, check)


def fault(counted: dict[str, int], size: int) -> str | None:
    """Returns what is wrong with an output that benchmarks.check has counted, or None."""
    if counted["measurements"] != size:
        return f"the output holds {counted['measurements']:,} measurements, not {size:,}"
    if counted["largest_record"] > MAX_ROW_SIZE_MB * 2**20:
        return f"a record takes {counted['largest_record']:,} bytes, over {MAX_ROW_SIZE_MB} MiB"
    return None


# --- the table ------------------------------------------------------------------------------------


def _title(case: dict) -> str:
    name = case["contender"]
    return CONTENDERS[name].title if name in CONTENDERS else name


def rows(results: Results) -> tuple[md.Columns, list[list[str]]]:
    """Returns columns and cells, a row a contender and size; sizes ascending, fastest first."""
    lines = medians(results.runs)
    lines.sort(key=lambda line: (line.case["num_measurements"], line.figures.get("cpu_s", 1e99)))
    duckdb = {
        line.case["num_measurements"]: line.figures["cpu_s"]
        for line in lines
        if line.case["contender"] == DUCKDB and line.figures
    }

    def rate(line) -> str:
        return f"{line.case['num_measurements'] / line.figures['cpu_s'] / 1e6:.2f}"

    def ratio(line) -> str:
        other = duckdb.get(line.case["num_measurements"])
        return f"{other / line.figures['cpu_s']:.2f}" if other else ""

    columns: md.Columns = {
        "contender": lambda line: _title(line.case),
        "measurements": lambda line: md.millions(line.case["num_measurements"]),
        "M measurements per CPU-second": rate,
        "wall s": md.figure("wall_s", "{:.1f}"),
        "CPU s": md.figure("cpu_s", "{:.1f}"),
        "peak MiB": md.figure("peak_mib"),
        "ratio to DuckDB": ratio,
    }
    return columns, md.rows(columns, lines)


def notes(results: Results) -> list[str]:
    """Returns what a reader must know to judge the table, a sentence each."""
    options = results.options
    return [
        md.circumstances(results),
        f"Simulated measurements of {options['num_probes']:,} probes; all write arrow-encoded "
        f"records of at most {options['max_row_size_mb']} MiB with ArrayRecord options "
        f"`{options['array_record_options']}`; the engines of the peers have "
        f"{options['threads']} threads. CPU, wall and memory are of the whole process tree, "
        "start of the interpreter included.",
        "The peers do less, which favours them: they do not check or canonicalise addresses, "
        "write no manifest or row index, and one file a split.",
        *md.shortfalls(results, _title, lambda case: f"at {md.millions(case['num_measurements'])}"),
    ]


def markdown(results: Results) -> str:
    """Returns the table and its notes."""
    return "\n".join([md.table(*rows(results)), "", *notes(results)])


if __name__ == "__main__":
    sys.exit(main())
