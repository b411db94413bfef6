"""Colours and texts of shares, and the image of evaluation sets by n."""

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from beam_pipeline.overlap.report.contents import LEVELS, EvaluationSet, Hits, Level, read_contents
from beam_pipeline.overlap.report.matrix import (
    MAX_SETS,
    cell_colors,
    highest_shares,
    matrix_picture,
    share_text,
)
from beam_pipeline.overlap.report.output import Output
from beam_pipeline.report.page import part
from beam_pipeline.report.plots import DPI


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_contrast_of_the_page() -> None:
    style = part("beam_pipeline.overlap.report", "page.css")
    schemes = [
        dict(re.findall(r"--([a-z-]+): (#\w{6})", root)) for root in style.split(":root")[1:]
    ]
    assert [len(colors) for colors in schemes] == [11, 11]
    for colors in schemes:
        for text in ("text", "soft", "link"):
            assert min(contrast(colors[text], colors[on]) for on in ("page", "panel")) >= 4.5
        assert contrast(colors["mark-text"], colors["mark"]) >= 4.5
        assert contrast(colors["text"], colors["warn"]) >= 4.5


def test_text_contrast_and_order_of_cells() -> None:
    all_colors = [cell_colors(float(share)) for share in [0.0, *np.geomspace(1e-5, 1, 200)]]
    for colors in all_colors:
        for background, text in (colors[:2], colors[2:]):
            assert contrast(background, text) >= 4.5
    light = [luminance(colors.light) for colors in all_colors]
    dark = [luminance(colors.dark) for colors in all_colors]
    assert light == sorted(light, reverse=True) and dark == sorted(dark)
    assert light[0] - light[-1] > 0.8 and dark[-1] - dark[0] > 0.7


@pytest.mark.parametrize(
    ("share", "text"),
    [
        *((0.0, "0 %"), (1.0, "100 %"), (0.0004, "<0.1 %"), (0.0005, "0.1 %"), (0.5, "50.0 %")),
        *((0.9999, ">99.9 %"), (0.9994, "99.9 %")),
    ],
)
def test_small_and_large_shares_are_not_rounded_away(share: float, text: str) -> None:
    assert share_text(share).replace("\u00a0", " ") == text


def test_image_has_a_cell_for_each_share(output: Path, tmp_path: Path) -> None:
    report = read_contents(Output(str(output)), [3, 5, 11])
    (tmp_path / "matrix.png").write_bytes(matrix_picture(report))
    pixels = np.round(255 * imread(tmp_path / "matrix.png")[..., :3]).astype(int)
    num_columns = len(report.lengths) + 1
    size = round((2.6 + 1.25 * num_columns) * DPI), round((1.5 + 0.42 * 3) * DPI)
    assert (pixels.shape[1], pixels.shape[0]) == size
    for share in (3 / 4, 1 / 2):
        color = list(bytes.fromhex(cell_colors(share).light[1:]))
        assert (pixels == color).all(axis=-1).sum() > 5_000


@pytest.mark.slow
def test_image_of_many_sets_with_math_in_their_names(output: Path) -> None:
    report = read_contents(Output(str(output)), [3, 5, 11])
    names = [rf"$\frac{{{number}}}{{\bad$ {number:03d}" for number in range(MAX_SETS + 30)]
    hits = [Hits(int(at >= 30), 1, at) for at in range(len(names))]
    report.sets = [
        EvaluationSet(
            name, 0, 0, [Level(level, [hit] * len(report.lengths), hit) for level in LEVELS]
        )
        for name, hit in zip(names, hits, strict=True)
    ]
    assert [one.name for one in highest_shares(report.sets)] == names[30:]
    assert matrix_picture(report).startswith(b"\x89PNG")
