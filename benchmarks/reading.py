"""Bench: what reads a finished dataset of short histories, whose cost is by row.

    python -m benchmarks.reading --num_rows 200k --rounds 3

Makes a dataset of random probes with ten measurements each, one row per probe, and reads it back in
a process for each reader. A run counts only if the reader says that it had all measurements.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import run

from benchmarks import ROOT, runner
from benchmarks import markdown as md
from benchmarks.random_probes import write_measurements
from benchmarks.results import Results, Run, medians
from benchmarks.runner import Bench, Found, call_command, module_command

_PER_PROBE, _WARM_UP_ROWS = 10, 1000


def fill_cache(rows: str, folder: str) -> str:
    """Takes a batch with a column cache, which is filled before."""
    from training import DataConfig, build_dataset

    next(iter(build_dataset(DataConfig(f"{rows}/train", 8, crop_size=256, cache_dir=folder))))
    return "cached"


# The command of each reader, given the dataset and a folder, and what it prints of n measurements.
READERS: dict[str, tuple[Callable[[Path, Path], list[str]], str]] = {
    "`verify`": (
        lambda rows, _: [*module_command("beam_pipeline.verify"), str(rows)],
        "promise: {:,} measurements",
    ),
    "`export` to Parquet": (
        lambda rows, folder: [
            *module_command("beam_pipeline.export", output=folder / "pings.parquet"),
            str(rows),
        ],
        "{:,} measurements",
    ),
    "a dataset of it": (
        lambda rows, folder: module_command(
            "beam_pipeline.main", input=rows, input_format="probe_rows", output=folder / "rows"
        ),
        "{:,} measurements of",
    ),
    "the column cache": (
        lambda rows, folder: call_command("benchmarks.reading:fill_cache", rows, folder / "cache"),
        "cached",
    ),
}


def _dataset(bench: Bench, num_rows: int, encoding: str) -> Path:
    """Returns the dataset, made if it is missing."""
    folder = bench.args.data_dir / f"reading-{num_rows}-{encoding}-{bench.args.seed}"
    if not folder.exists():
        pings = bench.args.data_dir / f"reading-{num_rows}-{bench.args.seed}"
        if not pings.exists():
            with runner.appears_whole(pings) as being_made:
                write_measurements(being_made, num_rows * _PER_PROBE, num_rows, bench.args.seed)
        with runner.appears_whole(folder) as being_made:
            flags = {"input": pings / "*.parquet", "measurement_encoding": encoding}
            command = module_command("beam_pipeline.main", output=being_made, **flags)
            run(command, check=True, cwd=ROOT, capture_output=True)
    return folder


def _measured(bench: Bench, reader: str, num_rows: int, encoding: str, number: int) -> Run:
    command, said = READERS[reader]
    rows, wanted = _dataset(bench, num_rows, encoding), said.format(num_rows * _PER_PROBE)

    def check(_: Path, printed: str) -> Found:
        return Found({}, None if wanted in printed else f"it did not say {wanted}")

    case = {"reader": reader, "num_rows": num_rows, "encoding": encoding}
    return bench.measured(case, number, lambda folder: command(rows, folder), check)


def _run(argv: Sequence[str]) -> int:
    parser = runner.bench_parser("reading", "A dataset of short histories, read back.")
    parser.add_argument("--num_rows", type=runner.number, default=200_000)
    args = parser.parse_args(argv)
    bench = Bench("reading", args, {"measurements_per_probe": _PER_PROBE, "seed": args.seed})
    cases = [(reader, encoding) for encoding in ("arrow", "compact") for reader in READERS]
    for reader, encoding in cases:
        bench.warm_up(reader, _measured(bench, reader, _WARM_UP_ROWS, encoding, 0))
    for number, (reader, encoding) in bench.rounds(cases):
        bench.keep(_measured(bench, reader, args.num_rows, encoding, number))
    return bench.end(markdown(bench.results))


def markdown(results: Results) -> str:
    """Returns the table of some results."""
    columns: md.Columns = {
        "": lambda line: line.case["reader"],
        "rows": lambda line: md.size(line.case["num_rows"]),
        "encoding": lambda line: line.case["encoding"],
        **md.COSTS,
    }
    lines = medians(results.runs)
    notes = [md.circumstances(results), "Random probes of ten measurements, a row each."]
    return md.page([md.results_table(columns, lines, num_named=3)], notes)


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
