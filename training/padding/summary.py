"""Means and shares of `Figures`, as lists of lines for tables and for JSON, and of how many.

Everything that is printed and everything that a check holds to a bound is from here, so that the
two cannot differ. Shares are between 0 and 1, spans are in seconds; what there is nothing of is
None.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from training.padding.statistics import (
    FAMILIES,
    LEAST_OF_A_SMALL_ROW,
    SIZE_NAMES,
    SMALL,
    Figures,
)
from training.tokens.draws import LEAST_UNTIMED, MODE_NAMES, MOST_UNTIMED, PARTIAL

Line = dict[str, Any]
MODE_SHARES = (0.4, 0.3, 0.3)
CONTEXTS_PER_MEASUREMENTS, MOST_CONTEXTS = 30, 16  # what planning.num_contexts is held to
SPAN_BANDS = {"< 1 min": 60.0, "< 1 h": 3600.0, "< 1 day": 86400.0, "more": math.inf}
LEAST_OF_A_CONTEXT = 20  # measurements, for the share of timestamps to mean something
NUM_DEVIATIONS = 4


def summarise(figures: Figures) -> dict[str, list[Line]]:
    """Returns all tables by name: rows, padding, modes, spans, strides, density."""
    return {
        "rows": list(_rows(figures)),
        "padding": list(_padding(figures)),
        "modes": list(_modes(figures)),
        "spans": list(_spans(figures)),
        "strides": list(_strides(figures)),
        "density": list(_density(figures)),
    }


def expected_contexts(n_measurements: np.ndarray) -> np.ndarray:
    """Returns how many contexts each row should give an epoch: int64."""
    return np.clip(-(-n_measurements // CONTEXTS_PER_MEASUREMENTS), 1, MOST_CONTEXTS)


def _rows(figures: Figures) -> Iterator[Line]:
    rows = figures.rows
    contexts = np.where(figures.sizes == SMALL, 0, expected_contexts(rows.n_measurements))
    for size, name in enumerate(SIZE_NAMES):
        there = figures.sizes == size
        if not there.any():
            continue
        k = contexts[there]
        yield {
            "size": name,
            "rows": int(there.sum()),
            "measurements": int(rows.n_measurements[there].sum()),
            "sampled": int((figures.sampled["size"] == size).sum()),
            "least_contexts": int(k.min()) if size != SMALL else None,
            "median_contexts": float(np.median(k)) if size != SMALL else None,
            "most_contexts": int(k.max()) if size != SMALL else None,
            "contexts_an_epoch": int(k.sum()) if size != SMALL else None,
        }


# --- padding ------------------------------------------------------------------------------------


def context_padding(figures: Figures, contexts: np.ndarray) -> np.ndarray:
    """Returns the share of padding of each context: float64."""
    return 1 - (contexts["num_tokens"] - 1) / figures.extent.crop_size


def _padding(figures: Figures) -> Iterator[Line]:
    crop_size = figures.extent.crop_size
    batches = figures.batches["num_padding"] / crop_size
    yield _padding_line("batches of build_dataset", "all", batches)
    contexts = figures.contexts
    padding = context_padding(figures, contexts)
    of = "contexts of large rows"
    yield _padding_line(of, "all", padding)
    for group, keys, names in (
        ("mode", contexts["mode"], MODE_NAMES),
        ("family", figures.facts(contexts, "family"), FAMILIES),
        ("size", figures.facts(contexts, "size"), SIZE_NAMES),
    ):
        yield from _groups(of, group, keys, names, padding)
    padded = figures.padded["num_padding"] / crop_size
    of = "small rows, if not packed"
    yield _padding_line(of, "all", padded)
    yield from _groups(of, "family", figures.facts(figures.padded, "family"), FAMILIES, padded)
    is_small = figures.facts(figures.strided, "size") == SMALL
    strided = context_padding(figures, figures.strided)
    yield _padding_line("contexts by strides", "large rows", strided[~is_small])
    yield _padding_line("contexts by strides", "small rows", strided[is_small])


def _groups(
    of: str, group: str, keys: np.ndarray, names: tuple[str, ...], padding: np.ndarray
) -> Iterator[Line]:
    for key, name in enumerate(names):
        if (keys == key).any():
            yield _padding_line(of, f"{group} {name}", padding[keys == key])


def _padding_line(of: str, group: str, padding: np.ndarray) -> Line:
    is_any = len(padding) > 0
    return {
        "of": of,
        "group": group,
        "examples": len(padding),
        "mean": float(padding.mean()) if is_any else None,
        "median": float(np.median(padding)) if is_any else None,
        "most": float(padding.max()) if is_any else None,
    }


def mean_padding(summary: dict[str, list[Line]], of: str, group: str = "all") -> Line:
    """Returns the line of the padding of something."""
    return next(x for x in summary["padding"] if (x["of"], x["group"]) == (of, group))


# --- modes --------------------------------------------------------------------------------------


def binomial_bound(share: float, draws: int) -> float:
    """Returns how far an observed share may be off: NUM_DEVIATIONS standard deviations."""
    return NUM_DEVIATIONS * math.sqrt(share * (1 - share) / draws)


def small_modes(figures: Figures) -> np.ndarray:
    """Returns the modes in which small rows came, told by their timestamps: int64.

    Of rows with fewer than LEAST_OF_A_SMALL_ROW measurements they cannot be told.
    """
    visits = figures.visits[figures.visits["num_measurements"] >= LEAST_OF_A_SMALL_ROW]
    timed = visits["num_timed"]
    return np.where(timed == visits["num_measurements"], 0, np.where(timed > 0, PARTIAL, 2))


def _modes(figures: Figures) -> Iterator[Line]:
    modes = {"large": figures.contexts["mode"], "small": small_modes(figures)}
    for mode, (name, share) in enumerate(zip(MODE_NAMES, MODE_SHARES, strict=True)):
        line: Line = {"mode": name, "expected": share}
        for rows, values in modes.items():
            draws = len(values)
            line[f"{rows}_draws"] = draws
            line[f"{rows}_share"] = float((values == mode).mean()) if draws else None
            line[f"{rows}_bound"] = binomial_bound(share, draws) if draws else None
        line |= _untimed(figures, mode)
        yield line


def untimed_shares(figures: Figures, mode: int) -> np.ndarray:
    """Returns which share of its measurements each context of a mode has without timestamp."""
    contexts = figures.contexts
    contexts = contexts[
        (contexts["mode"] == mode) & (contexts["num_measurements"] >= LEAST_OF_A_CONTEXT)
    ]
    return 1 - contexts["num_timed"] / contexts["num_measurements"]


def _untimed(figures: Figures, mode: int) -> Line:
    shares = untimed_shares(figures, mode)
    names = ("least_untimed", "mean_untimed", "most_untimed")
    values = (shares.min(), shares.mean(), shares.max()) if len(shares) else (None,) * 3
    return {name: None if v is None else float(v) for name, v in zip(names, values, strict=True)}


def partial_outside(figures: Figures) -> tuple[int, int]:
    """Returns of how many partial contexts the untimed share was looked at, and is wrong.

    It is drawn from 10 to 90 % before the number of measurements is known, which is kept to
    within two measurements.
    """
    shares = untimed_shares(figures, PARTIAL)
    contexts = figures.contexts[figures.contexts["mode"] == PARTIAL]
    num = contexts["num_measurements"][contexts["num_measurements"] >= LEAST_OF_A_CONTEXT]
    outside = (shares < LEAST_UNTIMED - 2 / num) | (shares > MOST_UNTIMED + 2 / num)
    return len(shares), int(outside.sum())


# --- windows ------------------------------------------------------------------------------------


def _spans(figures: Figures) -> Iterator[Line]:
    contexts = figures.contexts
    sizes, families = figures.facts(contexts, "size"), figures.facts(contexts, "family")
    for name, there in _family_and_size(families, sizes):
        spans = contexts["span_seconds"][there]
        yield {"group": name, **_quantiles(spans), **_bands(spans)}


def _family_and_size(families: np.ndarray, sizes: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the name and the mask of all, of each family and of each size that is there."""
    groups = [
        ("all", np.ones(len(sizes), bool)),
        *((f"family {name}", families == family) for family, name in enumerate(FAMILIES)),
        *((f"size {name}", sizes == size) for size, name in enumerate(SIZE_NAMES)),
    ]
    return ((name, there) for name, there in groups if there.any())


