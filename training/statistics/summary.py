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
from training.statistics.collector import distribution
from training.tokens.draws import MODE_NAMES
from training.tokens.kinds import NOTHING

Line = dict[str, Any]
Summary = dict[str, list[Line]]

MODE_SHARES = (0.4, 0.3, 0.3)
CONTEXTS_PER_MEASUREMENTS, MAX_CONTEXTS = 30, 16  # expected results of the sampler
SPAN_BANDS = {"< 1 min": 60.0, "< 1 h": 3600.0, "< 1 day": 86400.0, "more": math.inf}
MIN_MEASUREMENTS_FOR_SHARE = 20  # per context, for a meaningful share of timestamps
NUM_DEVIATIONS = 4
_NAMES = {"mode": MODE_NAMES, "family": FAMILIES, "size": SIZE_NAMES}


_NOT_PRINTED = ("mean_seconds", "min_seconds")  # to save width


def summarise(statistics: Statistics) -> Summary:
    """Returns all tables by name: rows, padding, modes, repeats, spans, density."""
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
    if table == "density":
        return "decimals2"
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
            "sampled": int((statistics.sampled["size"] == size).sum()),
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


def padding_lines(statistics: Statistics) -> Iterator[Line]:
    groups = [("batches of build_dataset", "all", statistics.batch_padding)]
    for of, table, by in (
        ("contexts of large rows", statistics.contexts, ("mode", "family", "size")),
        ("small rows, if not packed", statistics.padded, ("family",)),
    ):
        chosen_by = _groups(table, *by)
        groups += [(of, name, table["padding"][chosen]) for name, chosen in chosen_by]
    for of, name, values in groups:
        yield {"of": of, "group": name, **distribution(values, "examples")}


def padding_line(lines: Sequence[Line], of: str) -> Line:
    """Returns the line about all examples of a kind among `padding_lines`."""
    return next(x for x in lines if (x["of"], x["group"]) == (of, "all"))


def mode_lines(statistics: Statistics) -> Iterator[Line]:
    small = statistics.padded["mode"]
    modes = {"large": statistics.contexts["mode"], "small": small[small != NOTHING]}
    for mode, (name, share) in enumerate(zip(MODE_NAMES, MODE_SHARES, strict=True)):
        line: Line = {"mode": name, "expected": share}
        for rows, values in modes.items():
            draws = len(values)
            line[f"{rows}_draws"] = draws
            line[f"{rows}_share"] = float((values == mode).mean()) if draws else None
            deviation = math.sqrt(share * (1 - share) / max(1, draws))
            line[f"{rows}_bound"] = NUM_DEVIATIONS * deviation if draws else None
        untimed = distribution(untimed_shares(statistics, mode), unit="_untimed")
        yield line | {
            name: untimed[name] for name in ("min_untimed", "mean_untimed", "max_untimed")
        }


def untimed_shares(statistics: Statistics, mode: int) -> np.ndarray:
    """Returns the share without timestamp of each of a mode's contexts, short ones excepted."""
    contexts, num = statistics.contexts, statistics.contexts["num_measurements"]
    chosen = (contexts["mode"] == mode) & (num >= MIN_MEASUREMENTS_FOR_SHARE)
    return 1 - contexts["num_timed"][chosen] / num[chosen]


def repeats_by_kind(statistics: Statistics) -> dict[str, np.ndarray]:
    """Returns the repeats of large rows' contexts, without and with few destinations."""
    contexts = statistics.contexts
    names = {"any destinations": False, "few destinations": True}
    return {
        name: contexts["repeats"][contexts["has_repeats"] == has_repeats]
        for name, has_repeats in names.items()
    }


def _repeats(statistics: Statistics) -> Iterator[Line]:
    for name, shares in repeats_by_kind(statistics).items():
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


