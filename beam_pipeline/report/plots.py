"""The style of all matplotlib figures: PNG files beside a JSON file, and SVG in a page.

Figures are drawn without pyplot or a display, by functions of the figure and its subject.
matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from beam_pipeline.cli.command import require_packages
from beam_pipeline.errors import UsageError, explained_os_errors
from beam_pipeline.report.tables import span_text
from beam_pipeline.storage.files import atomic_write, write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
_SIZE, _DPI = (10.0, 4.5), 120
_SPAN_TICKS = (1, 60, 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)

# Each colour in an SVG stands for a CSS variable, for light and dark schemes.
_CSS_NAMES = {
    "#a1b2c1": "--train",
    "#a1b2c2": "--test",
    "#a1b2c3": "--ink",
    "#a1b2c4": "--faint",
    "#a1b2c5": "--warn",
}
TRAIN, TEST, INK, FAINT, WARN = _CSS_NAMES
_SVG_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names may contain dollar signs
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


# --- files ----------------------------------------------------------------------------------------


def prepare_folder(folder: str, option: str) -> Path:
    """Creates a writable local folder for figures; `option` is its flag, for messages."""
    require_packages(option, "matplotlib")
    if "://" in folder:
        raise UsageError(
            f"{option} is {folder}: figures are written to local folders only; give one, and copy "
            "it afterwards"
        )
    path = Path(folder)
    with explained_os_errors("write into", folder):
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    return path


def write_results(
    folder: Path,
    name: str,
    content: Mapping[str, Any],
    note: str,
    drawings: Mapping[str, Callable[[Figure, Any], None]],
    subject: Any,
) -> list[str]:
    """Writes a JSON file, `name` with `content`, and PNG figures; returns the names of the files.

    `drawings` are functions that draw `subject`, by file name without .png; `note` is the grey line
    below every figure.
    """
    from matplotlib.figure import Figure

    with explained_os_errors("write into", str(folder)):
        write_file(str(folder / name), orjson.dumps(content, option=orjson.OPT_INDENT_2))
        for stem, draw in drawings.items():
            figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
            figure.supxlabel(note, fontsize=8, color="grey")
            draw(figure, subject)
            with atomic_write(str(folder / f"{stem}.png")) as file:
                figure.savefig(file, format="png")
    return [name, *(f"{stem}.png" for stem in drawings)]


def svg_of(name: str, height: float, draw: Callable[[Figure], None]) -> str:
    """Returns a figure, 9 × `height` inches, as SVG after `<svg`: the page adds class and label.

    It has no XML declaration or size; colours and fonts come from CSS, and text stays text. The
    output is deterministic.
    """
    import matplotlib
    from matplotlib.figure import Figure

    buffer = StringIO()
    with matplotlib.rc_context({**_SVG_STYLE, "svg.hashsalt": name}):  # type: ignore[arg-type]
        figure = Figure(figsize=(9, height), layout="constrained")
        draw(figure)
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue().partition("<svg")[2]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # nothing refers to groups
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", svg)
    for color, variable in _CSS_NAMES.items():
        svg = svg.replace(color, f"var({variable})")
    return svg


# --- axes -----------------------------------------------------------------------------------------


def two_axes(figure: Figure, widths: tuple[float, float] = (1, 1)) -> tuple[Axes, Axes]:
    left, right = figure.subplots(1, 2, width_ratios=widths)
    return left, right


def say_none(what: str, *axes: Axes) -> None:
    """Writes "there are no …" into empty axes."""
    for one in axes:
        one.text(
            0.5, 0.5, f"there are no {what}", ha="center", va="center", transform=one.transAxes
        )
        one.set_xticks([])
        one.set_yticks([])


def histogram(
    axes: Axes,
    groups: Mapping[str, np.ndarray],
    bins: Sequence[float],
    absent: str,
    colors: Sequence[str] = COLORS,
    **settings: Any,
) -> bool:
    """Draws stacked histograms of groups of values by label; returns whether there are values.

    Without any, it says "there are no {absent}". `settings` are titles and labels, as in Axes.set.
    """
    axes.set(**settings)
    if not any(map(len, groups.values())):
        say_none(absent, axes)
        return False
    names = list(groups)
    values = [groups[name] for name in names]
    axes.hist(values, bins, stacked=True, color=colors[: len(names)], label=names)
    if any(names):
        axes.legend(fontsize=8)
    return True


def percent_bins(step: float = 2.5) -> list[float]:
    return np.arange(0, 100 + step, step).tolist()


def whole_bins(values: np.ndarray) -> list[float]:
    """Returns edges between whole numbers, at most about 40 bins."""
    smallest, largest = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    width = 1 + (largest - smallest) // 40
    return (np.arange(smallest, largest + width + 1, width) - 0.5).tolist()


def log_bins(values: np.ndarray, count: int) -> list[float]:
    """Returns `count` edges of equally wide bins on a logarithmic axis."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (1.0, 1.0)
    return np.geomspace(low, high * 1.01 + 1e-3, count).tolist()


def span_axis(axes: Axes, spans: np.ndarray) -> None:
    """Makes the x axis logarithmic, with familiar ticks for durations in seconds."""
    shortest, longest = max(1.0, float(spans.min())), max(2.0, float(spans.max()))
    ticks = [t for t in _SPAN_TICKS if shortest / 60 <= t <= longest * 2]
    axes.set_xscale("log")
    axes.set_xticks(ticks, [span_text(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
