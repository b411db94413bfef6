"""Draws an `Evaluation` as pictures; needs matplotlib, and no display."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from beam_pipeline.report.plot_style import COLORS, new_picture, say_none, two_axes
from training.evaluation.losses import Loss
from training.evaluation.results import Evaluation
from training.evaluation.rtt import MODEL, NUM_BINS, RttPredictions, coverage

_LEAST_MS = 1e-3  # of the encoding, for logarithms of what is predicted to be 0
_LEAST_ERROR = 1e-4


def write_plots(evaluation: Evaluation, folder: Path) -> list[str]:
    """Writes all pictures; returns their names."""
    shards, model = evaluation.split.shards, evaluation.model
    names = []
    for name, draw in (
        ("loss_by_kind", _losses),
        ("rtt_predictions", _rtt),
        ("rtt_calibration", _calibration),
    ):
        picture = new_picture(
            f"{model['description']}, step {model['step']} · {shards.dataset.path} · {shards.split}"
        )
        draw(picture, evaluation)
        names.append(f"{name}.png")
        picture.savefig(folder / names[-1])
    return names


def _losses(picture: Figure, evaluation: Evaluation) -> None:
    left, right = picture.subplots(1, 2, width_ratios=(3, 2))
    losses = evaluation.losses
    _bars(left, [losses.overall, *losses.kinds])
    left.set(title="Loss by kind of token", ylabel="bits a token")
    left.legend(fontsize=8)
    _bars(right, losses.modes)
    right.set(title="Loss by timestamps of the segment")


def _bars(axes: Axes, losses: Sequence[Loss]) -> None:
    places = np.arange(len(losses))
    for number, (label, values) in enumerate(
        (
            ("model", [loss.bits for loss in losses]),
            ("unigram of the kind", [loss.kind_unigram_bits for loss in losses]),
            ("one unigram", [loss.unigram_bits for loss in losses]),
        )
    ):
        heights = np.nan_to_num(values, posinf=0)
        axes.bar(places + 0.27 * (number - 1), heights, 0.27, color=COLORS[number], label=label)
    axes.set_xticks(places, [loss.name for loss in losses], rotation=35, ha="right", fontsize=8)


def _rtt(picture: Figure, evaluation: Evaluation) -> None:
    left, right = two_axes(picture)
    left.set(title="The model's median and the truth", xlabel="true, ms", ylabel="predicted, ms")
    right.set(title="Errors of all methods", xlabel="|predicted − true| / true", ylabel="queries")
    rtt = evaluation.rtt
    if rtt is None:
        for axes in (left, right):
            say_none(axes, "RTTs to predict")
        return
    _draw_predictions(left, rtt)
    for color, method in zip(COLORS, rtt.predicted_ms, strict=False):
        errors = np.sort(np.maximum(rtt.relative_errors(method), _LEAST_ERROR))
        shares = (np.arange(len(errors)) + 1) / len(errors)
        width = 2.5 if method == MODEL else 1.2
        right.step(errors, shares, color=color, linewidth=width, label=method, where="post")
    right.axhline(0.5, color="0.7", linestyle="--", linewidth=1)
    right.set(xscale="log", ylim=(0, 1))
    right.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    right.legend(fontsize=8)


def _draw_predictions(axes: Axes, rtt: RttPredictions) -> None:
    true, predicted = rtt.true_ms, np.maximum(rtt.predicted_ms[MODEL], _LEAST_MS)
    # Far predictions stay within the picture, at its edge.
    least, most = 0.5 * float(true.min()), 2 * float(true.max())
    ends = (math.log10(least), math.log10(most))
    axes.hexbin(
        true,
        np.clip(predicted, least, most),
        gridsize=60,
        xscale="log",
        yscale="log",
        bins="log",
        mincnt=1,
        cmap="viridis",
        extent=(*ends, *ends),
    )
    axes.plot([least, most], [least, most], color="black", linewidth=1, linestyle="--")


def _calibration(picture: Figure, evaluation: Evaluation) -> None:
    left, right = two_axes(picture)
    left.set(
        title="Where the truth lies in the model's distribution",
        xlabel="share of the distribution below the truth",
        ylabel="queries",
    )
    right.set(
        title="Central intervals",
        xlabel="share of the distribution, %",
        ylabel="truths within, %",
    )
    rtt = evaluation.rtt
    if rtt is None:
        for axes in (left, right):
            say_none(axes, "RTTs to predict")
        return
    left.hist(rtt.pit, bins=NUM_BINS, range=(0, 1), color=COLORS[0], label="model")
    expected = len(rtt.pit) / NUM_BINS
    left.axhline(expected, color="black", linestyle="--", label="calibrated")
    left.legend(fontsize=8)
    shares = np.linspace(0, 1, 51)
    right.plot(100 * shares, [100 * coverage(rtt.pit, share) for share in shares], color=COLORS[0])
    right.plot([0, 100], [0, 100], color="black", linestyle="--", linewidth=1)
