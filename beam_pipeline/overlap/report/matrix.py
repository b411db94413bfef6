"""The matrix of evaluation sets by n: the colours of its cells, and a PNG, which needs matplotlib.

Shares have one hue from light to dark (on a dark page from dark to light), so that the order shows
to colour-blind readers and in grey prints. The scale is the square root: most shares are small, and
0.1 % must not look like 0.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from beam_pipeline.overlap.report.contents import EvaluationSet, Hits, Report
from beam_pipeline.report.page import shown
from beam_pipeline.report.plots import new_figure
from beam_pipeline.report.tables import share_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LIGHT = ("#eaf2fb", "#a9cce8", "#4f97cd", "#1c62a5", "#08306b")
DARK = ("#152c44", "#1f5180", "#3b86bd", "#86bfe4", "#e0f0fc")
NONE_LIGHT, NONE_DARK = "#ffffff", "#171b21"
# At these shares, text changes its colour, to keep a contrast of at least 4.5 to 1.
_WHITE_ON_LIGHT, _BLACK_ON_DARK = 0.4085, 0.1987
MAX_SETS = 200  # in the image
_ROW_INCHES, _COLUMN_INCHES = 0.42, 1.25
_MARGIN_INCHES = (2.6, 1.5)
_MAX_NAME_CHARS = 32


class CellColors(NamedTuple):
    """The colours of a cell and its text, on a light and on a dark page."""

    light: str
    light_text: str
    dark: str
    dark_text: str


def cell_colors(share: float) -> CellColors:
    """Returns the colours of a share; 0 has the colour of the page."""
    light, dark = (_at(LIGHT, share), _at(DARK, share)) if share > 0 else (NONE_LIGHT, NONE_DARK)
    light_text = "#000000" if share < _WHITE_ON_LIGHT else "#ffffff"
    dark_text = "#ffffff" if share < _BLACK_ON_DARK else "#000000"
    return CellColors(light, light_text, dark, dark_text)


def _at(ramp: Sequence[str], share: float) -> str:
    place = min(1.0, share) ** 0.5 * (len(ramp) - 1)
    channels = zip(*(bytes.fromhex(color[1:]) for color in ramp), strict=True)
    return "#" + "".join(f"{round(np.interp(place, range(len(ramp)), c)):02x}" for c in channels)


def matrix_picture(report: Report) -> bytes:
    """Returns the PNG; of many sets, those with the largest share of hits."""
    sets, lengths = highest_shares(report.sets), report.lengths
    note = ""
    if len(sets) < len(report.sets):
        note = f"{len(sets)} of {len(report.sets):,} evaluation sets: those with most hits"
    width = _MARGIN_INCHES[0] + _COLUMN_INCHES * (len(lengths) + 1)
    height = _MARGIN_INCHES[1] + _ROW_INCHES * max(1, len(sets))
    picture = new_figure(note, (width, height))
    picture.suptitle("Evaluation rows that share an n-gram with the training data", fontsize=11)
    axes = picture.subplots()
    if sets:
        _draw_cells(axes, [[*one.levels[0].by_length, one.levels[0].at_any] for one in sets])
    axes.set_xticks(range(len(lengths) + 1), [*(f"n = {n}" for n in lengths), "any n"])
    axes.xaxis.tick_top()
    names = [shown(one.name) for one in sets]
    short = [n if len(n) <= _MAX_NAME_CHARS else n[: _MAX_NAME_CHARS - 1] + "…" for n in names]
    axes.set_yticks(range(len(sets)), short)
    for tick in axes.yaxis.get_major_ticks():
        tick.label1.set_parse_math(False)  # names may have dollar signs
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    data = io.BytesIO()
    picture.savefig(data, format="png", metadata={"Software": None})
    return data.getvalue()


def highest_shares(sets: Sequence[EvaluationSet]) -> list[EvaluationSet]:
    """Returns the MAX_SETS sets with the largest share of hits, in the given order."""
    order = sorted(range(len(sets)), key=lambda place: (-sets[place].levels[0].at_any.share, place))
    return [sets[place] for place in sorted(order[:MAX_SETS])]


def _draw_cells(axes: Axes, rows: list[list[Hits]]) -> None:
    from matplotlib.colors import to_rgb

    colors = [[cell_colors(hits.share) for hits in row] for row in rows]
    axes.imshow(np.array([[to_rgb(cell.light) for cell in row] for row in colors]), aspect="auto")
    for y, row in enumerate(rows):
        for x, hits in enumerate(row):
            text = f"{share_text(hits.share)}\n{hits}"
            color = colors[y][x].light_text
            style = {"ha": "center", "va": "center", "color": color, "fontsize": 7.5}
            # The layout need not measure hundreds of texts, which lie within the axes.
            axes.text(x, y, text, **style).set_in_layout(False)
    height, width = len(rows), len(rows[0])
    gaps = {"color": "white", "linewidth": 2}
    axes.vlines([x - 0.5 for x in range(width + 1)], -0.5, height - 0.5, **gaps)
    axes.hlines([y - 0.5 for y in range(height + 1)], -0.5, width - 0.5, **gaps)