def _quantiles(spans: np.ndarray) -> Line:
    values = np.quantile(spans, (0, 0.1, 0.5, 0.9, 1))
    names = ("least", "p10", "median", "p90", "most")
    return {
        "contexts": len(spans),
        **{f"{name}_seconds": float(v) for name, v in zip(names, values, strict=True)},
    }


def _bands(spans: np.ndarray) -> Line:
    places = np.searchsorted(list(SPAN_BANDS.values()), spans, "right")
    return {name: float((places == place).mean()) for place, name in enumerate(SPAN_BANDS)}


def _strides(figures: Figures) -> Iterator[Line]:
    """Yields a line a stride, of large rows: small ones always have stride 1."""
    strided = figures.strided[figures.facts(figures.strided, "size") != SMALL]
    for stride in np.unique(strided["window"]):
        some = strided[strided["window"] == stride]
        yield {
            "stride": int(stride),
            "share": len(some) / len(strided),
            **_quantiles(some["span_seconds"]),
            "mean_padding": float(context_padding(figures, some).mean()),
        }


# --- tokens and bytes ---------------------------------------------------------------------------


def tokens_per_measurement(contexts: np.ndarray) -> float | None:
    """Returns the mean over whole measurements; None if there are none."""
    measurements = int(contexts["whole_measurements"].sum())
    return int(contexts["whole_tokens"].sum()) / measurements if measurements else None


def _density(figures: Figures) -> Iterator[Line]:
    sampled, contexts = figures.sampled, figures.contexts
    for name, there in _family_and_size(sampled["family"], sampled["size"]):
        rows, some = sampled[there], contexts[there[contexts["row"]]]
        measurements = int(rows["num_measurements"].sum())
        yield {
            "group": name,
            "rows": len(rows),
            "measurements": measurements,
            **{
                f"tokens_{mode}": tokens_per_measurement(some[some["mode"] == number])
                for number, mode in enumerate(MODE_NAMES)
            },
            "untimed_tokens": int(rows["untimed_tokens"].sum()) / measurements,
            "measurements_bytes": int(rows["measurements_bytes"].sum()) / measurements,
            "record_bytes": int(rows["record_bytes"].sum()) / measurements,
            "file_bytes": _file_bytes(figures) if name == "all" else None,
        }


def _file_bytes(figures: Figures) -> float:
    shards = [figures.shards.shards[number] for number in figures.shards.chosen]
    return sum(s.num_bytes for s in shards) / sum(s.num_measurements for s in shards)


def percent(value: float | None, digits: int = 1) -> str:
    """Returns a share as text."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"
