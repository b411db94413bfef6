"""Comparisons of two sides: train against test, a dataset against another or an earlier generation.

Train and test are compared in everything that a trainer assumes to be equal. Only the distance
decides the verdict. Where a split has few probes, the distance due to chance is shown beside it.

  distributions   Kolmogorov-Smirnov: the largest difference of the cumulative shares, 0 to 1
  shares          Cohen's h, |2 asin √p − 2 asin √q| / π, 0 to 1: 1 % and 4 % differ, 50 % and
                  53 % do not
  destinations    half the sum of the differences of their shares, 0 to 1

Two datasets are compared by their manifests and row indexes; an earlier generation has only its
counts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.dataset.data_card import GENERATION_COLUMNS, generation_rows
from beam_pipeline.dataset.manifest import SPLITS, Counts, Generation
from beam_pipeline.dataset.row_index import RowIndex
from beam_pipeline.dataset.rows import Dataset, open_whole
from beam_pipeline.errors import UsageError
from beam_pipeline.inspect.figures import Destinations, Distribution, SplitFigures
from beam_pipeline.inspect.index import Period, probes_of, sum_of
from beam_pipeline.report.tables import NONE, Table, bytes_text, number_of, percent, time_text

Verdict = Literal["alike", "differs", "unlike"]
# The minimum distance of each verdict: for distributions and destinations, and for shares.
_DIFFERS, _UNLIKE = 0.1, 0.25
_SHARE_DIFFERS, _SHARE_UNLIKE = 0.2 / math.pi, 0.5 / math.pi
# Kolmogorov's 95 %: two samples of n and m differ by less than this times sqrt(1/n + 1/m).
_CHANCE = 1.36
_MAX_DESTINATIONS = 50  # compared individually; all others count as one


class Side(NamedTuple):
    """The totals of one side: a split, a dataset, or an earlier generation of it.

    None is unknown; `period` is also None without measurements. A split has neither counts of the
    input nor options of its own. `probes` has a line per probe: src_id, split, n_measurements.
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
    probes: pa.Table | None = None

    @classmethod
    def of_splits(cls, name: str, dataset: Dataset, probes: Mapping[str, pa.Table]) -> "Side":
        """Returns the side of one or both splits, given the `probes_of` each."""
        splits = [dataset.manifest.splits[split] for split in probes]
        together = pa.concat_tables(
            own.append_column("split", pa.repeat(split, len(own))) for split, own in probes.items()
        )
        return cls(
            *(name, len(together), sum_of(together["num_rows"])),
            num_measurements=sum_of(together["n_measurements"]),
            period=Period.spanning(together["first_us"].to_numpy(), together["last_us"].to_numpy()),
            num_bytes=sum(split.num_bytes for split in splits),
            num_shards=sum(len(split.shards) for split in splits),
            probes=together.select(["src_id", "split", "n_measurements"]),
        )

    @classmethod
    def of_dataset(cls, dataset: Dataset) -> "Side":
        manifest = dataset.manifest
        probes = {split: probes_of(RowIndex.of(dataset.index(split))) for split in SPLITS}
        read_with = manifest.generations[-1].options if manifest.generations else {}
        return cls.of_splits(dataset.path, dataset, probes)._replace(
            counts=manifest.counts,
            options={**manifest.options, **read_with, **_versions(manifest.versions)},
        )

    @classmethod
    def of_generations(cls, generations: Sequence[Generation]) -> "Side":
        """Returns the side after the last of some generations."""
        last, counts = generations[-1], reduce(Counts.plus, (each.counts for each in generations))
        name = f"generation {len(generations)}"
        return cls(
            *(name, last.num_probes, last.num_records, counts.measurements),
            period=Period.of_all(map(period_of, generations)),
            counts=counts,
            options={**last.options, **_versions(last.versions)},
        )

    @property
    def totals(self) -> dict[str, Any]:
        """The totals in the order of a table; None is unknown."""
        period, counts = self.period, self.counts
        totals = {
            "probes": self.num_probes,
            "rows": self.num_rows,
            "measurements": self.num_measurements,
            "bytes": None if self.num_bytes is None else bytes_text(self.num_bytes),
            "shards": self.num_shards,
            "first measurement, UTC": period and time_text(period.begin_us),
            "last measurement, UTC": period and time_text(period.end_us),
        }
        if counts:
            totals |= {
                "input rows read": counts.rows_read,
                "dead letters": counts.num_dead_letters,
                "rows not in the sample": counts.rows_left_out,
                "duplicates dropped": counts.duplicates_dropped,
            }
        return totals


