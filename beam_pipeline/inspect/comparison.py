"""Comparisons: train against test, and a dataset against another or an earlier generation.

Train and test are compared in everything that a trainer assumes to be equal. Only the distance
decides the verdict. Where a split has few probes, the distance due to chance is shown beside it.

  distributions   Kolmogorov-Smirnov: the largest difference of the cumulative shares, 0 to 1
  shares          Cohen's h, |2 asin √p − 2 asin √q| / π, 0 to 1: 1 % and 4 % differ, 50 % and
                  53 % do not
  destinations    half the sum of the differences of their shares, 0 to 1

Two datasets are compared by their manifests and row indexes, in 17 bytes per probe. An earlier
generation has only its counts.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple

import numpy as np

from beam_pipeline.dataset.data_card import GENERATION_COLUMNS, generation_rows
from beam_pipeline.dataset.manifest import SPLITS, Counts, Generation
from beam_pipeline.dataset.row_index import RowIndex
from beam_pipeline.dataset.rows import Dataset, open_dataset
from beam_pipeline.errors import UsageError
from beam_pipeline.inspect.index import HOUR_US, Index, Period, Probes
from beam_pipeline.inspect.sample import Sample
from beam_pipeline.inspect.statistics import HOURS, number_destinations, rtts_of
from beam_pipeline.report.tables import (
    NONE,
    Table,
    bytes_text,
    ms_text,
    number_of,
    percent,
    time_text,
)

Verdict = Literal["alike", "differs", "unlike"]
# The minimum distance of each verdict: for distributions and destinations, and for shares.
_DIFFERS, _UNLIKE = 0.1, 0.25
_SHARE_DIFFERS, _SHARE_UNLIKE = 0.2 / math.pi, 0.5 / math.pi
# Kolmogorov's 95 %: two samples of n and m differ by less than this times sqrt(1/n + 1/m).
_CHANCE = 1.36
_MAX_DESTINATIONS = 50  # compared individually; all others count as one


class ProbeCounts(NamedTuple):
    """The p probes of a dataset; `split` is an index into SPLITS."""

    src_id: np.ndarray  # int64 [p]
    split: np.ndarray  # int8 [p]
    n_measurements: np.ndarray  # int64 [p]


class Side(NamedTuple):
    """One side of a comparison: a split, a dataset, or an earlier generation of it.

    None is unknown; `period` is also None without measurements. A split has neither counts of the
    input nor options of its own.
    """

    name: str
    num_probes: int
    num_rows: int
    num_measurements: int
    period: Period | None
    num_bytes: int | None = None
    num_shards: int | None = None
    counts: Counts | None = None
    options: Mapping[str, Any] = {}
    probes: ProbeCounts | None = None


_COUNTED = {
    "input rows read": "rows_read",
    "dead letters": "num_dead_letters",
    "rows not in the sample": "rows_left_out",
    "duplicates dropped": "duplicates_dropped",
}


def side_rows(sides: Sequence[Side]) -> Iterator[list[Any]]:
    """Yields the rows of a table with one column per side."""
    for name, values in (
        ("probes", [side.num_probes for side in sides]),
        ("rows", [side.num_rows for side in sides]),
        ("measurements", [side.num_measurements for side in sides]),
        ("bytes", [None if s.num_bytes is None else bytes_text(s.num_bytes) for s in sides]),
        ("shards", [side.num_shards for side in sides]),
        ("first measurement, UTC", [s.period and time_text(s.period.begin_us) for s in sides]),
        ("last measurement, UTC", [s.period and time_text(s.period.end_us) for s in sides]),
    ):
        yield [name, *values]
    if all(side.counts for side in sides):
        for name, key in _COUNTED.items():
            yield [name, *(getattr(side.counts, key) for side in sides)]


# --- train against test ---------------------------------------------------------------------------


class Comparison(NamedTuple):
    name: str
    train: str  # values as text, such as "41.2 ms (10.1–80)"
    test: str
    distance: float  # 0 to 1
    chance: float | None  # 95 % quantile of the distance by chance alone, if known
    verdict: Verdict

    @property
    def sentence(self) -> str:
        words = {"alike": "are alike", "differs": "differ", "unlike": "are UNLIKE each other"}
        text = f"In {self.name}, train and test {words[self.verdict]}: "
        text += f"{self.train} against {self.test} (distance {self.distance:.2f})"
        if self.verdict != "alike" and self.chance is not None:
            is_chance = self.distance <= self.chance
            text += "; so few probes carry them that chance" if is_chance else "; chance"
            text += f" alone goes up to {self.chance:.2f}"
        return text + "."


class Conclusion(NamedTuple):
    """The verdict on whether test is like train, and a sentence."""

    verdict: Verdict
    text: str


def compare_splits(indexes: Mapping[str, Index], samples: Mapping[str, Sample]) -> list[Comparison]:
    """Compares train with test; returns no comparisons if either is empty."""
    if any(not len(indexes[split]) for split in SPLITS):
        return []
    pair = [indexes[split] for split in SPLITS]
    probes = [index.probes for index in pair]
    drawn = [samples[split] for split in SPLITS]
    by_probe = _chance(*map(len, probes))
    by_measurement = _chance(*(one.effective_number for one in probes))
    comparisons = [
        _compare_values("RTT", drawn, _rtt, _rtt_text, by_measurement),
        _compare_shares("failed pings", [index.failed_share for index in pair]),
        _compare_shares("IPv6 destinations", [index.ipv6_share for index in pair]),
        _compare_shares("IPv6 probes", [one.ipv6_share for one in probes]),
        _compare_values("time", drawn, _time, _time_text, by_measurement),
        _compare_values("hour of the day", drawn, _hour, _hour_text, by_measurement),
        _compare_destinations(samples),
        _compare_values("measurements of a probe", probes, _counts, _counts_text, by_probe),
    ]
    if any(len(index) > len(index.probes) for index in pair):  # else every row is a probe
        comparisons.append(
            _compare_values("measurements of a row", pair, _counts, _counts_text, by_probe)
        )
    return comparisons


def conclusion(comparisons: list[Comparison]) -> Conclusion | None:
    """Returns the overall conclusion; None without comparisons."""
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
    if distance < differs:
        return "alike"
    return "differs" if distance < unlike else "unlike"


def ks_distance(
    a: np.ndarray, a_weights: np.ndarray, b: np.ndarray, b_weights: np.ndarray
) -> float:
    """Returns the Kolmogorov-Smirnov distance, 0 to 1, of weighted samples [n] and [m]."""
    values = np.concatenate([a, b])
    order = np.argsort(values, kind="stable")
    steps = np.concatenate([a_weights / a_weights.sum(), -b_weights / b_weights.sum()])[order]
    is_last = np.append(np.diff(values[order]) != 0, True)  # equal values count together
    return float(np.abs(np.cumsum(steps)[is_last]).max())


def _chance(train: float, test: float) -> float:
    return min(1.0, _CHANCE * math.sqrt(1 / train + 1 / test))


def _joined(names: list[str]) -> str:
    """Joins names as a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _compare_values[T](
    name: str,
    sides: Sequence[T],
    weighted: Callable[[T], tuple[np.ndarray, np.ndarray]],
    text: Callable[[T], str],
    chance: float,
) -> Comparison:
    """Compares both sides by their values and weights, as returned by `weighted`."""
    train, test = map(weighted, sides)
    if len(train[0]) and len(test[0]):
        distance = ks_distance(*train, *test)
    else:  # for example, no answered ping
        distance = float(len(train[0]) != len(test[0]))
    train_text, test_text = map(text, sides)
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


