"""Prints the summary and the checklist as tables for a terminal."""

from collections.abc import Sequence
from typing import Any

from beam_pipeline.report.formatting import NONE, count_text, percent, span_text
from beam_pipeline.report.terminal import Sheet, new_console, print_sheet, say
from training.padding.checklist import FAIL, NOT_APPLICABLE, PASS, Check
from training.padding.statistics import Statistics

_TITLES = {
    "rows": "Rows and contexts, of all rows (small: packed, without K contexts)",
    "padding": "Padding",
    "modes": "Timestamp modes; a bound is 4 σ",
    "repeats": "Measurements of large rows' contexts whose destination came before",
    "spans": "Windows of large rows: time between their ends",
    "strides": "Strides of large rows (ProbeWindowSampler)",
    "density": "Tokens and bytes per measurement, of the rows sampled",
}
_STYLES = {PASS: "green", FAIL: "bold red", NOT_APPLICABLE: "yellow"}
_NOT_PRINTED = ("mean_seconds", "min_seconds")  # for want of width


def print_tables(statistics: Statistics, checks: Sequence[Check]) -> None:
    """Prints the extent of the sample, all tables, and the checklist to stdout."""
    console = new_console()
    say(console, sample_text(statistics))
    for name, title in _TITLES.items():
        lines = [line for line in statistics.summary[name] if line.get("examples") != 0]
        keys = [key for key in (lines[0] if lines else [name]) if key not in _NOT_PRINTED]
        columns = [key.removesuffix("_seconds").replace("_", " ") for key in keys]
        rows = [[_text(name, key, line[key]) for key in keys] for line in lines]
        print_sheet(console, Sheet(title, columns, rows, num_text=1 + (name == "padding")))
    rows = [(check.name, check.expectation, check.measured, check.result) for check in checks]
    print_sheet(
        console,
        Sheet("Checklist", ("check", "expected", "measured", "result"), rows, num_text=4),
        _STYLES,
    )


def sample_text(statistics: Statistics) -> str:
    """Returns a sentence on what was measured."""
    extent, epochs = statistics.extent, statistics.epochs
    return (
        f"{statistics.dataset.path}, split {statistics.shards.split}, {statistics.encoding}: "
        f"{len(statistics.sampled):,} of {len(statistics.rows):,} rows read, the first and others "
        f"drawn evenly over sizes and families (seed {extent.seed}); {len(statistics.contexts):,} "
        f"contexts of large rows (epochs: {epochs.large}), {len(statistics.padded):,} examples of "
        f"small rows ({epochs.small}), {len(statistics.strided):,} contexts by strides "
        f"({epochs.strided}); {statistics.num_batches} batches of {statistics.batch_size} examples "
        f"(mixed_rows=1); crop size {extent.crop_size}"
    )


def _text(table: str, key: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or NONE
    if isinstance(value, int) or table == "rows":
        return count_text(value)
    if key.endswith("_seconds"):
        return span_text(value)
    if table == "density":
        return f"{value:.2f}"
    return percent(value, 3 if "padding" in (table, key.removeprefix("mean_")) else 1)
