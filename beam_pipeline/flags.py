"""Command lines: flags with dashes or underscores, errors of one line."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from beam_pipeline.errors import UsageError


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are UsageErrors."""

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
