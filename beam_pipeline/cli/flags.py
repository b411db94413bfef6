"""Command lines: flags from dataclass fields, with dashes or underscores, one-line errors.

A job's options are a dataclass whose fields are made by `flag`, so that the name, default, help
and argparse settings of each flag are in one place.

    @dataclass(frozen=True)
    class Options:
        output: str = flag("Folder of the dataset.")
        num_shards: int = flag("Shards per split.", 0, limits=(0, 99_999))

    options = Options(**vars(job_parser(module, description, fields(Options)).parse_args(argv)))
"""

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, field, fields
from typing import Any, NoReturn

from beam_pipeline.errors import UsageError


class OneLineParser(argparse.ArgumentParser):
    """The parser of `python -m module`: dashes or underscores in flags, errors are UsageErrors.

    Attributes:
      flags: every flag, as argparse describes it.
      repeatable: the names of flags that may be given several times.
    """

    def __init__(self, module: str, description: str, epilog: str | None = None, **settings: Any):
        self.flags: list[argparse.Action] = []
        self.repeatable: set[str] = set()
        super().__init__(
            f"python -m {module}",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            **settings,
        )

    def add_argument(self, *names: str, **argument: Any) -> argparse.Action:
        """Adds a flag, as argparse does."""
        action = super().add_argument(*names, **argument)
        self.flags.append(action)
        if argument.get("action") == "append":
            self.repeatable.update(names)
        return action

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses a command line whose flags may be written with dashes."""
        return super().parse_known_args(normalise_flags(args or ()), namespace)

    def error(self, message: str) -> NoReturn:
        """Raises UsageError with argparse's message and the cure."""
        raise UsageError(f"{message}; --help lists the flags")


def normalise_flags(argv: Sequence[str]) -> list[str]:
    """Spells the names of flags with underscores: --num-shards=4 becomes --num_shards=4."""
    normalised = []
    for argument in argv:
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            name = "--" + name[2:].replace("-", "_")
        normalised.append(name + equals + value)
    return normalised


def flag(
    help_text: str,
    default: Any = MISSING,
    limits: tuple[float, float | None] | None = None,
    **argument: Any,
) -> Any:
    """Returns a dataclass field that is a flag; without a default the flag is required.

    Args:
      help_text: the help, without the default, which is appended.
      default: the default.
      limits: the smallest and the largest value, None for no largest; see `check_limits`.
      argument: further arguments of `argparse.ArgumentParser.add_argument`, such as `choices`; the
        type of a number is that of the field.
    """
    return field(default=default, metadata={"help": help_text, "limits": limits, **argument})


def job_parser(module: str, description: str, flags: Iterable[Field]) -> OneLineParser:
    """Returns the parser of a job's own flags; unknown flags are Beam's."""
    epilog = "All other flags go to Apache Beam, such as --runner=DataflowRunner."
    parser = OneLineParser(module, description, epilog)
    add_flags(parser, flags)
    return parser


def add_flags(parser: argparse.ArgumentParser, flags: Iterable[Field]) -> None:
    """Adds fields that `flag` made; a repeatable flag that is not given is None."""
    for item in flags:
        argument = dict(item.metadata)
        help_text = argument.pop("help").replace("%", "%%")
        del argument["limits"]
        if item.type in (int, float):
            argument["type"] = item.type
        if item.default is MISSING:
            argument["required"] = True
        elif argument.get("action") == "append":
            help_text += f" Default: {item.default}."
        else:
            argument["default"] = item.default
            if "action" not in argument and item.default not in ("", None):
                help_text += f" Default: {item.default}."
        parser.add_argument(f"--{item.name}", help=help_text, **argument)


def check_limits(options: Any) -> None:
    """Raises UsageError for the first flag whose value is outside its limits."""
    for item in fields(options):
        if limits := item.metadata["limits"]:
            check_range(item.name, getattr(options, item.name), *limits)


def check_range(name: str, value: float, low: float, high: float | None) -> None:
    """Raises UsageError unless the value of a flag is within its limits, both included."""
    if math.isnan(value) or value < low or (high is not None and value > high):
        limit = f"is outside of {low} to {high}" if high is not None else f"is under {low}"
        raise UsageError(f"--{name}={value} {limit}")
