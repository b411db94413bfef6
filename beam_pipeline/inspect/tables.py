"""The tables of a dataset, which the terminal and the page both show."""

from collections.abc import Iterator

import numpy as np

from beam_pipeline.dataset.data_card import GENERATION_COLUMNS, generation_rows
from beam_pipeline.inspect.facts import Facts
from beam_pipeline.inspect.index import span_us_text
from beam_pipeline.inspect.statistics import FAMILIES, HOURS, Rtts, family_counts
from beam_pipeline.report.formatting import NONE, bytes_text, ms_text, percent, time_text
from beam_pipeline.report.terminal import Sheet

_MAX_PERIODS = 5


def sheets(facts: Facts) -> Iterator[Sheet]:
    """Yields all tables, in the order of the report."""
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
    manifest = facts.dataset.manifest
    if len(manifest.generations) > 1:
        rows = list(generation_rows(manifest))
        yield Sheet("Generations", GENERATION_COLUMNS, rows, name="generations")


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
        ("first measurement", *(time_text(p.begin_us) if p else NONE for p in periods)),
        ("last measurement", *(time_text(p.end_us) if p else NONE for p in periods)),
        ("failed pings", *(percent(index.failed_share, 2) for index in indexes)),
        ("RTT, ms: median (80 %)", *map(_rtt, rtts)),
    ]
    return Sheet("Both sides", ("", *facts.indexes), rows, name="overview")


def _rtt(rtts: Rtts) -> str:
    """Returns the median of the answered pings and the range of their middle 80 %, in ms."""
    low, middle, high = map(ms_text, rtts.quantiles_ms)
    return middle if middle == NONE else f"{middle} ({low}–{high})"


def _comparison(facts: Facts) -> Sheet:
    rows = [
        (
            *(c.name, c.train, c.test, f"{c.distance:.2f}"),
            *(NONE if c.chance is None else f"{c.chance:.2f}", c.verdict),
        )
        for c in facts.comparisons
    ]
    columns = ("", "train", "test", "distance", "by chance", "verdict")
    return Sheet("Train against test", columns, rows, num_text=3, name="comparison")


def _hours(facts: Facts) -> Sheet:
    rows = []
    for hour in range(HOURS):
        cells = [f"{hour:02d}"]
        for hours in facts.hours.values():
            cells += [_rtt(hours[hour]), percent(hours[hour].failed_share)]
        rows.append(cells)
    columns = [f"{split} {what}" for split in facts.hours for what in ("ms (80 %)", "failed")]
    return Sheet("RTT by hour, UTC", ("hour", *columns), rows, name="hours")


def _destinations(facts: Facts) -> Sheet:
    rows = []
    for destination in facts.destinations:
        cells = [destination.address]
        for split, rtts in destination.rtts.items():
            share = rtts.count / max(1, facts.indexes[split].num_measurements)
            cells += [percent(share), _rtt(rtts), percent(rtts.failed_share)]
        rows.append(cells)
    columns = [f"{s} {what}" for s in facts.indexes for what in ("share", "ms (80 %)", "failed")]
    title = f"RTT by destination: the {len(rows)} busiest of {facts.num_destinations:,} sampled"
    return Sheet(title, ("destination", *columns), rows, name="destinations")


def _sizes(facts: Facts) -> Sheet:
    rows = []
    for split, index in facts.indexes.items():
        for name, values, text in (
            ("measurements of a row", index.n_measurements, "{:,.0f}".format),
            ("bytes of a row", index.num_bytes, bytes_text),
            ("measurements of a probe", index.probes.n_measurements, "{:,.0f}".format),
            ("time of a probe", index.probes.span_us, span_us_text),
        ):
            if len(values):
                points = np.quantile(values, (0, 0.1, 0.5, 0.9, 1)).tolist()
                rows.append((split, name, *map(text, points)))
    columns = ("", "", "min", "10 %", "median", "90 %", "max")
    return Sheet("Sizes of rows and histories", columns, rows, num_text=2, name="sizes")


def _families(facts: Facts) -> Sheet:
    counts = [family_counts(index) for index in facts.indexes.values()]
    rows = [
        (name, *(f"{of[at]:,} ({percent(of[at] / max(1, sum(of)), 2)})" for of in counts))
        for at, name in enumerate(FAMILIES)
    ]
    return Sheet("Families: probe → destination", ("", *facts.indexes), rows, name="families")


def _busiest(facts: Facts) -> Iterator[Sheet]:
    columns = ("probe", "measurements", "of the split", "rows", "failed", "time")
    for split, probes in facts.busiest.items():
        rows = [
            (
                *(probe.address, f"{probe.n_measurements:,}", percent(probe.share)),
                *(f"{probe.num_rows:,}", percent(probe.failed_share), span_us_text(probe.span_us)),
            )
            for probe in probes
        ]
        yield Sheet(f"The busiest probes of {split}", columns, rows, name=f"busiest_{split}")


def _dead_letters(facts: Facts) -> Sheet:
    counts = facts.dataset.manifest.counts
    rows = [
        (reason, f"{count:,}", percent(count / max(1, counts.rows_read), 3))
        for reason, count in sorted(counts.dead_letters.items(), key=lambda item: -item[1])
    ]
    title = f"Dead letters: {counts.num_dead_letters:,} of {counts.rows_read:,} input rows"
    return Sheet(title, ("reason", "rows", "of the input"), rows, name="dead_letters")


def _gaps(facts: Facts) -> Sheet:
    periods = [("no row spans it", period) for period in facts.uncovered[:_MAX_PERIODS]]
    periods += [("nothing sampled in it", period) for period in facts.empty[:_MAX_PERIODS]]
    rows = [(how, str(period), span_us_text(period.length_us)) for how, period in periods]
    for split, sample in facts.samples.items():
        silent = int((sample.num_silences > 0).sum())
        longest_us = int(sample.longest_silence_us.max(initial=0))
        what = f"silences in {silent:,} of {len(sample.lines):,} rows read of {split}"
        rows.append((what, f"{int(sample.num_silences.sum()):,} in all", span_us_text(longest_us)))
    return Sheet("Gaps in time", ("", "when", "the longest"), rows, num_text=2, name="gaps")
