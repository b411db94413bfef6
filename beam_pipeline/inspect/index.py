"""The row index of a split: its rows, its probes, and the time they cover."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.dataset.row_index import RowIndex
from beam_pipeline.dataset.rows import Dataset, RowReader, verify_cure
from beam_pipeline.report.tables import time_text

HOUR_US = 3_600_000_000


class Period(NamedTuple):
    """A period of time, µs since 1970 UTC."""

    begin_us: int
    end_us: int

    def __str__(self) -> str:
        return f"{time_text(self.begin_us)} to {time_text(self.end_us)}"

    @property
    def length_us(self) -> int:
        return self.end_us - self.begin_us


@dataclass(frozen=True)
class Probes:
    """One line per probe, in the order of src_id: arrays [probes]."""

    src_addr: pa.StringArray
    num_rows: np.ndarray
    n_measurements: np.ndarray
    num_failed: np.ndarray
    span_us: np.ndarray
    is_ipv6: np.ndarray

    def __len__(self) -> int:
        return len(self.src_addr)

    @property
    def ipv6_share(self) -> float:
        return float(self.is_ipv6.mean())

    @property
    def effective_number(self) -> float:
        """Kish's effective number of probes: (Σ n)² / Σ n² of their measurements."""
        n = self.n_measurements.astype(float)
        return float(n.sum() ** 2 / (n**2).sum()) if len(n) else 0.0


@dataclass(frozen=True)
class Index(RowIndex):
    """The row index of a split, with its totals."""

    @property
    def num_measurements(self) -> int:
        return int(self.n_measurements.sum())

    @property
    def failed_share(self) -> float:
        return int(self.num_failed.sum()) / max(1, self.num_measurements)

    @property
    def ipv6_share(self) -> float:
        return int(self.num_ipv6.sum()) / max(1, self.num_measurements)

    @property
    def period(self) -> Period | None:
        """From the first to the last measurement; None without measurements."""
        if not len(self):
            return None
        return Period(int(self.first_us.min()), int(self.last_us.max()))

    @cached_property
    def probes(self) -> Probes:
        names = ("src_id", "src_addr", "n_measurements", "num_failed", "first_us", "last_us")
        rows = pa.table({name: getattr(self, name) for name in names})
        probes = rows.group_by("src_id", use_threads=False).aggregate(
            [
                ("src_addr", "first"),
                ("src_id", "count"),
                ("n_measurements", "sum"),
                ("num_failed", "sum"),
                ("first_us", "min"),
                ("last_us", "max"),
            ]
        )
        probes = probes.sort_by("src_id")
        src_addr = probes["src_addr_first"].combine_chunks()
        return Probes(
            src_addr=src_addr,
            num_rows=probes["src_id_count"].to_numpy(),
            n_measurements=probes["n_measurements_sum"].to_numpy(),
            num_failed=probes["num_failed_sum"].to_numpy(),
            span_us=probes["last_us_max"].to_numpy() - probes["first_us_min"].to_numpy(),
            is_ipv6=is_ipv6(src_addr),
        )


def is_ipv6(addresses: pa.StringArray) -> np.ndarray:
    return pc.match_substring(addresses, ":").to_numpy(zero_copy_only=False)


def open_rows(dataset: Dataset, split: str, index: Index) -> RowReader[Index]:
    return RowReader(dataset, split, index, verify_cure(dataset))


def uncovered(indexes: Iterable[Index]) -> list[Period]:
    """Returns periods of at least an hour that no row of any split spans, longest first."""
    spans = [(index.first_us, index.last_us) for index in indexes]
    first, last = (np.concatenate(ends) for ends in zip(*spans, strict=True))
    order = np.argsort(first, kind="stable")
    begins, ends = first[order][1:], np.maximum.accumulate(last[order])[:-1]
    is_long = begins - ends >= HOUR_US
    periods = map(Period, ends[is_long].tolist(), begins[is_long].tolist())
    return sorted(periods, key=lambda period: -period.length_us)
