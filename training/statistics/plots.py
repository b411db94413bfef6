"""The figures of an analysis and of a feed report, by file name."""

from collections.abc import Mapping

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
    say_none,
    span_axis,
    two_axes,
    whole_bins,
)
from beam_pipeline.report.tables import percent
from training.statistics.analysis import SIZE_NAMES, SMALL, Statistics
from training.statistics.collector import mode_counts
from training.statistics.feed import Feed
from training.statistics.summary import (
    expected_contexts,
    mode_lines,
    padding_line,
    padding_lines,
    repeats_by_kind,
    untimed_shares,
)
from training.tokens.draws import MAX_UNTIMED, MIN_UNTIMED, MODE_NAMES, PARTIAL
from training.tokens.kinds import FIELD_NAMES, MIN_MEASUREMENTS_FOR_MODE, timestamp_modes

_FIELD_COLORS = ("white", "black", COLORS[4], COLORS[0], COLORS[2], COLORS[3], COLORS[1])
_MAX_EXAMPLES = 64  # in the token figure
_MIN_RTT_MS = 0.001


# --- shared panels ------------------------------------------------------------------------------


def _untimed(axes: Axes, shares: np.ndarray, what: str) -> None:
    """Draws the shares of measurements without timestamp in mode partial."""
    settings = {"title": "Measurements without timestamp, mode partial"}
    if len(shares):
        settings |= {"xlabel": "share of the measurements, %", "ylabel": what}
    bins = percent_bins(5)
    histogram(axes, {"": 100 * shares}, bins, f"partial {what}", COLORS[2:], **settings)


def _spans(axes: Axes, spans: Mapping[str, np.ndarray], absent: str, **settings: str) -> None:
    """Draws spans in seconds, by label."""
    values = {label: np.maximum(group, 1) for label, group in spans.items()}
    together = np.concatenate(list(values.values()))
    if histogram(axes, values, log_bins(together, 50), absent, **settings):
        axes.set_xlabel("logarithmic; below 1 s shown as 1 s")
        span_axis(axes, together, "x")


def _whole_numbers(
    axes: Axes, values: np.ndarray, color: int, absent: str, **settings: str
) -> None:
    if histogram(axes, {"": values}, whole_bins(values), absent, COLORS[color:], **settings):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _repeats(figure: Figure, repeats: Mapping[str, np.ndarray], what: str, title: str) -> None:
    """Draws the shares of repeated destinations, by label."""
    axes: Axes = figure.subplots()
    groups = {f"{name}: {len(of):,} {what}": 100 * of for name, of in repeats.items()}
    xlabel = "share of the measurements whose destination came before, %"
    if histogram(axes, groups, percent_bins(), what, title=title, xlabel=xlabel, ylabel=what):
        axes.legend(fontsize=8)


# --- datasets -----------------------------------------------------------------------------------


def _padding(figure: Figure, statistics: Statistics) -> None:
    left, right = two_axes(figure, (3, 2))
    all_lines = list(padding_lines(statistics))
    kinds = list(dict.fromkeys(line["of"] for line in all_lines))
    lines = [line for line in all_lines if line["examples"]][::-1]
    labels = [f"{line['of']}: {line['group']}" for line in lines]
    means = [100 * line["mean"] for line in lines]
    bars = left.barh(labels, means, color=[COLORS[kinds.index(line["of"])] for line in lines])
    left.bar_label(bars, [f"{mean:.3g} %" for mean in means], padding=3, fontsize=7)
    left.set(xlim=(0, 115), xlabel="mean padding, % of the crop", title="Padding by kind")
    left.tick_params(axis="y", labelsize=7)
    padded = statistics.padded["padding"]
    settings = {"title": "Small rows: what packing saves", "xlabel": "padding of an example, %"}
    alone = {"a row alone": 100 * padded}
    if not histogram(right, alone, percent_bins(), "small rows", COLORS[1:], **settings):
        return
    right.axvline(100 * padded.mean(), color="black", linestyle="--", label="mean, alone")
    packed = padding_line(all_lines, "batches of build_dataset")["mean"]
    if packed is not None:
        right.axvline(100 * packed, color=COLORS[0], linewidth=3, label="mean, packed in batches")
    right.set(ylabel="examples", ylim=(0, 1.3 * right.get_ylim()[1]))  # the legend above the bars
    right.legend(fontsize=8)


