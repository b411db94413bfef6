"""Prints what `summary` says, and the checklist, as tables for a terminal."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from training.padding.checklist import FAIL, PASS, Check
from training.padding.statistics import Figures
from training.padding.summary import SPAN_BANDS, Line, percent

_STYLES = {PASS: "green", FAIL: "bold red"}


def print_tables(figures: Figures, summary: dict[str, list[Line]], checks: list[Check]) -> None:
    """Prints what was looked at, all tables, and the checklist, to stdout."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = 110  # of a log nobody knows
    console.print(sample_text(figures), soft_wrap=True, markup=False)
    for table in _tables(summary):
        console.print()
        console.print(table)
    console.print()
    console.print(_checklist(checks))


def sample_text(figures: Figures) -> str:
    """Returns in a sentence what the figures are of."""
    extent, epochs = figures.extent, figures.epochs
    return (
        f"{figures.dataset.path}, split {figures.shards.split}, {figures.encoding}: "
        f"{len(figures.sampled):,} of {len(figures.rows):,} rows read, the first and others drawn "
        f"evenly over sizes and families (seed {extent.seed}); {len(figures.contexts):,} contexts "
        f"of large rows (epochs: {epochs.large}), {len(figures.padded):,} examples of small rows "
        f"({epochs.small}), {len(figures.strided):,} contexts by strides ({epochs.strided}); "
        f"{figures.num_batches} batches of {figures.batch_size} examples (mixed_rows=1); crop size "
        f"{extent.crop_size}"
    )


def _tables(summary: dict[str, list[Line]]) -> Iterator[Table]:
    yield _table(
        "Rows and contexts, of all rows (small: packed, without K)",
        "measurements a row | rows | measurements | sampled | K least | median | most | contexts "
        "an epoch",
        [(x["size"], *map(_count, list(x.values())[1:])) for x in summary["rows"]],
    )
    columns = ("mean", "median", "most")
    yield _table(
        "Padding",
        "of | | examples | mean | median | most",
        [
            (x["of"], x["group"], _count(x["examples"]), *(percent(x[c], 3) for c in columns))
            for x in summary["padding"]
            if x["examples"]
        ],
        num_text=2,
    )
    yield _table(
        "Timestamp modes",
        "mode | expected | large rows | ± 4 σ | small rows | ± 4 σ | untimed least | mean | most",
        [(x["mode"], *(percent(x[name]) for name in _MODE_COLUMNS)) for x in summary["modes"]],
    )
    yield _table(
        "Windows of large rows: time between their ends",
        "| contexts | 10 % | median | 90 % | most | " + " | ".join(SPAN_BANDS),
        [
            (
                *(x["group"], _count(x["contexts"])),
                *(*_spans(x), *(percent(x[band]) for band in SPAN_BANDS)),
            )
            for x in summary["spans"]
        ],
    )
    yield _table(
        "Strides of large rows (ProbeWindowSampler)",
        "stride | contexts | share | 10 % | median | 90 % | most | mean padding",
        [
            (
                *(_count(x["stride"]), _count(x["contexts"]), percent(x["share"])),
                *(*_spans(x), percent(x["mean_padding"], 3)),
            )
            for x in summary["strides"]
        ],
    )
    yield _table(
        "Tokens and bytes a measurement, of the rows sampled",
        "| rows | measurements | tokens full | partial | none | without time | bytes | in record "
        "| in file",
        [
            (
                *(x["group"], _count(x["rows"]), _count(x["measurements"])),
                *map(_number, list(x.values())[3:]),
            )
            for x in summary["density"]
        ],
    )


_MODE_COLUMNS = (
    *("expected", "large_share", "large_bound", "small_share", "small_bound"),
    *("least_untimed", "mean_untimed", "most_untimed"),
)


def _table(title: str, columns: str, lines: Sequence[tuple], num_text: int = 1) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.title_style = "bold"
    names = [name.strip() for name in columns.split("|")]
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number < num_text else "right")
    if not lines:
        lines = [("none", *[""] * (len(names) - 1))]
    for line in lines:
        table.add_row(*line)
    return table


def _checklist(checks: list[Check]) -> Table:
    table = Table("check", "expected", "measured", "", box=None, pad_edge=False)
    table.title, table.title_justify, table.title_style = "Checklist", "left", "bold"
    table.columns[3].no_wrap = True
    for check in checks:
        style = _STYLES.get(check.result, "yellow")
        texts = (check.name, check.expectation, check.measured)
        escaped = (text.replace("[", "\\[") for text in texts)
        table.add_row(*escaped, f"[{style}]{check.result}[/]")
    return table


def _count(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _spans(line: dict[str, Any]) -> tuple[str, ...]:
    names = ("p10_seconds", "median_seconds", "p90_seconds", "most_seconds")
    return tuple(span_text(line[name]) for name in names)


def span_text(seconds: float) -> str:
    """Returns a span in the largest unit of which it has one or more."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
