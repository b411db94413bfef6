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
from matplotlib.ticker import EngFormatter, Formatter, LogLocator, NullFormatter

from beam_pipeline.inspect.figures import Figures, Rtts, weighted_quantiles
from beam_pipeline.inspect.sample import HOURS
from beam_pipeline.report.plots import FAINT, TEST, TRAIN, WARN, svg_of, two_axes
from beam_pipeline.report.tables import bytes_text, span_us_text

_COLORS = {"train": TRAIN, "test": TEST}
_MIN_RTT_MS = 0.01
_MAX_CURVE_POINTS = 200
MAX_POINTS = 800
_LAST_DATE = np.datetime64("9000-01-01", "us")  # Matplotlib's end in 9999, margins included
_FEW_BINS = 10
# The label of each axis, and the key in `SplitFigures.sizes`.
_SIZES = {
    "measurements of a probe": "measurements of a probe",
    "measurements of a row": "measurements of a row",
    "size of a row": "bytes of a row",
}


def plots(figures: Figures) -> dict[str, str]:
    """Returns the plots of a dataset by the names of their sections; see `svg_of`."""
    if figures.period is None:
        return {}
    drawings = _DRAWINGS.items()
    return {
        name: svg_of(name, height, partial(draw, figures=figures))
        for name, (height, draw) in drawings
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


def _rtt_ends(figures: Figures) -> tuple[float, float]:
    rtts = np.concatenate([s.run["rtt"][s.answered] for s in figures.samples.values()])
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


def _rtt(figure: Figure, figures: Figures) -> None:
    left, right = two_axes(figure, (3, 2))
    low, high = _rtt_ends(figures)
    levels = np.linspace(0, 1, _MAX_CURVE_POINTS)
    for split, sample in figures.samples.items():
        rtt = np.maximum(sample.run["rtt"][sample.answered], low)
        weight = sample.weight[sample.answered]
        if len(rtt):
            _histogram(left, split, rtt, weight, np.geomspace(low, high, 70))
            quantiles = weighted_quantiles(rtt, weight, levels)
            right.plot(quantiles, 100 * levels, color=_COLORS[split])
    left.set_title("share of the answered pings, %")
    right.set_title("share that is faster, %")
    for axes in (left, right):
        _rtt_axis(axes, (low, high))


def _time(figure: Figure, figures: Figures) -> None:
    axes: Axes = figure.subplots()
    line = figures.timeline
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
    for period in figures.empty:
        begin, end = _dates(np.array(period))
        axes.axvspan(begin, end, color=WARN, alpha=0.25, lw=0)  # type: ignore[arg-type]
    axes.set_title(f"measurements by {span_us_text(line.width_us)}, their mean is 1")
    _date_axis(axes)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])


def _hours(figure: Figure, figures: Figures) -> None:
    left, right = two_axes(figure, (3, 2))
    hours = np.arange(HOURS)
    for split, own in figures.splits.items():
        low, middle, high = _quantiles(own.hours)
        left.plot(hours, middle, ".-", color=_COLORS[split])
        left.fill_between(hours, low, high, color=_COLORS[split], alpha=0.15, lw=0)
        failed = [100 * group.failed_share for group in own.hours]
        right.plot(hours, failed, ".-", color=_COLORS[split])
    for axes, title in ((left, "RTT, ms"), (right, "failed, %")):
        axes.set(title=title, xlabel="hour, UTC", xticks=range(0, HOURS, 3))
        axes.set_ylim(bottom=0)


def _sizes(figure: Figure, figures: Figures) -> None:
    for axes, (label, name) in zip(figure.subplots(1, 3), _SIZES.items(), strict=True):
        values = {split: own.sizes[name] for split, own in figures.splits.items()}
        together = np.concatenate(list(values.values()))
        low = max(1, together.min())
        high = max(10 * low, together.max() + 1)  # an axis needs two ends
        for split, sizes in values.items():
            if len(sizes):
                _histogram(axes, split, sizes, np.ones(len(sizes)), np.geomspace(low, high, 36))
        _log_axis(axes, low, high, EngFormatter(), (1,) if high / low > 100 else (1, 2, 5))
        axes.set(xlabel=label, title=f"share of the {label.split()[-1]}s, %")
    axes.xaxis.set_major_formatter(lambda size, _: bytes_text(size).replace(".0", ""))


def _busiest(figure: Figure, figures: Figures) -> None:
    axes: Axes = figure.subplots()
    for split, own in figures.splits.items():
        if len(own.probes):
            counts = np.sort(own.per_probe)[::-1]
            points = np.unique(np.geomspace(1, len(counts), _MAX_CURVE_POINTS).astype(int))
            shares = 100 * np.cumsum(counts)[points - 1] / counts.sum()
            axes.plot(100 * points / len(counts), shares, color=_COLORS[split])
    axes.plot((0, 100), (0, 100), color=FAINT, lw=0.8, ls="--")
    axes.set(xlabel="probes, the busiest first, %", title="share of the measurements, %")


# The height in inches and the function of each plot.
_DRAWINGS: dict[str, tuple[float, Callable[..., None]]] = {
    "rtt": (3.0, _rtt),
    "time": (2.1, _time),
    "hours": (2.9, _hours),
    "sizes": (2.7, _sizes),
    "busiest": (3.0, _busiest),
}
