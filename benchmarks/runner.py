"""The frame of every bench: flags, interleaved rounds, a process tree for each run, results.

bench = Bench("grouping", args, {"num_probes": 5000})
for number, case in bench.rounds(cases):
    bench.keep(bench.measured(case, number, command, check))
return bench.end(table)
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.errors import UsageError
from beam_pipeline.report.terminal import new_console
from benchmarks import ROOT, results
from benchmarks.measure import last_line, measure
from benchmarks.results import Results, Run

WARM_UP_MEASUREMENTS = 20_000
FIGURES = "figures.json"  # of a process that measures itself: {name: figure} or {"error": reason}
_SHOWN = {"cpu_s": "CPU s", "wall_s": "wall s", "peak_mib": "MiB"}
_CALL = (
    "import importlib, json, sys; module, name, *arguments = json.loads(sys.argv[1]); "
    "print(json.dumps(getattr(importlib.import_module(module), name)(*arguments)))"
)


class Found(NamedTuple):
    """The result of checking a run: figures, the error that disqualifies it, and details."""

    figures: dict[str, float]
    error: str | None = None
    details: dict[str, Any] = {}  # noqa: RUF012


def program(run: Callable[[Sequence[str]], int]) -> Callable[..., int]:
    """Returns the `main` of a bench, given its function of the command line."""

    def main(argv: Sequence[str] | None = None) -> int:
        return run_command(argv, run, "stopped; the runs so far are kept")

    return main


def bench_parser(name: str, description: str, rounds: int = 3) -> OneLineParser:
    """Returns a parser with the flags common to all benches."""
    parser = OneLineParser(f"benchmarks.{name}", description)
    add = parser.add_argument
    add("--rounds", type=int, default=rounds)
    add("--seed", type=int, default=1, help="of the data")
    add("--data_dir", type=Path, default=ROOT / "build" / "benchmarks", help="data and outputs")
    add("--results", type=Path, default=results.FOLDER)
    return parser


def add_choices(
    parser: argparse.ArgumentParser,
    flag: str,
    names: Iterable[str],
    default: Iterable[str] = (),
    more_help: str = "",
) -> None:
    """Adds a flag that takes some of these names, by default all."""
    choices = [*names]
    parser.add_argument(
        flag, nargs="+", choices=choices, default=[*default] or choices, metavar="NAME",
        help=f"of {', '.join(choices)}{more_help}",
    )  # fmt: skip


def number(text: str) -> int:
    """Parses a number such as 50k, 1m or 100m."""
    digits, factor = text.lower(), 1
    if digits[-1:] in ("k", "m"):
        digits, factor = digits[:-1], {"k": 1000, "m": 1_000_000}[digits[-1]]
    if not digits.isdecimal():
        raise UsageError(f"{text!r} is not a number such as 50k, 1m or 100m")
    return int(digits) * factor


def module_command(module: str, **flags: Any) -> list[str]:
    """Returns the command line that runs a module; a flag without a value is omitted."""
    given = [f"--{name}={value}" for name, value in flags.items() if value not in (None, "")]
    return [sys.executable, "-m", module, *given]


def call_command(function: str, *arguments: Any) -> list[str]:
    """Returns the command line that calls a function and prints its value as JSON.

    Args:
      function: module and name, such as `benchmarks.check:count`.
      arguments: passed as JSON, paths as text.
    """
    question = json.dumps([*function.split(":"), *arguments], default=str)
    return [sys.executable, "-c", _CALL, question]


def call(function: str, *arguments: Any) -> Any:
    """Calls a function in a new process and returns its value; see `call_command`.

    RuntimeError, with the last printed line, if it failed.
    """
    command = call_command(function, *arguments)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{function} failed: {last_line(done.stderr)}")
    return json.loads(last_line(done.stdout))


def json_lines(printed: str) -> list[dict[str, Any]]:
    """Returns the JSON objects, one per line, among a process's output."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