def side_rows(sides: Sequence[Side]) -> list[list[Any]]:
    """Returns the rows of a table with one column per side."""
    totals = [side.totals for side in sides]
    return [[name, *(one[name] for one in totals)] for name in totals[0]]


def period_of(generation: Generation) -> Period | None:
    first_us, last_us = generation.first_us, generation.last_us
    return None if first_us is None or last_us is None else Period(first_us, last_us)


def _versions(versions: Mapping[str, str]) -> dict[str, str]:
    return {f"version of {name}": version for name, version in versions.items()}


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


def compare_splits(
    train: SplitFigures, test: SplitFigures, destinations: Destinations
) -> list[Comparison]:
    """Compares train with test; returns no comparisons if either is empty."""
    if not len(train.rows) or not len(test.rows):
        return []
    by_probe = _chance(len(train.probes), len(test.probes))
    by_measurement = _chance(train.effective_number, test.effective_number)
    pairs = {name: (one, test.distributions[name]) for name, one in train.distributions.items()}

    def of_values(name: str, chance: float) -> Comparison:
        return _compare_values(name, *pairs[name], chance)

    def of_shares(name: str) -> Comparison:
        return _compare_shares(name, train.shares[name], test.shares[name])

    comparisons = [
        of_values("RTT", by_measurement),
        *map(of_shares, ("failed pings", "IPv6 destinations", "IPv6 probes")),
        of_values("time", by_measurement),
        of_values("hour of the day", by_measurement),
        _compare_destinations(destinations),
        of_values("measurements of a probe", by_probe),
    ]
    if any(len(split.rows) > len(split.probes) for split in (train, test)):  # else equal
        comparisons.append(of_values("measurements of a row", by_probe))
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


def _compare_values(name: str, a: Distribution, b: Distribution, chance: float) -> Comparison:
    if len(a.values) and len(b.values):
        distance = ks_distance(a.values, a.weights, b.values, b.weights)
    else:  # for example, no answered ping
        distance = float(len(a.values) != len(b.values))
    return Comparison(name, a.text, b.text, distance, chance, judge(distance))


def _compare_shares(name: str, a: float, b: float) -> Comparison:
    distance = abs(math.asin(math.sqrt(a)) - math.asin(math.sqrt(b))) * 2 / math.pi
    verdict = judge(distance, _SHARE_DIFFERS, _SHARE_UNLIKE)
    return Comparison(name, percent(a, 2), percent(b, 2), distance, None, verdict)


def _compare_destinations(destinations: Destinations) -> Comparison:
    weights = destinations.weights
    shares = weights / weights.sum(axis=1, keepdims=True)
    order = np.argsort(-shares.sum(axis=0), kind="stable")
    difference = (shares[0] - shares[1])[order]
    rest = abs(difference[_MAX_DESTINATIONS:].sum())
    distance = float(np.abs(difference[:_MAX_DESTINATIONS]).sum() + rest) / 2
    known = percent(shares[1][weights[0] > 0].sum())
    train, test = np.count_nonzero(weights, axis=1)
    texts = f"{train:,} in the sample", f"{test:,}; {known} of its pings go to train's"
    return Comparison("destinations", *texts, distance, None, judge(distance))


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
        return Changes(Side.of_dataset(open_whole(other)), Side.of_dataset(dataset), [])
    manifest = dataset.manifest
    number, generations = int(other), manifest.generations
    if not 1 <= number <= len(generations):
        listed = f"generations 1 to {len(generations)}" if generations else "no list of generations"
        raise UsageError(
            f"--compare={other}: {dataset.path} has {listed}; write a folder of that name as "
            f"./{other}"
        )
    before = Side.of_generations(generations[:number])
    return Changes(before, Side.of_dataset(dataset), list(generation_rows(manifest))[number:])


def probe_changes(changes: Changes) -> list[ProbeChange]:
    """Returns new, grown, unchanged, shrunk and lost probes; none if they cannot be matched."""
    before, now = changes.before.probes, changes.now.probes
    if before is None or now is None or not changes.same_addresses:
        return []
    both = before.join(now, "src_id", join_type="full outer", right_suffix="_now")
    was, has = (
        pc.fill_null(both[name], 0).to_numpy() for name in ("n_measurements", "n_measurements_now")
    )
    has_moved = pc.fill_null(pc.not_equal(both["split"], both["split_now"]), False).to_numpy()
    groups = {
        "new": was == 0,
        "grown": (was > 0) & (has > was),
        "with as many measurements": has == was,
        "with fewer measurements": (has > 0) & (has < was),
        "no longer there": has == 0,
        "of these, in the other split": has_moved,
    }
    return [
        ProbeChange(what, int(chosen.sum()), int(was[chosen].sum()), int(has[chosen].sum()))
        for what, chosen in groups.items()
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
