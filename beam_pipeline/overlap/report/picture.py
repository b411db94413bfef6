"""Draws the matrix of evaluation set by n as a PNG; needs matplotlib, and no display."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from beam_pipeline.overlap.report.colors import cell_colors
from beam_pipeline.overlap.report.figures import EvaluationSet, Figures, Hits
from beam_pipeline.overlap.report.words import hits_text, share_text
from beam_pipeline.report.page import shown

MOST_SETS = 200
DPI = 120
_ROW_INCHES, _COLUMN_INCHES = 0.42, 1.25
_MARGIN_INCHES = (2.6, 1.5)
_MOST_NAME_CHARS = 32


def matrix_picture(figures: Figures) -> bytes:
    """Returns the PNG; of many sets it shows those with the largest share of hits."""
    sets = _largest(figures.sets)
    columns = len(figures.lengths) + 1
    size = (
        _MARGIN_INCHES[0] + _COLUMN_INCHES * columns,
        _MARGIN_INCHES[1] + _ROW_INCHES * max(1, len(sets)),
    )
    picture = Figure(figsize=size, dpi=DPI, layout="constrained")
    axes = picture.subplots()
    _draw_cells(axes, [[*map(one.by_length.get, figures.lengths), one.in_all] for one in sets])
    axes.set_xticks(range(columns), [*(f"n = {n}" for n in figures.lengths), "any n"])
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(sets)), [_name(one) for one in sets])
    for tick in axes.yaxis.get_major_ticks():
        tick.label1.set_parse_math(False)  # a name may hold a dollar sign
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    picture.suptitle("Instances that share an n-gram with the training data", fontsize=11)
    if len(sets) < len(figures.sets):
        note = f"{len(sets)} of {len(figures.sets):,} evaluation sets: those with most hits"
        picture.supxlabel(note, fontsize=8, color="grey")
    data = io.BytesIO()
    picture.savefig(data, format="png", metadata={"Software": None})
    return data.getvalue()


def _largest(sets: list[EvaluationSet]) -> list[EvaluationSet]:
    if len(sets) <= MOST_SETS:
        return sets
    order = sorted(range(len(sets)), key=lambda place: (-sets[place].in_all.share, place))
    return [sets[place] for place in sorted(order[:MOST_SETS])]


def _draw_cells(axes: Axes, rows: list[list[Hits | None]]) -> None:
    if not rows:
        return
    shares = [[hits.share if hits else 0.0 for hits in row] for row in rows]
    colors = [[to_rgb(cell_colors(share).light) for share in row] for row in shares]
    axes.imshow(colors, aspect="auto", interpolation="nearest")
    for y, row in enumerate(rows):
        for x, hits in enumerate(row):
            text, color = "–", "grey"
            if hits is not None:
                text = f"{share_text(hits.share)}\n{hits_text(hits)}"
                color = cell_colors(hits.share).light_text
            # The layout must not measure hundreds of texts, which lie within the axes.
            axes.text(
                x, y, text, ha="center", va="center", color=color, fontsize=7.5
            ).set_in_layout(False)
    right, bottom = len(rows[0]) - 0.5, len(rows) - 0.5
    gaps = {"color": "white", "linewidth": 2}
    axes.vlines([x - 0.5 for x in range(len(rows[0]) + 1)], -0.5, bottom, **gaps)
    axes.hlines([y - 0.5 for y in range(len(rows) + 1)], -0.5, right, **gaps)


def _name(one: EvaluationSet) -> str:
    name = shown(one.name)
    return name if len(name) <= _MOST_NAME_CHARS else name[: _MOST_NAME_CHARS - 1] + "…"
