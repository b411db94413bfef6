"""Comparisons of two sides: train against test, a dataset against another or an earlier generation.

A side has facts and columns. Columns that both sides have are compared by a distance from 0 to 1,
which alone decides the verdict. Where few probes make up a side, the distance due to chance is
shown beside it.

  values        Kolmogorov-Smirnov: the largest difference of the cumulative shares
  share         Cohen's h, |2 asin √p − 2 asin √q| / π: 1 % and 4 % differ, 50 % and 53 % do not
  destinations  half the sum of the differences of their shares
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.dataset import data_card
from beam_pipeline.dataset.data_card import GENERATION_COLUMNS, Facts, Totals, facts
from beam_pipeline.dataset.manifest import SPLITS, Counts
from beam_pipeline.dataset.row_index import RowIndex
from beam_pipeline.dataset.rows import Dataset, open_whole
from beam_pipeline.errors import UsageError
from beam_pipeline.inspect.figures import Figures, Period, SplitFigures, probes_of
from beam_pipeline.inspect.sample import HOURS
from beam_pipeline.report.tables import NONE, Table, percent

Verdict = Literal["alike", "differs", "unlike"]
# Kolmogorov's 95 %: two samples of n and m differ by less than this times sqrt(1/n + 1/m).
_CHANCE = 1.36
_MAX_DESTINATIONS = 50  # compared individually; all others count as one


class Column(NamedTuple):
    """A statistic of one side."""

    kind: Literal["values", "share", "destinations"]
    text: str
    values: np.ndarray  # [n]; a share alone; the weights of all destinations of both sides
    weights: np.ndarray = np.zeros(0)  # of values [n]
    num_probes: float = math.inf  # of equal weight, for the distance due to chance


class Side(NamedTuple):
    """A split, a dataset, or an earlier generation of it.

    `probes` has a line per probe: src_id, split, num_measurements. Splits have no options, and
    generations no probes; `later` are the rows of the generations since.
    """

    name: str
    facts: Facts
    columns: Mapping[str, Column] = {}
    options: Mapping[str, Any] = {}
    probes: pa.Table | None = None
    later: Sequence[Sequence[Any]] = ()


class Comparison(NamedTuple):
    """A fact or a column of two sides; only columns have a distance and a verdict."""

    name: str
    one: int | str | None  # such as 1200 or "41.2 ms (10.1–80)"
    other: int | str | None
    distance: float | None = None  # 0 to 1
    chance: float | None = None  # 95 % quantile of the distance by chance alone, if known
    verdict: Verdict | None = None

    @property
    def change(self) -> str:
        if isinstance(self.one, int) and isinstance(self.other, int):
            return f"{self.other - self.one:+,}"
        return NONE if None in (self.one, self.other) else ""


def compare(one: Side, other: Side) -> list[Comparison]:
    """Compares the facts of two sides, and the columns that both have."""
    found = {
        name: Comparison(name, fact, other.facts.get(name)) for name, fact in one.facts.items()
    }
    for name in filter(other.columns.__contains__, one.columns):
        found[name] = _compare(name, one.columns[name], other.columns[name])
    return list(found.values())


def comparison_table(
    title: str, sides: tuple[str, str], comparisons: Sequence[Comparison], has_change: bool = False
) -> Table:
    """Returns the table of a comparison."""
    columns = ["", *sides, "change"] if has_change else ["", *((side, "text") for side in sides)]
    has_verdicts = any(one.verdict for one in comparisons)
    if has_verdicts:
        columns += [("distance", "decimals2"), ("by chance", "decimals2"), "verdict"]
    rows = []
    for one in comparisons:
        values = (f"{value:,}" if isinstance(value, int) else value for value in one[1:3])
        verdict = ["" if cell is None else cell for cell in one[3:]] if has_verdicts else []
        rows.append([one.name, *values, *([one.change] if has_change else []), *verdict])
    return Table(title, columns, rows, "comparison")


# --- distances ------------------------------------------------------------------------------------


def judge(distance: float, differs: float = 0.1, unlike: float = 0.25) -> Verdict:
    if distance < differs:
        return "alike"
    return "differs" if distance < unlike else "unlike"


def _compare(name: str, one: Column, other: Column) -> Comparison:
    chance = None
    if one.kind == "values":
        distance = ks_distance(one.values, one.weights, other.values, other.weights)
        chance = min(1.0, _CHANCE * math.sqrt(1 / one.num_probes + 1 / other.num_probes))
        verdict = judge(distance)
    elif one.kind == "share":
        angles = np.arcsin(np.sqrt([one.values[0], other.values[0]]))
        distance = float(abs(angles[0] - angles[1]) * 2 / math.pi)
        verdict = judge(distance, 0.2 / math.pi, 0.5 / math.pi)
    else:
        shares = [side.values / side.values.sum() for side in (one, other)]
        difference = (shares[0] - shares[1])[np.argsort(-np.add(*shares), kind="stable")]
        rest = abs(difference[_MAX_DESTINATIONS:].sum())
        distance = float(np.abs(difference[:_MAX_DESTINATIONS]).sum() + rest) / 2
        verdict = judge(distance)
    return Comparison(name, one.text, other.text, distance, chance, verdict)


def ks_distance(
    a: np.ndarray, a_weights: np.ndarray, b: np.ndarray, b_weights: np.ndarray
) -> float:
    """Returns the Kolmogorov-Smirnov distance, 0 to 1, of weighted samples [n] and [m]."""
    if not len(a) or not len(b):  # for example, no answered ping
        return float(len(a) != len(b))
    values = np.concatenate([a, b])
    order = np.argsort(values, kind="stable")
    steps = np.concatenate([a_weights / a_weights.sum(), -b_weights / b_weights.sum()])[order]
    is_last = np.append(np.diff(values[order]) != 0, True)  # equal values count together
    return float(np.abs(np.cumsum(steps)[is_last]).max())


# --- sides ----------------------------------------------------------------------------------------


def effective_number(counts: np.ndarray) -> float:
    """Returns Kish's effective number of probes, (Σ n)² / Σ n², of their measurements."""
    n = counts.astype(float)
    return float(n.sum() ** 2 / (n**2).sum())