def _modes(figure: Figure, statistics: Statistics) -> None:
    left, right = two_axes(figure)
    places = np.arange(len(MODE_NAMES))
    lines = list(mode_lines(statistics))
    left.bar(places, [100 * x["expected"] for x in lines], 0.8, color="0.88", label="expected")
    for shift, rows in ((-0.2, "large"), (0.2, "small")):
        if lines[0][f"{rows}_draws"]:
            left.errorbar(
                places + shift,
                [100 * x[f"{rows}_share"] for x in lines],
                [100 * x[f"{rows}_bound"] for x in lines],
                fmt="o",
                capsize=5,
                color=COLORS[rows == "small"],
                label=f"{rows} rows, {lines[0][f'{rows}_draws']:,} draws",
            )
    left.set_xticks(places, MODE_NAMES)
    left.set(ylabel="share, %", title="Timestamp modes, with 4 σ of a binomial draw", ylim=0)
    left.legend(fontsize=8)
    shares = untimed_shares(statistics, PARTIAL)
    _untimed(right, shares, "contexts")
    for share in (MIN_UNTIMED, MAX_UNTIMED) if len(shares) else ():
        right.axvline(100 * share, color="black", linestyle="--")


def _contexts_per_row(figure: Figure, statistics: Statistics) -> None:
    left, right = two_axes(figure)
    everything = statistics.rows.n_measurements
    n = np.unique(np.geomspace(1, everything.max(), 300).astype(np.int64))
    left.step(n, expected_contexts(n), color="0.7", label="min(⌈n / 30⌉, 16)", where="post")
    is_small = statistics.sampled["size"] == SMALL
    for name, color, chosen in (("large rows", 0, ~is_small), ("small rows, packed", 1, is_small)):
        if chosen.any():
            rows = statistics.sampled[chosen]
            x, y = rows["num_measurements"], rows["num_contexts"]
            left.scatter(x, y, 12, color=COLORS[color], label=name)
    left.set(xscale="log", xlabel="measurements of the row", ylabel="contexts an epoch, K")
    left.set_title("Contexts per row, rows sampled")
    bins = np.geomspace(1, everything.max() + 1, 40)
    for size, name in enumerate(SIZE_NAMES):
        if (statistics.sizes == size).any():
            label = name if size == SMALL else f"large, {name}"
            right.hist(everything[statistics.sizes == size], bins, color=COLORS[size], label=label)
    right.set(xscale="log", yscale="log", xlabel="measurements of the row", ylabel="rows")
    right.set_title(f"All {len(everything):,} rows by size")
    for axes in (left, right):
        axes.legend(fontsize=8)


def _context_repeats(figure: Figure, statistics: Statistics) -> None:
    title = "Contexts of large rows: destinations that come again"
    _repeats(figure, repeats_by_kind(statistics), "contexts", title)


def _window_spans(figure: Figure, statistics: Statistics) -> None:
    left, right = two_axes(figure)
    contexts = statistics.contexts
    sizes, spans = contexts["size"], contexts["span_seconds"]
    occurring = np.unique(sizes).tolist()
    groups = {f"rows {SIZE_NAMES[size]}": spans[sizes == size] for size in occurring} or {"": spans}
    settings = {"title": "Time between the ends of a window", "ylabel": "contexts"}
    _spans(left, groups, "large rows", **settings)
    right.set(title="Windows by their size", xlabel="measurements of the window")
    if not len(contexts):
        say_none("large rows", right)
        return
    left.legend(fontsize=8)
    for size, color in zip(occurring, COLORS, strict=False):
        some = contexts[sizes == size]
        heights = np.maximum(some["span_seconds"], 1)
        right.scatter(some["window"], heights, 4, color=color, alpha=0.5)
    right.set(xscale="log", ylabel="time between its ends")
    span_axis(right, spans, "y")


# --- feed reports -------------------------------------------------------------------------------


def _feed_padding(figure: Figure, feed: Feed) -> None:
    left, right = two_axes(figure)
    of_crop = "share of the crop, %"
    settings = {"title": "Padding of an example", "xlabel": of_crop, "ylabel": "examples"}
    histogram(left, {"": 100 * feed.all.padding}, percent_bins(), "examples", **settings)
    for label, take in (("max", np.max), ("mean", np.mean)):
        right.plot([100 * take(each.padding) for each in feed.batches], ".-", label=label)
    right.set(title="Padding by step", xlabel="step", ylabel=of_crop, ylim=(-2, 102))
    right.legend(fontsize=8)


