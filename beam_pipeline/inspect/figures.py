"""The figures of a split: exact ones from its row index, the others from a sample of its rows.

A sampled measurement counts with its weight. Figures of both splits together are functions of
several `Sample`s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.end_names import Names
from beam_pipeline.dataset.rows import Rows
from beam_pipeline.inspect.index import Period, longest_first, probes_of, sum_of
from beam_pipeline.inspect.sample import HOURS, Sample
from beam_pipeline.report.tables import NONE, ms_text, percent

FAMILIES = ("IPv4 → IPv4", "IPv4 → IPv6", "IPv6 → IPv4", "IPv6 → IPv6")  # probe → destination
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


class Distribution(NamedTuple):
    """Values [n], their weights [n], and a summary of them."""

    values: np.ndarray
    weights: np.ndarray
    text: str


@dataclass(frozen=True)
class SplitFigures:
    """The figures of one split that depend on it alone."""

    rows: Rows
    sample: Sample
    names: Names  # of ends

    @cached_property
    def probes(self) -> pa.Table:
        """A line per probe; see `probes_of`."""
        return probes_of(self.rows.lines)

    @property
    def period(self) -> Period | None:
        """From the first to the last measurement; None without measurements."""
        return Period.spanning(self.rows.lines.first_us, self.rows.lines.last_us)

    @cached_property
    def num_measurements(self) -> int:
        return sum_of(self.probes["n_measurements"])

    @cached_property
    def per_probe(self) -> np.ndarray:
        """The number of measurements of each probe, int64 [probes]."""
        return self.probes["n_measurements"].to_numpy()

    @property
    def effective_number(self) -> float:
        """Kish's effective number of probes: (Σ n)² / Σ n² of their measurements."""
        n = self.per_probe.astype(float)
        return float(n.sum() ** 2 / (n**2).sum()) if len(n) else 0.0

    @cached_property
    def families(self) -> list[int]:
        """The number of measurements of each of FAMILIES."""
        counts = []
        for is_ipv6 in (False, True):
            probes = self.probes.filter(pc.field("is_ipv6") == is_ipv6)
            to_ipv6 = sum_of(probes["num_ipv6"])
            counts += [sum_of(probes["n_measurements"]) - to_ipv6, to_ipv6]
        return counts

    @cached_property
    def shares(self) -> dict[str, float]:
        """Shares of the measurements, and of the probes."""
        probes, count = self.probes, max(1, self.num_measurements)
        return {
            "failed pings": sum_of(probes["num_failed"]) / count,
            "IPv6 destinations": sum_of(probes["num_ipv6"]) / count,
            "IPv6 probes": sum_of(probes["is_ipv6"]) / max(1, len(probes)),
        }

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
        """The probes with the most measurements: address, counts and shares."""
        order = [("n_measurements", "descending"), ("src_id", "ascending")]
        top = self.probes.sort_by(order).slice(0, _MAX_BUSIEST)
        ends = self.names.shown(top["src_addr"].combine_chunks()).to_pylist()
        return [
            {
                "address": end,
                "n_measurements": (n := probe["n_measurements"]),
                "share": n / max(1, self.num_measurements),
                "num_rows": probe["num_rows"],
                "failed_share": probe["num_failed"] / n,
                "span_us": probe["last_us"] - probe["first_us"],
            }
            for end, probe in zip(ends, top.to_pylist(), strict=True)
        ]

    @cached_property
    def sizes(self) -> dict[str, np.ndarray]:
        """The sizes of all rows and histories."""
        return {
            "measurements of a row": self.rows.lines.n_measurements,
            "bytes of a row": self.rows.lines.num_bytes,
            "measurements of a probe": self.per_probe,
            "time of a probe": pc.subtract(
                self.probes["last_us"], self.probes["first_us"]
            ).to_numpy(),
        }

    @cached_property
    def distributions(self) -> dict[str, Distribution]:
        """The distributions that a trainer assumes to be equal in both splits."""
        sample = self.sample
        rtt = self.rtts.text(" ms") if sample.answered.any() else "no answered ping"
        by_hour = np.bincount(sample.hours, sample.weight, HOURS)
        day = percent(by_hour[6:18].sum() / by_hour.sum())
        period = Period.spanning(sample.time_us, sample.time_us)
        answered = sample.answered
        found = {
            "RTT": Distribution(sample.rtt[answered], sample.weight[answered], rtt),
            "time": Distribution(sample.time_us, sample.weight, str(period)),
            "hour of the day": Distribution(
                sample.hours, sample.weight, f"{day} from 6 to 18 h UTC"
            ),
        }
        for name in ("measurements of a probe", "measurements of a row"):
            sizes = self.sizes[name]
            text = f"median {np.median(sizes):,.0f}"
            found[name] = Distribution(sizes, np.ones(len(sizes)), text)
        return found


