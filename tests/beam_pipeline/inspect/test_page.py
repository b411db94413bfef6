"""The page, as a browser shows it: its text, its plots, light and dark, with nothing beside it."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
from matplotlib.image import imread

from beam_pipeline.dataset.manifest import write_success
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.inspect import __main__ as inspect
from beam_pipeline.inspect.facts import Facts, gather
from beam_pipeline.inspect.tables import tables
from tests.support.browser import Visit, visit
from tests.support.inspected import day_of_pings, many_probes, write_alike, write_unlike
from tests.support.probe_rows_on_disk import RowSpec, write_dataset

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_FLAGS = ("--context=5,test:7,2", "--row=train:3")
_SECTIONS = {
    "findings": "What stands out",
    "overview": "Both sides",
    "comparison": "Train against test",
    "rtt": "RTT of answered pings",
    "time": "Measurements over time",
    "hours": "RTT and failed pings by hour of the day",
    "destinations": "RTT by destination",
    "sizes": "Sizes of histories and rows",
    "busiest": "How uneven the probes are",
    "families": "Address families",
    "row": "One row",
    "context": "One training context",
}
Scheme = Literal["light", "dark"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_unlike(tmp_path_factory.mktemp("page") / "rows")


@pytest.fixture(scope="module")
def page(dataset: Path) -> Path:
    path = dataset.parent / "page.html"
    assert inspect.main([str(dataset), f"--html={path}", *_FLAGS]) == 0
    return path


@pytest.fixture(scope="module")
def facts(dataset: Path) -> Facts:
    return gather(open_dataset(str(dataset)))


def sections(seen: Visit) -> dict[str, str]:
    """Returns the titles of the sections by their names, in the order of the page."""
    return {
        str(section.get_attribute("id")): section.locator("h2").inner_text()
        for section in seen.page.locator("section").all()
    }


def conclusion(seen: Visit) -> tuple[str, str]:
    """Returns the classes and the text of what is concluded."""
    place = seen.page.locator("#conclusion")
    return str(place.get_attribute("class")), place.inner_text()


# --- what a person reads --------------------------------------------------------------------------


def test_a_person_reads_what_was_found(
    page: Path, dataset: Path, facts: Facts, browser: "Browser"
) -> None:
    with visit(browser, page) as seen:
        text = seen.page.locator("body").inner_text()
        assert seen.page.title() == seen.page.locator("h1").inner_text() == str(dataset)
        assert sections(seen) == _SECTIONS  # and no dead letters, since there are none
        findings = seen.page.locator("#findings li").all_inner_texts()
        warnings = seen.page.locator("#findings li.warning").count()
        tokens = seen.page.locator("#context .tokens i").all_inner_texts()
        assert not seen.complaints
    assert findings == [finding.text for finding in facts.findings]
    assert warnings == sum(finding.is_warning for finding in facts.findings) > 0
    assert "Row train:3 is row 0 of probe" in text
    assert "Context 2 of " in text
    assert len(tokens) == 1025 and tokens.count("start") > 40


def test_a_test_set_unlike_the_train_set_stands_at_the_top(page: Path, browser: "Browser") -> None:
    with visit(browser, page) as seen:
        kind, text = conclusion(seen)
        place = seen.page.locator("#conclusion").bounding_box()
        rows = {
            row.locator("th").inner_text(): row
            for row in seen.page.locator(".comparison tbody tr").all()
        }
        verdicts = {name: row.locator(".verdict").inner_text() for name, row in rows.items()}
        widths = {name: row.locator(".length").evaluate("e => e.getBoundingClientRect().width")
                  / row.locator(".bar").evaluate("e => e.getBoundingClientRect().width")
                  for name, row in rows.items()}  # fmt: skip
        chances = {name: row.locator(".chance").count() for name, row in rows.items()}
    assert kind == "conclusion unlike"
    assert text == (
        "The test set is unlike the train set in RTT and failed pings; in 6 of 8 respects they are "
        "alike."
    )
    assert place is not None and place["y"] < 300
    assert [name for name, verdict in verdicts.items() if verdict == "unlike"] == [
        *("RTT", "failed pings")
    ]
    assert widths["RTT"] == pytest.approx(0.83, abs=0.02)  # a bar as long as the distance
    assert widths["time"] < 0.05
    assert chances == {name: int(name in _WITH_CHANCE) for name in rows}


_WITH_CHANCE = ("RTT", "time", "hour of the day", "measurements of a probe")


@pytest.mark.slow
def test_one_like_the_train_set_is_said_to_be(tmp_path: Path, browser: "Browser") -> None:
    dataset = write_alike(tmp_path / "rows")
    assert inspect.main([str(dataset), f"--html={tmp_path}/page.html"]) == 0
    with visit(browser, tmp_path / "page.html") as seen:
        assert conclusion(seen) == (
            "conclusion alike",
            "The test set is like the train set in all 8 respects compared.",
        )
        assert seen.page.locator("#findings li.warning").count() == 0


def test_every_table_of_the_terminal_is_in_the_page(
    page: Path, facts: Facts, browser: "Browser"
) -> None:
    with visit(browser, page) as seen:
        for table in tables(facts):
            rows = seen.page.locator(f"table.{table.name} tbody tr").all()
            cells = [
                [text for text in row.locator("th, td").all_text_contents() if text] for row in rows
            ]
            expected = [[text for text in row if text] for row in table.cells]
            assert cells == expected, table.name


def test_headings_tables_and_links_are_accessible(page: Path, browser: "Browser") -> None:
    with visit(browser, page) as seen:
        levels = seen.page.evaluate(
            "[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])"
        )
        unnamed = seen.page.evaluate(
            "[...document.querySelectorAll('table')].filter(t => !t.caption).length"
        )
        links = [link.get_attribute("href") for link in seen.page.locator("nav a").all()]
        assert seen.page.locator("th:not([scope])").count() == 0
        assert seen.page.locator("html").get_attribute("lang") == "en"
    assert levels[0] == 1 and levels.count(1) == 1
    assert unnamed == 0
    assert links == [f"#{name}" for name in list(_SECTIONS)[2:]]


# --- the plots ------------------------------------------------------------------------------------


def test_the_plots_are_whole_and_have_text(page: Path, browser: "Browser") -> None:
    with visit(browser, page) as seen:
        plots = {
            str(plot.get_attribute("aria-label")): plot
            for plot in seen.page.locator("svg.plot").all()
        }
        texts = {name: plot.locator("text").all_text_contents() for name, plot in plots.items()}
        for name, plot in plots.items():
            box = plot.bounding_box()
            assert box and box["width"] > 900 and box["height"] > 100, name
            assert plot.evaluate(_OUTSIDE) == [], name
            assert plot.get_attribute("role") == "img"
    assert len(plots) == 8
    assert "198.51.100.3" in [text.strip() for text in texts["RTT by destination"]]
    for name in ("RTT of answered pings", "RTT by destination"):
        assert "RTT, ms" in [text.strip() for text in texts[name]]
    assert {"train", "test"} <= {text.strip() for text in texts["Address families"]}
    assert not re.search(r"[$\\]", "".join(map("".join, texts.values())))  # no TeX is left


_OUTSIDE = """plot => [...plot.querySelectorAll("text")].filter(text => {
  const box = text.getBoundingClientRect(), all = plot.getBoundingClientRect();
  return box.left < all.left - 1 || box.right > all.right + 1
    || box.top < all.top - 1 || box.bottom > all.bottom + 1;
}).map(text => text.textContent)"""


def test_gaps_and_dead_letters_are_drawn(tmp_path: Path, browser: "Browser") -> None:
    rows = [RowSpec(f"192.0.2.{i}", day_of_pings(3000, i, gap=True)) for i in range(4)]
    dataset = write_dataset(tmp_path / "rows", rows, "compact")
    count_dead_letters(dataset, {"rtt_null": 7, "a $x$ < b": 3})
    assert inspect.main([str(dataset), f"--html={tmp_path}/page.html"]) == 0
    with visit(browser, tmp_path / "page.html") as seen:
        texts = [t.strip() for t in seen.page.locator("#dead_letters text").all_text_contents()]
        shown = seen.page.locator("body").inner_text()
        assert seen.page.locator("#time svg path[style*='--warn']").count() == 1
        assert seen.page.locator("#row").count() == 1  # of middle size, though nobody asked
        assert seen.page.locator("#comparison, #conclusion").count() == 0
    assert {"rtt_null", "7", "a $x$ < b", "3"} <= set(texts)
    assert (
        "There is no sampled measurement from 2024-01-01 06:00 to 2024-01-01 09:00 (3 h)." in shown
    )
    assert "There is no test set" in shown


def count_dead_letters(dataset: Path, letters: dict[str, int]) -> None:
    """Makes the manifest tell of dead letters."""
    manifest = open_dataset(str(dataset)).manifest
    read = manifest.counts.rows_read + sum(letters.values())
    counts = replace(manifest.counts, rows_read=read, dead_letters=letters)
    write_success(str(dataset), replace(manifest, counts=counts).to_json())


@pytest.mark.parametrize("number", [0, 1])
def test_little_is_shown_too(number: int, tmp_path: Path, browser: "Browser") -> None:
    rows = [RowSpec("192.0.2.1", day_of_pings(number, 1))] * number
    dataset = write_dataset(tmp_path / "rows", rows, "compact")
    assert inspect.main([str(dataset), f"--html={tmp_path}/page.html"]) == 0
    with visit(browser, tmp_path / "page.html") as seen:
        for plot in seen.page.locator("svg.plot").all():
            assert plot.evaluate(_OUTSIDE) == []
        text = seen.page.locator("main").inner_text()
        assert "There is no train set" in text if number == 0 else "One row" in text
        assert not re.search(r"\bnan\b", text, re.IGNORECASE)


# --- one file, safe and readable ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "scheme"), [(1240, "light"), (1240, "dark"), (900, "light"), (500, "dark")]
)
def test_it_asks_for_nothing_and_fits(
    page: Path, browser: "Browser", width: int, scheme: Scheme
) -> None:
    with visit(browser, page, width, scheme) as seen:
        sizes = seen.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        cut = seen.page.evaluate(
            "[...document.querySelectorAll('.scroll')].filter(p => p.clientWidth && "
            "p.scrollWidth > p.clientWidth + 1).map(p => p.getAttribute('aria-label'))"
        )
        ground = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        for details in seen.page.locator("details").all():
            details.evaluate("e => e.open = true")
        opened = seen.page.evaluate("document.documentElement.scrollWidth")
        assert seen.requests == [page.as_uri()]
        assert not seen.complaints
    assert max(sizes[0], opened) <= sizes[1]
    assert cut == [] or width < 1000  # narrower, tables and plots are moved sideways
    assert ground == {"light": "rgb(244, 246, 248)", "dark": "rgb(20, 24, 28)"}[scheme]


def test_the_plots_have_the_colours_of_the_scheme(
    page: Path, browser: "Browser", tmp_path: Path
) -> None:
    for scheme, is_right in _BRIGHTNESS.items():
        with visit(browser, page, 1240, scheme) as seen:
            png = tmp_path / f"{scheme}.png"
            seen.page.locator("#rtt").screenshot(path=png)
        pixels = imread(png)[..., :3] * 255
        assert is_right(float(pixels.mean())), scheme
        colored = float((np.ptp(pixels, axis=2) > 40).mean())
        assert 0.02 < colored < 0.4, scheme  # areas and curves are drawn


_BRIGHTNESS: dict[Scheme, Callable[[float], bool]] = {
    "light": lambda mean: mean > 210,
    "dark": lambda mean: mean < 80,
}


def test_nothing_points_elsewhere(page: Path) -> None:
    source = page.read_text("utf-8")
    addresses = set(re.findall(r"https?://[^\s\"'<]+", source))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"<(script|img|iframe)\b|@import|\bsrc=", source)
    assert re.findall(r"<link[^>]*>", source) == ['<link rel="icon" href="data:,">']
    references = set(re.findall(r"url\(#(.*?)\)|href=\"#(.*?)\"", source))
    names = re.findall(r"\bid=\"(.*?)\"", source)
    assert {one or other for one, other in references} <= set(names)
    assert len(names) == len(set(names))  # no plot takes another's marker
    assert len(source) < 500_000


def test_the_policy_stops_every_script(page: Path, tmp_path: Path, browser: "Browser") -> None:
    changed = tmp_path / "changed.html"
    changed.write_text(page.read_text().replace("</main>", "</main><script>alert(1)</script>"))
    with visit(browser, changed) as seen:
        assert seen.dialogs == []
        assert any("Content Security Policy" in line for line in seen.complaints)


def test_names_cannot_break_the_page(tmp_path: Path, browser: "Browser") -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)> &'\"x\x01"
    write_dataset(folder, many_probes(3, 0), "compact")
    page = tmp_path / "page.html"
    assert inspect.main([str(folder), f"--html={page}"]) == 0
    for has_policy in (True, False):  # escaping must hold by itself
        if not has_policy:
            text = page.read_text("utf-8")
            assert text.count("Content-Security-Policy") == 1
            page.write_text(text.replace("Content-Security-Policy", "x-none"))
        with visit(browser, page) as seen:
            assert (seen.dialogs, seen.complaints) == ([], [])
            assert seen.requests == [page.as_uri()]
            assert seen.page.locator("img").count() == 0
            assert seen.page.locator("h1").inner_text() == str(folder).replace("\x01", "␁")


@pytest.mark.slow
def test_the_same_dataset_gives_the_same_page(page: Path, dataset: Path, tmp_path: Path) -> None:
    assert inspect.main([str(dataset), f"--html={tmp_path}/new/again.html", *_FLAGS]) == 0
    assert (tmp_path / "new/again.html").read_bytes() == page.read_bytes()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_tokens_can_be_read(page: Path, browser: "Browser", scheme: Scheme) -> None:
    """Contrast of at least 4.5 to 1 between a text and the ground it stands on."""
    with visit(browser, page, 1240, scheme) as seen:
        pairs = seen.page.evaluate(_COLORS)
    assert {kind for kind, _, _ in pairs} >= {
        *("k-source", "k-destination", "k-time", "k-RTT", "k-failed", "k-start"),
        *("verdict alike", "verdict unlike", "soft", "conclusion unlike", "warning"),
    }
    for kind, text, ground in pairs:
        light, deep = sorted((_luminance(text), _luminance(ground)), reverse=True)
        assert (light + 0.05) / (deep + 0.05) >= 4.5, (kind, text, ground)


# Of each kind of text its colour, and that of the nearest ground behind it.
_COLORS = """[...document.querySelectorAll("main *, header *, footer")].filter(
  e => !e.closest("svg") && [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())
).map(e => {
  let behind = e;
  while (getComputedStyle(behind).backgroundColor == "rgba(0, 0, 0, 0)") {
    behind = behind.parentElement;
  }
  return [e.className, getComputedStyle(e).color, getComputedStyle(behind).backgroundColor];
})"""


def _luminance(color: str) -> float:
    values = np.array([int(value) for value in re.findall(r"\d+", color)[:3]]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))
