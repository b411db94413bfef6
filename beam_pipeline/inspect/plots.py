"""The facts of a dataset as pictures: SVG for the page, drawn with matplotlib.

The page has a light and a dark scheme, so each colour that matplotlib is given stands for a CSS
variable of the page. Text stays text. The same facts give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from beam_pipeline.inspect.facts import Facts
from beam_pipeline.inspect.index import span_us_text
from beam_pipeline.inspect.row import OneRow
from beam_pipeline.inspect.statistics import FAMILIES, HOURS, cumulative, family_counts
from beam_pipeline.report.formatting import bytes_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours that matplotlib draws in, and the page's name of each.
_CSS_NAMES = {
    "#a1b2c1": "--train",
    "#a1b2c2": "--test",
    "#a1b2c3": "--ink",
    "#a1b2c4": "--faint",
    "#a1b2c5": "--warn",
    "#a1b2c6": "--card",
}
TRAIN, TEST, INK, FAINT, WARN, CARD = _CSS_NAMES
_COLORS = {"train": TRAIN, "test": TEST}
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may have dollars in it
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}
_MIN_RTT_MS = 0.01
_MAX_CURVE_POINTS = 200
_MAX_POINTS = 800
_FEW_BINS, _FEW_REASONS = 10, 4
_FAMILY_ALPHAS = (0.6, 0.45, 0.3, 0.18)


class Plot(NamedTuple):
    """A picture: its name, title and caption, and the SVG."""

    name: str
    title: str
    caption: str
    svg: str


def plots(facts: Facts) -> Iterator[Plot]:
    """Yields the pictures of a dataset, in the order of the page."""
    if facts.period is None:
        return
    for name, title, caption, height, draw in _DRAWINGS:
        if name == "dead_letters" and not facts.dataset.manifest.counts.dead_letters:
            continue
        with picture(name, title, height) as (figure, svg):
            draw(figure, facts)
        yield Plot(name, title, caption, svg.getvalue())


@contextmanager
def picture(name: str, title: str, height: float) -> Iterator[tuple[Figure, StringIO]]:
    """Yields an empty picture, and a buffer that has its SVG once the block has ended."""
    import matplotlib
    from matplotlib.figure import Figure  # draws without pyplot's state

    svg = StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):  # type: ignore[arg-type]
        figure = Figure(figsize=(9, height), layout="constrained")
        yield figure, svg
        raw = StringIO()
        figure.savefig(raw, format="svg", metadata={"Date": None, "Creator": None})
    svg.write(_for_page(raw.getvalue(), name, title))


def _for_page(svg: str, name: str, title: str) -> str:
    """Fits matplotlib's SVG to the page: no XML head, no sizes, colours and fonts by CSS."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # nothing refers to groups
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", svg)
    for color, variable in _CSS_NAMES.items():
        svg = svg.replace(color, f"var({variable})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}" class="plot {name}"', 1)


def row_plot(one: OneRow) -> Plot:
    """Returns a picture of the RTTs of one row over time."""
    run = one.row.run
    if len(run) > _MAX_POINTS:
        run = run[np.linspace(0, len(run) - 1, _MAX_POINTS).astype(int)]
    times, failed = run["event_time"].astype("datetime64[us]"), run["rtt"] < 0
    title = f"RTT of row {one.name} over time"
    with picture("row", title, 2.6) as (figure, svg):
        axes: Axes = figure.subplots()
        axes.plot(times[~failed], run["rtt"][~failed], ".", color=TRAIN, ms=3.5)
        axes.plot(times[failed], np.zeros(failed.sum()), "|", color=WARN, ms=9)
        axes.set_title("RTT, ms; ticks at the bottom are failed pings")
        _dates(axes)
    caption = f"{len(run):,} of its {len(one.row.run):,} measurements, evenly chosen."
    return Plot("row", title, caption, svg.getvalue())


# --- one picture each, in the order of the page ---------------------------------------------------


_Draw = Callable[["Figure", Facts], None]
_DRAWINGS: list[tuple[str, str, str, float, _Draw]] = []


def _drawn(title: str, caption: str, height: float) -> Callable[[_Draw], _Draw]:
    """Registers a function that draws a picture of its own name."""

    def register(draw: _Draw) -> _Draw:
        _DRAWINGS.append((draw.__name__[1:], title, caption, height, draw))
        return draw

    return register


@_drawn(
    "RTT of answered pings",
    "Where the two curves part, a model is tested on other round trips than it saw.",
    3.0,
)
def _rtt(figure: Figure, facts: Facts) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    low, high = _rtt_ends(facts)
    bins = np.geomspace(low, high, 70)
    for split, sample in facts.samples.items():
        rtt, weight = sample.rtt[sample.answered], sample.weight[sample.answered]
        if not len(rtt):
            continue
        rtt = np.maximum(rtt, low)
        _histogram(left, split, np.histogram(rtt, bins, weights=weight / weight.sum())[0], bins)
        order = np.argsort(rtt)
        reached = np.cumsum(weight[order]) / weight.sum()
        points = np.linspace(0, len(rtt) - 1, _MAX_CURVE_POINTS).astype(int)
        right.plot(rtt[order][points], 100 * reached[points], color=_COLORS[split])
    for axes, title in (
        (left, "share of the answered pings, %"),
        (right, "share that is faster, %"),
    ):
        axes.set_title(title)
        _rtt_axis(axes, (low, high))


@_drawn(
    "Measurements over time",
    "Each side is scaled to a mean of 1. Where nothing was sampled the ground is coloured.",
    2.1,
)
def _time(figure: Figure, facts: Facts) -> None:
    axes: Axes = figure.subplots()
    line = facts.timeline
    if line is None:
        return
    # Bins at the ends are covered in part only, which would look like a loss.
    there = slice(1, -1) if len(line.begins_us) > _FEW_BINS else slice(None)
    begins = line.begins_us[there]
    times = np.append(begins, begins[-1] + line.width_us).astype("datetime64[us]")
    for split, shares in line.shares.items():
        if shares.any():
            # Both splits have the same mean, so that a difference of shape shows.
            heights = (shares * len(shares))[there]
            heights = np.append(heights, heights[-1])  # the last bin has a width, too
            axes.step(times, heights, where="post", color=_COLORS[split])
    for period in facts.empty:
        begin, end = (np.datetime64(end, "us") for end in period)
        axes.axvspan(begin, end, color=WARN, alpha=0.25, lw=0)  # type: ignore[arg-type]
    axes.set_title(f"measurements by {span_us_text(line.width_us)}, their mean is 1")
    _dates(axes)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])


