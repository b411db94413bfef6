"""Summarises `Statistics` as tables for a terminal and JSON, and checks the rates of sampling.

A summary is a list of lines per table; a line is a dict. Shares are between 0 and 1; a missing
value is None.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from beam_pipeline.report.tables import Table, percent
from training.statistics.analysis import FAMILIES, SIZE_NAMES, SMALL, Statistics
from training.statistics.collector import MODE_SHARES, distribution
from training.tokens.draws import MODE_NAMES

Line = dict[str, Any]
Summary = dict[str, list[Line]]

CONTEXTS_PER_MEASUREMENTS, MAX_CONTEXTS = 30, 16  # expected results of the sampler
SPAN_BANDS = {"< 1 min": 60.0, "< 1 h": 3600.0, "< 1 day": 86400.0, "more": math.inf}
NUM_DEVIATIONS = 4
_NAMES = {"mode": MODE_NAMES, "family": FAMILIES, "size": SIZE_NAMES}


_NOT_PRINTED = ("mean_seconds", "min_seconds")  # to save width


def summarise(statistics: Statistics) -> Summary:
    """Returns all tables by name: rows, padding, modes, repeats, spans."""
    return {name: list(lines_of(statistics)) for name, (_, lines_of) in _TABLES.items()}


def tables(summary: Summary) -> Iterator[Table]:
    """Yields the tables of a summary for a terminal."""
    for name, (title, _) in _TABLES.items():
        lines = [line for line in summary[name] if line.get("examples") != 0]
        keys = [key for key in (lines[0] if lines else [name]) if key not in _NOT_PRINTED]
        columns = [
            (key.removesuffix("_seconds").replace("_", " "), _format(name, key, lines))
            for key in keys
        ]
        yield Table(title, columns, [[line[key] for key in keys] for line in lines])


def _format(table: str, key: str, lines: Sequence[Line]) -> str:
    """Returns the format of a column, from its name and first value."""
    value = next((line[key] for line in lines if line[key] is not None), None)
    if not lines or isinstance(value, str):
        return "text"
    if isinstance(value, int) or table == "rows":
        return "count"
    if key.endswith("_seconds"):
        return "span"
    return "percent3" if "padding" in (table, key.removeprefix("mean_")) else "percent"


def sample_text(statistics: Statistics) -> str:
    """Returns a sentence about the sample."""
    extent, epochs = statistics.extent, statistics.epochs
    return (
        f"{statistics.dataset.path}, split {statistics.shards.split}, {statistics.encoding}: "
        f"{len(statistics.sampled):,} of {len(statistics.rows):,} rows read, the first and others "
        f"drawn evenly over sizes and families (seed {extent.seed}); {len(statistics.contexts):,} "
        f"contexts of large rows (epochs: {epochs.large}), {len(statistics.padded):,} examples of "
        f"small rows ({epochs.small}); {statistics.num_batches} batches of "
        f"{statistics.batch_size} examples (mixed_rows=1); crop size {extent.crop_size}"
    )


def expected_contexts(n_measurements: np.ndarray) -> np.ndarray:
    """Returns the expected number of contexts per epoch of each large row: int64."""
    return np.clip(-(-n_measurements // CONTEXTS_PER_MEASUREMENTS), 1, MAX_CONTEXTS)


def _rows(statistics: Statistics) -> Iterator[Line]:
    rows = statistics.rows
    for size, name in enumerate(SIZE_NAMES):
        chosen = statistics.sizes == size
        if not chosen.any():
            continue
        k = expected_contexts(rows.n_measurements[chosen])
        counts = (int(k.min()), float(np.median(k)), int(k.max()), int(k.sum()))
        names = ("min_contexts", "median_contexts", "max_contexts", "contexts_an_epoch")
        yield {
            "size": name,
            "rows": int(chosen.sum()),
            "measurements": int(rows.n_measurements[chosen].sum()),
            "sampled": int(chosen[statistics.sampled].sum()),
            **dict(zip(names, [None] * 4 if size == SMALL else counts, strict=True)),
        }


def _groups(lines: np.ndarray, *by: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yields name and mask of all lines, and of those in each mode, family or size present."""
    yield "all", np.ones(len(lines), bool)
    for key in by:
        for value, name in enumerate(_NAMES[key]):
            if (lines[key] == value).any():
                yield f"{key} {name}", lines[key] == value


# --- padding and modes --------------------------------------------------------------------------


def _padding(statistics: Statistics) -> Iterator[Line]:
    groups = [("batches of build_dataset", "all", statistics.batch_padding)]
    for of, table, by in (
        ("contexts of large rows", statistics.contexts, ("mode", "family", "size")),
        ("small rows, if not packed", statistics.padded, ("family",)),
    ):
        groups += [(of, name, table["padding"][chosen]) for name, chosen in _groups(table, *by)]
    for of, name, values in groups:
        yield {"of": of, "group": name, **distribution(values, "examples")}


