"""What a look at a dataset found, as tables: for a terminal, and for the page.

A `Sheet` is a table of plain text. The terminal and the page show the same ones, so that what
stands in one stands in the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from beam_pipeline.inspect.facts import Facts
from beam_pipeline.inspect.figures import FAMILIES, HOURS, Rtts, family_counts
from beam_pipeline.inspect.index import Index
from beam_pipeline.inspect.words import (
    bytes_text,
    ms_text,
    percent,
    period_text,
    span_text,
    time_text,
)

_MOST_PERIODS = 5


@dataclass(frozen=True)
class Sheet:
    """A table: `num_text` columns at the left are text, the others numbers."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_text: int = 1


def sheets(facts: Facts) -> Iterator[Sheet]:
    """Yields all tables, in the order in which a person wants to see them."""
    yield _overview(facts)
    if facts.comparisons:
        yield _comparison(facts)
    yield _hours(facts)
    yield _destinations(facts)
    yield _sizes(facts)
    yield _families(facts)
    yield from _busiest(facts)
    if facts.dataset.manifest.counts.dead_letters:
        yield _dead_letters(facts)
    yield _gaps(facts)


def _overview(facts: Facts) -> Sheet:
    indexes, splits = facts.indexes.values(), facts.dataset.manifest.splits
    periods = [index.period for index in indexes]
    rtts = [facts.rtts[split] for split in facts.indexes]
    rows = [
        ("probes", *(f"{len(index.probes):,}" for index in indexes)),
        ("rows", *(f"{len(index):,}" for index in indexes)),
        ("measurements", *(f"{index.num_measurements:,}" for index in indexes)),
        ("bytes", *(bytes_text(splits[split].num_bytes) for split in facts.indexes)),
        ("shards", *(f"{len(splits[split].shards):,}" for split in facts.indexes)),
        ("first measurement", *(time_text(p.begin_us) if p else "–" for p in periods)),
        ("last measurement", *(time_text(p.end_us) if p else "–" for p in periods)),
        ("failed pings", *(percent(index.failed_share, 2) for index in indexes)),
        ("RTT, ms: middle (80 %)", *map(_rtt, rtts)),
    ]
    return Sheet("overview", "Both sides", ("", *facts.indexes), rows)


def _rtt(rtts: Rtts) -> str:
    """Returns the median, and between what 80 % of the answered pings are, in ms."""
    low, middle, high = map(ms_text, rtts.quantiles_ms)
    return middle if middle == "–" else f"{middle} ({low}–{high})"


def _comparison(facts: Facts) -> Sheet:
    rows = [
        (
            *(c.name, c.train, c.test, f"{c.distance:.2f}"),
            *("–" if c.chance is None else f"{c.chance:.2f}", c.verdict),
        )
        for c in facts.comparisons
    ]
    columns = ("", "train", "test", "distance", "by chance", "verdict")
    return Sheet("comparison", "Train against test", columns, rows, num_text=3)


def _hours(facts: Facts) -> Sheet:
    rows = []
    for hour in range(HOURS):
        cells = [f"{hour:02d}"]
        for hours in facts.hours.values():
            cells += [_rtt(hours[hour]), percent(hours[hour].failed_share)]
        rows.append(cells)
    columns = [f"{split} {what}" for split in facts.hours for what in ("ms (80 %)", "failed")]
    return Sheet("hours", "RTT by hour, UTC", ("hour", *columns), rows)


def _destinations(facts: Facts) -> Sheet:
    totals = {split: index.num_measurements for split, index in facts.indexes.items()}
    rows = []
    for destination in facts.destinations:
        cells = [destination.address]
        for split, there in destination.rtts.items():
            cells += [
                percent(there.count / max(1, totals[split])),
                _rtt(there),
                percent(there.failed_share),
            ]
        rows.append(cells)
    columns = [f"{s} {what}" for s in facts.indexes for what in ("share", "ms (80 %)", "failed")]
    title = f"RTT by destination: the {len(rows)} busiest of {facts.num_destinations:,} sampled"
    return Sheet("destinations", title, ("destination", *columns), rows)


def _sizes(facts: Facts) -> Sheet:
    rows = []
    for split, index in facts.indexes.items():
        for name, values, text in (
            ("measurements of a row", index.n_measurements, "{:,.0f}".format),
            ("bytes of a row", index.num_bytes, bytes_text),
            ("measurements of a probe", index.probes.n_measurements, "{:,.0f}".format),
            ("time of a probe", index.probes.span_us, span_text),
        ):
            if len(values):
                points = np.quantile(values, (0, 0.1, 0.5, 0.9, 1)).tolist()
                rows.append((split, name, *map(text, points)))
    columns = ("", "", "least", "10 %", "middle", "90 %", "most")
    return Sheet("sizes", "Sizes of rows and histories", columns, rows, num_text=2)


def _families(facts: Facts) -> Sheet:
    counts = {split: family_counts(index) for split, index in facts.indexes.items()}
    rows = [
        (name, *(_count_and_share(index, counts[s][at]) for s, index in facts.indexes.items()))
        for at, name in enumerate(FAMILIES)
    ]
    return Sheet("families", "Families: probe → destination", ("", *facts.indexes), rows)


def _count_and_share(index: Index, count: int) -> str:
    return f"{count:,} ({percent(count / max(1, index.num_measurements), 2)})"


def _busiest(facts: Facts) -> Iterator[Sheet]:
    columns = ("probe", "measurements", "of the split", "rows", "failed", "time")
    for split, probes in facts.busiest.items():
        rows = [
            (
                *(probe.address, f"{probe.n_measurements:,}", percent(probe.share)),
                *(f"{probe.num_rows:,}", percent(probe.failed_share), span_text(probe.span_us)),
            )
            for probe in probes
        ]
        yield Sheet(f"busiest_{split}", f"The busiest probes of {split}", columns, rows)


def _dead_letters(facts: Facts) -> Sheet:
    counts = facts.dataset.manifest.counts
    rows = [
        (reason, f"{count:,}", percent(count / max(1, counts.rows_read), 3))
        for reason, count in sorted(counts.dead_letters.items(), key=lambda item: -item[1])
    ]
    title = f"Dead letters: {counts.num_dead_letters:,} of {counts.rows_read:,} input rows"
    return Sheet("dead_letters", title, ("reason", "rows", "of the input"), rows)


def _gaps(facts: Facts) -> Sheet:
    periods = [("no row spans it", period) for period in facts.uncovered[:_MOST_PERIODS]]
    periods += [("nothing sampled in it", period) for period in facts.empty[:_MOST_PERIODS]]
    rows = [(how, period_text(period), span_text(period.length_us)) for how, period in periods]
    for split, sample in facts.samples.items():
        silent = int((sample.num_silences > 0).sum())
        longest = int(sample.longest_silence_us.max(initial=0))
        what = f"silences in {silent:,} of {len(sample.lines):,} rows read of {split}"
        rows.append((what, f"{int(sample.num_silences.sum()):,} in all", span_text(longest)))
    return Sheet("gaps", "Gaps in time", ("", "when", "the longest"), rows, num_text=2)
