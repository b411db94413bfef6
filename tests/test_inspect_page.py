"""The page, as a browser shows it: its text, its plots, light and dark, with nothing beside it."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.inspect import __main__ as inspect
from beam_pipeline.inspect.facts import gather
from beam_pipeline.inspect.tables import sheets
from beam_pipeline.manifest import open_dataset
from tests.browser_of_inspect import screenshot, seen
from tests.inspected import day_of_pings, many_probes, write_unlike
from tests.probe_rows_on_disk import RowSpec, write_dataset

_FLAGS = ("--context=5,test:7,2", "--row=train:3")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_unlike(tmp_path_factory.mktemp("page") / "rows")


@pytest.fixture(scope="module")
def page(dataset: Path) -> Path:
    path = dataset.parent / "page.html"
    assert inspect.main([str(dataset), f"--html={path}", *_FLAGS]) == 0
    return path


def test_a_person_reads_what_was_found(page: Path, dataset: Path) -> None:
    text = seen(page)["text"]
    facts = gather(open_dataset(str(dataset)))
    assert text.startswith(str(dataset))
    for finding in facts.findings:
        assert finding.text in text
    for title in (
        *("What stands out", "Both sides", "Train against test", "RTT of answered pings"),
        *("Measurements over time", "RTT and failed pings by hour of the day"),
        *("RTT by destination", "Sizes of histories and rows", "How uneven the probes are"),
        *("Address families", "One row", "One training context"),
    ):
        assert title in text, title
    assert "Dead letters by reason" not in text  # there are none
    assert "Row train:3 is row 0 of probe" in text
    assert "Context 2 of " in text and "unlike" in text
    assert text.count("start") > 40  # the tokens


def test_every_table_of_the_terminal_is_in_the_page(page: Path, dataset: Path) -> None:
    text = re.sub(r"<[^>]*>", "\n", page.read_text("utf-8")).replace("&#x27;", "'")
    lines = set(text.splitlines())
    for sheet in sheets(gather(open_dataset(str(dataset)))):
        for row in sheet.rows:
            assert lines.issuperset(filter(None, row)), (sheet.name, row)


def test_the_plots_are_whole_and_have_text(page: Path) -> None:
    plots = {plot["name"]: plot for plot in seen(page)["plots"]}
    assert len(plots) == 8
    for name, plot in plots.items():
        assert plot["width"] > 900 and plot["height"] > 100, name
        assert plot["outside"] == [], name
        assert "RTT, ms" in plot["texts"] or not name.startswith("RTT by dest"), name
    assert "198.51.100.3" in plots["RTT by destination"]["texts"]
    assert {"train", "test"} <= set(plots["Address families"]["texts"])


def test_nothing_is_loaded_and_nothing_points_elsewhere(page: Path) -> None:
    assert seen(page)["loaded"] == []
    source = page.read_text("utf-8")
    addresses = set(re.findall(r"https?://[^\s\"'<]+", source))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"<(script|link|img|iframe)\b|@import|\bsrc=", source)
    references = set(re.findall(r"url\(#(.*?)\)|href=\"#(.*?)\"", source))
    names = re.findall(r"\bid=\"(.*?)\"", source)
    assert {one or other for one, other in references} <= set(names)
    assert len(names) == len(set(names))  # no plot takes another's marker
    assert len(source) < 700_000


@pytest.mark.parametrize("width", [1240, 900, 500])
def test_it_fits_the_window(page: Path, width: int) -> None:
    found = seen(page, width)
    assert found["width"] <= found["window"]
    assert found["cut"] == [] or width < 1000  # narrower, tables are moved sideways


def mean_colors(png: Path) -> tuple[float, float]:
    """Returns how bright the picture is, and which share of it is coloured."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.asarray(image.open(png).convert("RGB")).astype(int)
    return float(pixels.mean()), float((np.ptp(pixels, axis=2) > 40).mean())


def test_it_looks_well_in_light_and_dark(page: Path, tmp_path: Path) -> None:
    for dark in (False, True):
        assert (seen(page, dark=dark)["ground"] == "rgb(20, 24, 28)") == dark
        png = screenshot(page, tmp_path / f"{dark}.png", 4200, dark=dark)
        brightness, colored = mean_colors(png)
        assert (brightness < 80) if dark else (brightness > 220)
        assert 0.02 < colored < 0.4  # the plots are drawn


def test_the_same_dataset_gives_the_same_page(page: Path, dataset: Path, tmp_path: Path) -> None:
    assert inspect.main([str(dataset), f"--html={tmp_path}/again.html", *_FLAGS]) == 0
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_names_cannot_break_the_page(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "<b>&'\"x"
    write_dataset(folder, many_probes(3, 0), "compact")
    assert inspect.main([str(folder), f"--html={tmp_path}/page.html"]) == 0
    assert str(folder).replace("\n", "") in capsys.readouterr().out.replace("\n", "")
    assert seen(tmp_path / "page.html")["text"].startswith(str(folder))


def test_gaps_and_dead_letters_are_drawn(tmp_path: Path) -> None:
    rows = [RowSpec(f"192.0.2.{i}", day_of_pings(3000, i, gap=True)) for i in range(4)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact")
    _count_dead_letters(dataset, {"rtt_null": 7, "src_addr_invalid": 3})
    assert inspect.main([str(dataset), f"--html={tmp_path}/page.html"]) == 0
    found = seen(tmp_path / "page.html")
    texts = {plot["name"]: plot["texts"] for plot in found["plots"]}
    assert {"rtt_null", "7", "src_addr_invalid", "3"} <= set(texts["Dead letters by reason"])
    assert (
        "There is no sampled measurement from 2024-01-01 06:00 to 2024-01-01 09:00 (3 h)."
        in (found["text"])
    )
    assert "One row" in found["text"]  # one of middle size, though nobody asked


def _count_dead_letters(dataset: Path, letters: dict[str, int]) -> None:
    from dataclasses import replace

    from beam_pipeline.commit import write_success

    manifest = open_dataset(str(dataset)).manifest
    read = manifest.counts.rows_read + sum(letters.values())
    counts = replace(manifest.counts, rows_read=read, dead_letters=letters)
    write_success(str(dataset), replace(manifest, counts=counts).to_json())


@pytest.mark.parametrize("dark", [False, True])
def test_tokens_of_every_kind_can_be_read(page: Path, dark: bool) -> None:
    """Contrast of at least 4.5 to 1 between a token and its ground."""
    source = page.read_text("utf-8")
    blocks = re.findall(r":root \{(.*?)\}", source, re.DOTALL)
    colors = dict(re.findall(r"--(\w+): (#\w{6})", blocks[int(dark)]))
    luminance: Callable[[str], float] = lambda name: _luminance(colors[name])  # noqa: E731
    for kind in ("source", "destination", "time", "rtt", "failed", "card", "ground"):
        light, deep = sorted((luminance("ink"), luminance(kind)), reverse=True)
        assert (light + 0.05) / (deep + 0.05) >= 4.5, kind


def _luminance(color: str) -> float:
    values = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))
