"""Names of rows and contexts on the command line, parsed before any heavy import."""

from typing import NamedTuple

from beam_pipeline.dataset.manifest import SPLITS
from beam_pipeline.errors import UsageError

_MAX_SEED = 2**63 - 1


class RowName(NamedTuple):
    """A row by its line in a split's rows.parquet, from 0; as text, train:12."""

    split: str
    number: int

    def __str__(self) -> str:
        return f"{self.split}:{self.number}"


class ContextName(NamedTuple):
    """A context: the seed, the row, and its number within the row."""

    seed: int
    row: RowName
    k: int


def parse_row_name(text: str, flag: str) -> RowName:
    """Parses train:12, test:3, or 12, a row of train; UsageError for any other form."""
    split, _, number = text.rpartition(":")
    if (split or SPLITS[0]) not in SPLITS or not number.isdecimal():
        raise UsageError(
            f"--{flag}: {text!r} is not a row: give its number in rows.parquet from 0, after its "
            "split if that is not train, such as 12, train:12 or test:3"
        )
    return RowName(split or SPLITS[0], int(number))


def parse_context_name(text: str) -> ContextName:
    """Parses SEED,ROW,K, such as 7,train:12,3; UsageError for any other form."""
    parts = text.split(",")
    if len(parts) != 3 or not parts[0].isdecimal() or not parts[2].isdecimal():
        raise UsageError(f"--context={text} is not SEED,ROW,K, such as 7,train:12,3")
    if int(parts[0]) > _MAX_SEED:
        raise UsageError(f"--context={text}: the seed is over {_MAX_SEED}")
    return ContextName(int(parts[0]), parse_row_name(parts[1], "context"), int(parts[2]))
