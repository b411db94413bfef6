"""Prints the summary and the checklist as tables for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from beam_pipeline.report.tables import Table
from beam_pipeline.report.terminal import new_console, print_table, say
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
        columns = [
            (key.removesuffix("_seconds").replace("_", " "), _format(name, key, lines))
            for key in keys
        ]
        rows = [[line[key] for key in keys] for line in lines]
        print_table(console, Table(title, columns, rows))
    rows = [(check.name, check.expectation, check.measured, check.result) for check in checks]
    columns = [(name, "text") for name in ("check", "expected", "measured", "result")]
    print_table(console, Table("Checklist", columns, rows), _STYLES)


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


def _format(table: str, key: str, lines: Sequence[Mapping[str, Any]]) -> str:
    """Returns the format of a column, by its name and its first value."""
    value = next((line[key] for line in lines if line[key] is not None), None)
    if not lines or isinstance(value, str):
        return "text"
    if isinstance(value, int) or table == "rows":
        return "count"
    if key.endswith("_seconds"):
        return "span"
    if table == "density":
        return "decimals2"
    return "percent3" if "padding" in (table, key.removeprefix("mean_")) else "percent"
