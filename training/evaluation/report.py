"""The tables of an `Evaluation` for a terminal, its conclusions, and its figures by file name."""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from beam_pipeline.report.plots import COLORS, say_none, two_axes
from beam_pipeline.report.tables import Table, ms_text, percent
from beam_pipeline.report.terminal import new_console, print_table, say
from training.evaluation.losses import Loss
from training.evaluation.results import Evaluation, conclusions
from training.evaluation.rtt import GROUPS, MODEL, NUM_BINS
from training.tokens.kinds import MIN_MEASUREMENTS_FOR_MODE

_MIN_MS = 1e-3  # the encoding's resolution; replaces predictions of 0 on logarithmic axes
_MIN_ERROR = 1e-4


def print_tables(evaluation: Evaluation) -> None:
    """Prints the sample, all tables and the conclusions to stdout."""
    console = new_console()
    say(console, _sample_text(evaluation))
    for table in _tables(evaluation):
        print_table(console, table)
    console.print()
    for sentence in conclusions(evaluation):
        console.print(f"- {sentence}", soft_wrap=True, markup=False)


def _sample_text(evaluation: Evaluation) -> str:
    shards, extent, baselines = evaluation.split.shards, evaluation.extent, evaluation.baselines
    text = (
        f"{evaluation.model['description']}, step {evaluation.model['step']:,}, on "
        f"{shards.dataset.path}, split {shards.split} ({shards.fingerprint}"
        f"{', not held out' if shards.split == 'train' else ''}): "
        f"{extent.num_contexts:,} examples of {evaluation.model['crop_size']:,} tokens from "
        f"{len(evaluation.split.rows):,} rows (seed {extent.seed}). Unigrams are counted in "
        f"{extent.num_train_contexts:,} examples of split train, "
        f"{evaluation.num_train_tokens:,} tokens"
    )
    if baselines:
        text += f"; RTT baselines use {baselines.num_rtts:,} RTTs of {baselines.num_rows:,} rows"
    return text + "."


def _tables(evaluation: Evaluation) -> Iterator[Table]:
    losses, calibration = evaluation.losses, evaluation.calibration
    total = losses.overall.num_tokens
    yield _loss_table("kind", "kind of token", (losses.overall, *losses.kinds), total)
    yield _loss_table("timestamp mode", "mode of the segment", losses.modes, total)
    columns = ("destination", "all", "", "first seen", "", "seen before", "")
    yield Table("Median errors of RTTs", columns, list(_error_rows(evaluation)))
    rows = []
    if calibration:
        rows = [
            *((f"truths in the central {x}", percent(y)) for x, y in calibration.coverage.items()),
            ("deviation from uniform", f"{calibration.deviation:.4f}"),
            ("by chance, if calibrated", f"{calibration.deviation_by_chance:.4f}"),
        ]
    yield Table("Calibration of the model's RTTs", ("measure", "value"), rows)


def _loss_table(by: str, column: str, losses: Sequence[Loss], total: int) -> Table:
    notes = {"short": f" (< {MIN_MEASUREMENTS_FOR_MODE} measurements)"}
    rows = [
        (
            *(loss.name + notes.get(loss.name, ""), loss.num_tokens, loss.num_tokens / total),
            *(loss.bits, loss.kind_unigram_bits, loss.unigram_bits),
        )
        for loss in losses
    ]
    bits = [(name, "decimals3") for name in ("model", "unigram of the kind", "one unigram")]
    columns = (column, "tokens", ("share", "percent"), *bits)
    return Table(f"Loss in bits per token, by {by}", columns, rows)


def _error_rows(evaluation: Evaluation) -> Iterator[tuple[str, ...]]:
    errors = {(error.method, error.group): error for error in evaluation.errors}
    for method in dict.fromkeys(error.method for error in evaluation.errors):
        found = [errors.get((method, group)) for group in GROUPS]
        if method == MODEL:
            counts = (f"{error.num_queries:,}" if error else "none" for error in found)
            yield "queries", *(cell for count in counts for cell in (count, ""))
        cells = (
            (percent(e.median_relative, 2), f"{ms_text(e.median_ms)} ms") if e else ("", "")
            for e in found
        )
        yield method, *(cell for pair in cells for cell in pair)


# --- figures --------------------------------------------------------------------------------------


def note_of(evaluation: Evaluation) -> str:
    """Returns the note below every figure: the model and the split."""
    shards, model = evaluation.split.shards, evaluation.model
    return f"{model['description']}, step {model['step']} · {shards.dataset.path} · {shards.split}"


def _rtt(figure: Figure, evaluation: Evaluation) -> None:
    rtt = evaluation.rtt and evaluation.rtt.usual()
    left, right = two_axes(figure)
    left.set(title="The model's median and the truth", xlabel="true, ms", ylabel="predicted, ms")
    right.set(title="Errors of all methods", xlabel="|predicted − true| / true", ylabel="queries")
    if rtt is None:
        say_none("RTTs to predict", left, right)
        return
    true, predicted = rtt.true_ms, np.maximum(rtt.predicted_ms[MODEL], _MIN_MS)
    low, high = 0.5 * float(true.min()), 2 * float(true.max())
    ends = (math.log10(low), math.log10(high))
    left.hexbin(
        true,
        np.clip(predicted, low, high),  # outliers are drawn at the edge
        gridsize=60,
        xscale="log",
        yscale="log",
        bins="log",
        mincnt=1,
        cmap="viridis",
        extent=(*ends, *ends),
    )
    left.plot([low, high], [low, high], color="black", linewidth=1, linestyle="--")
    styles = itertools.product(("-", ":"), COLORS)
    for (style, color), method in zip(styles, rtt.predicted_ms, strict=False):
        errors = np.sort(np.maximum(rtt.relative_errors(method), _MIN_ERROR))
        shares = (np.arange(len(errors)) + 1) / len(errors)
        width = 2.5 if method == MODEL else 1.2
        line = {"color": color, "linestyle": style, "linewidth": width}
        right.step(errors, shares, label=method, where="post", **line)
    right.axhline(0.5, color="0.7", linestyle="--", linewidth=1)
    right.set(xscale="log", ylim=(0, 1))
    right.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    right.legend(fontsize=8)


def _calibration(figure: Figure, evaluation: Evaluation) -> None:
    rtt = evaluation.rtt and evaluation.rtt.usual()
    axes: Axes = figure.subplots()
    axes.set(title="Where the truth lies in the model's distribution", ylabel="queries")
    axes.set_xlabel("share of the distribution below the truth")
    if rtt is None:
        say_none("RTTs to predict", axes)
        return
    axes.hist(rtt.pit, bins=NUM_BINS, range=(0, 1), color=COLORS[0], label="model")
    axes.axhline(len(rtt.pit) / NUM_BINS, color="black", linestyle="--", label="calibrated")
    axes.legend(fontsize=8)


DRAWINGS = {"rtt_predictions": _rtt, "rtt_calibration": _calibration}
