"""Numbers as text: counts, shares, sizes, times and lengths of time, in one style everywhere.

A value that does not exist (None or NaN) is NONE.
"""

import math
from datetime import datetime, timedelta

NONE = "–"


def count_text(value: float | None) -> str:
    """Returns a count with thousands separators; one digit after the point unless it is whole."""
    if value is None or math.isnan(value):
        return NONE
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def number_of(count: int, noun: str) -> str:
    """Returns a count and its noun: `1 row`, `2 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def percent(share: float | None, digits: int = 1) -> str:
    """Returns a share of 1 in percent."""
    return NONE if share is None or math.isnan(share) else f"{100 * share:.{digits}f} %"


def bytes_text(num_bytes: float) -> str:
    """Returns a size in bytes in the decimal unit that suits it."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes:.0f} bytes"


def ms_text(ms: float | None) -> str:
    """Returns an RTT in milliseconds with three digits, without the unit."""
    if ms is None or math.isnan(ms):
        return NONE
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def span_text(seconds: float) -> str:
    """Returns a length of time in the largest unit of which it has one or more (two for years)."""
    for unit, size in (("years", 365 * 86400), ("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= (2 * size if unit == "years" else size):
            number = f"{seconds / size:,.1f}".removesuffix(".0")
            return f"{number} {unit.removesuffix('s') if number == '1' else unit}"
    return f"{seconds:.0f} s" if seconds == int(seconds) else f"{seconds:.1f} s"


def time_text(time_us: int) -> str:
    """Returns a time, in microseconds since 1970, to the minute in UTC."""
    try:
        return f"{datetime(1970, 1, 1) + timedelta(microseconds=time_us):%Y-%m-%d %H:%M}"
    except OverflowError:  # Python's calendar ends with the year 9999
        return f"second {time_us // 1_000_000}"
