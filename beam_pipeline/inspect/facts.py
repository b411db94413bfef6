"""The figures of a dataset, `Facts`, and findings from them, as sentences."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from beam_pipeline.dataset.end_names import Names
from beam_pipeline.dataset.manifest import SPLITS
from beam_pipeline.dataset.rows import Dataset
from beam_pipeline.inspect.comparison import Comparison, compare_splits, period_of
from beam_pipeline.inspect.figures import Destinations, SplitFigures, Timeline
from beam_pipeline.inspect.index import Period, uncovered
from beam_pipeline.inspect.names import RowName
from beam_pipeline.inspect.sample import Sample, draw
from beam_pipeline.report.tables import bytes_text, number_of, percent, span_us_text

# Thresholds of findings.
_MANY_DEAD_LETTERS = 0.01
_BUSY_PROBE, _BUSY_HUNDREDTH = 0.1, 0.5
_MANY_FAILED = 0.2
_FEW_TEST_PROBES = 30


class Finding(NamedTuple):
    """A sentence; `is_warning` if it matters before the dataset is used."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class Facts:
    """The figures of a dataset; `splits` are train and test."""

    dataset: Dataset
    splits: dict[str, SplitFigures]

    @property
    def samples(self) -> dict[str, Sample]:
        return {name: split.sample for name, split in self.splits.items()}

    @cached_property
    def period(self) -> Period | None:
        return Period.of_all(split.period for split in self.splits.values())

    @cached_property
    def destinations(self) -> Destinations:
        return Destinations.of(self.samples, next(iter(self.splits.values())).names)

    @cached_property
    def timeline(self) -> Timeline | None:
        return Timeline.of(self.samples, self.period) if self.period else None

    @cached_property
    def empty(self) -> list[Period]:
        """The periods without a sampled measurement, longest first."""
        return self.timeline.empty if self.timeline else []

    @cached_property
    def uncovered(self) -> list[Period]:
        """The periods that no row spans, longest first."""
        return uncovered(split.rows.lines for split in self.splits.values())

    @cached_property
    def comparisons(self) -> list[Comparison]:
        return compare_splits(self.splits["train"], self.splits["test"], self.destinations)

    @cached_property
    def findings(self) -> list[Finding]:
        """The findings, warnings first."""
        found = chain.from_iterable(find(self) for find in _FINDERS)
        return sorted(found, key=lambda finding: not finding.is_warning)

    @property
    def typical_row(self) -> RowName | None:
        """The sampled row with the median number of measurements."""
        for name, split in self.splits.items():
            lines = split.sample.lines
            if len(lines):
                order = np.argsort(split.rows.lines.n_measurements[lines], kind="stable")
                return RowName(name, int(lines[order[len(lines) // 2]]))
        return None


def gather(dataset: Dataset) -> Facts:
    """Reads rows.parquet of both splits and a sample of their rows."""
    rows, names = {split: dataset.rows(split) for split in SPLITS}, Names.read(dataset)
    splits = {split: SplitFigures(own, draw(own), names) for split, own in rows.items()}
    return Facts(dataset, splits)


# --- findings -----------------------------------------------------------------------------------


def _find_small_splits(facts: Facts) -> Iterator[Finding]:
    if not any(len(split.rows) for split in facts.splits.values()):
        letters = facts.dataset.manifest.counts.dead_letters
        reason, _ = max(letters.items(), key=itemgetter(1), default=("input without rows", 0))
        yield Finding(f"Nothing was kept, because of {reason}.", True)
        return
    for name, split in facts.splits.items():
        if not len(split.rows):
            ratio = facts.dataset.manifest.options.get("train_ratio")
            yield Finding(f"There is no {name} set: --train_ratio={ratio} gave it no probe.", True)
    probes = len(facts.splits["test"].probes)
    if 0 < probes < _FEW_TEST_PROBES:
        text = f"The test set has only {number_of(probes, 'probe')}: results on it depend on which "
        yield Finding(f"{text}ones they are.", True)


def _find_differences(facts: Facts) -> Iterator[Finding]:
    apart = [comparison for comparison in facts.comparisons if comparison.verdict != "alike"]
    for comparison in sorted(apart, key=lambda c: -c.distance):
        yield Finding(comparison.sentence, True)
    if apart:
        numbers = (
            f"those of {name} weigh like {split.effective_number:,.0f} of one size"
            f" ({number_of(len(split.probes), 'probe')})"
            for name, split in facts.splits.items()
        )
        yield Finding(f"Measurements are uneven over probes: {', '.join(numbers)}.")
    elif facts.comparisons:
        yield Finding("Train and test are alike in all that was compared.")


def _find_warnings(facts: Facts) -> Iterator[Finding]:
    for text in facts.dataset.manifest.warnings:
        yield Finding(f"{text}.", True)


def _find_dropped_input(facts: Facts) -> Iterator[Finding]:
    counts = facts.dataset.manifest.counts
    of_input = f"{counts.rows_read:,} input rows"
    if counts.num_dead_letters:
        reason, count = max(counts.dead_letters.items(), key=lambda item: item[1])
        share = counts.num_dead_letters / counts.rows_read
        yield Finding(
            f"{counts.num_dead_letters:,} of {of_input} ({percent(share, 2)}) are dead letters, "
            f"most of them {reason} ({count:,}).",
            share >= _MANY_DEAD_LETTERS,
        )
    else:
        text = f"All {counts.measurements:,} input rows are included: no dead letters."
        if counts.rows_left_out:
            text += f" {counts.rows_left_out:,} others are not in the sample."
        yield Finding(text)
    if counts.duplicates_dropped:
        yield Finding(
            f"{counts.duplicates_dropped:,} of {of_input} equal another measurement of their probe "
            "and were dropped."
        )


def _find_busy_probes(facts: Facts) -> Iterator[Finding]:
    for name, split in facts.splits.items():
        probes, counts = split.busiest, np.sort(split.per_probe)[::-1]
        if len(counts) > 1 and probes[0]["share"] >= _BUSY_PROBE:
            address, share = probes[0]["address"], percent(probes[0]["share"], 0)
            yield Finding(f"One probe, {address}, has {share} of the measurements of {name}.", True)
        share = counts[: math.ceil(len(counts) / 100)].sum() / max(1, counts.sum())
        if len(counts) >= 100 and share >= _BUSY_HUNDREDTH:
            text = f"The busiest 1 % of the probes of {name} have {percent(share, 0)} of its "
            yield Finding(f"{text}measurements.")


def _find_failed_pings(facts: Facts) -> Iterator[Finding]:
    for name, split in facts.splits.items():
        share = split.shares["failed pings"]
        if share >= _MANY_FAILED:
            yield Finding(f"{percent(share, 0)} of the pings of {name} failed.", True)


def _find_gaps(facts: Facts) -> Iterator[Finding]:
    # Periods without a measurement also lack a sampled one.
    what = "measurement" if facts.uncovered else "sampled measurement"
    if periods := facts.uncovered or facts.empty:
        others = number_of(len(periods) - 1, "shorter period")
        more = f", nor in {others}" if len(periods) > 1 else ""
        length = span_us_text(periods[0].length_us)
        yield Finding(f"There is no {what} from {periods[0]} ({length}){more}.", True)
    samples = facts.samples.values()
    silences = np.concatenate([sample.num_silences for sample in samples])
    if silences.any():
        longest_us = max(sample.longest_silence_us.max(initial=0) for sample in samples)
        yield Finding(
            f"{np.count_nonzero(silences):,} of the {len(silences):,} rows read have a silence, a "
            "gap of over an hour and of 20 times their mean interval; the longest lasts "
            f"{span_us_text(longest_us)}."
        )


def _find_generations(facts: Facts) -> Iterator[Finding]:
    generations = facts.dataset.manifest.generations
    if len(generations) < 2:
        return
    before, last = generations[-2:]
    period = f", from {period_of(last)}" if period_of(last) else ""
    yield Finding(
        f"The last of {len(generations)} generations added "
        f"{number_of(last.counts.measurements, 'measurement')}{period}, "
        f"{number_of(last.num_probes - before.num_probes, 'probe')} that had none before, and "
        f"{number_of(last.counts.num_dead_letters, 'dead letter')}; there are "
        f"{last.num_records:,} rows now, there were {before.num_records:,}."
    )


def _find_anonymized(facts: Facts) -> Iterator[Finding]:
    method = facts.dataset.manifest.options.get("anonymize", "none")
    if method != "none":
        yield Finding(
            f"Addresses are not the real ones: --anonymize={method} replaced them. Equal addresses "
            "are still equal, and common prefixes are still common."
        )


_FINDERS = (
    _find_small_splits,
    _find_differences,
    _find_warnings,
    _find_dropped_input,
    _find_busy_probes,
    _find_failed_pings,
    _find_gaps,
    _find_generations,
    _find_anonymized,
)


def sample_text(facts: Facts) -> str:
    """Describes the basis of the statistics in a sentence."""
    parts = []
    for name, split in facts.splits.items():
        sample = split.sample
        taken = "all" if sample.is_whole else f"{len(sample):,}"
        rows = "all" if len(sample.lines) == len(split.rows) else f"{len(sample.lines):,}"
        parts.append(
            f"{name}: {rows} of {number_of(len(split.rows), 'row')} "
            f"({bytes_text(sample.num_bytes)}), "
            f"{taken} of {number_of(split.num_measurements, 'measurement')}"
        )
    return (
        "Exact, from rows.parquet and the manifest: sizes, families, failed pings, probes, dead "
        f"letters. RTT, hours, destinations and silences from rows read, {'; '.join(parts)}. The "
        "same dataset gives the same sample."
    )