def weighted_quantiles(
    values: np.ndarray, weights: np.ndarray, levels: Sequence[float] | np.ndarray = QUANTILES
) -> tuple[float, ...]:
    """Returns the quantiles of values [n] with weights [n] at levels 0 to 1; NaN without values."""
    if not len(values):
        return (float("nan"),) * len(levels)
    return tuple(np.quantile(values, levels, method="inverted_cdf", weights=weights).tolist())


def rtts_of(sample: Sample, chosen: np.ndarray | slice = slice(None)) -> Rtts:
    rtt, weight = sample.rtt[chosen], sample.weight[chosen]
    answered, total = rtt >= 0, float(weight.sum())
    failed = float(weight[~answered].sum()) / total if total else float("nan")
    return Rtts(total, failed, weighted_quantiles(rtt[answered], weight[answered]))


# --- of both splits -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Destinations:
    """The d destinations of samples, in the order of their addresses."""

    samples: Mapping[str, Sample]
    names: Names  # of ends
    codes: dict[str, np.ndarray]  # by split: each measurement's destination, int64 [m]
    weights: np.ndarray  # measurements, float64 [splits, d]
    hi: np.ndarray  # uint64 [d]
    lo: np.ndarray

    @classmethod
    def of(cls, samples: Mapping[str, Sample], names: Names) -> "Destinations":
        hi = np.concatenate([sample.hi for sample in samples.values()])
        lo = np.concatenate([sample.lo for sample in samples.values()])
        order = np.lexsort((lo, hi))
        is_new = np.ones(len(order), bool)
        is_new[1:] = (np.diff(hi[order]) != 0) | (np.diff(lo[order]) != 0)
        codes = np.empty(len(order), np.int64)
        codes[order] = np.cumsum(is_new) - 1
        bounds = np.cumsum([len(sample) for sample in samples.values()])[:-1]
        by_split = dict(zip(samples, np.split(codes, bounds), strict=True))
        weights = [
            np.bincount(by_split[split], sample.weight, is_new.sum())
            for split, sample in samples.items()
        ]
        halves = hi[order][is_new], lo[order][is_new]
        return cls(samples, names, by_split, np.array(weights), *halves)

    def __len__(self) -> int:
        return len(self.hi)

    @cached_property
    def busiest(self) -> dict[str, dict[str, Rtts]]:
        """The RTTs of the destinations with the most measurements, by address and split."""
        top = np.argsort(-self.weights.sum(axis=0), kind="stable")[:_MAX_DESTINATIONS]
        texts = self.names.shown(addresses.format_any(self.hi[top], self.lo[top])).to_pylist()
        return {
            text: {
                split: rtts_of(sample, self.codes[split] == code)
                for split, sample in self.samples.items()
            }
            for text, code in zip(texts, top, strict=True)
        }


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
            weights = np.bincount(sample.time_us // width_us - first, sample.weight, count)
            shares[split] = weights / max(1.0, weights.sum())
        return cls((first + np.arange(count)) * width_us, width_us, shares)

    @property
    def empty(self) -> list[Period]:
        """The periods without a sampled measurement in any split, longest first."""
        is_empty = np.sum(list(self.shares.values()), axis=0) == 0
        edges = np.flatnonzero(np.diff(np.concatenate([[0], is_empty, [0]])))
        end = min(int(self.begins_us[-1]) + self.width_us, np.iinfo(np.int64).max)
        at = np.append(self.begins_us, end)
        return longest_first(at[edges[::2]], at[edges[1::2]])