def _counts(one: Probes | Index) -> tuple[np.ndarray, np.ndarray]:
    return one.n_measurements, np.ones(len(one.n_measurements))


def _counts_text(one: Probes | Index) -> str:
    return f"median {np.median(one.n_measurements):,.0f}"


def _compare_shares(name: str, shares: Sequence[float]) -> Comparison:
    train_angle, test_angle = (2 * math.asin(math.sqrt(share)) for share in shares)
    distance = abs(train_angle - test_angle) / math.pi
    verdict = judge(distance, _SHARE_DIFFERS, _SHARE_UNLIKE)
    train, test = (percent(share, 2) for share in shares)
    return Comparison(name, train, test, distance, None, verdict)


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


# --- two datasets or generations ------------------------------------------------------------------


class ProbeChange(NamedTuple):
    """Probes that changed in the same way, and their measurements."""

    what: str
    num_probes: int
    before: int
    now: int


class Changes(NamedTuple):
    """Two sides, and the generations between them, if known."""

    before: Side
    now: Side
    generations: list[tuple[str, ...]]

    @property
    def same_addresses(self) -> bool:
        """Whether probes have the same address in both: plain, or anonymised with the same key."""
        one, other = (
            each.options.get("anonymize_key_fingerprint", "") for each in (self.before, self.now)
        )
        return one == other


def compare_datasets(dataset: Dataset, other: str) -> Changes:
    """Compares a dataset with another, by path, or its own generation, by number."""
    if not other.isdecimal():
        return Changes(_side_of(open_dataset(other)), _side_of(dataset), [])
    manifest = dataset.manifest
    number, generations = int(other), manifest.generations
    if not 1 <= number <= len(generations):
        listed = f"generations 1 to {len(generations)}" if generations else "no list of generations"
        raise UsageError(
            f"--compare={other}: {dataset.path} has {listed}; write a folder of that name as "
            f"./{other}"
        )
    before = _side_after(generations[:number], number)
    return Changes(before, _side_of(dataset), list(generation_rows(manifest))[number:])


def _side_after(generations: list[Generation], number: int) -> Side:
    firsts = [each.first_us for each in generations if each.first_us is not None]
    lasts = [each.last_us for each in generations if each.last_us is not None]
    last = generations[-1]
    counts = reduce(Counts.plus, (each.counts for each in generations))
    return Side(
        *(f"generation {number}", last.num_probes, last.num_records, counts.measurements),
        Period(min(firsts), max(lasts)) if firsts else None,
        counts=counts,
        options={**last.options, **_versions(last.versions)},
    )


