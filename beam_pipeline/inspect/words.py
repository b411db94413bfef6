"""Times, sizes and shares as people read them."""

import math
from datetime import datetime, timedelta

from beam_pipeline.inspect.index import Period


def time_text(time_us: int) -> str:
    """Returns a time as people read it, to the minute, UTC."""
    return f"{datetime(1970, 1, 1) + timedelta(microseconds=time_us):%Y-%m-%d %H:%M}"


def period_text(period: Period) -> str:
    """Returns both ends of a period."""
    return f"{time_text(period.begin_us)} to {time_text(period.end_us)}"


def span_text(length_us: int) -> str:
    """Returns a length of time in the unit that suits it."""
    seconds = length_us / 1e6
    for unit, size in (("years", 365 * 86400), ("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= (2 * size if unit == "years" else size):
            return f"{seconds / size:,.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.0f} s"


def bytes_text(num_bytes: float) -> str:
    """Returns a size in the unit that suits it."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes:.0f} bytes"


def percent(share: float, digits: int = 1) -> str:
    """Returns a share as text; – if there is none."""
    return "–" if math.isnan(share) else f"{100 * share:.{digits}f} %"


def number_of(count: int, what: str) -> str:
    """Returns how many there are of something, such as 1 row or 2 rows."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def ms_text(ms: float) -> str:
    """Returns an RTT in ms as text, without the unit, in three digits; – if there is none."""
    if math.isnan(ms):
        return "–"
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"
