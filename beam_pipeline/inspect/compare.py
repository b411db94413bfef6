"""Train against test: how far apart they are, in numbers and in a sentence each.

Everything that a trainer assumes to be alike in both splits is compared: RTT, losses, families,
sizes, times, destinations. The size of a distance alone decides the verdict. Where a split has few
probes, the distance that chance alone can cause is given beside it.

  distributions   Kolmogorov-Smirnov: the largest difference of the cumulative shares, 0 to 1
  shares          Cohen's h, |2 asin √p − 2 asin √q| / π, 0 to 1: 1 % and 4 % differ, 50 % and
                  53 % do not
  destinations    half the sum of the differences of their shares, 0 to 1
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from beam_pipeline.dataset.manifest import SPLITS
from beam_pipeline.inspect.index import HOUR_US, Index, Period, Probes
from beam_pipeline.inspect.sample import Sample
from beam_pipeline.inspect.statistics import HOURS, number_destinations, rtts_of
from beam_pipeline.report.tables import ms_text, percent

Verdict = Literal["alike", "differs", "unlike"]
# The smallest distance of each verdict: of distributions and destinations, and of shares.
_DIFFERS, _UNLIKE = 0.1, 0.25
_SHARE_DIFFERS, _SHARE_UNLIKE = 0.2 / math.pi, 0.5 / math.pi
# Kolmogorov's 95 %: two samples of n and m differ by less than this times sqrt(1/n + 1/m).
_CHANCE = 1.36
_MAX_DESTINATIONS = 50  # that are compared one by one; all others count as one


class Comparison(NamedTuple):
    """One property of both splits.

    Attributes:
      train, test: its values as text, such as "41.2 ms (10.1–80)".
      distance: 0 to 1.
      chance: the distance that chance alone stays below in 95 of 100 splits, if it is known.
    """

    name: str
    train: str
    test: str
    distance: float
    chance: float | None
    verdict: Verdict

    @property
    def sentence(self) -> str:
        """The comparison as a sentence."""
        words = {"alike": "are alike", "differs": "differ", "unlike": "are UNLIKE each other"}
        text = f"In {self.name}, train and test {words[self.verdict]}: "
        text += f"{self.train} against {self.test} (distance {self.distance:.2f})"
        if self.verdict != "alike" and self.chance is not None:
            is_chance = self.distance <= self.chance
            text += "; so few probes carry them that chance" if is_chance else "; chance"
            text += f" alone goes up to {self.chance:.2f}"
        return text + "."


class Conclusion(NamedTuple):
    """Whether test is like train: the verdict, and a sentence."""

    verdict: Verdict
    text: str


def compare(indexes: Mapping[str, Index], samples: Mapping[str, Sample]) -> list[Comparison]:
    """Compares train with test; returns no comparisons if one of them is empty."""
    if any(not len(indexes[split]) for split in SPLITS):
        return []
    pair = [indexes[split] for split in SPLITS]
    drawn = [samples[split] for split in SPLITS]
    by_probe = _chance(*(len(index.probes) for index in pair))
    by_measurement = _chance(*(index.probes.effective_number for index in pair))
    comparisons = [
        _compare_samples("RTT", drawn, _rtt, _rtt_text, by_measurement),
        _compare_shares("failed pings", [index.failed_share for index in pair]),
        _compare_shares("IPv6 destinations", [index.ipv6_share for index in pair]),
        _compare_shares("IPv6 probes", [index.probes.ipv6_share for index in pair]),
        _compare_samples("time", drawn, _time, _time_text, by_measurement),
        _compare_samples("hour of the day", drawn, _hour, _hour_text, by_measurement),
        _compare_destinations(samples),
        _compare_counts("measurements of a probe", [i.probes for i in pair], by_probe),
    ]
    if any(len(index) > len(index.probes) for index in pair):  # else every row is a probe
        comparisons.append(_compare_counts("measurements of a row", pair, by_probe))
    return comparisons


def conclusion(comparisons: list[Comparison]) -> Conclusion | None:
    """Tells whether test is like train; None if nothing was compared."""
    if not comparisons:
        return None
    ordered = sorted(comparisons, key=lambda one: -one.distance)
    unlike, differs, alike = (
        [one.name for one in ordered if one.verdict == verdict]
        for verdict in ("unlike", "differs", "alike")
    )
    if len(alike) == len(comparisons):
        return Conclusion(
            "alike",
            f"The test set is like the train set in all {len(comparisons)} respects compared.",
        )
    parts = [f"is unlike the train set in {_joined(unlike)}"] if unlike else []
    differing = "differs" if unlike else "differs from the train set"
    parts += [f"{differing} in {_joined(differs)}"] if differs else []
    return Conclusion(
        "unlike" if unlike else "differs",
        f"The test set {' and '.join(parts)}; in {len(alike)} of "
        f"{len(comparisons)} respects they are alike.",
    )


def judge(distance: float, differs: float = _DIFFERS, unlike: float = _UNLIKE) -> Verdict:
    """Returns the verdict on a distance."""
    if distance < differs:
        return "alike"
    return "differs" if distance < unlike else "unlike"


def ks_distance(
    a: np.ndarray, a_weights: np.ndarray, b: np.ndarray, b_weights: np.ndarray
) -> float:
    """Returns the Kolmogorov-Smirnov distance of two weighted samples, 0 to 1.

    Args:
      a, a_weights, b, b_weights: values and their weights, [n] and [m].
    """
    values = np.concatenate([a, b])
    order = np.argsort(values, kind="stable")
    steps = np.concatenate([a_weights / a_weights.sum(), -b_weights / b_weights.sum()])[order]
    is_last = np.append(np.diff(values[order]) != 0, True)  # equal values count together
    return float(np.abs(np.cumsum(steps)[is_last]).max())


def _chance(train: float, test: float) -> float:
    return min(1.0, _CHANCE * math.sqrt(1 / train + 1 / test))


def _joined(names: list[str]) -> str:
    """Returns names as a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


