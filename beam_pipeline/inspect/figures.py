"""The figures of a dataset: exact ones from its row indexes, others from a sample of its rows.

A sampled measurement counts with its weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.data_card import TOTALS_COLUMNS, Totals, added, row_totals
from beam_pipeline.dataset.end_names import Names
from beam_pipeline.dataset.manifest import SPLITS
from beam_pipeline.dataset.row_index import RowIndex
from beam_pipeline.dataset.rows import Dataset, Rows
from beam_pipeline.inspect.sample import HOURS, Sample, draw
from beam_pipeline.report.tables import NONE, ms_text, time_text

QUANTILES = (0.1, 0.5, 0.9)
_MAX_BUSIEST, _MAX_DESTINATIONS = 10, 15
_MAX_BINS, _MIN_BIN_MEASUREMENTS = 180, 20
# In seconds: from one to a day, then weeks and years.
_WIDTHS_US = 1_000_000 * np.array(
    [1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400]
    + [days * 86400 for days in (7, 28, 91, 365)]
)


class Rtts(NamedTuple):
    """The pings of one group, such as an hour or a destination; NaN where there are none."""

    count: float  # estimated measurements of the split
    failed_share: float
    quantiles_ms: tuple[float, ...]

    def text(self, unit: str = "") -> str:
        """Returns the median of the answered pings and their middle 80 %: 41.2 (10.1–80)."""
        low, median, high = map(ms_text, self.quantiles_ms)
        return median if median == NONE else f"{median}{unit} ({low}–{high})"


def rtts_of(sample: Sample, chosen: np.ndarray | slice = slice(None)) -> Rtts:
    rtt, weight = sample.run["rtt"][chosen], sample.weight[chosen]
    answered, total = rtt >= 0, float(weight.sum())
    failed = float(weight[~answered].sum()) / total if total else float("nan")
    return Rtts(total, failed, weighted_quantiles(rtt[answered], weight[answered]))


def weighted_quantiles(values: np.ndarray, weights: np.ndarray) -> tuple[float, ...]:
    """Returns the QUANTILES of values [n] with weights [n]; NaN without values."""
    if not len(values):
        return (float("nan"),) * len(QUANTILES)
    return tuple(np.quantile(values, QUANTILES, method="inverted_cdf", weights=weights).tolist())


def probes_of(lines: RowIndex) -> pa.Table:
    """Returns a line per probe with its `Totals`, src_id, src_addr and is_ipv6."""
    times = {"first_timestamp": lines.first_us, "last_timestamp": lines.last_us}
    integers = {name: getattr(lines, name) for name in TOTALS_COLUMNS if name not in times}
    rows = row_totals(pa.table({**integers, **times}))
    rows = rows.append_column("src_id", pa.array(lines.src_id))
    rows = rows.append_column("src_addr", lines.src_addr)
    probes = added(rows, ["src_id", "src_addr"]).sort_by("src_id")
    return probes.append_column("is_ipv6", pc.match_substring(probes["src_addr"], ":"))


@dataclass(frozen=True)
class SplitFigures:
    """The figures of one split."""

    rows: Rows
    sample: Sample
    names: Names  # of ends

    @cached_property
    def probes(self) -> pa.Table:
        return probes_of(self.rows.lines)

    @cached_property
    def totals(self) -> Totals:
        return Totals.of(self.probes)

    @cached_property
    def per_probe(self) -> np.ndarray:
        """The number of measurements of each probe, int64 [probes]."""
        return self.probes["num_measurements"].to_numpy()

    @cached_property
    def rtts(self) -> Rtts:
        return rtts_of(self.sample)

    @cached_property
    def hours(self) -> list[Rtts]:
        """The RTTs of each hour of the day, UTC."""
        hours = self.sample.hours
        return [rtts_of(self.sample, hours == hour) for hour in range(HOURS)]

    @cached_property
    def busiest(self) -> list[dict[str, Any]]:
        """The probes with the most measurements, as lines of a table."""
        order = [("num_measurements", "descending"), ("src_id", "ascending")]
        top = self.probes.sort_by(order).slice(0, _MAX_BUSIEST)
        counts = top["num_measurements"].cast(pa.float64())
        return pa.table(
            {
                "probe": self.names.shown(top["src_addr"].combine_chunks()),
                "measurements": top["num_measurements"],
                "share": pc.divide(counts, self.totals.num_measurements or 1),
                "rows": top["num_rows"],
                "failed": pc.divide(top["num_failed"], counts),
                "span_us": pc.subtract(top["last_us"], top["first_us"]),
            }
        ).to_pylist()

    @cached_property
    def sizes(self) -> dict[str, np.ndarray]:
        """The sizes of all rows and histories."""
        spans = pc.subtract(self.probes["last_us"], self.probes["first_us"])
        return {
            "measurements of a row": self.rows.lines.n_measurements,
            "bytes of a row": self.rows.lines.num_bytes,
            "measurements of a probe": self.per_probe,
            "time of a probe": spans.to_numpy(),
        }


# --- of both splits -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """The figures of a dataset; `splits` are train and test."""

    dataset: Dataset
    names: Names
    splits: dict[str, SplitFigures]

    @property
    def samples(self) -> dict[str, Sample]:
        return {name: split.sample for name, split in self.splits.items()}

    @cached_property
    def totals(self) -> Totals:
        return Totals.of(pa.concat_tables(split.probes for split in self.splits.values()))

    @property
    def num_probes(self) -> int:
        return sum(len(split.probes) for split in self.splits.values())

    @property
    def period(self) -> "Period | None":
        """From the first to the last measurement; None without measurements."""
        first_us, last_us = self.totals.first_us, self.totals.last_us
        return None if first_us is None or last_us is None else Period(first_us, last_us)

    @cached_property
    def destinations(self) -> pa.Table:
        """A line per destination, busiest first: hi, lo, and its measurements in each split."""
        parts = [
            pa.table(
                {
                    "hi": np.ascontiguousarray(sample.run["dst_hi"]),
                    "lo": np.ascontiguousarray(sample.run["dst_lo"]),
                    "all": sample.weight,
                    **{name: sample.weight * (name == split) for name in SPLITS},
                }
            )
            for split, sample in self.samples.items()
        ]
        grouped = pa.concat_tables(parts).group_by(["hi", "lo"], use_threads=False)
        counts = grouped.aggregate([(name, "sum") for name in ("all", *SPLITS)])
        order = [("all_sum", "descending"), ("hi", "ascending"), ("lo", "ascending")]
        return counts.sort_by(order).rename_columns(["hi", "lo", "all", *SPLITS])

    @cached_property
    def busiest_destinations(self) -> dict[str, dict[str, Rtts]]:
        """The RTTs of the destinations with the most measurements, by address and split."""
        top = self.destinations.slice(0, _MAX_DESTINATIONS)
        halves = top["hi"].to_numpy(), top["lo"].to_numpy()
        texts = self.names.shown(addresses.format_any(*halves)).to_pylist()
        return {
            text: {
                split: rtts_of(sample, (sample.run["dst_hi"] == hi) & (sample.run["dst_lo"] == lo))
                for split, sample in self.samples.items()
            }
            for text, hi, lo in zip(texts, *halves, strict=True)
        }

    @cached_property
    def timeline(self) -> "Timeline | None":
        return Timeline.of(self.samples, self.period) if self.period else None

    @cached_property
    def empty(self) -> "list[Period]":
        """The periods without a sampled measurement, longest first."""
        return self.timeline.empty if self.timeline else []


def gather(dataset: Dataset) -> Figures:
    """Reads rows.parquet of both splits and a sample of their rows."""
    rows, names = {split: dataset.rows(split) for split in SPLITS}, Names.read(dataset)
    splits = {split: SplitFigures(own, draw(own), names) for split, own in rows.items()}
    return Figures(dataset, names, splits)


# --- time -----------------------------------------------------------------------------------------


class Period(NamedTuple):
    """A period of time, µs since 1970 UTC."""

    begin_us: int
    end_us: int

    def __str__(self) -> str:
        return f"{time_text(self.begin_us)} to {time_text(self.end_us)}"

    @property
    def length_us(self) -> int:
        return self.end_us - self.begin_us


class Timeline(NamedTuple):
    """Measurements over time: the beginning of each bin, and its share of each split, [bins]."""

    begins_us: np.ndarray
    width_us: int
    shares: dict[str, np.ndarray]

    @classmethod
    def of(cls, samples: Mapping[str, Sample], period: Period) -> "Timeline":
        """Counts the measurements in up to about 180 bins of a round width.

        Bins average at least _MIN_BIN_MEASUREMENTS samples, so none of an even stream is empty by
        chance.
        """
        sampled = sum(map(len, samples.values()))
        max_bins = min(_MAX_BINS, max(1, sampled // _MIN_BIN_MEASUREMENTS))
        fits = period.length_us // _WIDTHS_US < max_bins
        width_us = int(_WIDTHS_US[np.argmax(fits) if fits.any() else -1])
        first = period.begin_us // width_us
        count = period.end_us // width_us - first + 1
        shares = {}
        for split, sample in samples.items():
            places = sample.run["event_time"] // width_us - first
            weights = np.bincount(places, sample.weight, count)
            shares[split] = weights / max(1.0, weights.sum())
        return cls((first + np.arange(count)) * width_us, width_us, shares)

    @property
    def empty(self) -> list[Period]:
        """The periods without a sampled measurement in any split, longest first."""
        is_empty = np.sum(list(self.shares.values()), axis=0) == 0
        edges = np.flatnonzero(np.diff(np.concatenate([[0], is_empty, [0]])))
        end = min(int(self.begins_us[-1]) + self.width_us, np.iinfo(np.int64).max)
        at = np.append(self.begins_us, end)
        periods = map(Period, at[edges[::2]].tolist(), at[edges[1::2]].tolist())
        return sorted(periods, key=lambda period: -period.length_us)