def _modes(statistics: Statistics) -> Iterator[Line]:
    for mode, (name, share) in enumerate(zip(MODE_NAMES, MODE_SHARES, strict=True)):
        line: Line = {"mode": name, "expected": share}
        for rows, counts in statistics.groups.modes.items():
            draws = int(counts.sum())
            deviation = math.sqrt(share * (1 - share) / max(1, draws))
            line[f"{rows}_draws"] = draws
            line[f"{rows}_share"] = int(counts[mode]) / draws if draws else None
            line[f"{rows}_bound"] = NUM_DEVIATIONS * deviation if draws else None
        untimed = distribution(statistics.untimed_shares(mode), unit="_untimed")
        yield line | {f"{of}_untimed": untimed[f"{of}_untimed"] for of in ("min", "mean", "max")}


def _repeats(statistics: Statistics) -> Iterator[Line]:
    for name, shares in statistics.groups.repeats.items():
        if len(shares):
            share = len(shares) / len(statistics.contexts)
            yield {"contexts_of": name, "share": share, **distribution(shares, "contexts")}


# --- windows, sizes --------------------------------------------------------------------


def _spans(statistics: Statistics) -> Iterator[Line]:
    contexts = statistics.contexts
    for name, chosen in _groups(contexts, "family", "size"):
        spans = contexts["span_seconds"][chosen]
        bands = np.searchsorted(list(SPAN_BANDS.values()), spans, "right")
        if len(spans):
            yield {
                "group": name,
                **distribution(spans, "contexts", "_seconds"),
                **{band: float((bands == at).mean()) for at, band in enumerate(SPAN_BANDS)},
            }


# The title and the lines of each table.
_TABLES: dict[str, tuple[str, Callable[[Statistics], Iterator[Line]]]] = {
    "rows": ("Rows and contexts, of all rows (small: packed, without K contexts)", _rows),
    "padding": ("Padding", _padding),
    "modes": (f"Timestamp modes; a bound is {NUM_DEVIATIONS} σ", _modes),
    "repeats": ("Measurements of large rows' contexts whose destination came before", _repeats),
    "spans": ("Windows of large rows: time between their ends", _spans),
}


# --- checks ---------------------------------------------------------------------------------------


MAX_BATCH_PADDING = 0.001
MAX_CONTEXT_PADDING = 0.05


Result = Literal["pass", "FAIL", "not applicable"]


class Check(NamedTuple):
    """A check, its measurement as text, and its result: not applicable without such rows."""

    name: str
    measured: str
    result: Result


def run_checks(statistics: Statistics, summary: Summary) -> list[Check]:
    """Compares contexts per row, timestamp modes and padding with those of the sampler."""
    measured = {
        "num_contexts": _check_contexts(statistics),
        "modes_large": _check_modes("large", summary["modes"]),
        "modes_small": _check_modes("small", summary["modes"]),
        "batch_padding": _check_padding(summary, "batches of build_dataset", MAX_BATCH_PADDING),
        "context_padding": _check_padding(summary, "contexts of large rows", MAX_CONTEXT_PADDING),
    }
    results: dict[bool | None, Result] = {True: "pass", False: "FAIL", None: "not applicable"}
    return [Check(name, text, results[holds]) for name, (text, holds) in measured.items()]


def _check_contexts(statistics: Statistics) -> tuple[str, bool | None]:
    numbers, counts = np.unique(statistics.contexts["number"], return_counts=True)
    if not len(numbers):
        return "there are no large rows", None
    k = counts / statistics.epochs.large
    is_right = k == expected_contexts(statistics.rows.n_measurements[numbers])
    text = f"K {k.min():g} to {k.max():g}, right in {is_right.sum():,} of {len(k):,} large rows"
    return text, bool(is_right.all())


def _check_modes(rows: str, lines: Sequence[Line]) -> tuple[str, bool | None]:
    if not (draws := lines[0][f"{rows}_draws"]):
        return f"no context of {rows} rows shows its mode", None
    found, expected = (
        " / ".join(percent(line[key]) for line in lines) for key in (f"{rows}_share", "expected")
    )
    bounds = " / ".join(f"{100 * line[f'{rows}_bound']:.1f}" for line in lines)
    holds = all(
        abs(line[f"{rows}_share"] - line["expected"]) <= line[f"{rows}_bound"] for line in lines
    )
    text = f"{found} of {draws:,} draws; {expected} ± {bounds} points ({NUM_DEVIATIONS} σ)"
    return text, holds


def _check_padding(summary: Summary, of: str, limit: float) -> tuple[str, bool | None]:
    line = next(line for line in summary["padding"] if (line["of"], line["group"]) == (of, "all"))
    if line["mean"] is None:
        return f"there are no {of}", None
    text = f"mean {percent(line['mean'], 4)} of {line['examples']:,} examples, limit "
    text += f"{percent(limit)}; max {percent(line['max'], 2)}"
    return text, line["mean"] < limit