def _feed_modes(figure: Figure, feed: Feed) -> None:
    left, right = two_axes(figure)
    segments = feed.all.segments
    left.set(title="Timestamp modes, as the tokens show them", ylabel="share of segments, %")
    for shift, minimum, name in (
        (-0.2, 1, "all segments"),
        (0.2, MIN_MEASUREMENTS_FOR_MODE, f"of {MIN_MEASUREMENTS_FOR_MODE} measurements or more"),
    ):
        counts = np.array(list(mode_counts(segments, minimum).values()))
        places = np.arange(len(MODE_NAMES)) + shift
        heights, label = 100 * counts / max(1, counts.sum()), f"{name}: {counts.sum():,}"
        left.bar(places, heights, 0.4, color=COLORS[shift > 0], label=label)
    left.set_xticks(range(len(MODE_NAMES)), MODE_NAMES)
    left.legend(fontsize=8)
    some = segments[timestamp_modes(segments, segments["fills_crop"]) == PARTIAL]
    _untimed(right, 1 - some["num_timed"] / some["num_measurements"], "segments")


def _feed_segments(figure: Figure, feed: Feed) -> None:
    left, right = two_axes(figure)
    segments, sources = feed.all.num_segments, np.array(list(feed.sources.values()))
    settings = {"title": "Segments of an example", "xlabel": "segments", "ylabel": "examples"}
    _whole_numbers(left, segments, 0, "examples", **settings)
    settings = {"title": "Contexts of a source, decoded", "xlabel": "contexts"}
    _whole_numbers(right, sources, 1, "sources", **settings, ylabel="source addresses")


def _feed_repeats(figure: Figure, feed: Feed) -> None:
    title = "Segments: destinations that come again"
    _repeats(figure, {"all": feed.all.repeats}, "segments", title)


def _feed_windows(figure: Figure, feed: Feed) -> None:
    left, right = two_axes(figure)
    spans, absent = np.array(feed.spans_seconds, float), "decoded segments with two timestamps"
    title = "Time between a segment's first and last timestamp"
    _spans(left, {"": spans}, absent, title=title, ylabel="segments")
    numbers = feed.all.segments["num_measurements"]
    title = "Measurements of a segment"
    _whole_numbers(
        right, numbers, 1, "segments", title=title, xlabel="measurements", ylabel="segments"
    )


def _feed_rtt(figure: Figure, feed: Feed) -> None:
    axes: Axes = figure.subplots()
    rtts = np.array(feed.rtts_ms)
    answered = np.maximum(rtts[rtts >= 0], _MIN_RTT_MS)
    title = "RTT of decoded measurements"
    if histogram(axes, {"": answered}, log_bins(answered, 80), "answered pings", title=title):
        failed = percent(1 - len(answered) / len(rtts))
        axes.set_title(f"RTT of {len(rtts):,} decoded measurements, of which {failed} failed")
        axes.set(xscale="log", xlabel="ms, logarithmic", ylabel="measurements")


def _feed_tokens(figure: Figure, feed: Feed) -> None:
    figure.set_size_inches(16, 6)  # a point per token
    axes: Axes = figure.subplots()
    fields, colors = feed.fields[:_MAX_EXAMPLES], np.array([to_rgb(c) for c in _FIELD_COLORS])
    axes.imshow(colors[fields], aspect="auto", interpolation="nearest")
    title = f"Tokens of the first batch, {len(fields)} of {len(feed.fields)} examples"
    axes.set(title=title, xlabel="position", ylabel="example")
    patches = [
        Patch(facecolor=color, edgecolor="grey", label=name)
        for color, name in zip(_FIELD_COLORS, FIELD_NAMES, strict=True)
    ]
    figure.legend(handles=patches, loc="outside right upper", fontsize=8)


DRAWINGS = {
    "padding": _padding,
    "modes": _modes,
    "contexts_per_row": _contexts_per_row,
    "repeats": _context_repeats,
    "window_spans": _window_spans,
}
FEED_DRAWINGS = {
    "padding": _feed_padding,
    "modes": _feed_modes,
    "segments": _feed_segments,
    "repeats": _feed_repeats,
    "windows": _feed_windows,
    "rtt": _feed_rtt,
    "tokens": _feed_tokens,
}