def split_sides(figures: Figures) -> list[Side]:
    """Returns train and test; an empty split has no columns."""
    sides = []
    weights = {name: figures.destinations[name].to_numpy() for name in SPLITS}
    for (name, split), other in zip(figures.splits.items(), reversed(SPLITS), strict=True):
        known = facts([figures.dataset.manifest.splits[name]], split.totals)
        columns = {}
        if len(split.rows):
            own = weights[name]
            shared = percent(own[weights[other] > 0].sum() / own.sum())
            text = f"{np.count_nonzero(own):,}; {shared} of the pings go to {other}'s"
            columns = {**_sample_columns(split), "destinations": Column("destinations", text, own)}
            columns |= _index_columns(split.probes)
        sides.append(Side(name, known, columns))
    return sides


def dataset_side(dataset: Dataset) -> Side:
    manifest = dataset.manifest
    by_split = {split: probes_of(RowIndex.of(dataset.index(split))) for split in SPLITS}
    probes = pa.concat_tables(
        own.append_column("split", pa.repeat(split, len(own))) for split, own in by_split.items()
    )
    read_with = manifest.generations[-1].options if manifest.generations else {}
    return Side(
        dataset.path,
        facts(list(manifest.splits.values()), Totals.of(probes)) | _input_facts(manifest.counts),
        _index_columns(probes) if len(probes) else {},
        {**manifest.options, **read_with, **_versions(manifest.versions)},
        probes.select(["src_id", "split", "num_measurements"]),
    )


def generation_side(dataset: Dataset, number: int) -> Side:
    generations = dataset.manifest.generations[:number]
    counts = reduce(Counts.plus, (each.counts for each in generations))
    return Side(
        f"generation {number}",
        data_card.generation_facts(generations) | _input_facts(counts),
        options={**generations[-1].options, **_versions(generations[-1].versions)},
        later=list(data_card.generation_rows(dataset.manifest))[number:],
    )


def _input_facts(counts: Counts) -> Facts:
    return {
        "input rows read": counts.rows_read,
        "dead letters": counts.num_dead_letters,
        "rows not in the sample": counts.rows_left_out,
        "duplicates dropped": counts.duplicates_dropped,
    }


def _versions(versions: Mapping[str, str]) -> dict[str, str]:
    return {f"version of {name}": version for name, version in versions.items()}


