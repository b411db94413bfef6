"""What rows.parquet alone says of a split: its rows, its probes, and the time that they cover.

Enters a finished dataset; leaves `Index`, a line a row, from which exact figures follow without
reading a record. Needs no Beam. Memory: about 100 bytes a row.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from beam_pipeline.dataset.manifest import Dataset
from beam_pipeline.dataset.row_index import RowIndex
from beam_pipeline.dataset.row_reader import RowReader

HOUR_US = 3_600_000_000


class Period(NamedTuple):
    """A stretch of time, µs since 1970 UTC."""

    begin_us: int
    end_us: int

    @property
    def length_us(self) -> int:
        return self.end_us - self.begin_us


class RowName(NamedTuple):
    """A row by its number in a split's rows.parquet; in words train:12."""

    split: str
    number: int

    def __str__(self) -> str:
        return f"{self.split}:{self.number}"


@dataclass(frozen=True)
class Probes:
    """A line a probe, in the order of src_id; `line` is its first row's in the Index."""

    line: np.ndarray
    num_rows: np.ndarray
    n_measurements: np.ndarray
    num_failed: np.ndarray
    span_us: np.ndarray
    is_ipv6: np.ndarray

    def __len__(self) -> int:
        return len(self.line)

    @property
    def busiest(self) -> np.ndarray:
        """The probes' numbers, those with most measurements first; ties in the order of src_id."""
        return np.argsort(-self.n_measurements, kind="stable")

    @property
    def effective_number(self) -> float:
        """As how many probes of one size the measurements weigh: (Σ n)² / Σ n², after Kish."""
        n = self.n_measurements.astype(float)
        return float(n.sum() ** 2 / (n**2).sum()) if len(n) else 0.0


@dataclass(frozen=True)
class Index(RowIndex):
    """The row index of a split, and what it adds up to."""

    @property
    def num_measurements(self) -> int:
        return int(self.n_measurements.sum())

    @property
    def failed_share(self) -> float:
        return _share(self.num_failed, self.n_measurements)

    @property
    def ipv6_share(self) -> float:
        """Share of the measurements whose destination is IPv6."""
        return _share(self.num_ipv6, self.n_measurements)

    @property
    def period(self) -> Period | None:
        """From the first measurement to the last one; None if there is none."""
        if not len(self):
            return None
        return Period(int(self.first_us.min()), int(self.last_us.max()))

    @cached_property
    def probes(self) -> Probes:
        _, line, probe = np.unique(self.src_id, return_index=True, return_inverse=True)
        count = len(line)
        first = np.full(count, np.iinfo(np.int64).max)
        last = np.full(count, np.iinfo(np.int64).min)
        np.minimum.at(first, probe, self.first_us)
        np.maximum.at(last, probe, self.last_us)
        is_ipv6 = pc.match_substring(self.src_addr, ":").to_numpy(zero_copy_only=False)
        return Probes(
            line=line,
            num_rows=np.bincount(probe, minlength=count),
            n_measurements=_sums(probe, self.n_measurements, count),
            num_failed=_sums(probe, self.num_failed, count),
            span_us=last - first,
            is_ipv6=is_ipv6[line].astype(bool),
        )


def open_rows(dataset: Dataset, split: str, index: Index) -> RowReader[Index]:
    """Returns a reader of the rows of a split."""
    cure = f"python -m beam_pipeline.verify {dataset.path} lists what else is damaged"
    return RowReader(dataset, split, index, cure)


def uncovered(indexes: Iterable[Index], least_us: int = HOUR_US) -> list[Period]:
    """Returns the periods of at least that length that no row of any split spans, longest first.

    A row spans all between its first and last measurement, so in these periods there is surely
    none; silences within rows take reading them.
    """
    spans = [(index.first_us, index.last_us) for index in indexes]
    first, last = (np.concatenate(ends) for ends in zip(*spans, strict=True))
    order = np.argsort(first, kind="stable")
    begins, ends = first[order], np.maximum.accumulate(last[order])
    lengths = begins[1:] - ends[:-1]
    at = np.flatnonzero(lengths >= least_us)
    at = at[np.argsort(-lengths[at], kind="stable")]
    return [Period(int(ends[i]), int(begins[i + 1])) for i in at]


def _sums(group: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Adds up values by group without rounding: int64 [count]."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, group, values)
    return sums


def _share(part: np.ndarray, whole: np.ndarray) -> float:
    total = int(whole.sum())
    return int(part.sum()) / total if total else 0.0
