"""Statistics of a sample: RTT by hour and by destination, measurements over time.

Pure functions of `Sample`s; each measurement counts with its weight.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from beam_pipeline.dataset import addresses
from beam_pipeline.inspect.index import HOUR_US, Index, Period, is_ipv6
from beam_pipeline.inspect.sample import Sample

QUANTILES = (0.1, 0.5, 0.9)
HOURS = 24
_SECOND_US = 1_000_000
_MAX_BINS, _MIN_BIN_MEASUREMENTS = 180, 20
# From a second to a day, then weeks and years.
_WIDTHS_S = (
    *(1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400),
    *(7 * 86400, 28 * 86400, 91 * 86400, 365 * 86400),
)


class Rtts(NamedTuple):
    """The pings of one group, such as an hour or a destination; NaN where there are none."""

    count: float  # estimated measurements of the split
    failed_share: float
    quantiles_ms: tuple[float, ...]


class Destination(NamedTuple):
    """A destination, and its pings by split."""

    address: str
    rtts: dict[str, Rtts]


class Timeline(NamedTuple):
    """Measurements over time: the beginning of each bin, and its share of each split, [bins]."""

    begins_us: np.ndarray
    width_us: int
    shares: dict[str, np.ndarray]


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
    quantiles = weighted_quantiles(rtt[answered], weight[answered])
    return Rtts(total, failed, quantiles)


def by_hour(sample: Sample) -> list[Rtts]:
    """Returns the RTTs of each hour of the day, UTC."""
    hour = sample.time_us // HOUR_US % HOURS
    return [rtts_of(sample, hour == h) for h in range(HOURS)]


# --- destinations -------------------------------------------------------------------------------


class NumberedDestinations(NamedTuple):
    """The d destinations of all samples, in the order of their addresses."""

    codes: dict[str, np.ndarray]  # by split: each measurement's destination, int64 [m]
    weights: np.ndarray  # measurements, float64 [splits, d]
    hi: np.ndarray  # uint64 [d]
    lo: np.ndarray


def number_destinations(samples: Mapping[str, Sample]) -> NumberedDestinations:
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
    return NumberedDestinations(by_split, np.array(weights), hi[order][is_new], lo[order][is_new])


def top_destinations(samples: Mapping[str, Sample], count: int) -> tuple[list[Destination], int]:
    """Returns the `count` busiest destinations, and the number of all in the samples."""
    numbered = number_destinations(samples)
    top = np.argsort(-numbered.weights.sum(axis=0), kind="stable")[:count]
    texts = addresses.format_any(numbered.hi[top], numbered.lo[top]).to_pylist()

    def rtts(code: int) -> dict[str, Rtts]:
        return {
            split: rtts_of(sample, numbered.codes[split] == code)
            for split, sample in samples.items()
        }

    found = [Destination(text, rtts(code)) for text, code in zip(texts, top, strict=True)]
    return found, len(numbered.hi)


# --- time ---------------------------------------------------------------------------------------


def timeline(samples: Mapping[str, Sample], period: Period) -> Timeline:
    """Counts the measurements in up to about 180 bins of a round width.

    Bins average at least _MIN_BIN_MEASUREMENTS samples, so none of an even stream is empty by
    chance.
    """
    sampled = sum(len(sample) for sample in samples.values())
    max_bins = min(_MAX_BINS, max(1, sampled // _MIN_BIN_MEASUREMENTS))
    widths_us = (width_s * _SECOND_US for width_s in _WIDTHS_S[:-1])
    fits = (width_us for width_us in widths_us if period.length_us // width_us < max_bins)
    width_us = next(fits, _WIDTHS_S[-1] * _SECOND_US)
    first = period.begin_us // width_us
    count = period.end_us // width_us - first + 1
    shares = {}
    for split, sample in samples.items():
        weights = np.bincount(sample.time_us // width_us - first, sample.weight, count)
        shares[split] = weights / max(1.0, weights.sum())
    return Timeline((first + np.arange(count)) * width_us, width_us, shares)


def empty_bins(line: Timeline) -> list[Period]:
    """Returns the periods without a sampled measurement in any split, longest first."""
    is_empty = np.sum(list(line.shares.values()), axis=0) == 0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_empty, [0]])))
    end = min(int(line.begins_us[-1]) + line.width_us, np.iinfo(np.int64).max)
    at = np.append(line.begins_us, end)
    periods = map(Period, at[edges[::2]].tolist(), at[edges[1::2]].tolist())
    return sorted(periods, key=lambda period: -period.length_us)


# --- families -----------------------------------------------------------------------------------

FAMILIES = ("IPv4 → IPv4", "IPv4 → IPv6", "IPv6 → IPv4", "IPv6 → IPv6")


def family_counts(index: Index) -> list[int]:
    """Returns the number of measurements of each of FAMILIES, probe → destination."""
    from_ipv6 = is_ipv6(index.src_addr)
    counts = []
    for rows in (~from_ipv6, from_ipv6):
        to_ipv6 = int(index.num_ipv6[rows].sum())
        counts += [int(index.n_measurements[rows].sum()) - to_ipv6, to_ipv6]
    return counts
