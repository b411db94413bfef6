"""Draws the matrix of evaluation set by n as a PNG; needs matplotlib, and no display."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from beam_pipeline.overlap.report.page import cell_colors
from beam_pipeline.overlap.report.sets import EvaluationSet, Hits
from beam_pipeline.overlap.report.statistics import Statistics
from beam_pipeline.overlap.report.tables import share_text
from beam_pipeline.report.page import shown
from beam_pipeline.report.plots import new_figure

MAX_SETS = 200
_ROW_INCHES, _COLUMN_INCHES = 0.42, 1.25
_MARGIN_INCHES = (2.6, 1.5)
_MAX_NAME_CHARS = 32


def matrix_picture(statistics: Statistics) -> bytes:
    """Returns the PNG; of many sets it shows those with the largest share of hits."""
    sets, lengths = _highest_shares(statistics.sets), statistics.lengths
    note = ""
    if len(sets) < len(statistics.sets):
        note = f"{len(sets)} of {len(statistics.sets):,} evaluation sets: those with most hits"
    width = _MARGIN_INCHES[0] + _COLUMN_INCHES * (len(lengths) + 1)
    height = _MARGIN_INCHES[1] + _ROW_INCHES * max(1, len(sets))
    picture = new_figure(note, (width, height))
    picture.suptitle("Instances that share an n-gram with the training data", fontsize=11)
    axes = picture.subplots()
    if sets:
        _draw_cells(axes, [[*one.levels[0].by_length, one.levels[0].at_any] for one in sets])
    axes.set_xticks(range(len(lengths) + 1), [*(f"n = {n}" for n in lengths), "any n"])
    axes.xaxis.tick_top()
    names = [shown(one.name) for one in sets]
    short = [n if len(n) <= _MAX_NAME_CHARS else n[: _MAX_NAME_CHARS - 1] + "…" for n in names]
    axes.set_yticks(range(len(sets)), short)
    for tick in axes.yaxis.get_major_ticks():
        tick.label1.set_parse_math(False)  # a name may hold a dollar sign
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    data = io.BytesIO()
    picture.savefig(data, format="png", metadata={"Software": None})
    return data.getvalue()


def _highest_shares(sets: list[EvaluationSet]) -> list[EvaluationSet]:
    order = sorted(range(len(sets)), key=lambda place: (-sets[place].levels[0].at_any.share, place))
    return [sets[place] for place in sorted(order[:MAX_SETS])]


def _draw_cells(axes: Axes, rows: list[list[Hits]]) -> None:
    colors = [[cell_colors(hits.share) for hits in row] for row in rows]
    axes.imshow([[to_rgb(cell.light) for cell in row] for row in colors], aspect="auto")
    for y, row in enumerate(rows):
        for x, hits in enumerate(row):
            text = f"{share_text(hits.share)}\n{hits}"
            color = colors[y][x].light_text
            style = {"ha": "center", "va": "center", "color": color, "fontsize": 7.5}
            # The layout must not measure hundreds of texts, which lie within the axes.
            axes.text(x, y, text, **style).set_in_layout(False)
    height, width = len(rows), len(rows[0])
    gaps = {"color": "white", "linewidth": 2}
    axes.vlines([x - 0.5 for x in range(width + 1)], -0.5, height - 0.5, **gaps)
    axes.hlines([y - 0.5 for y in range(height + 1)], -0.5, width - 0.5, **gaps)
