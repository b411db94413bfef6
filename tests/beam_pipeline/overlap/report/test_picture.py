"""Colours and texts of shares, and the picture of evaluation sets by n."""

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from beam_pipeline.overlap.report import __main__ as report
from beam_pipeline.overlap.report.page import cell_colors
from beam_pipeline.overlap.report.picture import MAX_SETS
from beam_pipeline.overlap.report.tables import share_text
from beam_pipeline.report.page import part
from beam_pipeline.report.plots import DPI
from tests.support.overlap_folder import write_output
from tests.support.overlap_report import PLANET, filler, statistics_of


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_word_can_be_read() -> None:
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


def test_every_cell_can_be_read() -> None:
    shares = [0.0, *np.geomspace(1e-5, 1, 200)]
    all_colors = [cell_colors(float(share)) for share in shares]
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
def test_some_is_never_none_or_all(share: float, text: str) -> None:
    assert share_text(share).replace("\u00a0", " ") == text


def test_the_picture_has_a_cell_for_each_share(page: Path, tmp_path: Path) -> None:
    png = tmp_path / "matrix.png"
    output = str(page.parent / "output")
    assert report.main([output, f"--html={tmp_path / 'x.html'}", f"--png={png}"]) == 0
    pixels = np.round(255 * imread(png)[..., :3]).astype(int)
    height, width, _ = pixels.shape
    assert (width, height) == (round((2.6 + 1.25 * 3) * DPI), round((1.5 + 0.42 * 3) * DPI))
    for share in (3 / 4, 2 / 4, 1 / 2):
        color = list(bytes.fromhex(cell_colors(share).light[1:]))
        assert (pixels == color).all(axis=-1).sum() > 5_000
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50  # letters, too


@pytest.mark.slow
def test_the_picture_of_many_sets_shows_those_hit_most(tmp_path: Path) -> None:
    names = [rf"$\frac{{{number}}}{{\bad$ {number:03d}" for number in range(MAX_SETS + 30)]
    sets = {name: [("a", PLANET if at >= 30 else filler(9, at))] for at, name in enumerate(names)}
    write_output(tmp_path, sets, {"t.jsonl": [("d", PLANET)]}, (3,))
    from beam_pipeline.overlap.report import picture

    statistics = statistics_of(tmp_path)
    assert [one.name for one in picture._highest_shares(statistics.sets)] == names[30:]
    assert picture.matrix_picture(statistics).startswith(b"\x89PNG")
