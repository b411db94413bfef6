"""Dead letters: rows that break a rule, with their file, row number, reason and values."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("row", pa.int64()),
        ("reason", pa.string()),
        ("value", pa.string()),
    ]
)
MAX_VALUE_CHARS = 4096
_MAX_BYTES_PER_CHAR = 4
_MAX_SHOWN_CHARS = 80


class DeadLetter(NamedTuple):
    """An input row; `row` counts the rows of its file, or lines of JSON, from 0."""

    file: str
    row: int
    reason: str
    value: str


def excerpt(data: bytes) -> str:
    """Returns the beginning of a record as text, with invalid bytes escaped."""
    head = data[: MAX_VALUE_CHARS * _MAX_BYTES_PER_CHAR].decode("utf-8", "backslashreplace")
    return head[:MAX_VALUE_CHARS]


def to_parquet(letters: Sequence[DeadLetter]) -> bytes:
    return table_to_parquet(to_table(letters))


def table_to_parquet(letters: pa.Table) -> bytes:
    """Returns a table of SCHEMA as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(letters, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def to_table(letters: Sequence[DeadLetter]) -> pa.Table:
    """Returns the letters as a table of SCHEMA, long values cut at MAX_VALUE_CHARS."""
    rows = [letter._replace(value=letter.value[:MAX_VALUE_CHARS])._asdict() for letter in letters]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def explain_letters(counts: Mapping[str, int], letters: Sequence[DeadLetter]) -> str:
    """Returns the number of dead letters by reason, and the first one, for an error message."""
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in counts.items())
    first = min(letters)
    value = first.value.split("\n")[0][:_MAX_SHOWN_CHARS]
    return (
        f"{reasons}; the first is row {first.row} of {first.file}, {first.reason}: "
        f"{value.encode('ascii', 'backslashreplace').decode()}"
    )


def count_by_reason(letters: Iterable[DeadLetter]) -> dict[str, int]:
    return dict(Counter(letter.reason for letter in letters))
