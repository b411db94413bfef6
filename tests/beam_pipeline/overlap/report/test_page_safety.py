"""Hostile, odd and very long data on the page of the overlap report, in a browser."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from beam_pipeline.overlap.report import __main__ as report
from tests.support.browser import visit
from tests.support.overlap_folder import write_output
from tests.support.overlap_report import filler, listed_rows, made, marked, shown_cards

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'


def test_what_data_says_is_never_run(tmp_path: Path, browser: "Browser") -> None:
    page = made(
        tmp_path,
        {HOSTILE: [(HOSTILE, HOSTILE), ("two", f"{HOSTILE} & more of &lt;it&gt;")]},
        {f"gs://{HOSTILE}": [(HOSTILE, f"{filler(3)} {HOSTILE} & more of &lt;it&gt;")]},
        boilerplate=[{"ngram": HOSTILE, "n": 3, "documents": 9}],
        dead_letters={HOSTILE: 1},
    )
    summary = tmp_path / "output/progress/progress_summary.json"
    content = json.loads(summary.read_text())
    content["options"]["tokenizer"] = HOSTILE
    summary.write_text(json.dumps(content))
    assert report.main([str(tmp_path / "output"), f"--html={page}"]) == 0
    for has_policy in (True, False):  # escaping must hold by itself
        if not has_policy:
            text = page.read_text()
            assert text.count("Content-Security-Policy") == 1
            page.write_text(text.replace("Content-Security-Policy", "x-none"))
        with visit(browser, page) as seen:
            seen.page.click("#open-all")
            assert (seen.dialogs, seen.complaints) == ([], [])
            assert seen.requests == [page.as_uri()]
            assert seen.page.evaluate("document.scripts.length") == 1
            assert seen.page.locator("img").count() == 0
            assert all(HOSTILE in t for t in seen.page.locator(".side").all_inner_texts())
            for place in (".set", ".id", "#matrix-0 tbody th", "#boilerplate-table tbody th"):
                assert HOSTILE in seen.page.locator(place).all_inner_texts()
            seen.page.fill("#filter", HOSTILE)
            assert len(shown_cards(seen)) == 2 and HOSTILE in listed_rows(seen)


def test_the_policy_stops_a_script_that_is_not_ours(page: Path, tmp_path: Path, browser) -> None:
    changed = tmp_path / "changed.html"
    changed.write_text(page.read_text().replace("</footer>", "</footer><script>alert(1)</script>"))
    with visit(browser, changed) as seen:
        assert seen.dialogs == []
        assert any("Content Security Policy" in line for line in seen.complaints)


def test_surrogates_and_control_characters(tmp_path: Path, browser: "Browser") -> None:
    text = "a\ud800 lone \x00 surrogate\udfff and\tmore \x1b of \U0001f600 it"
    page = made(tmp_path, {"odd": [("id \udc00", text)]}, {"t.jsonl": [("d", f"see: {text}!")]})
    with visit(browser, page) as seen:
        sides = seen.page.locator(".side").all()
        shown = text.translate({0: "␀", 0x1B: "␛", 0xD800: "�", 0xDFFF: "�"})
        assert [marked(side) for side in sides] == [[shown], [shown]]
        assert shown_cards(seen) == ["id \\udc00"]
        assert not seen.complaints


def test_of_megabytes_only_what_is_shared_is_shown(tmp_path: Path, browser: "Browser") -> None:
    shared = "here stands the only shared place"
    text = f"{filler(20_000, 1)} {shared} {'x' * 1_500_000}"
    document = f"{'y' * 1_500_000} {shared.upper()} {filler(20_000, 3)}"
    page = tmp_path / "report.html"
    output = tmp_path / "output"
    output.mkdir()
    write_output(output, {"long": [("l", text)]}, {"t.jsonl": [("d", document)]}, (6,))
    assert report.main([str(output), f"--html={page}"]) == 0
    assert page.stat().st_size < 100_000
    with visit(browser, page) as seen:
        sides = seen.page.locator(".side").all()
        assert [marked(side) for side in sides] == [[shared], [shared.upper()]]
        gaps = [side.locator(".gap").all_text_contents() for side in sides]
        shown = [len(side.inner_text()) for side in sides]
    assert [len(gap) for gap in gaps] == [2, 2] and max(shown) < 1_000
    left_out = [sum(int(g.split()[1].replace(",", "")) for g in gap) for gap in gaps]
    for number, whole in zip(left_out, (text, document), strict=True):
        assert len(whole) - 1_000 < number < len(whole)
