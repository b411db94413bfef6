"""What a dataset has that another one, or an earlier generation of it, has not.

Two datasets are compared by their manifests and row indexes, in columns: of each probe its src_id,
split and number of measurements are kept, 17 bytes. Of an earlier generation only what the manifest
says is left: its counts, not its probes.
"""

from collections.abc import Iterator
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.dataset.data_card import GENERATION_COLUMNS, generation_rows
from beam_pipeline.dataset.manifest import SPLITS, Counts, Generation
from beam_pipeline.dataset.row_index import RowIndex
from beam_pipeline.dataset.rows import Dataset, open_dataset
from beam_pipeline.errors import UsageError
from beam_pipeline.inspect.index import Period
from beam_pipeline.report.tables import NONE, Table, bytes_text, number_of, time_text


class Probes(NamedTuple):
    """The p probes of a dataset, each in one split: an index into SPLITS."""

    src_id: np.ndarray  # int64 [p]
    split: np.ndarray  # int8 [p]
    n_measurements: np.ndarray  # int64 [p]


class State(NamedTuple):
    """A dataset as a whole at one time; None is what is not known of an earlier generation."""

    name: str
    num_probes: int
    num_records: int
    counts: Counts
    period: Period | None
    options: dict[str, Any]
    num_bytes: int | None = None
    num_shards: int | None = None
    probes: Probes | None = None


class ProbeChange(NamedTuple):
    """The probes of which one thing can be said, and their measurements."""

    what: str
    num_probes: int
    before: int
    now: int


class Changes(NamedTuple):
    """Two states, and the generations that made one of the other, if that is known."""

    before: State
    now: State
    generations: list[tuple[str, ...]]

    @property
    def same_addresses(self) -> bool:
        """Whether a probe has the same address in both: none, or the same key replaced it."""
        one, other = (
            each.options.get("anonymize_key_fingerprint", "") for each in (self.before, self.now)
        )
        return one == other


def compare_datasets(dataset: Dataset, other: str) -> Changes:
    """Compares a dataset with another, by its path, or with a generation of its own, by number.

    Raises:
      UsageError: there is no such generation.
      ProbelineError: a dataset is not finished, or its row index is damaged.
    """
    if not other.isdecimal():
        return Changes(_state_of(open_dataset(other)), _state_of(dataset), [])
    manifest = dataset.manifest
    number, generations = int(other), manifest.generations
    if not 1 <= number <= len(generations):
        listed = f"generations 1 to {len(generations)}" if generations else "no list of generations"
        raise UsageError(
            f"--compare={other}: {dataset.path} has {listed}; write a folder of that name as "
            f"./{other}"
        )
    before = _state_after(generations[:number], number)
    return Changes(before, _state_of(dataset), list(generation_rows(manifest))[number:])


def _state_after(generations: list[Generation], number: int) -> State:
    firsts = [each.first_us for each in generations if each.first_us is not None]
    lasts = [each.last_us for each in generations if each.last_us is not None]
    last = generations[-1]
    return State(
        f"generation {number}",
        last.num_probes,
        last.num_records,
        reduce(Counts.plus, (each.counts for each in generations)),
        Period(min(firsts), max(lasts)) if firsts else None,
        {**last.options, **_versions(last.versions)},
    )


def _state_of(dataset: Dataset) -> State:
    manifest = dataset.manifest
    splits = manifest.splits.values()
    parts, periods = [], []
    for number, split in enumerate(SPLITS):
        index = RowIndex.of(dataset.index(split))
        src_id, ranks = np.unique(index.src_id, return_inverse=True)
        counts = np.bincount(ranks, index.n_measurements, len(src_id)).astype(np.int64)
        parts.append(Probes(src_id, np.full(len(src_id), number, np.int8), counts))
        if len(index):
            periods.append((int(index.first_us.min()), int(index.last_us.max())))
    probes = Probes(*map(np.concatenate, zip(*parts, strict=True)))
    read_with = manifest.generations[-1].options if manifest.generations else {}
    return State(
        dataset.path,
        len(probes.src_id),
        sum(split.num_records for split in splits),
        manifest.counts,
        Period(min(p[0] for p in periods), max(p[1] for p in periods)) if periods else None,
        {**manifest.options, **read_with, **_versions(manifest.versions)},
        sum(split.num_bytes for split in splits),
        sum(len(split.shards) for split in splits),
        probes,
    )


def _versions(versions: dict[str, str]) -> dict[str, str]:
    return {f"version of {name}": version for name, version in versions.items()}


def probe_changes(changes: Changes) -> list[ProbeChange]:
    """Tells new, grown, unchanged, shrunk and lost probes; none if they cannot be matched."""
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
    """Returns the options and versions that both states have, and that differ, with both values."""
    one, other = changes.before.options, changes.now.options
    names = sorted(name for name in one.keys() & other.keys() if one[name] != other[name])
    if changes.before.probes is not None:  # both are whole manifests
        names += sorted(one.keys() ^ other.keys())
    return [(name, str(one.get(name, NONE)), str(other.get(name, NONE))) for name in names]


def summary(changes: Changes) -> str:
    """Returns the difference in a sentence or two."""
    before, now = changes.before, changes.now
    added = now.counts.measurements - before.counts.measurements
    more = "more" if added >= 0 else "fewer"
    text = f"{now.name} has {number_of(abs(added), 'measurement')} {more} than {before.name}"
    if found := probe_changes(changes):
        parts = [f"{one.num_probes:,} {one.what}" for one in found[:5] if one.num_probes]
        return f"{text}; of the probes, {', '.join(parts) or 'there are none'}."
    text += f" and {number_of(now.num_probes, 'probe')} instead of {before.num_probes:,}."
    if before.probes is None:
        return f"{text} Which ones grew is known only of a copy of that generation."
    return f"{text} They cannot be matched: their addresses were replaced with different keys."


def tables(changes: Changes) -> Iterator[Table]:
    """Yields the tables: totals, probes, options, and the generations in between."""
    before, now = changes.before, changes.now
    yield Table("Before and now", ("", "before", "now", "change"), list(_totals(before, now)))
    if probes := probe_changes(changes):
        yield Table("Probes", ("probes", "number", "measurements before", "now"), probes)
    if options := differing_options(changes):
        columns = [(name, "text") for name in ("option", "before", "now")]
        yield Table("Options that differ", columns, options)
    if changes.generations:
        yield Table("What was added", GENERATION_COLUMNS, changes.generations)


def _totals(before: State, now: State) -> Iterator[tuple[str, ...]]:
    for name, number in (
        ("probes", lambda state: state.num_probes),
        ("rows", lambda state: state.num_records),
        ("measurements", lambda state: state.counts.measurements),
        ("input rows read", lambda state: state.counts.rows_read),
        ("dead letters", lambda state: state.counts.num_dead_letters),
        ("rows not in the sample", lambda state: state.counts.rows_left_out),
        ("duplicates dropped", lambda state: state.counts.duplicates_dropped),
        ("shards", lambda state: state.num_shards),
    ):
        one, other = number(before), number(now)
        if one is None or other is None:
            yield name, NONE, f"{other:,}", NONE
        else:
            yield name, f"{one:,}", f"{other:,}", f"{other - one:+,}"
    sizes = [NONE if s.num_bytes is None else bytes_text(s.num_bytes) for s in (before, now)]
    yield "bytes", *sizes, ""
    for at, name in enumerate(("first measurement, UTC", "last measurement, UTC")):
        times = [time_text(state.period[at]) if state.period else NONE for state in (before, now)]
        yield name, *times, "" if times[0] == times[1] else "changed"
