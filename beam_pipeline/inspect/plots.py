"""Plots of a dataset's facts: SVG for the page, drawn with matplotlib.

The page has a light and a dark scheme, so each matplotlib colour stands for a CSS variable. Text
stays text. The output is deterministic.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, Formatter, LogLocator, NullFormatter

from beam_pipeline.inspect.facts import Facts
from beam_pipeline.inspect.figures import FAMILIES, Rtts, weighted_quantiles
from beam_pipeline.inspect.sample import HOURS
from beam_pipeline.report.plots import CARD, FAINT, INK, TEST, TRAIN, WARN, svg_of, two_axes
from beam_pipeline.report.tables import bytes_text, span_us_text

_COLORS = {"train": TRAIN, "test": TEST}
_MIN_RTT_MS = 0.01
_MAX_CURVE_POINTS = 200
MAX_POINTS = 800
_LAST_DATE = np.datetime64("9000-01-01", "us")  # Matplotlib's end in 9999, margins included
_FEW_BINS, _FEW_REASONS = 10, 4
_FAMILY_ALPHAS = (0.6, 0.45, 0.3, 0.18)
# The label of each axis, and the key in `SplitFigures.sizes`.
_SIZES = {
    "measurements of a probe": "measurements of a probe",
    "measurements of a row": "measurements of a row",
    "size of a row": "bytes of a row",
}


def plots(facts: Facts) -> dict[str, str]:
    """Returns the plots of a dataset by the names of their sections; see `svg_of`."""
    if facts.period is None:
        return {}
    return {
        name: svg_of(name, height, partial(draw, facts=facts))
        for name, (height, draw) in _DRAWINGS.items()
        if name != "dead_letters" or facts.dataset.manifest.counts.dead_letters
    }


def row_plot(run: np.ndarray) -> str:
    """Plots the RTTs of a sorted run over time, at MAX_POINTS evenly chosen points."""
    run = run[np.unique(np.linspace(0, len(run) - 1, MAX_POINTS).astype(int))]
    times, failed = _dates(run["event_time"]), run["rtt"] < 0

    def draw(figure: Figure) -> None:
        axes: Axes = figure.subplots()
        axes.plot(times[~failed], run["rtt"][~failed], ".", color=TRAIN, ms=3.5)
        axes.plot(times[failed], np.zeros(failed.sum()), "|", color=WARN, ms=9)
        axes.set_title("RTT, ms; ticks at the bottom are failed pings")
        _date_axis(axes)

    return svg_of("row", 2.6, draw)


def _dates(times_us: np.ndarray) -> np.ndarray:
    """Returns times as dates, capped at _LAST_DATE."""
    return np.minimum(times_us.astype("datetime64[us]"), _LAST_DATE)


# --- axes ---------------------------------------------------------------------------------------


def _log_axis(
    axes: Axes, low: float, high: float, formatter: str | Formatter, ticks: tuple[int, ...]
) -> None:
    """Makes the x axis logarithmic, with `ticks` times the powers of ten."""
    axes.set_xlim(low / 1.1, high * 1.1)  # first: a logarithmic scale needs positive limits
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=ticks))
    axes.xaxis.set_major_formatter(formatter)
    axes.xaxis.set_minor_formatter(NullFormatter())


def _rtt_ends(facts: Facts) -> tuple[float, float]:
    rtts = np.concatenate([s.rtt[s.answered] for s in facts.samples.values()])
    if not len(rtts):
        return 1.0, 1000.0
    low = max(_MIN_RTT_MS, float(np.quantile(rtts, 0.0005)))
    return low, max(2 * low, float(np.quantile(rtts, 0.9995)))


def _rtt_axis(axes: Axes, ends: tuple[float, float]) -> None:
    _log_axis(axes, *ends, "{x:g}", (1, 2, 5))
    axes.set_xlabel("RTT, ms")


def _date_axis(axes: Axes) -> None:
    """Labels a time axis with as few digits as needed."""
    locator = AutoDateLocator()
    # Midnights and days with their month; the year or date is at the end of the axis.
    formatter = ConciseDateFormatter(
        locator,
        formats=["%Y", "%b", "%b %d", "%H:%M", "%H:%M", "%S.%f"],
        zero_formats=["", "%Y", "%b", "%b %d", "%H:%M", "%H:%M"],
        offset_formats=["", "%Y", "%Y", "%Y", "%Y-%m-%d", "%Y-%m-%d"],
    )
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(formatter)


def _histogram(
    axes: Axes, split: str, values: np.ndarray, weights: np.ndarray, bins: np.ndarray
) -> None:
    """Draws shares in %: train as an area, test as a line over it."""
    shares = np.histogram(values, bins, weights=100 * weights / weights.sum())[0]
    is_area = split == "train"
    axes.stairs(shares, bins, color=_COLORS[split], fill=is_area, alpha=0.35 if is_area else 1.0)


def _quantiles(groups: list[Rtts]) -> np.ndarray:
    """Returns the low, middle and high RTTs of groups, [3, groups]."""
    return np.array([group.quantiles_ms for group in groups]).T


# --- one picture each ---------------------------------------------------------------------------


def _rtt(figure: Figure, facts: Facts) -> None:
    left, right = two_axes(figure, (3, 2))
    low, high = _rtt_ends(facts)
    levels = np.linspace(0, 1, _MAX_CURVE_POINTS)
    for split, sample in facts.samples.items():
        rtt = np.maximum(sample.rtt[sample.answered], low)
        weight = sample.weight[sample.answered]
        if len(rtt):
            _histogram(left, split, rtt, weight, np.geomspace(low, high, 70))
            quantiles = weighted_quantiles(rtt, weight, levels)
            right.plot(quantiles, 100 * levels, color=_COLORS[split])
    left.set_title("share of the answered pings, %")
    right.set_title("share that is faster, %")
    for axes in (left, right):
        _rtt_axis(axes, (low, high))


def _time(figure: Figure, facts: Facts) -> None:
    axes: Axes = figure.subplots()
    line = facts.timeline
    if line is None:
        return
    # The partial bins at the ends would look like a loss.
    inner = slice(1, -1) if len(line.begins_us) > _FEW_BINS else slice(None)
    begins = line.begins_us[inner]
    edges = np.append(_dates(begins), _dates(begins[-1:]) + np.timedelta64(line.width_us, "us"))
    for split, shares in line.shares.items():
        if shares.any():  # same mean for both splits, so that a difference of shape shows
            heights = (shares * len(shares))[inner]
            axes.stairs(heights, edges, baseline=None, color=_COLORS[split], lw=1.5)  # type: ignore[arg-type]
    for period in facts.empty:
        begin, end = _dates(np.array(period))
        axes.axvspan(begin, end, color=WARN, alpha=0.25, lw=0)  # type: ignore[arg-type]
    axes.set_title(f"measurements by {span_us_text(line.width_us)}, their mean is 1")
    _date_axis(axes)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])


def _hours(figure: Figure, facts: Facts) -> None:
    left, right = two_axes(figure, (3, 2))
    hours = np.arange(HOURS)
    for split, figures in facts.splits.items():
        low, middle, high = _quantiles(figures.hours)
        left.plot(hours, middle, ".-", color=_COLORS[split])
        left.fill_between(hours, low, high, color=_COLORS[split], alpha=0.15, lw=0)
        failed = [100 * group.failed_share for group in figures.hours]
        right.plot(hours, failed, ".-", color=_COLORS[split])
    for axes, title in ((left, "RTT, ms"), (right, "failed, %")):
        axes.set(title=title, xlabel="hour, UTC", xticks=range(0, HOURS, 3))
        axes.set_ylim(bottom=0)


def _destinations(figure: Figure, facts: Facts) -> None:
    axes: Axes = figure.subplots()
    shifts = (-0.18, 0.18) if all(len(split.rows) for split in facts.splits.values()) else (0, 0)
    busiest = facts.destinations.busiest
    for shift, (split, color) in zip(shifts, _COLORS.items(), strict=True):
        low, middle, high = _quantiles([rtts[split] for rtts in busiest.values()])
        places = np.arange(len(middle)) + shift
        axes.hlines(places, low, high, color=color, lw=3, alpha=0.35)
        axes.plot(middle, places, "o", color=color, ms=4.5)
    axes.set_yticks(range(len(busiest)), list(busiest))
    axes.set_ylim(len(busiest) - 0.4, -0.6)
    _rtt_axis(axes, _rtt_ends(facts))
    axes.grid(axis="y", visible=False)


def _sizes(figure: Figure, facts: Facts) -> None:
    for axes, (label, name) in zip(figure.subplots(1, 3), _SIZES.items(), strict=True):
        values = {split: figures.sizes[name] for split, figures in facts.splits.items()}
        together = np.concatenate(list(values.values()))
        low = max(1, together.min())
        high = max(10 * low, together.max() + 1)  # an axis needs two ends
        for split, sizes in values.items():
            if len(sizes):
                _histogram(axes, split, sizes, np.ones(len(sizes)), np.geomspace(low, high, 36))
        _log_axis(axes, low, high, EngFormatter(), (1,) if high / low > 100 else (1, 2, 5))
        axes.set(xlabel=label, title=f"share of the {label.split()[-1]}s, %")
    axes.xaxis.set_major_formatter(lambda size, _: bytes_text(size).replace(".0", ""))


def _busiest(figure: Figure, facts: Facts) -> None:
    left, right = two_axes(figure, (2, 3))
    for split, figures in facts.splits.items():
        if len(figures.probes):
            counts = np.sort(figures.per_probe)[::-1]
            points = np.unique(np.geomspace(1, len(counts), _MAX_CURVE_POINTS).astype(int))
            shares = 100 * np.cumsum(counts)[points - 1] / counts.sum()
            left.plot(100 * points / len(counts), shares, color=_COLORS[split])
    left.plot((0, 100), (0, 100), color=FAINT, lw=0.8, ls="--")
    left.set(xlabel="probes, the busiest first, %", title="share of the measurements, %")
    top = [(probe, name) for name, split in facts.splits.items() for probe in split.busiest[:6]]
    right.barh(
        range(len(top)),
        [100 * probe["share"] for probe, _ in top],
        tick_label=[probe["address"] for probe, _ in top],
        color=[_COLORS[split] for _, split in top],
        alpha=0.75,
    )
    right.invert_yaxis()
    right.grid(axis="y", visible=False)
    right.set(title="share of the split's measurements, %")


def _families(figure: Figure, facts: Facts) -> None:
    axes: Axes = figure.subplots()
    counts = np.array([split.families for split in facts.splits.values()])
    shares = 100 * counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    lefts = shares.cumsum(axis=1) - shares
    for share, left, alpha in zip(shares.T, lefts.T, _FAMILY_ALPHAS, strict=True):
        bars = axes.barh(
            list(facts.splits),
            share,
            left=left,
            color=list(_COLORS.values()),
            alpha=alpha,
            edgecolor=CARD,
        )
        texts = [f"{s:.1f} %" if s >= 8 else f"{s:.0f} %" if s >= 4 else "" for s in share]
        axes.bar_label(bars, texts, label_type="center", fontsize=8.5)
    shades = [Patch(color=INK, alpha=alpha) for alpha in _FAMILY_ALPHAS]
    axes.legend(shades, FAMILIES, ncols=4, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set(xlabel="share of the measurements, %", xlim=(0, 100))


def _dead_letters(figure: Figure, facts: Facts) -> None:
    axes: Axes = figure.subplots()
    counts = facts.dataset.manifest.counts.dead_letters
    reasons = sorted(counts, key=lambda reason: -counts[reason])
    sizes = [counts[reason] for reason in reasons]
    bars = axes.barh(reasons, sizes, 0.6, color=WARN, alpha=0.8)
    axes.bar_label(bars, fmt="{:,.0f}", padding=4)
    axes.set_ylim(max(_FEW_REASONS, len(reasons)) - 0.4, -0.6)
    axes.margins(x=0.12)
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="rows of the input")


# The height in inches and the function of each plot.
_DRAWINGS: dict[str, tuple[float, Callable[..., None]]] = {
    "rtt": (3.0, _rtt),
    "time": (2.1, _time),
    "hours": (2.9, _hours),
    "destinations": (4.6, _destinations),
    "sizes": (2.7, _sizes),
    "busiest": (3.0, _busiest),
    "families": (1.9, _families),
    "dead_letters": (2.0, _dead_letters),
}
