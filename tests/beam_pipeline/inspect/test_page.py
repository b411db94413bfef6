"""The page: its content in a browser, and that it is one safe file."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from beam_pipeline.dataset.manifest import write_success
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.inspect import __main__ as inspect
from beam_pipeline.inspect.figures import gather
from beam_pipeline.inspect.findings import report_on
from beam_pipeline.inspect.tables import tables
from tests.support.browser import visit
from tests.support.inspected import day_of_pings, many_probes, write_unlike
from tests.support.probe_rows_on_disk import RowSpec, write_dataset

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_FLAGS = ("--context=5,test:7,2", "--row=train:3")
_SECTIONS = {
    "findings": "What stands out",
    "comparison": "Train and test",
    "rtt": "RTT of answered pings",
    "time": "Measurements over time",
    "hours": "RTT and failed pings by hour of the day",
    "destinations": "RTT by destination",
    "sizes": "Sizes of histories and rows",
    "busiest": "The busiest probes",
    "row": "One row",
    "context": "One training context",
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_unlike(tmp_path_factory.mktemp("page") / "rows")


@pytest.fixture(scope="module")
def page(dataset: Path) -> Path:
    path = dataset.parent / "page.html"
    assert inspect.main([str(dataset), f"--html={path}", *_FLAGS]) == 0
    return path


# --- content --------------------------------------------------------------------------------------


def test_content(page: Path, dataset: Path, browser: "Browser") -> None:
    """Sections, findings, conclusion, tables, row and context, as the terminal has them."""
    report = report_on(gather(open_dataset(str(dataset))))
    with visit(browser, page) as seen:
        look = seen.page.locator
        text = look("body").inner_text()
        assert seen.page.title() == look("h1").inner_text() == str(dataset)
        sections = {
            str(section.get_attribute("id")): section.locator("h2").inner_text()
            for section in look("section").all()
        }
        assert sections == _SECTIONS  # no dead letters, since there are none
        links = [link.get_attribute("href") for link in look("nav a").all()]
        assert links == [f"#{name}" for name in list(_SECTIONS)[1:]]
        assert look("#findings li").all_inner_texts() == [found.text for found in report.findings]
        num_warnings = sum(finding.is_warning for finding in report.findings)
        assert look("#findings li.warning").count() == num_warnings > 0
        tokens = look("#context .tokens i").all_inner_texts()
        for table in tables(report):
            rows = look(f"table.{table.name} tbody tr").all()
            cells = [[t for t in row.locator("th, td").all_text_contents() if t] for row in rows]
            assert cells == [[t for t in row if t] for row in table.cells], table.name
        assert look("th:not([scope])").count() == 0
        assert look("table:not(:has(caption))").count() == 0
        assert look("html").get_attribute("lang") == "en" and look("h1").count() == 1
        place = look("#conclusion").bounding_box()
        assert place is not None and place["y"] < 300
        assert look("#conclusion").get_attribute("class") == "conclusion unlike"
        assert look("#conclusion").inner_text() == (
            "The test set is unlike the train set in RTT, failed pings; is like it in 6 of 8 "
            "respects."
        )
    assert "Row train:3 is row 0 of probe" in text and "Context 2 of " in text
    assert len(tokens) == 1025 and tokens.count("start") > 40


def test_gaps_and_dead_letters(tmp_path: Path, browser: "Browser") -> None:
    rows = [RowSpec(f"192.0.2.{i}", day_of_pings(3000, i, gap=True)) for i in range(4)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact")
    manifest = open_dataset(str(dataset)).manifest
    letters = {"rtt_null": 7, "a $x$ < b": 3}
    counts = replace(manifest.counts, rows_read=12_010, dead_letters=letters)
    write_success(str(dataset), replace(manifest, counts=counts).to_json())
    assert inspect.main([str(dataset), f"--html={tmp_path}/page.html"]) == 0
    with visit(browser, tmp_path / "page.html") as seen:
        texts = seen.page.locator("#dead_letters td, #dead_letters th").all_inner_texts()
        shown = seen.page.locator("body").inner_text()
        assert seen.page.locator("#time svg path[style*='--warn']").count() == 1
        assert seen.page.locator("#conclusion, .bar").count() == 0
    assert {"rtt_null", "7", "a $x$ < b", "3"} <= set(texts)
    assert "no sampled measurement from 2024-01-01 06:00 to 2024-01-01 09:00 (3 h)." in shown
    assert "There is no test set" in shown


# --- one safe file --------------------------------------------------------------------------------


def test_self_contained(page: Path) -> None:
    source = page.read_text("utf-8")
    addresses = set(re.findall(r"https?://[^\s\"'<]+", source))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"<(script|img|iframe)\b|@import|\bsrc=", source)
    assert re.findall(r"<link[^>]*>", source) == ['<link rel="icon" href="data:,">']
    references = set(re.findall(r"url\(#(.*?)\)|href=\"#(.*?)\"", source))
    names = re.findall(r"\bid=\"(.*?)\"", source)
    assert {one or other for one, other in references} <= set(names)
    assert len(names) == len(set(names))  # plots do not share markers
    assert len(source) < 500_000


def test_policy_blocks_scripts(page: Path, tmp_path: Path, browser: "Browser") -> None:
    changed = tmp_path / "changed.html"
    changed.write_text(page.read_text().replace("</main>", "</main><script>alert(1)</script>"))
    with visit(browser, changed) as seen:
        assert seen.dialogs == []
        assert any("Content Security Policy" in line for line in seen.complaints)


def test_names_are_escaped(tmp_path: Path, browser: "Browser") -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)> &'\"x\x01"
    write_dataset(folder, many_probes(3, 0), "compact")
    page = tmp_path / "page.html"
    assert inspect.main([str(folder), f"--html={page}"]) == 0
    text = page.read_text("utf-8")
    assert text.count("Content-Security-Policy") == 1
    page.write_text(text.replace("Content-Security-Policy", "x-none"))  # escaping alone must hold
    with visit(browser, page) as seen:
        assert (seen.dialogs, seen.complaints) == ([], [])
        assert seen.requests == [page.as_uri()]
        assert seen.page.locator("img").count() == 0
        assert seen.page.locator("h1").inner_text() == str(folder).replace("\x01", "␁")


@pytest.mark.slow
def test_same_dataset_gives_the_same_page(page: Path, dataset: Path, tmp_path: Path) -> None:
    assert inspect.main([str(dataset), f"--html={tmp_path}/new/again.html", *_FLAGS]) == 0
    assert (tmp_path / "new/again.html").read_bytes() == page.read_bytes()
