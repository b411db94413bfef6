"""The page of the overlap report in a browser: what it shows is what the output's files say."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from beam_pipeline.overlap.report.page import cell_colors
from beam_pipeline.overlap.report.tables import share_text
from tests.support.browser import visit
from tests.support.overlap_report import (
    COMBINING,
    PLANET,
    RTL,
    SETS,
    TRAINING,
    filler,
    listed_rows,
    made,
    marked,
    read_lines,
    shown_cards,
    table,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_the_matrix_says_what_the_stats_say(page: Path, browser: "Browser") -> None:
    stats = read_lines(page.parent / "output/stats/overlap_stats.jsonl")
    short = [  # count at each n that is longer
        line
        for line in read_lines(page.parent / "output/stats/overlap_coverage.jsonl")
        if line["num_tokens"] == line["n"]
    ]
    assert {line["n"] for line in stats} == {3, 5} and short
    with visit(browser, page) as seen:
        head, *rows = table(seen, "#matrix-0")
        verdict = seen.page.locator("#verdict").inner_text()
    assert head == ["evaluation set", "tokens covered", "any n", "n = 3", "n = 5"]
    assert [row[:2] for row in rows] == [["space", "19"], ["town", "11"], ["clean", "0"]]
    for name, _, at_any, *cells in rows:
        hit: set[str] = set()
        for n, cell in zip((3, 5), cells, strict=True):
            (line,) = (line for line in stats if (line["eval_dataset"], line["n"]) == (name, n))
            number, ids = line["num_instances"], set(line["instance_ids"])
            ids |= {x["instance_id"] for x in short if x["eval_dataset"] == name and x["n"] < n}
            share = share_text(len(ids) / number)
            assert cell == f"{share} {len(ids)} of {number}".replace("\u00a0", " ")
            hit |= ids
        assert at_any.endswith(f" {len(hit)} of {number}")
    assert [row[2] for row in rows] == ["75.0 % 3 of 4", "50.0 % 1 of 2", "0 % 0 of 2"]
    assert verdict.replace("\u00a0", " ") == (
        "4 of 8 evaluation instances share an n-gram with the training data: 50.0 %. At least "
        "20 % of the tokens are covered in 4, 50 % in 3, 80 % in 3."
    )


def test_the_switch_changes_counts_and_rows(page: Path, browser: "Browser") -> None:
    with visit(browser, page) as seen:
        for level, space, ids in (
            ("0.2", "75.0 % 3 of 4", ["t0", "s3", "s0", "s2"]),
            ("0.5", "50.0 % 2 of 4", ["t0", "s3", "s2"]),
            ("0.0", "75.0 % 3 of 4", ["t0", "s3", "s0", "s2"]),
        ):
            seen.page.check(f"input[value='{level}']")
            (matrix,) = seen.page.locator(".matrix:visible").all()
            assert table(seen, f"#{matrix.get_attribute('id')}")[1][2] == space
            assert shown_cards(seen) == listed_rows(seen) == ids
            told = "4 rows" if len(ids) == 4 else f"{len(ids)} of 4 rows"
            assert seen.page.inner_text("#filter-result") == told
        seen.page.locator("input[value='0.0']").focus()
        for _ in range(3):
            seen.page.keyboard.press("ArrowRight")
        assert seen.page.locator("input[value='0.8']").is_checked()
        assert listed_rows(seen) == ["t0", "s3", "s2"]


def test_rows_are_ranked_at_the_n_that_is_chosen(tmp_path: Path, browser: "Browser") -> None:
    sets = {"set": [("a", "one two three four five six"), ("b", f"{PLANET} I say")]}
    training = {"t.jsonl": [("d", "one two three; two three four; three four five; four five six")]}
    training["t.jsonl"] += [("e", "which planet has the largest")]
    page = made(tmp_path, sets, training)
    with visit(browser, page) as seen:
        assert listed_rows(seen) == ["a", "b"]
        seen.page.select_option("#length", label="5")
        assert listed_rows(seen) == shown_cards(seen) == ["b"]
        assert table(seen, "#rows-table")[1][3:6] == ["5 of 15", "33.3 %", "1"]
        assert seen.page.inner_text("#filter-result") == "1 of 2 rows"


def test_shared_text_is_highlighted_in_both_texts(page: Path, browser: "Browser") -> None:
    with visit(browser, page) as seen:
        card = seen.page.locator(".instance", has_text="s0")
        pairs = card.locator(".pair").all()
        marks = [[marked(side) for side in pair.locator(".side").all()] for pair in pairs]
        texts = [pair.locator(".side").all_text_contents() for pair in pairs]
        assert not seen.complaints
    shared = "Which planet has the largest moon"
    assert marks == [
        [[shared], ["WHICH planet -- has the largest moon"]],
        [[shared], ["which planet has the largest moon"]],
    ]
    documents = [
        TRAINING["gs://corpus/part-0.jsonl.gz"][1],
        TRAINING["gs://corpus/part-1.parquet"][1],
    ]
    assert texts == [[PLANET, text] for _, text in documents]


@pytest.mark.parametrize(
    ("given", "text"), [("s3", RTL), ("t0", COMBINING), ("s2", SETS["space"][2][1])]
)
def test_a_copied_text_is_highlighted_whole(
    page: Path, browser: "Browser", given: str, text: str
) -> None:
    with visit(browser, page) as seen:
        card = seen.page.locator(".instance", has=seen.page.locator(f".id:text-is('{given}')"))
        sides = card.locator(".side").all()
        assert [marked(side) for side in sides] == [[text], [text]]
        if given == "s3":
            direction = "e => getComputedStyle(e).direction"
            assert sides[0].evaluate(direction) == "rtl"


def test_rows_come_by_tokens_covered(page: Path, browser: "Browser") -> None:
    with visit(browser, page) as seen:
        # Of s0 six of fourteen tokens (the empty one at its end among them) are in n-grams.
        assert shown_cards(seen) == listed_rows(seen) == ["t0", "s3", "s0", "s2"]
        seen.page.click("#open-all")
        rows = table(seen, "#row-3 table")
        summary = " ".join(seen.page.inner_text("#row-3 summary").split())
        said = seen.page.locator("#row-3 .shared").all_inner_texts()
        documents = seen.page.locator("#row-3 h4").all_text_contents()
        listed = table(seen, "#rows-table")[3]
    assert rows[1:] == [["3", "42.9 %", "6", "6", "2"], ["5", "42.9 %", "6", "6", "2"]]
    assert summary.endswith("6 of 14 tokens covered 42.9 %")
    assert documents == ["Training document without an id", "Training document e1"]
    assert said[0] == "shares 4 n-grams of n = 3, 2 n-grams of n = 5"
    path = "eval/space/test.jsonl"
    assert listed == ["3", "space", "s0", "6 of 14", "42.9 %", "2", path, "0"]


def test_search_finds_rows_that_are_not_drawn(tmp_path: Path, browser: "Browser") -> None:
    random_rows = [(f"r{at}", f"{filler(4, at)} word{at} {filler(4, -at)}") for at in range(300)]
    page = made(
        tmp_path, {"set": random_rows}, {"t.jsonl": [(None, t) for _, t in random_rows]},
        "--instances=2", details="none",
    )  # fmt: skip
    with visit(browser, page) as seen:
        assert len(listed_rows(seen)) == 50 and len(shown_cards(seen)) == 2
        assert "--details=none: the result has no texts" in seen.page.inner_text("#caps-texts")
        assert seen.page.locator("#no-texts").is_visible()
        seen.page.click("#more")
        assert len(listed_rows(seen)) == 100
        assert seen.page.inner_text("#more") == "Show 50 more of 300"
        for words in ("word271", f"word271 {filler(4, 271)}", "r271"):
            seen.page.fill("#filter", words)
            assert listed_rows(seen) == ["r271"] and shown_cards(seen) == []
            assert seen.page.inner_text("#filter-result") == "1 of 300 rows"
            assert not seen.page.locator("#more").is_visible()
        seen.page.fill("#filter", "")
        seen.page.click("#close-all")
        seen.page.click("#rows-table a[href='#row-2']")
        assert seen.page.locator("#row-2").get_attribute("open") is not None
        assert not seen.complaints


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("town eval", ["t0"]),  # a set
        ("s3", ["s3"]),  # an id
        ("eval/space/test", ["s3", "s0", "s2"]),  # a path
        ("part-1.parquet", ["t0", "s0"]),
        ("which planet has", ["s0"]),  # an n-gram
        ("  WHICH planet, HAS ", ["s0"]),
        ("hot planet", ["s3", "s2"]),  # in the training text of s3
        ("largest planet", ["s0"]),  # words apart
        ("nothing like that", []),
        ("", ["t0", "s3", "s0", "s2"]),
        ("!!", ["t0", "s3", "s0", "s2"]),
    ],
)
def test_search_finds_sets_ids_paths_and_ngrams(
    page: Path, browser: "Browser", words: str, found: list[str]
) -> None:
    with visit(browser, page) as seen:
        seen.page.fill("#filter", words)
        assert shown_cards(seen) == listed_rows(seen) == found
        told = seen.page.inner_text("#filter-result")
        is_all = len(found) == 4
        assert told == ("4 rows" if is_all else f"{len(found)} of 4 rows")
        assert not is_all or seen.page.locator(".instance[open]").count() == 1
        seen.page.press("#filter", "Escape")
        assert len(shown_cards(seen)) == 4


def test_the_page_is_used_by_keyboard(page: Path, browser: "Browser") -> None:
    with visit(browser, page) as seen:
        keys = seen.page.keyboard
        keys.press("Tab")
        assert seen.page.evaluate("document.activeElement.className") == "skip"
        seen.page.locator("#tools").wait_for()
        keys.press("/")
        keys.type("town")
        assert shown_cards(seen) == ["t0"]
        keys.press("Escape")
        for _ in range(10):
            keys.press("Tab")
            if seen.page.evaluate("document.activeElement.matches('#row-4 summary')"):
                break
        card = seen.page.locator("#row-4")
        assert card.get_attribute("open") is None
        keys.press("Enter")
        assert card.get_attribute("open") is not None
        seen.page.click("#close-all")
        assert seen.page.locator(".instance[open]").count() == 0
        seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert seen.page.locator(".instance[open]").count() == 4


def test_headings_and_tables_are_accessible(page: Path, browser: "Browser") -> None:
    with visit(browser, page) as seen:
        levels = seen.page.evaluate(
            "[...document.querySelectorAll('h1,h2,h3,h4,h5')].map(h => +h.tagName[1])"
        )
        unnamed = seen.page.evaluate(
            "[...document.querySelectorAll('table')].filter(t => !t.caption && "
            "!document.getElementById(t.getAttribute('aria-describedby'))).length"
        )
        unscoped = seen.page.locator("th:not([scope])").count()
        assert seen.page.locator("html").get_attribute("lang") == "en"
        assert seen.page.locator("#filter").evaluate("e => e.labels.length") == 1
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert (unnamed, unscoped) == (0, 0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_asks_for_nothing_and_fits(page: Path, browser: "Browser", scheme, width) -> None:
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


def test_without_scripts_rows_and_all_counts_are_there(page: Path, browser: "Browser") -> None:
    with visit(browser, page, has_script=False) as seen:
        assert len(shown_cards(seen)) == 4
        assert not seen.page.locator("#filter").is_visible()
        assert seen.page.locator(".matrix:visible").count() == 4
        assert "Without scripts" in seen.page.inner_text("main")


def test_files_caps_boilerplate_letters_and_the_run(page: Path, browser: "Browser") -> None:
    with visit(browser, page) as seen:
        files = table(seen, "#files-table")
        boilerplate = table(seen, "#boilerplate-table")
        letters = table(seen, "#dead-letters-table")
        rules = table(seen, "#rules-table")
        caps = [
            [" ".join(t.split()) for t in seen.page.locator(f"#caps-{at} li").all_inner_texts()]
            for at in ("sets", "texts")
        ]
        facts = seen.page.locator("#facts").inner_text().splitlines()
        options = seen.page.locator("#options").inner_text().splitlines()
        head = seen.page.inner_text("header")
    assert files[1:] == [
        ["gs://corpus/part-0.jsonl.gz", "3", "space 3"],
        ["gs://corpus/part-1.parquet", "2", "space 1, town 1"],
    ]
    assert boilerplate[1:] == [["terms of use", "3", "12,000"], ["all rights reserved", "3", "900"]]
    assert letters[1:] == [["text_not_a_string", "11"], ["json_invalid", "3"]]
    assert rules[1:] == [["space", "llama2", "11", "4", "2", "1", "1", "1"]]
    assert caps == [
        ["--max_document_frequency=800: 2 n-grams in more training documents not counted"],
        [
            "--max_details_per_pair=100: 7 matches of 1 pair of an evaluation row and a training "
            "row are not in the details",
            "--max_details=1000: 1,234 matches of 1 training file are not in the details",
        ],
    ]
    assert facts[facts.index("training rows") + 1] == "5"
    assert options[options.index("--max_document_frequency") + 1] == "800"
    assert "Training data: corpus. Evaluation sets: eval/space" in head
    assert "started 2026-11-23 13:08:42 UTC" in head


def test_removal_is_told_with_its_command(page: Path, browser: "Browser") -> None:
    with visit(browser, page) as seen:
        section = " ".join(seen.page.locator("section:has(#removal)").inner_text().split())
        command = seen.page.inner_text(".command")
        by_file, by_set = (table(seen, f"#removal-by-{name}-table") for name in ("file", "set"))
    assert "4 contaminated documents of 5 training documents with a text" in section
    assert "5 spans, 174 characters" in section
    output = page.parent / "output"
    assert f"--result_path {output} --output_path clean --remove split" in command
    assert by_file[1:] == [
        ["gs://corpus/part-0.jsonl.gz", "3", "2", "3", "91", "560"],
        ["gs://corpus/part-1.parquet", "2", "2", "2", "83", "510"],
    ]
    assert [row[:3] for row in by_set[1:]] == [["space", "3", "4"], ["town", "1", "1"]]


def test_search_finds_shared_text_that_is_not_shown(tmp_path: Path, browser: "Browser") -> None:
    copied = [f"number {number} of the copied places" for number in range(30)]
    text = "\n".join(f"{part} {filler(60, i)}" for i, part in enumerate(copied))
    document = "\n".join(f"{part} {filler(60, i + 50)}" for i, part in enumerate(copied))
    page = made(tmp_path, {"set": [("many", text), ("other", "Some other text here")]}, {
        "t.jsonl": [("d", document), ("o", "some other text")]
    })  # fmt: skip
    with visit(browser, page) as seen:
        hidden = [part for part in copied if part not in seen.page.inner_text("body")]
        assert len(hidden) > 10
        seen.page.fill("#filter", hidden[-1])
        assert shown_cards(seen) == ["many"]


def test_no_hit_is_said_plainly(tmp_path: Path, browser: "Browser") -> None:
    page = made(tmp_path, {"clean": SETS["clean"]}, TRAINING)
    with visit(browser, page) as seen:
        assert seen.page.inner_text("#verdict") == (
            "No shared n-gram was found. None of 2 evaluation instances shares one with the "
            "training data."
        )
        assert table(seen, "#matrix-0")[1] == ["clean", "0", *["0 % 0 of 2"] * 3]
        assert seen.page.locator(".instance").count() == 0
        body = seen.page.inner_text("body")
        assert not seen.complaints
    assert "No row overlaps." in body and "No training file hits an instance." in body


def test_without_details_places_come_from_the_matches(tmp_path: Path, browser: "Browser") -> None:
    page = made(tmp_path, SETS, TRAINING, max_details=0)
    with visit(browser, page) as seen:
        seen.page.click("#open-all")
        assert seen.page.locator("#no-texts").is_visible()
        assert seen.page.locator(".side").count() == 0
        card = seen.page.locator(".instance", has_text="s0")
        places = card.locator(".document").nth(1).locator("dd").all_inner_texts()
        documents = card.locator("h4").all_text_contents()
        seen.page.fill("#filter", "part-1.parquet")
        assert shown_cards(seen) == ["t0", "s0"]
    text = TRAINING["gs://corpus/part-1.parquet"][1][1]
    start = text.index("which planet")
    assert places == ["0–33", f"{start}–{start + 33}"]
    assert documents == ["Training document without an id", "Training document e1"]


def test_a_row_that_a_cap_leaves_out_is_beside_one_with_texts(tmp_path: Path, browser) -> None:
    page = made(tmp_path, SETS, TRAINING, max_details=7)
    with visit(browser, page) as seen:
        assert seen.page.locator("#no-texts").count() == 0
        cards = seen.page.locator(".instance").all()
        has_texts = [card.locator(".side").count() > 0 for card in cards]
        has_places = [card.locator(".places").count() > 0 for card in cards]
    # Of s0, the third, the second document is behind the cap.
    assert has_texts == [False, False, True, True] and has_places == [True, True, True, False]