def _rtt_axis(axes: Axes, ends: tuple[float, float]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    # The limits first: a logarithmic scale needs positive ones.
    axes.set_xlim(ends[0] / 1.1, ends[1] * 1.1)
    axes.set(xscale="log", xlabel="RTT, ms")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _histogram(axes: Axes, split: str, shares: np.ndarray, bins: np.ndarray) -> None:
    """Draws shares in %: train as an area, test as a line over it."""
    is_area = split == "train"
    color, alpha = _COLORS[split], 0.35 if is_area else 1.0
    axes.stairs(100 * shares, bins, color=color, fill=is_area, alpha=alpha)


def _rtt_ends(facts: Facts) -> tuple[float, float]:
    rtts = np.concatenate([s.rtt[s.answered] for s in facts.samples.values()])
    if not len(rtts):
        return 1.0, 1000.0
    low = max(_MIN_RTT_MS, float(np.quantile(rtts, 0.0005)))
    return low, max(2 * low, float(np.quantile(rtts, 0.9995)))


@_drawn(
    "RTT and failed pings by hour of the day",
    "The line is the median, the band holds 80 % of the answered pings.",
    2.9,
)
def _hours(figure: Figure, facts: Facts) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    hours = np.arange(HOURS)
    for split, groups in facts.hours.items():
        low, middle, high = np.array([group.quantiles_ms for group in groups]).T
        failed = np.array([group.failed_share for group in groups])
        left.plot(hours, middle, ".-", color=_COLORS[split])
        left.fill_between(hours, low, high, color=_COLORS[split], alpha=0.15, lw=0)
        right.plot(hours, 100 * failed, ".-", color=_COLORS[split])
    left.set(title="RTT, ms", xlabel="hour, UTC")
    left.set_ylim(bottom=0)
    right.set(title="failed, %", xlabel="hour, UTC")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.set_xticks(range(0, HOURS, 3))


@_drawn(
    "RTT by destination",
    "Those with most measurements: the median, and what 80 % of the pings are within.",
    4.6,
)
def _destinations(figure: Figure, facts: Facts) -> None:
    axes: Axes = figure.subplots()
    shifts = (-0.18, 0.18) if all(map(len, facts.indexes.values())) else (0, 0)
    for shift, split in zip(shifts, facts.indexes, strict=True):
        groups = [destination.rtts[split] for destination in facts.destinations]
        low, middle, high = np.array([group.quantiles_ms for group in groups]).T
        places = np.arange(len(groups)) + shift
        axes.hlines(places, low, high, color=_COLORS[split], lw=3, alpha=0.35)
        axes.plot(middle, places, "o", color=_COLORS[split], ms=4.5)
    labels = [destination.address for destination in facts.destinations]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    _rtt_axis(axes, _rtt_ends(facts))
    axes.grid(axis="y", visible=False)


@_drawn(
    "Sizes of histories and rows",
    "A row is what a trainer reads at once; a probe with more than fits has several.",
    2.7,
)
def _sizes(figure: Figure, facts: Facts) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    panels = figure.subplots(1, 3)
    indexes = facts.indexes
    for axes, xlabel, title, text, values in (
        (panels[0], "measurements of a probe", "share of the probes, %", _count_text,
         {split: index.probes.n_measurements for split, index in indexes.items()}),
        (panels[1], "measurements of a row", "share of the rows, %", _count_text,
         {split: index.n_measurements for split, index in indexes.items()}),
        (panels[2], "size of a row", "share of the rows, %", _size_text,
         {split: index.num_bytes for split, index in indexes.items()}),
    ):  # fmt: skip
        together = np.concatenate(list(values.values()))
        low = max(1, together.min())
        high = max(10 * low, together.max() + 1)  # an axis needs two ends
        bins = np.geomspace(low, high, 36)
        for split, counts in values.items():
            if len(counts):
                _histogram(axes, split, np.histogram(counts, bins)[0] / len(counts), bins)
        axes.set(xscale="log", xlabel=xlabel, title=title)
        axes.xaxis.set_major_locator(LogLocator(subs=(1,) if high / low > 100 else (1, 2, 5)))
        axes.xaxis.set_major_formatter(text)
        axes.xaxis.set_minor_formatter(NullFormatter())


def _size_text(num_bytes: float, _: int) -> str:
    return bytes_text(num_bytes).replace(".0", "")


def _dates(axes: Axes) -> None:
    """Labels a time axis with as few digits as needed."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()
    # Midnights and days with their month; the year or date is at the end.
    formatter = ConciseDateFormatter(
        locator,
        formats=["%Y", "%b", "%b %d", "%H:%M", "%H:%M", "%S.%f"],
        zero_formats=["", "%Y", "%b", "%b %d", "%H:%M", "%H:%M"],
        offset_formats=["", "%Y", "%Y", "%Y", "%Y-%m-%d", "%Y-%m-%d"],
    )
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(formatter)


def _count_text(value: float, _: int) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


@_drawn(
    "How uneven the probes are",
    "The further the curve is from the diagonal, the fewer probes decide what a model sees.",
    3.0,
)
def _busiest(figure: Figure, facts: Facts) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    for split, index in facts.indexes.items():
        if len(index):
            probes, measurements = cumulative(index.probes.n_measurements)
            points = np.unique(np.geomspace(1, len(probes), _MAX_CURVE_POINTS).astype(int)) - 1
            left.plot(100 * probes[points], 100 * measurements[points], color=_COLORS[split])
    left.plot((0, 100), (0, 100), color=FAINT, lw=0.8, ls="--")
    left.set(xlabel="probes, the busiest first, %", title="share of the measurements, %")
    top = [(probe, split) for split, probes in facts.busiest.items() for probe in probes[:6]]
    for place, (probe, split) in enumerate(top):
        right.barh(place, 100 * probe.share, color=_COLORS[split], alpha=0.75)
    right.set_yticks(range(len(top)), [probe.address for probe, _ in top])
    right.invert_yaxis()
    right.grid(axis="y", visible=False)
    right.set(title="share of the split's measurements, %")


@_drawn(
    "Address families",
    "Of the probe, and of what it pinged.",
    1.9,
)
def _families(figure: Figure, facts: Facts) -> None:
    from matplotlib.patches import Patch

    axes: Axes = figure.subplots()
    for place, (split, index) in enumerate(facts.indexes.items()):
        left, whole = 0.0, max(1, index.num_measurements)
        for number, count in enumerate(family_counts(index)):
            share = 100 * count / whole
            alpha = _FAMILY_ALPHAS[number]
            axes.barh(place, share, left=left, color=_COLORS[split], alpha=alpha, edgecolor=CARD)
            if share >= 4:
                text = f"{share:.1f} %" if share >= 8 else f"{share:.0f} %"
                axes.text(left + share / 2, place, text, ha="center", va="center", fontsize=8.5)
            left += share
    shades = [Patch(color=INK, alpha=alpha) for alpha in _FAMILY_ALPHAS]
    axes.legend(shades, FAMILIES, ncols=4, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
    axes.set_yticks(range(len(facts.indexes)), list(facts.indexes))
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set(xlabel="share of the measurements, %", xlim=(0, 100))


@_drawn(
    "Dead letters by reason",
    "Input rows that broke a rule; each is in dead_letter/ with its file, row and values.",
    2.0,
)
def _dead_letters(figure: Figure, facts: Facts) -> None:
    axes: Axes = figure.subplots()
    letters = sorted(facts.dataset.manifest.counts.dead_letters.items(), key=lambda item: -item[1])
    counts = [count for _, count in letters]
    axes.barh(range(len(letters)), counts, height=0.6, color=WARN, alpha=0.8)
    for place, count in enumerate(counts):
        axes.annotate(f"{count:,}", (count, place), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(letters)), [reason for reason, _ in letters])
    axes.set_ylim(max(_FEW_REASONS, len(letters)) - 0.4, -0.6)
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="rows of the input")