def _side_of(dataset: Dataset) -> Side:
    manifest = dataset.manifest
    splits, parts, periods = manifest.splits.values(), [], []
    for number, split in enumerate(SPLITS):
        index = RowIndex.of(dataset.index(split))
        src_id, ranks = np.unique(index.src_id, return_inverse=True)
        counts = np.bincount(ranks, index.n_measurements, len(src_id)).astype(np.int64)
        parts.append(ProbeCounts(src_id, np.full(len(src_id), number, np.int8), counts))
        if len(index):
            periods.append((int(index.first_us.min()), int(index.last_us.max())))
    probes = ProbeCounts(*map(np.concatenate, zip(*parts, strict=True)))
    read_with = manifest.generations[-1].options if manifest.generations else {}
    return Side(
        name=dataset.path,
        num_probes=len(probes.src_id),
        num_rows=sum(split.num_records for split in splits),
        num_measurements=manifest.counts.measurements,
        period=Period(min(p[0] for p in periods), max(p[1] for p in periods)) if periods else None,
        num_bytes=sum(split.num_bytes for split in splits),
        num_shards=sum(len(split.shards) for split in splits),
        counts=manifest.counts,
        options={**manifest.options, **read_with, **_versions(manifest.versions)},
        probes=probes,
    )


def _versions(versions: dict[str, str]) -> dict[str, str]:
    return {f"version of {name}": version for name, version in versions.items()}


def probe_changes(changes: Changes) -> list[ProbeChange]:
    """Returns new, grown, unchanged, shrunk and lost probes; none if they cannot be matched."""
    before, now = changes.before.probes, changes.now.probes
    if before is None or now is None or not changes.same_addresses:
        return []
    _, b, a = np.intersect1d(before.src_id, now.src_id, assume_unique=True, return_indices=True)
    was, has = before.n_measurements[b], now.n_measurements[a]
    moved = before.split[b] != now.split[a]
    new = np.delete(now.n_measurements, a)
    gone = np.delete(before.n_measurements, b)
    none = np.zeros(0, np.int64)
    groups = {
        "new": (none, new),
        "grown": (was[has > was], has[has > was]),
        "with as many measurements": (was[has == was], has[has == was]),
        "with fewer measurements": (was[has < was], has[has < was]),
        "no longer there": (gone, none),
        "of these, in the other split": (was[moved], has[moved]),
    }
    return [
        ProbeChange(what, max(len(old), len(new)), int(old.sum()), int(new.sum()))
        for what, (old, new) in groups.items()
    ]


def differing_options(changes: Changes) -> list[tuple[str, str, str]]:
    """Returns the options and versions that differ, with both values."""
    one, other = changes.before.options, changes.now.options
    names = sorted(name for name in one.keys() & other.keys() if one[name] != other[name])
    if changes.before.probes is not None:  # both are complete manifests
        names += sorted(one.keys() ^ other.keys())
    return [(name, str(one.get(name, NONE)), str(other.get(name, NONE))) for name in names]


def summary(changes: Changes) -> str:
    """Returns the difference in one or two sentences."""
    before, now = changes.before, changes.now
    added = now.num_measurements - before.num_measurements
    more = "more" if added >= 0 else "fewer"
    text = f"{now.name} has {number_of(abs(added), 'measurement')} {more} than {before.name}"
    if found := probe_changes(changes):
        parts = [f"{one.num_probes:,} {one.what}" for one in found[:5] if one.num_probes]
        return f"{text}; of the probes, {', '.join(parts) or 'there are none'}."
    text += f" and {number_of(now.num_probes, 'probe')} instead of {before.num_probes:,}."
    if before.probes is None:
        return f"{text} Only a copy of that generation shows which probes grew."
    return f"{text} Probes cannot be matched: their addresses were replaced with different keys."


def change_tables(changes: Changes) -> Iterator[Table]:
    """Yields the tables: totals, probes, options, and the generations in between."""
    columns = ("", "before", "now", "change")
    yield Table("Before and now", columns, list(_changed_rows(changes)))
    if probes := probe_changes(changes):
        yield Table("Probes", ("probes", "number", "measurements before", "now"), probes)
    if options := differing_options(changes):
        columns = [(name, "text") for name in ("option", "before", "now")]
        yield Table("Options that differ", columns, options)
    if changes.generations:
        yield Table("What was added", GENERATION_COLUMNS, changes.generations)


def _changed_rows(changes: Changes) -> Iterator[list[Any]]:
    """Yields the rows of the table before, now, change."""
    for name, one, other in side_rows((changes.before, changes.now)):
        if one is None or other is None:
            change = NONE
        elif isinstance(one, str):
            change = "" if one == other else "changed"
        else:
            change = f"{other - one:+,}"
        yield [name, one, other, change]
