"""The page of the overlap report in a browser; its figures are tested in test_contents.py."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from beam_pipeline.overlap.report.contents import LEVELS, Report, read_contents
from beam_pipeline.overlap.report.output import Output
from beam_pipeline.overlap.report.page import cell_colors
from beam_pipeline.overlap.results.layout import SUMMARY
from beam_pipeline.report.tables import share_text
from tests.support.browser import Visit, visit
from tests.support.overlap_jobs import write_lines
from tests.support.overlap_report import (
    COMBINING,
    PLANET,
    RTL,
    SETS,
    TRAINING,
    filler,
    page_of,
    run,
)


def table(seen: Visit, selector: str) -> list[list[str]]:
    """Returns the words of the rows of a table, headings first."""
    rows = seen.page.locator(f"{selector} tr").all()
    return [[" ".join(t.split()) for t in row.locator("th, td").all_inner_texts()] for row in rows]


def marked(place: "Locator") -> list[str]:
    """Returns the texts that are highlighted."""
    return place.locator("mark").all_text_contents()


def shown_cards(seen: Visit) -> list[str]:
    """Returns the ids of the visible rows with documents."""
    return seen.page.locator(".instance:visible .id").all_text_contents()


def listed_rows(seen: Visit) -> list[str]:
    """Returns the ids of the visible rows of the list."""
    return seen.page.locator("table.rows tbody .id:visible").all_text_contents()


if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

HOSTILE = '</script><script>alert(1)<!-- --><img src=x onerror="alert(2)">'


@pytest.fixture(scope="module")
def report(output: Path) -> Report:
    return read_contents(Output(str(output)), [3, 5, 11])


def test_matrices_and_lists_show_the_figures(
    page: Path, report: Report, browser: "Browser"
) -> None:
    with visit(browser, page, has_script=False) as seen:
        matrices = [table(seen, f"#matrix-{place}") for place in range(len(LEVELS))]
        rows, files = table(seen, "table.rows"), table(seen, "table.files")
        removal = {name: table(seen, f"table.{name}") for name in ("by-set", "by-file")}
        rules, boilerplate = table(seen, "table.rules"), table(seen, "table.boilerplate")
    for place, (_, *lines) in enumerate(matrices):
        for one, (name, covered, left_out, *cells) in zip(report.sets, lines, strict=True):
            level = one.levels[place]
            expected = [
                f"{share_text(hits.share)} {hits}".replace("\u00a0", " ")
                for hits in (level.at_any, *level.by_length)
            ]
            assert (name, covered, cells) == (one.name, str(level.at_any.covered_tokens), expected)
            assert left_out == str(one.num_not_looked_up)
    for row, (_, name, id, covered, coverage, documents, path, number) in zip(
        report.rows, rows[1:], strict=True
    ):
        assert (row.eval_dataset, row.instance_id, row.eval_path) == (name, id, path)
        assert covered == f"{row.num_covered_tokens} of {row.num_tokens}"
        assert coverage == share_text(row.coverage).replace("\u00a0", " ")
        assert (str(row.num_train_documents), str(row.eval_row)) == (documents, number)
    assert [line[:2] for line in files[1:]] == [
        [f.path, str(f.num_hit)] for f in report.train_files
    ]
    for name, found in (("by-set", report.removal.by_set), ("by-file", report.removal.by_file)):
        assert [line[0] for line in removal[name][1:]] == [one.name for one in found]
        assert [int(line[-1]) for line in removal[name][1:]] == [o.num_margin_chars for o in found]
    assert [line[:2] for line in rules[1:]] == [[v.eval_dataset, v.rule] for v in report.verdicts]
    assert boilerplate[1:] == [["all rights reserved", "3", "3"]]


def test_levels_hide_rows_of_lower_coverage(page: Path, report: Report, browser: "Browser") -> None:
    with visit(browser, page) as seen:
        for level in (0.2, 0.5, 0.8, 0.0):
            seen.page.check(f"input[value='{level}']")
            (matrix,) = seen.page.locator(".matrix:visible").all()
            assert matrix.get_attribute("id") == f"matrix-{LEVELS.index(level)}"
            ids = [row.instance_id for row in report.rows if row.coverage >= level]
            assert shown_cards(seen) == listed_rows(seen) == ids
        assert len(ids) == 4 and report.rows[2].coverage < 0.5


def test_shared_text_is_highlighted_in_both_texts(page: Path, browser: "Browser") -> None:
    texts = [TRAINING["part-0.jsonl"][1][1], TRAINING["part-1.jsonl"][1][1]]
    with visit(browser, page) as seen:
        card = seen.page.locator(".instance", has=seen.page.locator(".id:text-is('s0')"))
        pairs = card.locator(".pair").all()
        marks = [[marked(side) for side in pair.locator(".side").all()] for pair in pairs]
        sides = [pair.locator(".side").all_text_contents() for pair in pairs]
        documents = card.locator("h4").all_text_contents()
        for given, text in (("s3", RTL), ("t0", COMBINING), ("s2", SETS["space"][2][1])):
            card = seen.page.locator(".instance", has=seen.page.locator(f".id:text-is('{given}')"))
            whole = card.locator(".side").all()
            assert [marked(side) for side in whole] == [[text], [text]]
            direction = whole[0].evaluate("e => getComputedStyle(e).direction")
            assert direction == ("rtl" if given == "s3" else "ltr")
    shared = "Which planet has the largest moon"
    in_training = ["WHICH planet -- has the largest moon", "which planet has the largest moon"]
    assert marks == [[[shared], [text]] for text in in_training]
    assert sides == [[PLANET, text] for text in texts]
    assert documents == ["Training document without an id", "Training document e1"]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_loads_nothing_and_fits(page: Path, browser: "Browser", scheme, width) -> None:
    with visit(browser, page, width, scheme) as seen:
        seen.page.click("#open-all")
        sizes = seen.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        color = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        cell = seen.page.locator("#matrix-0 td.cell").first
        background = cell.evaluate("e => getComputedStyle(e).backgroundColor")
        assert seen.requests == [page.as_uri()]
        assert not seen.complaints
    assert sizes[0] <= sizes[1]
    assert (sum(map(int, color[4:-1].split(","))) > 600) == (scheme == "light")
    expected = getattr(cell_colors(3 / 4), scheme)
    assert background == f"rgb({', '.join(map(str, bytes.fromhex(expected[1:])))})"


def test_hostile_data_is_never_run(tmp_path: Path, browser: "Browser") -> None:
    name = "<script>alert(1)<img src>\"'&"  # files are named after it
    texts = [(HOSTILE, HOSTILE), ("two", f"{HOSTILE} & more of &lt;it&gt;")]
    document = f"{filler(3)} {HOSTILE} & more of &lt;it&gt;"
    output = run(tmp_path, {name: texts}, {f"{name}.jsonl": [(HOSTILE, document)]})
    ngrams = [{"ngram": HOSTILE, "n": 3, "documents": 9}]
    write_lines(output / "stats/overlap_boilerplate.jsonl", *ngrams)
    (output / "stats/report.json").unlink()
    summary = json.loads((output / SUMMARY).read_text())
    summary["options"]["tokenizer"] = HOSTILE
    summary["counts"]["dead_letters"] = {HOSTILE: 1}
    (output / SUMMARY).write_text(json.dumps(summary))
    page = page_of(output)
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
            assert name in seen.page.locator("#matrix-0 tbody th").all_inner_texts()
            for place in (".id", "table.boilerplate tbody th", "table.dead-letters tbody th"):
                assert HOSTILE in seen.page.locator(place).all_inner_texts()
    page.write_text(text.replace("</footer>", "</footer><script>alert(1)</script>"))
    with visit(browser, page) as seen:  # the policy stops a script that is not the page's own
        assert seen.dialogs == []
        assert any("Content Security Policy" in line for line in seen.complaints)


def test_surrogates_and_control_characters(tmp_path: Path, browser: "Browser") -> None:
    text = "a\ud800 lone \x00 surrogate\udfff and\tmore \x1b of \U0001f600 it"
    sets, training = {"odd": [("id \udc00", text)]}, {"t.jsonl": [("d", f"see: {text}!")]}
    with visit(browser, page_of(run(tmp_path, sets, training))) as seen:
        sides = seen.page.locator(".side").all()
        shown = text.translate({0: "␀", 0x1B: "␛", 0xD800: "�", 0xDFFF: "�"})
        assert [marked(side) for side in sides] == [[shown], [shown]]
        assert shown_cards(seen) == ["id \\udc00"]
        assert not seen.complaints
