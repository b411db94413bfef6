"""The figures of an analysis and of a feed report, by file name."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from beam_pipeline.report.plots import (
    COLORS,
    histogram,
    log_bins,
    percent_bins,
    span_axis,
    whole_bins,
)
from beam_pipeline.report.tables import percent
from training.statistics.collector import MODE_SHARES, Groups
from training.tokens.draws import MODE_NAMES
from training.tokens.kinds import FIELD_NAMES

_FIELD_COLORS = ("white", "black", COLORS[4], COLORS[0], COLORS[2], COLORS[3], COLORS[1])
_MAX_EXAMPLES = 64  # in the token figure
_MIN_RTT_MS = 0.001


def _padding(figure: Figure, groups: Groups) -> None:
    padding = {
        f"{name}: mean {percent(shares.mean(), 2)}": 100 * shares
        for name, shares in groups.padding.items()
        if len(shares)
    }
    settings = {"title": "Padding of an example", "xlabel": "share of the crop, %"}
    histogram(figure.subplots(), padding, percent_bins(), "examples", ylabel="examples", **settings)


def _modes(figure: Figure, groups: Groups) -> None:
    axes: Axes = figure.subplots()
    places = np.arange(len(MODE_NAMES))
    axes.bar(places, [100 * share for share in MODE_SHARES], 0.8, color="0.88", label="drawn")
    for number, (name, counts) in enumerate(groups.modes.items()):
        shift = 0.3 * (number - (len(groups.modes) - 1) / 2)
        heights, label = 100 * counts / max(1, counts.sum()), f"{name}: {counts.sum():,}"
        axes.bar(places + shift, heights, 0.25, color=COLORS[number], label=label)
    axes.set_xticks(places, MODE_NAMES)
    axes.set(title="Timestamp modes", ylabel="share, %")
    axes.legend(fontsize=8)


def _repeats(figure: Figure, groups: Groups) -> None:
    repeats = {f"{name}: {len(of):,} contexts": 100 * of for name, of in groups.repeats.items()}
    settings = {"title": "Destinations that come again", "ylabel": "contexts"}
    settings["xlabel"] = "share of the measurements whose destination came before, %"
    histogram(figure.subplots(), repeats, percent_bins(), "contexts", **settings)


def _spans(figure: Figure, groups: Groups) -> None:
    axes: Axes = figure.subplots()
    spans = {name: np.maximum(of, 1) for name, of in groups.spans_seconds.items()}
    together = np.concatenate([np.zeros(0), *spans.values()])
    settings = {"title": "Time between the ends of a context", "ylabel": "contexts"}
    if histogram(axes, spans, log_bins(together, 50), "contexts with two times", **settings):
        axes.set_xlabel("logarithmic; below 1 s shown as 1 s")
        span_axis(axes, together)


# --- feed reports -------------------------------------------------------------------------------


def _segments(figure: Figure, groups: Groups) -> None:
    panels = groups.numbers.items()
    everything = zip(figure.subplots(1, len(panels)), panels, COLORS, strict=False)
    for axes, (name, values), color in everything:
        title = name.replace("_", " ").capitalize()
        if histogram(axes, {"": values}, whole_bins(values), "segments", [color], title=title):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _rtt(figure: Figure, groups: Groups) -> None:
    axes: Axes = figure.subplots()
    rtts = groups.rtts_ms
    answered = np.maximum(rtts[rtts >= 0], _MIN_RTT_MS)
    title = f"RTT of {len(rtts):,} decoded measurements, {(rtts < 0).sum():,} of them failed"
    if histogram(axes, {"": answered}, log_bins(answered, 80), "answered pings", title=title):
        axes.set(xscale="log", xlabel="ms, logarithmic", ylabel="measurements")


def _tokens(figure: Figure, groups: Groups) -> None:
    figure.set_size_inches(16, 6)  # a point per token
    axes: Axes = figure.subplots()
    fields, colors = groups.fields[:_MAX_EXAMPLES], np.array([to_rgb(c) for c in _FIELD_COLORS])
    axes.imshow(colors[fields], aspect="auto", interpolation="nearest")
    title = f"Tokens of the first batch, {len(fields)} of {len(groups.fields)} examples"
    axes.set(title=title, xlabel="position", ylabel="example")
    patches = [
        Patch(facecolor=color, edgecolor="grey", label=name)
        for color, name in zip(_FIELD_COLORS, FIELD_NAMES, strict=True)
    ]
    figure.legend(handles=patches, loc="outside right upper", fontsize=8)


DRAWINGS = {
    "padding": _padding,
    "modes": _modes,
    "repeats": _repeats,
    "window_spans": _spans,
}
FEED_DRAWINGS = {
    "padding": _padding,
    "modes": _modes,
    "segments": _segments,
    "repeats": _repeats,
    "windows": _spans,
    "rtt": _rtt,
    "tokens": _tokens,
}
