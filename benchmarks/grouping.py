"""Bench: measurements in Parquet to probe rows in ArrayRecord, Probeline and its peers.

    python -m benchmarks.grouping --sizes 1m 10m --rounds 3
    python -m benchmarks.grouping --sizes 20m --measurements_per_probe 10 --contenders main duckdb

Data is generated once per size. Every round runs all contenders on it, each as a separate process,
and begins with a different one; a run counts only if its output has all measurements. An unmeasured
run of each contender on a small input first caches compiled code. All get the same ArrayRecord
options, arrow encoding, largest row and share of training probes. All runs, including failed ones,
and their medians go to results/.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import markdown as md
from benchmarks import runner
from benchmarks.results import Median, Results, Run, medians
from benchmarks.runner import WARM_UP_MEASUREMENTS, Bench, Found

MAX_ROW_SIZE_MB = 8
TRAIN_RATIO = 0.9
NUM_PROBES = 5000
DUCKDB = "duckdb"


class Contender(NamedTuple):
    """A contender: its title, module and flags."""

    title: str
    module: str
    flags: tuple[str, ...] = ()


CONTENDERS = {
    "main": Contender("Probeline, in-memory runner", "beam_pipeline.main"),
    "main-one": Contender("Probeline, one core", "beam_pipeline.main", ("--direct_num_workers=1",)),
    "main-defaults": Contender(
        "Probeline, with its default rows",
        "beam_pipeline.main",
        ("--measurement_encoding=compact", "--array_record_options=group_size:1,uncompressed"),
    ),
    DUCKDB: Contender("DuckDB, one ordered stream", "benchmarks.peers.duckdb_ordered"),
    "polars": Contender("Polars, sort in memory", "benchmarks.peers.polars_sorted"),
}


def command(name: str, source: Path, output: Path, args: argparse.Namespace) -> list[str]:
    module = CONTENDERS[name].module
    is_ours = module == "beam_pipeline.main"
    own = {"measurement_encoding": "arrow"} if is_ours else {"threads": args.threads}
    flags = runner.module_command(
        module,
        input=f"{source}/*.parquet",
        output=output,
        array_record_options=args.array_record_options,
        max_row_size_mb=MAX_ROW_SIZE_MB,
        train_ratio=TRAIN_RATIO,
        **own,
    )
    return [*flags, *CONTENDERS[name].flags]


def _run(argv: Sequence[str]) -> int:
    parser = runner.bench_parser("grouping", "Compares ways to group measurements by probe.")
    add = parser.add_argument
    add("--sizes", nargs="+", type=runner.number, default=[1_000_000, 10_000_000])
    runner.add_choices(parser, "--contenders", CONTENDERS)
    add("--num_probes", type=int, default=NUM_PROBES, help="of a simulated network")
    add("--measurements_per_probe", type=int, default=0, help="of random probes, in their place")
    add("--threads", type=int, default=os.cpu_count() or 1)
    add("--array_record_options", default="group_size:1,zstd:1")
    args = parser.parse_args(argv)
    given = ("num_probes", "measurements_per_probe", "seed", "threads", "array_record_options")
    options = {name: getattr(args, name) for name in given} | {
        "measurement_encoding": "arrow",
        "max_row_size_mb": MAX_ROW_SIZE_MB,
        "train_ratio": TRAIN_RATIO,
    }
    name = "histories" if args.measurements_per_probe else "grouping"
    bench = Bench(name, args, options)
    for name in args.contenders:
        bench.warm_up(name, _measured(bench, name, WARM_UP_MEASUREMENTS, 0))
    for size in args.sizes:
        for number, name in bench.rounds(args.contenders):
            bench.keep(_measured(bench, name, size, number))
    table = histories if args.measurements_per_probe else markdown
    return bench.end(table([bench.results]))


def _case(bench: Bench, name: str, size: int) -> dict[str, str | int]:
    case: dict[str, str | int] = {"contender": name, "num_measurements": size}
    if bench.args.measurements_per_probe:
        case["num_probes"] = size // bench.args.measurements_per_probe
    return case


def generated(bench: Bench, size: int) -> Path:
    """Returns a folder of `size` simulated measurements."""
    num_probes, seed = bench.args.num_probes, bench.args.seed
    folder = bench.args.data_dir / f"measurements-{size}-{num_probes}-{seed}"
    return runner.generated(folder, num_measurements=size, num_probes=num_probes, seed=seed)


def _of_random_probes(bench: Bench, size: int) -> Path:
    from benchmarks.random_probes import write_measurements

    num_probes, seed = size // bench.args.measurements_per_probe, bench.args.seed
    folder = bench.args.data_dir / f"random-{size}-{num_probes}-{seed}"
    if not folder.exists():
        with runner.appears_whole(folder) as being_made:
            write_measurements(being_made, size, num_probes, seed)
    return folder


def _measured(bench: Bench, name: str, size: int, number: int) -> Run:
    find = _of_random_probes if bench.args.measurements_per_probe else generated
    data = find(bench, size)

    def check(folder: Path, printed: str) -> Found:
        try:
            counted = runner.call("benchmarks.check:count", folder / "rows")
        except RuntimeError as error:
            return Found({}, f"the output cannot be read: {error}")
        files = (path for path in (folder / "rows").rglob("*") if path.is_file())
        figures = {"output_mib": sum(path.stat().st_size for path in files) / 2**20}
        return Found(figures, fault(counted, size), {"output": counted})

    return bench.measured(
        _case(bench, name, size),
        number,
        lambda folder: command(name, data, folder / "rows", bench.args),
        check,
    )


def fault(counted: dict[str, int], size: int) -> str | None:
    """Returns the fault of an output counted by benchmarks.check, or None."""
    if counted["measurements"] != size:
        return f"the output holds {counted['measurements']:,} measurements, not {size:,}"
    if counted["largest_record"] > MAX_ROW_SIZE_MB * 2**20:
        return f"a record takes {counted['largest_record']:,} bytes, over {MAX_ROW_SIZE_MB} MiB"
    return None


# --- the table ------------------------------------------------------------------------------------


def _title(case: dict) -> str:
    return CONTENDERS[case["contender"]].title


def _size(line: Median) -> int:
    return line.case["num_measurements"]


def rate(line: Median) -> float:
    """Returns M measurements per CPU-second."""
    return line.case["num_measurements"] / line.figures["cpu_s"] / 1e6


def markdown(day: Sequence[Results]) -> str:
    """Returns one table of a day's results of the usual number of probes, with notes."""
    usual = [results for results in day if results.options["num_probes"] == NUM_PROBES]
    day = usual or day
    lines = [line for results in day for line in medians(results.runs)]
    lines.sort(key=lambda line: (_size(line), line.figures.get("cpu_s", 1e99)))
    of_duckdb = {
        _size(line): rate(line)
        for line in lines
        if line.case["contender"] == DUCKDB and line.figures
    }

    def ratio(line: Median) -> str:
        other = of_duckdb.get(_size(line))
        return f"{rate(line) / other:.2f}" if other else ""

    columns: md.Columns = {
        "contender": lambda line: _title(line.case),
        "measurements": lambda line: md.size(line.case["num_measurements"]),
        "M measurements per CPU-second": lambda line: f"{rate(line):.2f}",
        **md.COSTS,
        "ratio to DuckDB": ratio,
    }
    options = day[-1].options
    at = lambda case: f"at {md.size(case['num_measurements'])}"  # noqa: E731
    notes = [
        md.circumstances(day[0]),
        f"Simulated measurements of {options['num_probes']:,} probes; all write arrow-encoded "
        f"records of at most {options['max_row_size_mb']} MiB with ArrayRecord options "
        f"`{options['array_record_options']}`; the engines of the peers have "
        f"{options['threads']} threads. CPU, wall and memory are of the whole process tree, "
        "start of the interpreter included.",
        "The peers do less, which favours them: they do not check or canonicalise addresses, "
        "write no manifest or row index, and one file per split.",
        *(line for results in day for line in md.shortfalls(results, _title, at)),
    ]
    return md.page([md.results_table(columns, lines, num_named=3)], notes)


def histories(day: Sequence[Results]) -> str:
    """Returns one table of a day's runs on random probes."""
    lines = medians([run for results in day for run in results.runs])
    lines.sort(key=lambda line: (_size(line), line.case["num_probes"], line.case["contender"]))
    columns: md.Columns = {
        "contender": lambda line: _title(line.case),
        "measurements": lambda line: md.size(line.case["num_measurements"]),
        "probes": lambda line: f"{line.case['num_probes']:,}",
        **md.COSTS,
        "output MiB": md.figure("output_mib"),
        "runs": lambda line: str(line.num_runs),
    }
    at = lambda case: f"at {md.size(case['num_measurements'])}"  # noqa: E731
    notes = [
        f"{day[-1].date[:10]}, {md.machine(day[-1])}; medians.",
        *(line for results in day for line in md.shortfalls(results, _title, at)),
    ]
    return md.page([md.results_table(columns, lines, num_named=3)], notes)


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
