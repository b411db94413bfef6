"""Command lines: flags from dataclass fields, with dashes or underscores, one-line errors.

A job's options are a dataclass whose fields are made by `flag`, which holds the name, default, help
and argparse settings of each flag:

    @dataclass(frozen=True)
    class Options:
        output: str = flag("Folder of the dataset.", group="output")
        num_shards: int = flag("Shards per split.", 0, limits=(0, 99_999), group="output")

    parser = OneLineParser(module, description, "--output rows")
    add_flags(parser, fields(Options))
    options = Options(**vars(parser.parse_args(argv)))

Parsers and --help do not import Beam, NumPy or other slow modules.
"""

import argparse
import difflib
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from typing import Any, NoReturn, cast

from beam_pipeline import __version__
from beam_pipeline.errors import UsageError, printable

COMMAND = "probeline"


class Once(argparse.Action):
    """Action of a flag whose value is a list: a second one is an error, and does not replace it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not self.default:
            raise UsageError(f"{option_string} is given twice: give it once, values with commas")
        setattr(namespace, self.dest, values)


class OneLineParser(argparse.ArgumentParser):
    """The parser of a program: flags with dashes or underscores, errors are UsageErrors.

    Args:
      example: arguments of an example command shown below the flags.
      epilog: a sentence after the flags.
      name: name of the program; by default `python -m module`, or `probeline rows` if so started.

    Attributes:
      flags: argparse's actions, except --help and --version.
      repeatable: names of repeatable flags.
    """

    def __init__(
        self,
        module: str,
        description: str,
        example: str = "",
        epilog: str = "",
        name: str = "",
        add_help: bool = True,
    ):
        self.example = example
        self.flags: list[argparse.Action] = []
        self.repeatable: set[str] = set()
        self._given: list[str] = []  # names of flags
        self._headings: dict[str, Callable[..., argparse.Action]] = {}
        is_subcommand = sys.argv[0].startswith(f"{COMMAND} ")
        name = name or (sys.argv[0] if is_subcommand else f"python -m {module}")
        shown = f"example:\n  {name} {example}" if example else ""
        super().__init__(
            name,
            description=description,
            epilog="\n\n".join(filter(None, (epilog, shown))),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=add_help,
        )
        if add_help:
            self.add_argument("--version", action="version", version=f"{COMMAND} {__version__}")
        self.flags.clear()

    def add_argument(self, *names: str, group: str = "", **argument: Any) -> argparse.Action:
        """Adds a flag like argparse; `group` is its heading in --help."""
        if group and group not in self._headings:
            self._headings[group] = self.add_argument_group(group).add_argument
        add = self._headings[group] if group else super().add_argument
        action = add(*names, **argument)
        self.flags.append(action)
        if argument.get("action") == "append":
            self.repeatable.update(names)
        return action

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] of all its overloads
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Parses a command line; flags may have dashes for underscores."""
        flags = normalise_flags(args or ())
        for text in flags:
            try:
                text.encode()
            except UnicodeEncodeError:
                raise UsageError(
                    f"{printable(text)} is not UTF-8: give it in UTF-8; if it is the name of a "
                    "file, rename the file, or link to it"
                ) from None
            if text.startswith("--") and text.endswith("=--"):  # argparse would make it a list
                self.error(f"{text}: -- is not a value")
        self._given = [text.partition("=")[0] for text in flags if text[:1] == "-" and text[2:]]
        return super().parse_known_args(flags, namespace)

    def error(self, message: str) -> NoReturn:
        """Raises UsageError with argparse's message and the cure."""
        known = {name for action in self.flags for name in action.option_strings}
        for wrong in (name for name in self._given if name not in known and name != "--help"):
            meant = "--" + wrong.lstrip("-").replace("-", "_")
            if near := difflib.get_close_matches(meant, known, n=1):
                raise UsageError(f"{wrong} is not a flag: did you mean {near[0]}?")
        raise UsageError(f"{message}; --help lists the flags")


def normalise_flags(argv: Sequence[str]) -> list[str]:
    """Spells flag names with underscores: --num-shards=4 becomes --num_shards=4."""
    normalised: list[str] = []
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
    group: str = "",
    affects: str = "output",
    **argument: Any,
) -> Any:
    """Returns a dataclass field that is a flag; without a default the flag is required.

    Args:
      help_text: the help; the default is appended.
      limits: minimum and maximum, None for no limit; see `check_flags`.
      group: the heading in --help.
      affects: the stage of the job whose result depends on the value; "" if none does.
      argument: further arguments of `argparse.ArgumentParser.add_argument`, such as `choices`.
    """
    settings = {"help": help_text, "limits": limits, "group": group, "affects": affects, **argument}
    return field(default=default, metadata=settings)