def _sample_columns(split: SplitFigures) -> dict[str, Column]:
    sample, number = split.sample, effective_number(split.per_probe)
    answered, times, hours = sample.answered, sample.run["event_time"], sample.hours
    by_hour = np.bincount(hours, sample.weight, HOURS)
    rtt = split.rtts.text(" ms") if answered.any() else "no answered ping"
    found = {
        "RTT": (rtt, sample.run["rtt"][answered], sample.weight[answered]),
        "time": (str(Period(int(times.min()), int(times.max()))), times, sample.weight),
        "hour of the day": (
            f"{percent(by_hour[6:18].sum() / by_hour.sum())} from 6 to 18 h UTC",
            *(hours, sample.weight),
        ),
    }
    return {name: Column("values", *column, number) for name, column in found.items()}


def _index_columns(probes: pa.Table) -> dict[str, Column]:
    totals, sizes = Totals.of(probes), probes["num_measurements"].to_numpy()
    shares = {
        "failed pings": totals.num_failed / totals.num_measurements,
        "IPv6 destinations": totals.num_ipv6 / totals.num_measurements,
        "IPv6 probes": pc.mean(probes["is_ipv6"]).as_py(),
    }
    median = f"median {np.median(sizes):,.0f}"
    # In steps of a fifth: probes that ping by a timetable differ by a few, all of them.
    steps = np.round(4 * np.log2(sizes))
    return {
        **{name: Column("share", percent(p, 2), np.array([p])) for name, p in shares.items()},
        "measurements of a probe": Column("values", median, steps, np.ones(len(sizes)), len(sizes)),
    }


# --- two datasets or generations ------------------------------------------------------------------


def sides_of(dataset: Dataset, other: str) -> tuple[Side, Side]:
    """Returns another dataset, by path, or a generation of this one, by number; and this one."""
    if not other.isdecimal():
        return dataset_side(open_whole(other)), dataset_side(dataset)
    number, generations = int(other), dataset.manifest.generations
    if not 1 <= number <= len(generations):
        listed = f"generations 1 to {len(generations)}" if generations else "no list of generations"
        raise UsageError(
            f"--compare={other}: {dataset.path} has {listed}; write a folder of that name as "
            f"./{other}"
        )
    return generation_side(dataset, number), dataset_side(dataset)


def change_tables(before: Side, now: Side) -> Iterator[Table]:
    """Yields the tables: the comparison, probes, options, and the generations in between."""
    yield comparison_table("Before and now", ("before", "now"), compare(before, now), True)
    if probes := probe_changes(before, now):
        yield Table("Probes", ("probes", "number", "measurements before", "now"), probes)
    one, other = before.options, now.options
    names = sorted(name for name in one.keys() & other.keys() if one[name] != other[name])
    if before.probes is not None:  # both are complete manifests
        names += sorted(one.keys() ^ other.keys())
    if names:
        rows = [(name, str(one.get(name, NONE)), str(other.get(name, NONE))) for name in names]
        columns = [(name, "text") for name in ("option", "before", "now")]
        yield Table("Options that differ", columns, rows)
    if before.later:
        yield Table("What was added", GENERATION_COLUMNS, before.later)


def probe_changes(before: Side, now: Side) -> list[tuple[str, int, int, int]]:
    """Returns new, grown, unchanged, shrunk and lost probes; none if they cannot be matched.

    Each line has the number of probes, and their measurements before and now.
    """
    was_keyed, is_keyed = (
        side.options.get("anonymize_key_fingerprint", "") for side in (before, now)
    )
    if before.probes is None or now.probes is None or was_keyed != is_keyed:
        return []
    both = before.probes.join(now.probes, "src_id", join_type="full outer", right_suffix="_now")
    was, has = (
        pc.fill_null(both[f"num_measurements{side}"], 0).to_numpy() for side in ("", "_now")
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
        (what, int(chosen.sum()), int(was[chosen].sum()), int(has[chosen].sum()))
        for what, chosen in groups.items()
    ]


def summary(before: Side, now: Side) -> str:
    """Returns the difference in one or two sentences."""
    changes = {one.name: one.change for one in compare(before, now)}
    text = f"{now.name} against {before.name}: {changes['measurements']} measurements, "
    text += f"{changes['probes']} probes."
    if before.probes is None:
        return f"{text} Only a copy of that generation shows which probes grew."
    if not probe_changes(before, now):
        return f"{text} Probes cannot be matched: their addresses were replaced by different keys."
    return text
