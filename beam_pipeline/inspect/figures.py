"""What is counted in a sample: RTT by hour and by destination, measurements over time.

Pure functions of `Sample`s, whose measurements count with their weights. Nothing is drawn or
printed here.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from beam_pipeline.dataset import addresses
from beam_pipeline.inspect.index import Index, Period
from beam_pipeline.inspect.sample import Sample

QUANTILES = (0.1, 0.5, 0.9)
HOURS = 24
_SECOND_US = 1_000_000
_HOUR_US = 3600 * _SECOND_US
_MOST_BINS, _A_BIN = 180, 20
# Widths that people know: of a second to a day, then weeks and years.
_WIDTHS_S = (
    *(1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400),
    *(7 * 86400, 28 * 86400, 91 * 86400, 365 * 86400),
)


class Rtts(NamedTuple):
    """The pings of one group, such as an hour or a destination.

    Attributes:
      count: how many measurements of the split they stand for.
      sampled: how many of them were looked at.
      failed_share: NaN if there are none.
      quantiles_ms: of the answered ones, at QUANTILES; NaN if there are none.
    """

    count: float
    sampled: int
    failed_share: float
    quantiles_ms: tuple[float, ...]


class Destination(NamedTuple):
    """A destination, and its pings by split."""

    address: str
    rtts: dict[str, Rtts]


class Timeline(NamedTuple):
    """Measurements over time: `begins_us` of each bin, and the share of each split's in it."""

    begins_us: np.ndarray
    width_us: int
    shares: dict[str, np.ndarray]


def weighted_quantiles(values: np.ndarray, weights: np.ndarray) -> tuple[float, ...]:
    """Returns the values at QUANTILES of all weight; NaN if there are no values."""
    if not len(values):
        return (float("nan"),) * len(QUANTILES)
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    places = np.searchsorted(reached, np.array(QUANTILES) * reached[-1])
    return tuple(values[order][np.minimum(places, len(values) - 1)].tolist())


def rtts_of(sample: Sample, chosen: np.ndarray | slice = slice(None)) -> Rtts:
    """Returns the RTTs of some of the sample's measurements."""
    rtt, weight = sample.rtt[chosen], sample.weight[chosen]
    answered, total = rtt >= 0, float(weight.sum())
    failed = float(weight[~answered].sum()) / total if total else float("nan")
    quantiles = weighted_quantiles(rtt[answered], weight[answered])
    return Rtts(total, len(rtt), failed, quantiles)


def by_hour(sample: Sample) -> list[Rtts]:
    """Returns the RTTs of each hour of the day, UTC."""
    hour = sample.time_us // _HOUR_US % HOURS
    return [rtts_of(sample, hour == h) for h in range(HOURS)]


# --- destinations -------------------------------------------------------------------------------


class DestinationCodes(NamedTuple):
    """Destinations of all samples, numbered: `codes` [m] by split, `hi` and `lo` by number."""

    codes: dict[str, np.ndarray]
    hi: np.ndarray
    lo: np.ndarray


def number_destinations(samples: Mapping[str, Sample]) -> DestinationCodes:
    """Numbers the destinations in the order of their addresses."""
    hi = np.concatenate([sample.hi for sample in samples.values()])
    lo = np.concatenate([sample.lo for sample in samples.values()])
    order = np.lexsort((lo, hi))
    is_new = np.ones(len(order), bool)
    is_new[1:] = (np.diff(hi[order]) != 0) | (np.diff(lo[order]) != 0)
    codes = np.empty(len(order), np.int64)
    codes[order] = np.cumsum(is_new) - 1
    bounds = np.cumsum([len(sample) for sample in samples.values()])[:-1]
    parts = dict(zip(samples, np.split(codes, bounds), strict=True))
    return DestinationCodes(parts, hi[order][is_new], lo[order][is_new])


def destination_weights(samples: Mapping[str, Sample], numbered: DestinationCodes) -> np.ndarray:
    """Returns how many measurements of each split go to each destination: float64 [split, d]."""
    return np.stack(
        [
            np.bincount(numbered.codes[split], sample.weight, len(numbered.hi))
            for split, sample in samples.items()
        ]
    )


def top_destinations(samples: Mapping[str, Sample], most: int) -> tuple[list[Destination], int]:
    """Returns the destinations with most measurements, and how many there are in the samples."""
    numbered = number_destinations(samples)
    weights = destination_weights(samples, numbered).sum(axis=0)
    top = np.argsort(-weights, kind="stable")[:most]
    texts = addresses.format_any(numbered.hi[top], numbered.lo[top]).to_pylist()
    found = [
        Destination(
            text,
            {
                split: rtts_of(sample, np.flatnonzero(numbered.codes[split] == code))
                for split, sample in samples.items()
            },
        )
        for text, code in zip(texts, top.tolist(), strict=True)
    ]
    return found, len(weights)


# --- time ---------------------------------------------------------------------------------------


def timeline(samples: Mapping[str, Sample], period: Period) -> Timeline:
    """Counts the measurements in bins of a width that people know, at most some 180 of them.

    Bins are no narrower than it takes for _A_BIN sampled measurements on average: of an even
    stream none would then be empty by chance.
    """
    sampled = sum(len(sample) for sample in samples.values())
    most_bins = min(_MOST_BINS, max(1, sampled // _A_BIN))
    width_us = _WIDTHS_S[-1] * _SECOND_US
    for width_s in reversed(_WIDTHS_S):
        if period.length_us // (width_s * _SECOND_US) < most_bins:
            width_us = width_s * _SECOND_US
    first = period.begin_us // width_us
    count = period.end_us // width_us - first + 1
    shares = {}
    for split, sample in samples.items():
        weights = np.bincount(sample.time_us // width_us - first, sample.weight, count)
        shares[split] = weights / max(1.0, weights.sum())
    return Timeline((first + np.arange(count)) * width_us, width_us, shares)


def empty_bins(line: Timeline) -> list[Period]:
    """Returns the runs of bins in which no split has a sampled measurement, the longest first."""
    is_empty = sum(line.shares.values()) == 0  # type: ignore[arg-type]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_empty, [0]])))
    begins, ends = edges[::2], edges[1::2]
    order = np.argsort(begins - ends, kind="stable")
    at = line.begins_us
    return [
        Period(int(at[begin]), int(at[end - 1]) + line.width_us)
        for begin, end in zip(begins[order].tolist(), ends[order].tolist(), strict=True)
    ]


# --- families -----------------------------------------------------------------------------------

FAMILIES = ("IPv4 → IPv4", "IPv4 → IPv6", "IPv6 → IPv4", "IPv6 → IPv6")


def family_counts(index: Index) -> list[int]:
    """Returns how many measurements are of each of FAMILIES: source, destination."""
    probes = index.probes
    _, probe = np.unique(index.src_id, return_inverse=True)
    is_ipv6 = probes.is_ipv6[probe]
    counts = []
    for rows in (~is_ipv6, is_ipv6):
        to_ipv6 = int(index.num_ipv6[rows].sum())
        counts += [int(index.n_measurements[rows].sum()) - to_ipv6, to_ipv6]
    return counts


def cumulative(probes_measurements: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the share of probes, the busiest first, and the share of measurements they have."""
    counts = np.sort(np.asarray(probes_measurements))[::-1]
    whole = max(1, int(counts.sum()))
    return np.arange(1, len(counts) + 1) / max(1, len(counts)), np.cumsum(counts) / whole
