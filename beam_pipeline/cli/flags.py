"""Command lines: flags from a dataclass, with dashes or underscores, errors of one line.

A job's options are a dataclass whose fields are made by `flag`: name, default, help and whatever
argparse wants to know of each stand in one place. No Beam here.
"""

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, field
from typing import Any, NoReturn

from beam_pipeline.errors import UsageError


class OneLineParser(argparse.ArgumentParser):
    """The parser of `python -m module`: dashes or underscores in flags, errors are UsageErrors."""

    def __init__(self, module: str, description: str, epilog: str | None = None):
        super().__init__(
            prog=f"python -m {module}",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses a command line whose flags may be written with dashes."""
        return super().parse_known_args(normalise_flags(args or ()), namespace)

    def error(self, message: str) -> NoReturn:
        """Raises UsageError with argparse's message and the cure."""
        raise UsageError(f"{message}; --help lists the flags")


def normalise_flags(argv: Sequence[str]) -> list[str]:
    """Writes the names of flags with underscores: --num-shards=4 becomes --num_shards=4."""
    normalised = []
    for argument in argv:
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            name = "--" + name[2:].replace("-", "_")
        normalised.append(name + equals + value)
    return normalised


def flag(help_text: str, default: Any = MISSING, **argument: Any) -> Any:
    """Returns a field that is a flag; what follows the default goes to argparse."""
    return field(default=default, metadata={"help": help_text, **argument})


def job_parser(module: str, description: str, flags: Iterable[Field]) -> OneLineParser:
    """Returns the parser of a job's own flags; what it does not know is Beam's."""
    epilog = "All other flags go to Apache Beam, such as --runner=DataflowRunner."
    parser = OneLineParser(module, description, epilog)
    add_flags(parser, flags)
    return parser


def add_flags(parser: argparse.ArgumentParser, flags: Iterable[Field]) -> None:
    """Adds fields that `flag` made; one that may be given again and is not given is None."""
    for item in flags:
        argument = dict(item.metadata)
        help_text = argument.pop("help").replace("%", "%%")
        if item.default is MISSING:
            argument["required"] = True
        elif argument.get("action") == "append":
            help_text += f" Default: {item.default}."
        else:
            argument["default"] = item.default
            if "action" not in argument and item.default != "":
                help_text += f" Default: {item.default}."
        parser.add_argument(f"--{item.name}", help=help_text, **argument)


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raises UsageError unless the value of a flag is within its limits, both included."""
    if not low <= value <= high or math.isnan(value):
        raise UsageError(f"--{name}={value} is outside of {low} to {high}")
