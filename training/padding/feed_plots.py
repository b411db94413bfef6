"""Draws a `Feed` as pictures; needs matplotlib, and no display."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from beam_pipeline.report.plot_style import COLORS, new_picture, say_none, span_axis, two_axes
from training.padding.feed_statistics import Feed, mode_counts, segment_modes
from training.padding.summary import percent
from training.tokens.draws import MODE_NAMES, PARTIAL
from training.tokens.kinds import FIELD_NAMES, MIN_MEASUREMENTS_FOR_MODE

_KIND_COLORS = ("white", "black", COLORS[4], COLORS[0], COLORS[2], COLORS[3], COLORS[1])
_MOST_EXAMPLES = 64  # in the picture of tokens
_LEAST_RTT_MS = 0.001


def write_plots(feed: Feed, folder: Path, host: str) -> None:
    """Writes all pictures, `host` in their names."""
    num_decoded = sum(step.segments_decoded for step in feed.steps)
    first, num_segments = feed.steps[0], sum(step.segments for step in feed.steps)
    place = (
        f"{host} · {len(feed.steps)} steps of [{first.examples}, {first.crop_size}] · "
        f"{num_decoded:,} of {num_segments:,} segments decoded"
    )
    for name, draw, width, height in (
        ("padding", _padding, 10, 4.5),
        ("modes", _modes, 10, 4.5),
        ("segments", _segments, 10, 4.5),
        ("windows", _windows, 10, 4.5),
        ("rtt", _rtt, 10, 4.5),
        ("tokens", _tokens, 16, 6),  # a point a token
    ):
        picture = new_picture(place, width, height)
        draw(picture, feed)
        picture.savefig(folder / f"{name}-{host}.png")


def _padding(picture: Figure, feed: Feed) -> None:
    left, right = two_axes(picture)
    shares = 100 * np.concatenate(feed.padding)
    left.hist(shares, np.linspace(0, 100, 41).tolist(), color=COLORS[0])
    left.set(title="Padding of an example", xlabel="share of the crop, %", ylabel="examples")
    for label, take in (("most", np.max), ("mean", np.mean)):
        right.plot([100 * take(values) for values in feed.padding], ".-", label=label)
    right.set(title="Padding by step", xlabel="step", ylabel="share of the crop, %", ylim=(-2, 102))
    right.legend(fontsize=8)


def _modes(picture: Figure, feed: Feed) -> None:
    left, right = two_axes(picture)
    segments = np.concatenate(feed.segments)
    left.set(title="Timestamp modes, as the tokens show them", ylabel="share of segments, %")
    for shift, least, name in (
        (-0.2, 1, "all segments"),
        (0.2, MIN_MEASUREMENTS_FOR_MODE, f"of {MIN_MEASUREMENTS_FOR_MODE} measurements or more"),
    ):
        counts = np.array(mode_counts(segments, least))
        label = f"{name}: {counts.sum():,}"
        places = np.arange(len(MODE_NAMES)) + shift
        heights = 100 * counts / max(1, counts.sum())
        left.bar(places, heights, 0.4, color=COLORS[shift > 0], label=label)
    left.set_xticks(range(len(MODE_NAMES)), MODE_NAMES)
    left.legend(fontsize=8)
    right.set_title("Measurements without timestamp, mode partial")
    some = segments[segment_modes(segments) == PARTIAL]
    if not len(some):
        say_none(right, "partial segments")
        return
    untimed = 1 - some["num_timed"] / some["num_measurements"]
    right.hist(100 * untimed, np.linspace(0, 100, 21).tolist(), color=COLORS[2])
    right.set(xlabel="share of a segment's measurements, %", ylabel="segments")


def _segments(picture: Figure, feed: Feed) -> None:
    left, right = two_axes(picture)
    _whole_numbers(left, np.concatenate(feed.num_segments), COLORS[0])
    left.set(title="Segments of an example", xlabel="segments", ylabel="examples")
    right.set(title="Contexts of a source, decoded", xlabel="contexts", ylabel="source addresses")
    if not feed.sources:
        say_none(right, "sources")
        return
    _whole_numbers(right, np.array(list(feed.sources.values())), COLORS[1])


def _windows(picture: Figure, feed: Feed) -> None:
    left, right = two_axes(picture)
    left.set_title("Time between a segment's first and last timestamp")
    right.set(title="Measurements of a segment", xlabel="measurements", ylabel="segments")
    measurements = np.concatenate(feed.segments)["num_measurements"]
    if not len(measurements):
        say_none(right, "segments")
    else:
        _whole_numbers(right, measurements, COLORS[1])
    if not feed.spans_s:
        say_none(left, "decoded segments with two timestamps")
        return
    spans = np.maximum(np.array(feed.spans_s, float), 1)
    bins = np.geomspace(spans.min(), spans.max() * 1.01 + 1, 50).tolist()
    left.hist(spans, bins, color=COLORS[0])
    left.set(xlabel="seconds to days, logarithmic; below 1 s shown as 1 s", ylabel="segments")
    span_axis(left, spans, "x")


def _rtt(picture: Figure, feed: Feed) -> None:
    axes = picture.subplots()
    rtts = np.array(feed.rtts_ms)
    answered = np.maximum(rtts[rtts >= 0], _LEAST_RTT_MS)
    axes.set_title("RTT of decoded measurements")
    if not len(answered):
        say_none(axes, "answered pings")
        return
    failed = percent(1 - len(answered) / len(rtts))
    axes.set_title(f"RTT of {len(rtts):,} decoded measurements, of which {failed} failed")
    bins = np.geomspace(answered.min(), answered.max() * 1.01, 80).tolist()
    axes.hist(answered, bins, color=COLORS[0])
    axes.set(xscale="log", xlabel="ms, logarithmic", ylabel="measurements")


def _tokens(picture: Figure, feed: Feed) -> None:
    axes = picture.subplots()
    fields = feed.fields[:_MOST_EXAMPLES]
    axes.imshow(
        fields,
        ListedColormap(_KIND_COLORS),
        vmin=0,
        vmax=len(FIELD_NAMES) - 1,
        aspect="auto",
        interpolation="nearest",
    )
    axes.set(
        title=f"Tokens of the first batch, {len(fields)} of {len(feed.fields)} examples",
        xlabel="position",
        ylabel="example",
    )
    patches = [
        Patch(facecolor=color, edgecolor="grey", label=name)
        for color, name in zip(_KIND_COLORS, FIELD_NAMES, strict=True)
    ]
    picture.legend(handles=patches, loc="outside right upper", fontsize=8)


def _whole_numbers(axes: Axes, values: np.ndarray, color: str) -> None:
    """Draws how often each number is there; some together if they are far apart."""
    least, most = int(values.min()), int(values.max())
    together = 1 + (most - least) // 40
    bins = np.arange(least, most + together + 1, together) - 0.5
    axes.hist(values, bins.tolist(), color=color)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