def job_parser(
    module: str, description: str, example: str, flags: Iterable[Field[Any]]
) -> OneLineParser:
    """Returns the parser of a job's flags; all others are Beam's flags."""
    epilog = "All other flags go to Apache Beam, such as --runner=DataflowRunner."
    parser = OneLineParser(module, description, example, epilog)
    add_flags(parser, flags)
    return parser


def add_flags(parser: OneLineParser, flags: Iterable[Field[Any]]) -> None:
    """Adds fields made by `flag`; a repeatable flag defaults to None."""
    for item in flags:
        argument = dict(item.metadata)
        help_text = argument.pop("help").replace("%", "%%")
        del argument["limits"], argument["affects"]
        if item.type in (int, float):
            argument["type"] = item.type
        if item.default is MISSING:
            argument["required"] = True
        elif argument.get("action") == "append":
            help_text += f" Default: {item.default}." if item.default != () else ""
        else:
            argument["default"] = item.default
            if argument.get("action") in (None, Once) and item.default not in ("", None):
                help_text += f" Default: {item.default}."
        parser.add_argument(f"--{item.name}", help=help_text, **argument)


def several(value: Any) -> tuple[Any, ...]:
    """Returns a value, or a sequence of values, as a tuple."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return (value,)
    return tuple(cast(Sequence[Any], value))


def flags_of(options: Any) -> list[Field[Any]]:
    """Returns a dataclass's flags in order, including those of nested dataclasses."""
    return [
        each
        for item in fields(options)
        for each in (flags_of(item.default) if is_dataclass(item.default) else [item])
        if each.metadata
    ]


def values_of(options: Any) -> dict[str, Any]:
    """Returns the values of `flags_of` by name."""
    values: dict[str, Any] = {}
    for item in fields(options):
        value = getattr(options, item.name)
        if is_dataclass(item.default):
            values |= values_of(value)
        elif item.metadata:
            values[item.name] = value
    return values


def from_flags[Options](options: type[Options], values: Mapping[str, Any]) -> Options:
    """Inverts `values_of`, with defaults for missing values; UsageError for an invalid value."""
    given: dict[str, Any] = {}
    for item in fields(cast(Any, options)):
        if is_dataclass(item.default):
            given[item.name] = from_flags(cast(Any, type(item.default)), values)
        elif item.name in values:
            given[item.name] = values[item.name]
    return options(**given)


def check_flags(options: Any) -> None:
    """Raises UsageError for the first flag whose value has the wrong type or is not allowed."""
    for item in fields(options):
        value = getattr(options, item.name)
        if not item.metadata or (item.default is not MISSING and value == item.default):
            continue
        is_repeatable = item.metadata.get("action") == "append"
        values = several(value) if is_repeatable else (value,)
        if not values or "" in values:
            raise UsageError(f"--{item.name} is empty: give a value")
        for each in values:
            _check_value(item, each, is_text=is_repeatable or item.type is str)


def _check_value(item: Field[Any], value: Any, is_text: bool) -> None:
    given, choices = f"--{item.name}={value!r}", item.metadata.get("choices")
    if limits := item.metadata["limits"]:
        is_float = item.type is float
        if not isinstance(value, (int, float) if is_float else int) or isinstance(value, bool):
            low, high = limits
            kind = "a number" if is_float else "an integer"
            wanted = f"from {low} to {high}" if high is not None else f"of at least {low}"
            raise UsageError(f"{given} is not {kind}: give one {wanted}")
        check_range(item.name, value, *limits)
    elif item.type is bool:
        if not isinstance(value, bool):
            raise UsageError(f"{given}: give True or False")
    elif is_text and not isinstance(value, str):
        raise UsageError(f"{given} is a {type(value).__name__}: give a string")
    elif choices and value not in choices:
        raise UsageError(f"--{item.name}={value}: give {' or '.join(choices)}")


def check_range(name: str, value: float, low: float, high: float | None) -> None:
    """Raises UsageError unless a flag's value is within its limits, inclusive."""
    if math.isnan(value) or value < low or (high is not None and value > high):
        limit = f"is outside {low} to {high}" if high is not None else f"is under {low}"
        raise UsageError(f"--{name}={value} {limit}")
