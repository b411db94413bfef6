"""What every picture of training data has in common; matplotlib is imported when one is drawn."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from beam_pipeline.errors import UsageError, explained_os_errors
from training.padding.tables import span_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
_SPAN_TICKS = (1, 60, 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)
DPI = 120


def prepare_folder(folder: str, option: str) -> Path:
    """Makes the folder that `option` names and finds out whether pictures can be written into it.

    Raises:
      UsageError: there is no matplotlib, or the folder is not local.
      ProbelineError: it cannot be made or written into.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            f"{option} needs matplotlib for its pictures: pip install 'matplotlib>=3.9,<4', or "
            f"leave {option} out"
        )
    if "://" in folder:
        raise UsageError(
            f"{option} is {folder}: pictures are written to local folders only; give one, and copy "
            "it when they are there"
        )
    path = Path(folder)
    with explained_os_errors("write into", folder):
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    return path


def new_picture(place: str, width: float = 10, height: float = 4.5) -> Figure:
    """Returns an empty picture that says below what it is of."""
    from matplotlib.figure import Figure  # draws with Agg, without pyplot's state

    picture = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    picture.supxlabel(place, fontsize=8, color="grey")
    return picture


def two_axes(picture: Figure) -> tuple[Axes, Axes]:
    """Returns the left and the right half of a picture."""
    left, right = picture.subplots(1, 2)
    return left, right


def say_none(axes: Axes, what: str) -> None:
    """Writes where something would be drawn that there is none."""
    axes.text(0.5, 0.5, f"there are no {what}", ha="center", va="center", transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])


def span_axis(axes: Axes, spans: np.ndarray, which: str) -> None:
    """Makes an axis of seconds logarithmic, with ticks that people know."""
    least, most = max(1.0, float(spans.min())), max(2.0, float(spans.max()))
    ticks = [t for t in _SPAN_TICKS if least / 60 <= t <= most * 2]
    setter = {"x": (axes.set_xscale, axes.set_xticks), "y": (axes.set_yscale, axes.set_yticks)}
    setter[which][0]("log")
    setter[which][1](ticks, [span_text(t).replace(".0", "") for t in ticks])
    setter[which][1]([], minor=True)
