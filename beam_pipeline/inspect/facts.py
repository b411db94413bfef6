"""The statistics of a dataset, `Facts`, and findings from them, as sentences."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset.manifest import SPLITS
from beam_pipeline.dataset.rows import Dataset
from beam_pipeline.inspect.comparison import Comparison, compare_splits
from beam_pipeline.inspect.index import Index, Period, uncovered
from beam_pipeline.inspect.names import RowName
from beam_pipeline.inspect.sample import Sample, draw
from beam_pipeline.inspect.statistics import (
    Destination,
    Rtts,
    Timeline,
    by_hour,
    empty_bins,
    rtts_of,
    timeline,
    top_destinations,
)
from beam_pipeline.report.tables import bytes_text, number_of, percent, span_us_text

_MAX_DESTINATIONS = 15
_MAX_BUSIEST = 10
# Thresholds of findings.
_MANY_DEAD_LETTERS = 0.01
_BUSY_PROBE, _BUSY_HUNDREDTH = 0.1, 0.5
_MANY_FAILED = 0.2
_FEW_TEST_PROBES = 30


class BusyProbe(NamedTuple):
    address: str
    n_measurements: int
    share: float
    num_rows: int
    failed_share: float
    span_us: int


class Finding(NamedTuple):
    """A sentence; `is_warning` if it matters before the dataset is used."""

    text: str
    is_warning: bool


@dataclass(frozen=True)
class Facts:
    """The statistics of a dataset; mappings have one entry per split, train first."""

    dataset: Dataset
    indexes: dict[str, Index]
    samples: dict[str, Sample]
    rtts: dict[str, Rtts]
    hours: dict[str, list[Rtts]]
    destinations: list[Destination]
    num_destinations: int
    busiest: dict[str, list[BusyProbe]]
    period: Period | None
    timeline: Timeline | None
    uncovered: list[Period]
    empty: list[Period]
    comparisons: list[Comparison]

    @cached_property
    def findings(self) -> list[Finding]:
        """The findings, warnings first."""
        found = chain.from_iterable(find(self) for find in _FINDERS)
        return sorted(found, key=lambda finding: not finding.is_warning)

    @property
    def typical_row(self) -> RowName | None:
        """The sampled row with the median number of measurements."""
        for split, sample in self.samples.items():
            if len(sample.lines):
                sizes = self.indexes[split].n_measurements[sample.lines]
                middle = np.argsort(sizes, kind="stable")[len(sizes) // 2]
                return RowName(split, int(sample.lines[middle]))
        return None


def gather(dataset: Dataset) -> Facts:
    """Reads rows.parquet of both splits and a sample of their rows."""
    indexes = {split: Index.of(dataset.index(split)) for split in SPLITS}
    samples = {split: draw(dataset, split, index) for split, index in indexes.items()}
    periods = [index.period for index in indexes.values() if index.period]
    period = Period(min(periods).begin_us, max(p.end_us for p in periods)) if periods else None
    line = timeline(samples, period) if period else None
    destinations, num_destinations = top_destinations(samples, _MAX_DESTINATIONS)
    return Facts(
        dataset=dataset,
        indexes=indexes,
        samples=samples,
        rtts={split: rtts_of(sample) for split, sample in samples.items()},
        hours={split: by_hour(sample) for split, sample in samples.items()},
        destinations=destinations,
        num_destinations=num_destinations,
        busiest={split: _busiest(index) for split, index in indexes.items()},
        period=period,
        timeline=line,
        uncovered=uncovered(indexes.values()),
        empty=empty_bins(line) if line else [],
        comparisons=compare_splits(indexes, samples),
    )


def _busiest(index: Index) -> list[BusyProbe]:
    """Returns the probes with the most measurements, ties in the order of src_id."""
    probes, n = index.probes, index.probes.n_measurements
    top = np.argsort(-n, kind="stable")[:_MAX_BUSIEST]
    columns = (
        n,
        n / max(1, index.num_measurements),
        probes.num_rows,
        probes.num_failed / n,
        probes.span_us,
    )
    src_addr = probes.src_addr.take(pa.array(top)).to_pylist()
    return list(map(BusyProbe, src_addr, *(column[top].tolist() for column in columns)))


# --- findings -----------------------------------------------------------------------------------


def _find_small_splits(facts: Facts) -> Iterator[Finding]:
    if not any(map(len, facts.indexes.values())):
        reason = max(
            facts.dataset.manifest.counts.dead_letters.items(), key=itemgetter(1), default=None
        )
        why = f"because of {reason[0]}" if reason else "because the input has no rows"
        yield Finding(f"Nothing was kept, {why}.", True)
        return
    for split, index in facts.indexes.items():
        if not len(index):
            ratio = facts.dataset.manifest.options.get("train_ratio")
            yield Finding(f"There is no {split} set: --train_ratio={ratio} gave it no probe.", True)
    probes = len(facts.indexes["test"].probes)
    if 0 < probes < _FEW_TEST_PROBES:
        yield Finding(
            f"The test set has only {number_of(probes, 'probe')}: results on it depend on which "
            "ones they are.",
            True,
        )


def _find_differences(facts: Facts) -> Iterator[Finding]:
    apart = [comparison for comparison in facts.comparisons if comparison.verdict != "alike"]
    for comparison in sorted(apart, key=lambda c: -c.distance):
        yield Finding(comparison.sentence, True)
    if apart:
        numbers = (
            f"those of {split} weigh like {index.probes.effective_number:,.0f} of one size"
            f" ({number_of(len(index.probes), 'probe')})"
            for split, index in facts.indexes.items()
        )
        yield Finding(f"Measurements are uneven over probes: {', '.join(numbers)}.", False)
    elif facts.comparisons:
        yield Finding("Train and test are alike in all that was compared.", False)


def _find_warnings(facts: Facts) -> Iterator[Finding]:
    for text in facts.dataset.manifest.warnings:
        yield Finding(f"{text}.", True)


def _find_dead_letters(facts: Facts) -> Iterator[Finding]:
    counts = facts.dataset.manifest.counts
    if not counts.num_dead_letters:
        text = f"All {counts.measurements:,} input rows are included: no dead letters."
        if counts.rows_left_out:
            text += f" {counts.rows_left_out:,} others are not in the sample."
        yield Finding(text, False)
        return
    reason, count = max(counts.dead_letters.items(), key=lambda item: item[1])
    share = counts.num_dead_letters / counts.rows_read
    yield Finding(
        f"{counts.num_dead_letters:,} of {counts.rows_read:,} input rows ({percent(share, 2)}) are "
        f"dead letters, most of them {reason} ({count:,}).",
        share >= _MANY_DEAD_LETTERS,
    )


def _find_duplicates(facts: Facts) -> Iterator[Finding]:
    counts = facts.dataset.manifest.counts
    if counts.duplicates_dropped:
        yield Finding(
            f"{counts.duplicates_dropped:,} of {counts.rows_read:,} input rows equal another "
            "measurement of their probe and were dropped.",
            False,
        )


def _find_busy_probes(facts: Facts) -> Iterator[Finding]:
    for split, probes in facts.busiest.items():
        counts = np.sort(facts.indexes[split].probes.n_measurements)[::-1]
        if probes and probes[0].share >= _BUSY_PROBE and len(counts) > 1:
            yield Finding(
                f"One probe, {probes[0].address}, has {percent(probes[0].share, 0)} of the "
                f"measurements of {split}.",
                True,
            )
        share = counts[: math.ceil(len(counts) / 100)].sum() / max(1, counts.sum())
        if len(counts) >= 100 and share >= _BUSY_HUNDREDTH:
            yield Finding(
                f"The busiest 1 % of the probes of {split} have {percent(share, 0)} of its "
                "measurements.",
                False,
            )


def _find_failed_pings(facts: Facts) -> Iterator[Finding]:
    for split, index in facts.indexes.items():
        if index.failed_share >= _MANY_FAILED:
            yield Finding(f"{percent(index.failed_share, 0)} of the pings of {split} failed.", True)


def _find_gaps(facts: Facts) -> Iterator[Finding]:
    # Periods without a measurement also lack a sampled one.
    what = "measurement" if facts.uncovered else "sampled measurement"
    if periods := facts.uncovered or facts.empty:
        others = number_of(len(periods) - 1, "shorter period")
        more = f", nor in {others}" if len(periods) > 1 else ""
        length = span_us_text(periods[0].length_us)
        yield Finding(f"There is no {what} from {periods[0]} ({length}){more}.", True)
    silences = np.concatenate([sample.num_silences for sample in facts.samples.values()])
    if silences.any():
        longest_us = max(s.longest_silence_us.max(initial=0) for s in facts.samples.values())
        yield Finding(
            f"{np.count_nonzero(silences):,} of the {len(silences):,} rows read have a silence, a "
            "gap of over an hour and of 20 times their mean interval; the longest lasts "
            f"{span_us_text(longest_us)}.",
            False,
        )


def _find_generations(facts: Facts) -> Iterator[Finding]:
    generations = facts.dataset.manifest.generations
    if len(generations) < 2:
        return
    before, last = generations[-2:]
    period = ""
    if last.first_us is not None and last.last_us is not None:
        period = f", from {Period(last.first_us, last.last_us)}"
    yield Finding(
        f"The last of {len(generations)} generations added "
        f"{number_of(last.counts.measurements, 'measurement')}{period}, "
        f"{number_of(last.num_probes - before.num_probes, 'probe')} that had none before, and "
        f"{number_of(last.counts.num_dead_letters, 'dead letter')}; there are "
        f"{last.num_records:,} rows now, there were {before.num_records:,}.",
        False,
    )


def _find_anonymized(facts: Facts) -> Iterator[Finding]:
    method = facts.dataset.manifest.options.get("anonymize", "none")
    if method != "none":
        yield Finding(
            f"Addresses are not the real ones: --anonymize={method} replaced them. Equal addresses "
            "are still equal, and common prefixes are still common.",
            False,
        )


_FINDERS = (
    _find_small_splits,
    _find_differences,
    _find_warnings,
    _find_dead_letters,
    _find_duplicates,
    _find_busy_probes,
    _find_failed_pings,
    _find_gaps,
    _find_generations,
    _find_anonymized,
)


def sample_text(facts: Facts) -> str:
    """Describes the basis of the statistics in a sentence."""
    parts = []
    for split, sample in facts.samples.items():
        index = facts.indexes[split]
        taken = "all" if sample.is_whole else f"{len(sample):,}"
        rows = "all" if len(sample.lines) == len(index) else f"{len(sample.lines):,}"
        parts.append(
            f"{split}: {rows} of {number_of(len(index), 'row')} ({bytes_text(sample.num_bytes)}), "
            f"{taken} of {number_of(index.num_measurements, 'measurement')}"
        )
    return (
        "Exact, from rows.parquet and the manifest: sizes, families, failed pings, probes, dead "
        f"letters. RTT, hours, destinations and silences from rows read, {'; '.join(parts)}. The "
        "same dataset gives the same sample."
    )
