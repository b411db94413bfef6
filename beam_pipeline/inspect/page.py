"""A dataset as one HTML file, light or dark: tables, and plots as SVG.

The page loads nothing, runs no script, and has no date or machine name, so it is deterministic.
page.html.jinja has the sections and the surrounding text. Each matplotlib colour stands for a CSS
variable of a light and a dark scheme; text stays text.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, Formatter, FuncFormatter, LogLocator, NullFormatter

from beam_pipeline.dataset.data_card import facts
from beam_pipeline.inspect.figures import Figures
from beam_pipeline.inspect.findings import Report, sample_text
from beam_pipeline.inspect.row import TOKEN_STYLES, OneContext, OneRow, row_table, row_text
from beam_pipeline.inspect.sample import HOURS
from beam_pipeline.inspect.tables import tables
from beam_pipeline.report.page import environment, part
from beam_pipeline.report.plots import TEST, TRAIN, WARN, svg_of, two_axes
from beam_pipeline.report.tables import NONE, bytes_text, span_us_text

_COLORS = {"train": TRAIN, "test": TEST}
_MIN_RTT_MS = 0.01
_MAX_POINTS = 800
_LAST_DATE = np.datetime64("9000-01-01", "us")  # Matplotlib's end in 9999, margins included
_FEW_BINS = 10


def page(report: Report, row: OneRow | None, context: OneContext | None) -> bytes:
    """Returns the page as UTF-8, with an optional row and context."""
    figures, manifest = report.figures, report.figures.dataset.manifest
    shown_tables = {table.name: table for table in tables(report)}
    if row:
        shown_tables["row"] = row_table(row)
    template = environment().from_string(part("beam_pipeline.inspect", "page.html.jinja"))
    html = template.render(
        style=Markup(part("beam_pipeline.inspect", "page.css")),
        title=figures.dataset.path,
        period=figures.period,
        tiles=list(_tiles(figures)),
        report=report,
        tables=shown_tables,
        plots=_plots(figures) | ({"row": _row_plot(row.row.run)} if row else {}),
        row_name=row and row.name,
        row_text=row and row_text(row),
        context=context,
        kinds=list(TOKEN_STYLES),
        sample=sample_text(figures),
        versions=", ".join(f"{name} {value}" for name, value in sorted(manifest.versions.items())),
        options=" ".join(f"--{name}={value}" for name, value in sorted(manifest.options.items())),
    )
    return html.encode()


def _tiles(figures: Figures) -> Iterator[tuple[str, str]]:
    manifest, totals = figures.dataset.manifest, figures.totals
    known = facts(list(manifest.splits.values()), totals)
    for name in ("measurements", "probes", "rows"):
        yield f"{known[name]:,}", name
    yield bytes_text(sum(split.num_bytes for split in manifest.splits.values())), "in shards"
    yield span_us_text(figures.period.length_us) if figures.period else NONE, "covered"
    yield str(known["failed pings"] or NONE), "of the pings failed"
    yield f"{manifest.counts.num_dead_letters:,}", "dead letters"


# --- plots ----------------------------------------------------------------------------------------


def _plots(figures: Figures) -> dict[str, str]:
    """Returns the plots of a dataset by the names of their sections; see `svg_of`."""
    if figures.period is None:
        return {}
    return {
        name: svg_of(name, height, partial(draw, figures=figures))
        for name, (height, draw) in _DRAWINGS.items()
    }


def _row_plot(run: np.ndarray) -> str:
    """Plots the RTTs of a sorted run over time, at _MAX_POINTS evenly chosen points."""
    some = run[np.unique(np.linspace(0, len(run) - 1, _MAX_POINTS).astype(int))]
    times, failed = _dates(some["event_time"]), some["rtt"] < 0
    shown = f"{len(some):,} of {len(run):,} measurements"

    def draw(figure: Figure) -> None:
        axes: Axes = figure.subplots()
        axes.plot(times[~failed], some["rtt"][~failed], ".", color=TRAIN, ms=3.5)
        axes.plot(times[failed], np.zeros(failed.sum()), "|", color=WARN, ms=9)
        axes.set_title(f"RTT, ms, of {shown}; ticks at the bottom are failed pings")
        _date_axis(axes)

    return svg_of("row", 2.6, draw)


def _dates(times_us: np.ndarray) -> np.ndarray:
    """Returns times as dates, capped at _LAST_DATE."""
    return np.minimum(times_us.astype("datetime64[us]"), _LAST_DATE)


def _date_axis(axes: Axes) -> None:
    """Labels a time axis with as few digits as needed."""
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _distribution(
    axes: Axes,
    groups: Mapping[str, tuple[np.ndarray, np.ndarray]],
    ends: tuple[float, float],
    num_bins: int,
    formatter: Formatter | str,
) -> None:
    """Draws values with weights on a logarithmic axis: train as an area, test as a line over it."""
    low, high = ends
    bins = np.geomspace(low, high, num_bins)
    for split, (values, weights) in groups.items():
        if len(values):
            shares = np.histogram(np.maximum(values, low), bins, weights=weights)[0]
            style = {"fill": True, "alpha": 0.35} if split == "train" else {}
            axes.stairs(100 * shares / weights.sum(), bins, color=_COLORS[split], **style)
    axes.set_xlim(low / 1.1, high * 1.1)  # first: a logarithmic scale needs positive limits
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1,) if high / low > 1000 else (1, 2, 5)))
    axes.xaxis.set_major_formatter(formatter)
    axes.xaxis.set_minor_formatter(NullFormatter())


# --- one picture each ---------------------------------------------------------------------------


def _rtt(figure: Figure, figures: Figures) -> None:
    axes: Axes = figure.subplots()
    samples = figures.samples.items()
    groups = {
        split: (sample.run["rtt"][sample.answered], sample.weight[sample.answered])
        for split, sample in samples
    }
    together = np.concatenate([rtt for rtt, _ in groups.values()])
    low, high = np.quantile(together, (0.0005, 0.9995)) if len(together) else (1.0, 1000.0)
    low = max(_MIN_RTT_MS, float(low))
    _distribution(axes, groups, (low, max(2 * low, float(high))), 100, "{x:g}")
    axes.set(xlabel="RTT, ms", title="share of the answered pings, %")


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
        low, middle, high = np.array([group.quantiles_ms for group in own.hours]).T
        left.plot(hours, middle, ".-", color=_COLORS[split])
        left.fill_between(hours, low, high, color=_COLORS[split], alpha=0.15, lw=0)
        failed = [100 * group.failed_share for group in own.hours]
        right.plot(hours, failed, ".-", color=_COLORS[split])
    for axes, title in ((left, "RTT, ms"), (right, "failed, %")):
        axes.set(title=title, xlabel="hour, UTC", xticks=range(0, HOURS, 3))
        axes.set_ylim(bottom=0)


def _sizes(figure: Figure, figures: Figures) -> None:
    formatters = {
        "measurements of a probe": EngFormatter(),
        "measurements of a row": EngFormatter(),
        "bytes of a row": FuncFormatter(lambda size, _: bytes_text(size).replace(".0", "")),
    }
    for axes, (name, formatter) in zip(figure.subplots(1, 3), formatters.items(), strict=True):
        sizes = {split: own.sizes[name] for split, own in figures.splits.items()}
        together = np.concatenate(list(sizes.values()))
        low = max(1, together.min())
        ends = low, max(10 * low, together.max() + 1)  # an axis needs two ends
        groups = {split: (values, np.ones(len(values))) for split, values in sizes.items()}
        _distribution(axes, groups, ends, 36, formatter)
        axes.set(xlabel=name, title=f"share of the {name.split()[-1]}s, %")


# The height in inches and the function of each plot.
_DRAWINGS: dict[str, tuple[float, Callable[..., None]]] = {
    "rtt": (2.6, _rtt),
    "time": (2.1, _time),
    "hours": (2.9, _hours),
    "sizes": (2.7, _sizes),
}
