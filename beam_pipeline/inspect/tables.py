"""The tables of a dataset, for the terminal and the page."""

from collections.abc import Iterator

import numpy as np

from beam_pipeline.dataset.data_card import GENERATION_COLUMNS, generation_rows
from beam_pipeline.inspect.comparison import Side, side_rows
from beam_pipeline.inspect.facts import Facts
from beam_pipeline.inspect.statistics import FAMILIES, HOURS, Rtts, family_counts
from beam_pipeline.report.tables import (
    NONE,
    Table,
    bytes_text,
    ms_text,
    percent,
    span_us_text,
)

_MAX_PERIODS = 5


def tables(facts: Facts) -> Iterator[Table]:
    """Yields all tables, in report order."""
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
        yield Table("Generations", GENERATION_COLUMNS, rows, "generations")


def _overview(facts: Facts) -> Table:
    splits = facts.dataset.manifest.splits
    sides = [
        Side(
            name=split,
            num_probes=len(index.probes),
            num_rows=len(index),
            num_measurements=index.num_measurements,
            period=index.period,
            num_bytes=splits[split].num_bytes,
            num_shards=len(splits[split].shards),
        )
        for split, index in facts.indexes.items()
    ]
    rows = [
        *side_rows(sides),
        ("failed pings", *(percent(index.failed_share, 2) for index in facts.indexes.values())),
        ("RTT, ms: median (80 %)", *(_rtt(facts.rtts[side.name]) for side in sides)),
    ]
    return Table("Both sides", ("", *facts.indexes), rows, "overview")


def _rtt(rtts: Rtts) -> str:
    """Returns the median of the answered pings and their middle 80 %, in ms."""
    low, middle, high = map(ms_text, rtts.quantiles_ms)
    return middle if middle == NONE else f"{middle} ({low}–{high})"


def _comparison(facts: Facts) -> Table:
    columns = (
        *("", ("train", "text"), ("test", "text")),
        *(("distance", "decimals2"), ("by chance", "decimals2"), "verdict"),
    )
    return Table("Train against test", columns, facts.comparisons, "comparison")


def _hours(facts: Facts) -> Table:
    rows = []
    for hour in range(HOURS):
        cells: list[str | float] = [f"{hour:02d}"]
        for hours in facts.hours.values():
            cells += [_rtt(hours[hour]), hours[hour].failed_share]
        rows.append(cells)
    columns = [
        column
        for split in facts.hours
        for column in (f"{split} ms (80 %)", (f"{split} failed", "percent"))
    ]
    return Table("RTT by hour, UTC", ("hour", *columns), rows, "hours")


def _destinations(facts: Facts) -> Table:
    rows = []
    for destination in facts.destinations:
        cells: list[str | float] = [destination.address]
        for split, rtts in destination.rtts.items():
            share = rtts.count / max(1, facts.indexes[split].num_measurements)
            cells += [share, _rtt(rtts), rtts.failed_share]
        rows.append(cells)
    columns = [
        column
        for s in facts.indexes
        for column in ((f"{s} share", "percent"), f"{s} ms (80 %)", (f"{s} failed", "percent"))
    ]
    title = f"RTT by destination: the {len(rows)} busiest of {facts.num_destinations:,} sampled"
    return Table(title, ("destination", *columns), rows, "destinations")


def _sizes(facts: Facts) -> Table:
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
    columns = ("", ("", "text"), "min", "10 %", "median", "90 %", "max")
    return Table("Sizes of rows and histories", columns, rows, "sizes")


def _families(facts: Facts) -> Table:
    counts = [family_counts(index) for index in facts.indexes.values()]
    rows = [
        (name, *(f"{of[at]:,} ({percent(of[at] / max(1, sum(of)), 2)})" for of in counts))
        for at, name in enumerate(FAMILIES)
    ]
    return Table("Families: probe → destination", ("", *facts.indexes), rows, "families")


def _busiest(facts: Facts) -> Iterator[Table]:
    columns = (
        *("probe", "measurements", ("of the split", "percent"), "rows"),
        *(("failed", "percent"), ("time", "span_us")),
    )
    for split, probes in facts.busiest.items():
        yield Table(f"The busiest probes of {split}", columns, probes, f"busiest_{split}")


def _dead_letters(facts: Facts) -> Table:
    counts = facts.dataset.manifest.counts
    rows = [
        (reason, count, count / max(1, counts.rows_read))
        for reason, count in sorted(counts.dead_letters.items(), key=lambda item: -item[1])
    ]
    title = f"Dead letters: {counts.num_dead_letters:,} of {counts.rows_read:,} input rows"
    columns = ("reason", "rows", ("of the input", "percent3"))
    return Table(title, columns, rows, "dead_letters")


def _gaps(facts: Facts) -> Table:
    periods = [("no row spans it", period) for period in facts.uncovered[:_MAX_PERIODS]]
    periods += [("nothing sampled in it", period) for period in facts.empty[:_MAX_PERIODS]]
    rows = [(how, str(period), span_us_text(period.length_us)) for how, period in periods]
    for split, sample in facts.samples.items():
        silent = int((sample.num_silences > 0).sum())
        longest_us = int(sample.longest_silence_us.max(initial=0))
        what = f"silences in {silent:,} of {len(sample.lines):,} rows read of {split}"
        rows.append((what, f"{int(sample.num_silences.sum()):,} in all", span_us_text(longest_us)))
    return Table("Gaps in time", ("", ("when", "text"), "the longest"), rows, "gaps")
