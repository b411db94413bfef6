"""Bench: appending a day to a finished dataset, and the whole job over both.

    python -m benchmarks.growing --base 10m --days 1m 10m --rounds 3

Data is generated once for each size of a day, in files of a million measurements in time order; the
base dataset is written once, unmeasured. A run of `--append` starts with a copy of it. All runs use
the job's defaults, and count only if the output has all measurements.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import ROOT, runner
from benchmarks import markdown as md
from benchmarks.results import Results, Run, medians
from benchmarks.runner import WARM_UP_MEASUREMENTS, Bench, Found

_FILE_MEASUREMENTS = 1_000_000


class Contender(NamedTuple):
    """A way to a dataset of all days."""

    title: str
    flags: tuple[str, ...] = ()  # of the dataset and of the run
    appends: bool = False


CONTENDERS = {
    "append": Contender("`--append` of the day", appends=True),
    "append-drop": Contender(
        "`--append` of the day, `--duplicates=drop`", ("--duplicates=drop",), True
    ),
    "whole": Contender("the whole job over both"),
}


class Growth(NamedTuple):
    """The measurements of the base dataset and of the day."""

    base: int
    day: int


def _files(bench: Bench, growth: Growth) -> tuple[list[Path], list[Path]]:
    """Returns the files of the base and of the day, generated if missing."""
    total, options = sum(growth), bench.args
    folder = options.data_dir / f"growing-{total}-{options.num_probes}-{options.seed}"
    size = min(_FILE_MEASUREMENTS, *growth)
    runner.generated(
        folder,
        num_measurements=total,
        num_probes=options.num_probes,
        seed=options.seed,
        num_files=total // size,
    )
    files = sorted(folder.glob("*.parquet"))
    return files[: growth.base // size], files[growth.base // size :]


def _job(files: Sequence[Path], output: Path, *flags: str) -> list[str]:
    inputs = [f"--input={path}" for path in files]
    return [*runner.module_command("beam_pipeline.main", output=output), *inputs, *flags]


def _base(bench: Bench, growth: Growth, contender: Contender) -> Path:
    """Returns the finished base dataset, written if missing."""
    options = bench.args
    name = "-".join(["base", *map(str, growth), *contender.flags, str(options.num_probes)])
    folder = options.data_dir / f"{name}-{options.seed}"
    if not folder.exists():
        with runner.appears_whole(folder) as being_made:
            files, _ = _files(bench, growth)
            command = _job(files, being_made, *contender.flags)
            subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return folder


def _measured(bench: Bench, name: str, growth: Growth, number: int) -> Run:
    contender = CONTENDERS[name]
    old, new = _files(bench, growth)
    base = _base(bench, growth, contender) if contender.appends else None

    def command(folder: Path) -> list[str]:
        if base is None:
            return _job([*old, *new], folder / "rows", *contender.flags)
        shutil.copytree(base, folder / "rows")
        return _job(new, folder / "rows", "--append")

    def check(folder: Path, printed: str) -> Found:
        counted = runner.call("benchmarks.check:count", folder / "rows")
        found = counted["measurements"]
        error = None if found == sum(growth) else f"the output holds {found:,} measurements"
        return Found({}, error, {"output": counted})

    return bench.measured(_case(name, growth), number, command, check)


def _case(name: str, growth: Growth) -> dict[str, str | int]:
    return {"contender": name, **growth._asdict()}


def _run(argv: Sequence[str]) -> int:
    parser = runner.bench_parser("growing", "A day added to a dataset, beside the whole job.")
    parser.add_argument("--base", type=runner.number, default=10_000_000)
    parser.add_argument("--days", nargs="+", type=runner.number, default=[1_000_000, 10_000_000])
    parser.add_argument("--num_probes", type=int, default=3000)
    runner.add_choices(parser, "--contenders", CONTENDERS)
    args: argparse.Namespace = parser.parse_args(argv)
    bench = Bench("growing", args, {"num_probes": args.num_probes, "seed": args.seed})
    small = Growth(WARM_UP_MEASUREMENTS, WARM_UP_MEASUREMENTS)
    for name in args.contenders:
        bench.warm_up(name, _measured(bench, name, small, 0))
    for day in args.days:
        for number, name in bench.rounds(args.contenders):
            bench.keep(_measured(bench, name, Growth(args.base, day), number))
    return bench.end(markdown([bench.results]))


def markdown(day: Sequence[Results]) -> str:
    """Returns the table of a day's results, with notes."""
    lines = medians([run for results in day for run in results.runs])
    columns: md.Columns = {
        "": lambda line: CONTENDERS[line.case["contender"]].title,
        "in the dataset": lambda line: md.size(line.case["base"]),
        "added": lambda line: md.size(line.case["day"]),
        **md.COSTS,
    }
    newest = day[-1]
    notes = [
        md.circumstances(newest),
        f"Simulated measurements of {newest.options['num_probes']:,} probes, compact rows. CPU, "
        "wall and memory are of the whole process tree, start of the interpreter included.",
        *md.shortfalls(
            newest,
            lambda case: CONTENDERS[case["contender"]].title,
            lambda case: f"at {md.size(case['day'])}",
        ),
    ]
    return md.page([md.results_table(columns, lines, num_named=3)], notes)


main = runner.program(_run)

if __name__ == "__main__":
    sys.exit(main())
