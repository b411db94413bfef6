"""What the row index of a split shows: its probes, and the time its rows cover."""

from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.dataset.row_index import RowIndex
from beam_pipeline.report.tables import time_text

HOUR_US = 3_600_000_000


class Period(NamedTuple):
    """A period of time, µs since 1970 UTC."""

    begin_us: int
    end_us: int

    @classmethod
    def spanning(cls, begins_us: np.ndarray, ends_us: np.ndarray) -> Self | None:
        """Returns the period from the first begin to the last end; None without any."""
        return cls(int(begins_us.min()), int(ends_us.max())) if len(begins_us) else None

    @classmethod
    def of_all(cls, periods: Iterable[tuple[int, int] | None]) -> Self | None:
        """Returns the period that spans all that are not None; None without any."""
        known = np.array([period for period in periods if period], np.int64).reshape(-1, 2)
        return cls.spanning(*known.T)

    def __str__(self) -> str:
        return f"{time_text(self.begin_us)} to {time_text(self.end_us)}"

    @property
    def length_us(self) -> int:
        return self.end_us - self.begin_us


def probes_of(lines: RowIndex) -> pa.Table:
    """Returns a line per probe, in the order of src_id.

    Columns: src_id, src_addr, is_ipv6, num_rows, first_us, last_us, and the sums n_measurements,
    num_failed, num_ipv6.
    """
    aggregates = {
        "src_addr": ("src_addr", "first"),
        "num_rows": ("src_id", "count"),
        "first_us": ("first_us", "min"),
        "last_us": ("last_us", "max"),
        **{name: (name, "sum") for name in ("n_measurements", "num_failed", "num_ipv6")},
    }
    names = {"src_id", *(column for column, _ in aggregates.values())}
    rows = pa.table({name: getattr(lines, name) for name in sorted(names)})
    grouped = rows.group_by("src_id", use_threads=False).aggregate(list(aggregates.values()))
    probes = grouped.rename_columns(["src_id", *aggregates]).sort_by("src_id")
    return probes.append_column("is_ipv6", pc.match_substring(probes["src_addr"], ":"))


def sum_of(column: pa.ChunkedArray) -> int:
    """Returns the sum of a column; 0 if it is empty."""
    return pc.sum(column, min_count=0).as_py()


def uncovered(indexes: Iterable[RowIndex]) -> list[Period]:
    """Returns periods of at least an hour that no row of any split spans, longest first."""
    spans = [(lines.first_us, lines.last_us) for lines in indexes]
    first, last = (np.concatenate(ends) for ends in zip(*spans, strict=True))
    order = np.argsort(first, kind="stable")
    ends, begins = np.maximum.accumulate(last[order])[:-1], first[order][1:]
    is_long = begins - ends >= HOUR_US
    return longest_first(ends[is_long], begins[is_long])


def longest_first(begins_us: np.ndarray, ends_us: np.ndarray) -> list[Period]:
    """Returns n periods, longest first."""
    periods = map(Period, begins_us.tolist(), ends_us.tolist())
    return sorted(periods, key=lambda period: -period.length_us)
