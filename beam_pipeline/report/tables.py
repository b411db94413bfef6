"""Tables, and numbers as text, in one style.

A `Table` is data: cells are raw values, and each column names its format. `terminal.print_table`
and the macro in `table.html.jinja` show it. Missing values, None or NaN, are shown as NONE.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

NONE = "–"


@dataclass(frozen=True)
class Table:
    """A table: strings are shown as they are, other values in the format of their column.

    A column is a heading, or a pair with its key in FORMATS. By default the first column is text
    and the others are counts.
    """

    title: str
    columns: Sequence[str | tuple[str, str]]
    rows: Sequence[Sequence[Any]]
    name: str = ""  # in a page or a file
    num_left_out: int = 0  # omitted rows

    @property
    def headings(self) -> list[str]:
        return [column if isinstance(column, str) else column[0] for column in self.columns]

    @property
    def formats(self) -> list[str]:
        """The key in FORMATS of each column."""
        usual = ["text", *["count"] * len(self.columns)]
        return [
            usual[at] if isinstance(column, str) else column[1]
            for at, column in enumerate(self.columns)
        ]

    @property
    def cells(self) -> list[list[str]]:
        """The text of all cells, row by row."""
        functions = [FORMATS[name] for name in self.formats]
        return [
            [cell_text(value, text) for value, text in zip(row, functions, strict=True)]
            for row in self.rows
        ]


def cell_text(value: Any, text: Callable[[Any], str]) -> str:
    """Returns a value as text; `text` formats all but strings and missing values."""
    if isinstance(value, str):
        return value
    return NONE if value is None or value != value else text(value)


def count_text(value: float | None) -> str:
    """Returns a count with thousands separators, and one decimal unless it is whole."""
    if value is None or math.isnan(value):
        return NONE
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def percent(share: float | None, digits: int = 1) -> str:
    """Returns a share of 1 in percent."""
    return NONE if share is None or math.isnan(share) else f"{100 * share:.{digits}f} %"


def share_text(share: float) -> str:
    """Returns a share of 1 in percent; only 0 is 0 % and only 1 is 100 %."""
    if 0 < share < 0.0005:
        text = "<0.1 %"
    elif 0.9995 <= share < 1:
        text = ">99.9 %"
    else:
        text = percent(share, digits=0 if share in (0, 1) else 1)
    return text.replace(" ", "\u00a0")


def bytes_text(num_bytes: float) -> str:
    """Returns a size in a suitable decimal unit."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes:.0f} bytes"


def ms_text(ms: float | None) -> str:
    """Returns an RTT with three significant digits, without the unit."""
    if ms is None or math.isnan(ms):
        return NONE
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def span_text(seconds: float) -> str:
    """Returns a duration in the largest unit that it fills once (twice for years)."""
    for unit, size in (("years", 365 * 86400), ("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= (2 * size if unit == "years" else size):
            number = f"{seconds / size:,.1f}".removesuffix(".0")
            return f"{number} {unit.removesuffix('s') if number == '1' else unit}"
    return f"{seconds:.0f} s" if seconds == int(seconds) else f"{seconds:.1f} s"


def span_us_text(length_us: float) -> str:
    return span_text(round(length_us / 1e6))


def time_text(time_us: int) -> str:
    """Returns a time in µs since 1970 to the minute, in UTC."""
    try:
        return f"{datetime(1970, 1, 1) + timedelta(microseconds=time_us):%Y-%m-%d %H:%M}"
    except OverflowError:  # Python's calendar ends in 9999
        return f"second {time_us // 1_000_000}"


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "text": str,
    "count": count_text,
    "decimals2": "{:.2f}".format,
    "decimals3": "{:.3f}".format,
    "percent": percent,
    "percent2": partial(percent, digits=2),
    "percent3": partial(percent, digits=3),
    "bytes": bytes_text,
    "span": span_text,
    "span_us": span_us_text,
}
