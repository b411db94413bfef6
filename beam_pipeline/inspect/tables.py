"""The tables of a dataset, for the terminal and the page."""

from collections.abc import Iterator

import numpy as np

from beam_pipeline.dataset.data_card import GENERATION_COLUMNS, generation_rows
from beam_pipeline.inspect.comparison import Side, side_rows
from beam_pipeline.inspect.facts import Facts
from beam_pipeline.inspect.figures import FAMILIES
from beam_pipeline.report.tables import Table, bytes_text, percent, span_us_text

_MAX_PERIODS = 5


def tables(facts: Facts) -> Iterator[Table]:
    """Yields all tables, in report order."""
    manifest = facts.dataset.manifest
    yield _overview(facts)
    if facts.comparisons:
        columns = (
            *("", ("train", "text"), ("test", "text")),
            *(("distance", "decimals2"), ("by chance", "decimals2"), "verdict"),
        )
        yield Table("Train against test", columns, facts.comparisons, "comparison")
    yield _hours(facts)
    yield _destinations(facts)
    yield _sizes(facts)
    yield _families(facts)
    yield from _busiest(facts)
    if manifest.counts.dead_letters:
        yield _dead_letters(facts)
    yield _gaps(facts)
    if len(manifest.generations) > 1:
        rows = list(generation_rows(manifest))
        yield Table("Generations", GENERATION_COLUMNS, rows, "generations")


def _overview(facts: Facts) -> Table:
    splits = facts.splits
    sides = [
        Side.of_splits(name, facts.dataset, {name: split.probes}) for name, split in splits.items()
    ]
    rows = [
        *side_rows(sides),
        ("failed pings", *(percent(split.shares["failed pings"], 2) for split in splits.values())),
        ("RTT, ms: median (80 %)", *(split.rtts.text() for split in splits.values())),
    ]
    return Table("Both sides", ("", *splits), rows, "overview")


def _hours(facts: Facts) -> Table:
    rows = [
        (f"{hour:02d}", *(cell for one in groups for cell in (one.text(), one.failed_share)))
        for hour, groups in enumerate(zip(*(s.hours for s in facts.splits.values()), strict=True))
    ]
    names = [((f"{s} ms (80 %)", "count"), (f"{s} failed", "percent")) for s in facts.splits]
    columns = ("hour", *(column for pair in names for column in pair))
    return Table("RTT by hour, UTC", columns, rows, "hours")


def _destinations(facts: Facts) -> Table:
    rows = []
    for address, groups in facts.destinations.busiest.items():
        cells: list[str | float] = [address]
        for split, rtts in groups.items():
            share = rtts.count / max(1, facts.splits[split].num_measurements)
            cells += [share, rtts.text(), rtts.failed_share]
        rows.append(cells)
    columns = [
        column
        for s in facts.splits
        for column in ((f"{s} share", "percent"), f"{s} ms (80 %)", (f"{s} failed", "percent"))
    ]
    number = f"{len(rows)} busiest of {len(facts.destinations):,} sampled"
    return Table(
        f"RTT by destination: the {number}", ("destination", *columns), rows, "destinations"
    )


def _sizes(facts: Facts) -> Table:
    texts = {"bytes of a row": bytes_text, "time of a probe": span_us_text}
    rows = []
    for split, figures in facts.splits.items():
        for name, values in figures.sizes.items():
            if len(values):
                points = np.quantile(values, (0, 0.1, 0.5, 0.9, 1)).tolist()
                rows.append((split, name, *map(texts.get(name, "{:,.0f}".format), points)))
    columns = ("", ("", "text"), "min", "10 %", "median", "90 %", "max")
    return Table("Sizes of rows and histories", columns, rows, "sizes")


def _families(facts: Facts) -> Table:
    counts = [split.families for split in facts.splits.values()]
    rows = [
        (name, *(f"{of[at]:,} ({percent(of[at] / max(1, sum(of)), 2)})" for of in counts))
        for at, name in enumerate(FAMILIES)
    ]
    return Table("Families: probe → destination", ("", *facts.splits), rows, "families")


def _busiest(facts: Facts) -> Iterator[Table]:
    columns = (
        *("probe", "measurements", ("of the split", "percent"), "rows"),
        *(("failed", "percent"), ("time", "span_us")),
    )
    for name, split in facts.splits.items():
        rows = [tuple(probe.values()) for probe in split.busiest]
        yield Table(f"The busiest probes of {name}", columns, rows, f"busiest_{name}")


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