@contextmanager
def appears_whole(path: Path) -> Iterator[Path]:
    """Yields a path to write to, renamed to `path` if the block succeeds."""
    being_made = path.with_name(f"tmp-{path.name}")
    shutil.rmtree(being_made, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    yield being_made
    being_made.rename(path)


def generated(folder: Path, **flags: Any) -> Path:
    """Returns a folder of simulated measurements in the page cache, generated if missing."""
    if not folder.exists():
        with appears_whole(folder) as being_made:
            command = module_command("beam_pipeline.generate", output=being_made, **flags)
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    read_all(folder.glob("*.parquet"))
    return folder


def read_all(paths: Iterable[Path]) -> None:
    """Reads files into the page cache, so that the first run finds them as the last does."""
    for path in paths:
        with open(path, "rb") as file:
            while file.read(1 << 20):
                pass


class Bench:
    """A running bench: its results, saved after every run, and its console."""

    def __init__(
        self,
        name: str,
        args: argparse.Namespace,
        options: dict[str, Any],
        versions: dict[str, str] | None = None,
    ):
        args.data_dir = args.data_dir.absolute()  # commands run in the repository's root
        args.data_dir.mkdir(parents=True, exist_ok=True)
        self.args, self.console = args, new_console()
        self.results = Results(
            bench=name,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            options={"rounds": args.rounds, **options},
            versions=versions or results.versions(),
        )
        self._path = results.path_for(self.results, args.results)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def can_run(self, case: dict[str, Any], reason: str | None) -> bool:
        """Returns whether a case can run; records a reason against it in the results."""
        if reason:
            self.results.skipped.append({**case, "reason": reason})
        return not reason

    def rounds[Case](self, cases: Sequence[Case]) -> Iterator[tuple[int, Case]]:
        """Yields (round, case); each round begins with a different case."""
        for number in range(self.args.rounds):
            turn = number * len(cases) // self.args.rounds
            for case in [*cases[turn:], *cases[:turn]]:
                yield number, case

    def measured(
        self,
        case: dict[str, Any],
        number: int,
        command: Callable[[Path], list[str]],
        check: Callable[[Path, str], Found],
        log_path: Path | None = None,
    ) -> Run:
        """Runs a command as a separate process tree and checks it.

        Args:
          case: the run's parameters, for the results.
          number: of the round.
          command: returns the command line, given a folder that is removed afterwards.
          check: checks the outcome of a successful run, given the folder and the output.
          log_path: where to keep the output; None discards it.

        Returns:
          The run for the results: figures rounded, folders of this machine removed.
        """
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="run-", dir=self.args.data_dir) as name:
            folder = Path(name)
            path = log_path or folder / "log"
            with open(path, "w+", encoding="utf-8", errors="replace") as log:
                usage = measure(command(folder), log, cwd=ROOT)
                log.seek(0)
                printed = log.read()
            if usage.exit_code:
                reason = _told(folder) or last_line(printed)
                found = Found({}, f"exit code {usage.exit_code}: {reason}")
            else:
                found = check(folder, printed)
        taken = {name: getattr(usage, name) for name in ("wall_s", "cpu_s", "peak_mib")}
        figures = {
            name: value if isinstance(value, int) else float(f"{value:.6g}")
            for name, value in (taken | found.figures).items()
        }
        error = found.error
        if error:
            error = error.replace(str(self.args.data_dir), "DATA").replace(str(ROOT), "ROOT")
        return Run(case, figures, error, number, round(load, 2), found.details)

    def keep(self, run: Run, shown: dict[str, str] = _SHOWN) -> None:
        """Adds a run to the results, saves them in case the bench is interrupted, and prints it."""
        self.results.runs.append(run)
        results.save(self.results, self._path)
        case = " ".join(f"{name}={value}" for name, value in run.case.items() if value)
        figures = [f"{run.figures[n]:,.2f} {u}" for n, u in shown.items() if n in run.figures]
        failed = [f"FAILED: {run.error}"] if run.error else []
        self.say("  ".join([f"round {run.round}", case, *figures, *failed]))

    def warm_up(self, name: str, run: Run) -> None:
        """Reports a failed unmeasured run."""
        if run.error:
            self.say(f"warm-up of {name} failed: {run.error}")

    def end(self, table: str = "") -> int:
        """Prints the table and the path of the results; returns 1 if a run failed, else 0."""
        if table:
            self.say(table)
        show = f"; python -m benchmarks.table --bench={self.results.bench} puts it into the docs"
        self.say(f"written to {self._path.name}{show}")
        return 1 if any(run.error for run in self.results.runs) else 0


def _told(folder: Path) -> str | None:
    """Returns the error that a process left in FIGURES, since its last output may hide it."""
    path = folder / FIGURES
    return json.loads(path.read_text()).get("error") if path.exists() else None