# --- one property each --------------------------------------------------------------------------


def _compare_samples(
    name: str,
    samples: Sequence[Sample],
    weighted: Callable[[Sample], tuple[np.ndarray, np.ndarray]],
    text: Callable[[Sample], str],
    chance: float,
) -> Comparison:
    """Compares the values, and their weights, that `weighted` takes from each sample."""
    train, test = map(weighted, samples)
    if len(train[0]) and len(test[0]):
        distance = ks_distance(*train, *test)
    else:  # such as no answered ping in one of them, or in both
        distance = float(len(train[0]) != len(test[0]))
    train_text, test_text = map(text, samples)
    return Comparison(name, train_text, test_text, distance, chance, judge(distance))


def _rtt(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    return sample.rtt[sample.answered], sample.weight[sample.answered]


def _rtt_text(sample: Sample) -> str:
    low, median, high = rtts_of(sample).quantiles_ms
    if math.isnan(median):
        return "no answered ping"
    return f"{ms_text(median)} ms ({ms_text(low)}–{ms_text(high)})"


def _time(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    return sample.time_us, sample.weight


def _time_text(sample: Sample) -> str:
    return str(Period(int(sample.time_us.min()), int(sample.time_us.max())))


def _hour(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    return sample.time_us // HOUR_US % HOURS, sample.weight


def _hour_text(sample: Sample) -> str:
    hours, weights = _hour(sample)
    by_day = np.bincount(hours, weights, HOURS)
    return f"{percent(by_day[6:18].sum() / by_day.sum())} from 6 to 18 h UTC"


def _compare_shares(name: str, shares: Sequence[float]) -> Comparison:
    train_angle, test_angle = (2 * math.asin(math.sqrt(share)) for share in shares)
    distance = abs(train_angle - test_angle) / math.pi
    verdict = judge(distance, _SHARE_DIFFERS, _SHARE_UNLIKE)
    train, test = (percent(share, 2) for share in shares)
    return Comparison(name, train, test, distance, None, verdict)


def _compare_counts(name: str, pair: Sequence[Probes | Index], chance: float) -> Comparison:
    counts = [one.n_measurements for one in pair]
    a, b = ((values, np.ones(len(values))) for values in counts)
    distance = ks_distance(*a, *b)
    train, test = (f"median {np.median(values):,.0f}" for values in counts)
    return Comparison(name, train, test, distance, chance, judge(distance))


def _compare_destinations(samples: Mapping[str, Sample]) -> Comparison:
    weights = number_destinations({split: samples[split] for split in SPLITS}).weights
    shares = weights / weights.sum(axis=1, keepdims=True)
    order = np.argsort(-shares.sum(axis=0), kind="stable")
    ordered = shares[:, order]
    difference = ordered[0] - ordered[1]
    rest = abs(difference[_MAX_DESTINATIONS:].sum())
    distance = float(np.abs(difference[:_MAX_DESTINATIONS]).sum() + rest) / 2
    known = shares[1][weights[0] > 0].sum()
    train, test = np.count_nonzero(weights, axis=1)
    return Comparison(
        "destinations",
        f"{train:,} in the sample",
        f"{test:,}; {percent(known)} of its pings go to train's",
        distance,
        None,
        judge(distance),
    )
