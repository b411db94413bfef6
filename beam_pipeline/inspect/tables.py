"""The tables of a dataset, for the terminal and the page."""

from collections.abc import Iterator

import numpy as np

from beam_pipeline.dataset.data_card import GENERATION_COLUMNS, generation_rows
from beam_pipeline.dataset.manifest import SPLITS
from beam_pipeline.inspect.comparison import comparison_table
from beam_pipeline.inspect.figures import Figures
from beam_pipeline.inspect.findings import Report
from beam_pipeline.report.tables import Table, bytes_text, span_us_text

_MAX_PERIODS = 5


def tables(report: Report) -> Iterator[Table]:
    """Yields all tables, in report order."""
    figures, manifest = report.figures, report.figures.dataset.manifest
    yield comparison_table("Train and test", SPLITS, report.comparisons)
    yield _hours(figures)
    yield _destinations(figures)
    yield _sizes(figures)
    yield _busiest(figures)
    if letters := manifest.counts.dead_letters:
        number, read = manifest.counts.num_dead_letters, manifest.counts.rows_read
        rows = [
            (reason, count, count / read)
            for reason, count in sorted(letters.items(), key=lambda item: -item[1])
        ]
        title = f"Dead letters: {number:,} of {read:,} input rows"
        yield Table(title, ("reason", "rows", ("of the input", "percent3")), rows, "dead_letters")
    yield _gaps(figures)
    if len(manifest.generations) > 1:
        rows = list(generation_rows(manifest))
        yield Table("Generations", GENERATION_COLUMNS, rows, "generations")


def _hours(figures: Figures) -> Table:
    splits = figures.splits
    rows = [
        [f"{hour:02d}", *(cell for one in groups for cell in (one.text(), one.failed_share))]
        for hour, groups in enumerate(zip(*(s.hours for s in splits.values()), strict=True))
    ]
    columns = [c for name in splits for c in (f"{name} ms (80 %)", (f"{name} failed", "percent"))]
    return Table("RTT by hour, UTC", ["hour", *columns], rows, "hours")


def _destinations(figures: Figures) -> Table:
    rows = [
        (address, split, rtts.count / num_measurements, rtts.text(), rtts.failed_share)
        for address, groups in figures.busiest_destinations.items()
        for split, rtts in groups.items()
        if (num_measurements := figures.splits[split].totals.num_measurements)
    ]
    number = f"{len(figures.busiest_destinations)} busiest of {len(figures.destinations):,} sampled"
    columns = (
        *("destination", ("split", "text"), ("of its pings", "percent"), "ms (80 %)"),
        ("failed", "percent"),
    )
    return Table(f"RTT by destination: the {number}", columns, rows, "destinations")


def _sizes(figures: Figures) -> Table:
    texts = {"bytes of a row": bytes_text, "time of a probe": span_us_text}
    rows = []
    for name, split in figures.splits.items():
        for what, values in split.sizes.items():
            if len(values):
                points = np.quantile(values, (0, 0.1, 0.5, 0.9, 1)).tolist()
                rows.append((name, what, *map(texts.get(what, "{:,.0f}".format), points)))
    columns = ("", ("", "text"), "min", "10 %", "median", "90 %", "max")
    return Table("Sizes of rows and histories", columns, rows, "sizes")


def _busiest(figures: Figures) -> Table:
    columns = (
        *("probe", ("split", "text"), "measurements", ("of the split", "percent"), "rows"),
        *(("failed", "percent"), ("time", "span_us")),
    )
    rows = []
    for name, split in figures.splits.items():
        rows += [(probe, name, *others) for probe, *others in map(dict.values, split.busiest)]
    return Table("The busiest probes", columns, rows, "busiest")


def _gaps(figures: Figures) -> Table:
    rows = [
        ("nothing sampled", str(period), span_us_text(period.length_us))
        for period in figures.empty[:_MAX_PERIODS]
    ]
    for split, sample in figures.samples.items():
        silent = int((sample.num_silences > 0).sum())
        longest_us = int(sample.longest_silence_us.max(initial=0))
        what = f"silences in {silent:,} of {len(sample.lines):,} rows read of {split}"
        rows.append((what, f"{int(sample.num_silences.sum()):,} in all", span_us_text(longest_us)))
    return Table("Gaps in time", ("", ("when", "text"), "the longest"), rows, "gaps")