def _density(statistics: Statistics) -> Iterator[Line]:
    """Yields tokens and bytes per measurement."""
    sampled, contexts = statistics.sampled, statistics.contexts
    shards = [statistics.shards.shards[number] for number in statistics.shards.chosen]
    file_bytes = sum(s.num_bytes for s in shards) / sum(s.num_measurements for s in shards)
    for name, chosen in _groups(sampled, "family", "size"):
        rows = sampled[chosen]
        drawn = contexts[np.isin(contexts["number"], rows["number"])]
        num = int(rows["num_measurements"].sum())
        if len(rows):
            yield {
                "group": name,
                "rows": len(rows),
                "measurements": num,
                **{
                    f"tokens_{mode}": _tokens_per_measurement(drawn[drawn["mode"] == number])
                    for number, mode in enumerate(MODE_NAMES)
                },
                **{
                    column: int(rows[column].sum()) / num
                    for column in ("untimed_tokens", "measurements_bytes", "record_bytes")
                },
                "file_bytes": file_bytes if name == "all" else None,
            }


def _tokens_per_measurement(contexts: np.ndarray) -> float | None:
    measurements = int(contexts["whole_measurements"].sum())
    return int(contexts["whole_tokens"].sum()) / measurements if measurements else None


# The title and the lines of each table.
_TABLES: dict[str, tuple[str, Callable[[Statistics], Iterator[Line]]]] = {
    "rows": ("Rows and contexts, of all rows (small: packed, without K contexts)", _rows),
    "padding": ("Padding", padding_lines),
    "modes": (f"Timestamp modes; a bound is {NUM_DEVIATIONS} σ", mode_lines),
    "repeats": ("Measurements of large rows' contexts whose destination came before", _repeats),
    "spans": ("Windows of large rows: time between their ends", _spans),
    "density": ("Tokens and bytes per measurement, of the rows sampled", _density),
}


# --- checks ---------------------------------------------------------------------------------------


Result = Literal["pass", "FAIL", "not applicable"]
MAX_BATCH_PADDING = 0.001
MAX_CONTEXT_PADDING = 0.05


class Check(NamedTuple):
    """A check, its measurement as text, and its result: not applicable without such rows."""

    name: str
    measured: str
    result: Result


def run_checks(statistics: Statistics, summary: Summary) -> list[Check]:
    """Compares contexts per row, timestamp modes and padding with those of the sampler."""
    modes = (_mode_check(rows, summary["modes"]) for rows in ("large", "small"))
    return [_contexts_check(statistics), *modes, *_padding_checks(summary)]


def _contexts_check(statistics: Statistics) -> Check:
    large = statistics.sampled[statistics.sampled["size"] != SMALL]
    if not len(large):
        return Check("num_contexts", "there are no large rows", "not applicable")
    k = large["num_contexts"]
    is_right = k == expected_contexts(large["num_measurements"])
    measured = f"K {k.min()} to {k.max()}, right in {is_right.sum():,} of {len(large):,} large rows"
    return Check("num_contexts", measured, "pass" if is_right.all() else "FAIL")


def _mode_check(rows: str, lines: Sequence[Line]) -> Check:
    name, draws = f"modes_{rows}", lines[0][f"{rows}_draws"]
    if not draws:
        return Check(name, f"no context of {rows} rows shows its mode", "not applicable")
    found, expected = (
        " / ".join(percent(line[key]) for line in lines) for key in (f"{rows}_share", "expected")
    )
    bounds = " / ".join(f"{100 * line[f'{rows}_bound']:.1f}" for line in lines)
    holds = all(
        abs(line[f"{rows}_share"] - line["expected"]) <= line[f"{rows}_bound"] for line in lines
    )
    measured = f"{found} of {draws:,} draws; {expected} ± {bounds} points ({NUM_DEVIATIONS} σ)"
    return Check(name, measured, "pass" if holds else "FAIL")


def _padding_checks(summary: Summary) -> Iterator[Check]:
    for name, kind, limit in (
        ("batch_padding", "batches of build_dataset", MAX_BATCH_PADDING),
        ("context_padding", "contexts of large rows", MAX_CONTEXT_PADDING),
    ):
        line = padding_line(summary["padding"], kind)
        if line["mean"] is None:
            yield Check(name, f"there are no {kind}", "not applicable")
            continue
        measured = f"mean {percent(line['mean'], 4)} of {line['examples']:,} examples, "
        measured += f"limit {percent(limit)}; max {percent(line['max'], 2)}"
        yield Check(name, measured, "pass" if line["mean"] < limit else "FAIL")
