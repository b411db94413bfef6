"""The command `probeline`: each program of the project as a subcommand.

  probeline rows --input 'data/*.parquet' --output rows

is `python -m beam_pipeline.main --input …` with a shorter name, also in usage and messages. Only
the requested program is imported.
"""

import argparse
import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from beam_pipeline.cli.command import run_command, tidy_up_on_signals
from beam_pipeline.cli.flags import COMMAND, OneLineParser
from beam_pipeline.errors import UsageError, printable


class Program(NamedTuple):
    """A subcommand: a module with `make_parser` and `main`, and its summary."""

    module: str
    summary: str
    tidies_up: bool = False  # SIGTERM removes temporary files, as Ctrl-C does


PROGRAMS = {
    "generate": Program("beam_pipeline.generate", "simulate ping measurements"),
    "rows": Program("beam_pipeline.main", "turn measurements into a dataset", tidies_up=True),
    "convert": Program(
        "beam_pipeline.convert.__main__",
        "write JSON lines, Parquet or TFRecord as ArrayRecord",
        tidies_up=True,
    ),
    "verify": Program("beam_pipeline.verify.__main__", "check every byte of a dataset"),
    "inspect": Program("beam_pipeline.inspect.__main__", "show what is in a dataset"),
    "export": Program(
        "beam_pipeline.export.__main__",
        "write the measurements of a dataset as Parquet or CSV",
        tidies_up=True,
    ),
    "padding": Program("training.analyze_padding", "measure padding and sampling of a dataset"),
    "train": Program("training.train", "train a model on a dataset with MaxText"),
    "evaluate": Program("training.evaluate", "evaluate a trained model"),
    "overlap": Program(
        "beam_pipeline.overlap.__main__",
        "find n-grams that evaluation sets share with training text",
        tidies_up=True,
    ),
    "remove": Program(
        "beam_pipeline.overlap.remove",
        "write training text without the overlap that was found",
        tidies_up=True,
    ),
    "attributes": Program(
        "beam_pipeline.overlap.attributes",
        "write the overlap of each training document as attributes",
        tidies_up=True,
    ),
    "report": Program("beam_pipeline.overlap.report.__main__", "write the report of an overlap"),
    "warm": Program("beam_pipeline.warm", "compile kernels before the first run", tidies_up=True),
    "completion": Program("beam_pipeline.cli.completion", "complete commands with the Tab key"),
}


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command; arguments of a subcommand stay unparsed."""
    width = max(map(len, PROGRAMS))
    commands = "\n".join(f"  {name:{width}}  {each.summary}" for name, each in PROGRAMS.items())
    parser = OneLineParser(
        "beam_pipeline.cli.probeline",
        f"Ping measurements to probe rows, and a transformer to train on them.\n\n{commands}",
        "rows --input 'data/*.parquet' --output rows",
        f"{COMMAND} COMMAND --help shows the flags of a command.",
        name=COMMAND,
    )
    parser.add_argument("command", metavar="COMMAND", choices=PROGRAMS, help="one of these")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="its arguments")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped")


def _run(argv: Sequence[str]) -> int:
    parser = make_parser()
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    if argv[0] == "help":
        argv = [*argv[1:2], "--help"]
    if argv[0] not in PROGRAMS and not argv[0].startswith("-"):
        near = difflib.get_close_matches(argv[0].lower(), PROGRAMS, n=1)
        cure = f"did you mean {near[0]}?" if near else f"{COMMAND} --help lists them"
        raise UsageError(f"there is no command {printable(argv[0])}: {cure}")
    command = parser.parse_args(argv[:1]).command
    program = PROGRAMS[command]
    if program.tidies_up:
        tidy_up_on_signals()
    sys.argv = [f"{COMMAND} {command}", *argv[1:]]  # names the parsers
    return importlib.import_module(program.module).main()


if __name__ == "__main__":
    sys.exit(main())
