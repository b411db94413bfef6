"""The report of an overlap job: what a browser shows is what the output's files say."""

import dataclasses
import gzip
import itertools
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.report import __main__ as report
from beam_pipeline.overlap.report.output import Output
from beam_pipeline.overlap.report.page import cell_colors, share_text
from beam_pipeline.overlap.report.passages import WHOLE_CHARS, passages
from beam_pipeline.overlap.report.picture import MAX_SETS
from beam_pipeline.overlap.report.statistics import Statistics, read_statistics
from beam_pipeline.overlap.results.row_overlaps import merge_spans
from beam_pipeline.report.plot_style import DPI
from tests.support.browser import Visit, visit
from tests.support.engines import Gcs
from tests.support.overlap_folder import Texts, eval_path, write_output
from tests.support.repository import ROOT
from tests.support.warm_python import warm_python

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

WORDS = [f"{one}{two}" for one in "bdfgklmnprst" for two in ("a", "e", "i", "o", "um", "ir")]
PLANET = "Which planet has the largest moon of all, and who saw it first?"
HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'
RTL = "ما هي عاصمة فرنسا وما هو أكبر نهر يمر بها"
COMBINING = "Cafe\u0301 de\u0301ja\u0300 vu in the old town of Kraków by night"


def sentence(random: Random, num_words: int) -> str:
    return " ".join(random.choices(WORDS, k=num_words))


def filler(num_words: int = 40, seed: int = 0) -> str:
    return sentence(Random(f"filler {seed}"), num_words)


def made(folder: Path, sets: Mapping[str, Texts], training: Mapping[str, Texts], **more) -> Path:
    """Writes an output for n of 3 and 5, and its report; returns the page."""
    output = folder / "output"
    output.mkdir()
    write_output(output, sets, training, (3, 5), **more)
    page = folder / "report.html"
    assert report.main([str(output), f"--html={page}"]) == 0
    return page


def statistics_of(output: Path, num_instances: int = 50) -> Statistics:
    return read_statistics(Output(str(output)), num_instances, lambda _: None)


def table(seen: Visit, selector: str) -> list[list[str]]:
    """Returns the words of a table's rows, the head first."""
    rows = seen.page.locator(f"{selector} tr").all()
    return [[" ".join(t.split()) for t in row.locator("th, td").all_inner_texts()] for row in rows]


def marked(place: "Locator") -> list[str]:
    return place.locator("mark").all_text_contents()


def shown_instances(seen: Visit) -> list[str]:
    return seen.page.locator(".instance:visible .id").all_text_contents()


def read_lines(path: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.splitlines()]


SETS: dict[str, Texts] = {
    "space": [("s0", PLANET), ("s1", filler(12, 1)), ("s2", "red hot planet"), ("s3", RTL)],
    "town": [("t0", COMBINING), ("t1", filler(9, 2))],
    "clean": [("c0", filler(30, 3)), ("c1", filler(30, 4))],
}
TRAINING: dict[str, Texts] = {
    "gs://corpus/part-0.jsonl.gz": [
        ("d0", filler(30, 5)),
        (None, f"{filler(20, 6)} WHICH planet -- has the largest moon, they ask. {filler(20, 7)}"),
        ("d2", f"A red hot planet. {RTL}"),
    ],
    "gs://corpus/part-1.parquet": [
        ("e0", f"{filler(5, 8)} {COMBINING} {filler(5, 9)}"),
        ("e1", f"Who asks which planet has the largest moon? {filler(5, 10)}"),
    ],
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(
        tmp_path_factory.mktemp("page"),
        SETS,
        TRAINING,
        left_out=[
            {
                "eval_dataset": "space",
                "eval_path": eval_path("space"),
                "eval_row": 0,
                "train_path": "gs://corpus/part-1.parquet",
                "train_row": 1,
                "num_left_out": 7,
            },
            {"train_path": "gs://corpus/part-0.jsonl.gz", "num_left_out": 1234},
        ],
        boilerplate=[
            {"ngram": "all rights reserved", "n": 3, "documents": 900},
            {"ngram": "terms of use", "n": 3, "documents": 12_000},
        ],
        dead_letters={"json_invalid": 3, "text_not_a_string": 11},
    )


# --- in the browser -----------------------------------------------------------------------------


def test_the_matrix_says_what_the_stats_say(page: Path, browser: "Browser") -> None:
    lines = read_lines(page.parent / "output/stats/overlap_stats.jsonl")
    said = {(line["eval_dataset"], line["n"]): line for line in lines}
    assert {n for _, n in said} == {3, 5}
    with visit(browser, page) as seen:
        head, *rows = table(seen, "#matrix-table")
        verdict = seen.page.locator("#verdict").inner_text()
    assert head == ["evaluation set", "n = 3", "n = 5", "any n"]
    assert [row[0] for row in rows] == ["space", "town", "clean"]
    for name, *cells in rows:
        ids: set[str] = set()
        for n, cell in zip((3, 5), cells, strict=False):
            line = said[name, n]
            hit, number = len(line["instance_ids"]), line["num_instances"]
            assert cell == f"{share_text(hit / number)} {hit} of {number}".replace("\u00a0", " ")
            ids.update(line["instance_ids"])
        assert cells[-1].endswith(f" {len(ids)} of {number}")
    assert [row[-1] for row in rows] == ["75.0 % 3 of 4", "50.0 % 1 of 2", "0 % 0 of 2"]
    assert verdict.startswith("4 of 8 evaluation instances") and "50.0" in verdict


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


def test_instances_come_by_coverage_then_documents(page: Path, browser: "Browser") -> None:
    with visit(browser, page) as seen:
        # Of s0 six of thirteen tokens (the empty one at its end among them) are in n-grams.
        assert shown_instances(seen) == ["s2", "s3", "t0", "s0"]
        card = seen.page.locator(".instance", has_text="s0")
        seen.page.click("#open-all")
        rows = table(seen, ".instance:last-of-type table")
        summary = " ".join(card.locator("summary").inner_text().split())
        said = card.locator(".shared").all_inner_texts()
        documents = card.locator("h4").all_text_contents()
    assert rows[1:] == [["3", "42.9 %", "6 of 14", "2"], ["5", "42.9 %", "6 of 14", "2"]]
    assert summary.endswith("42.9 % covered at n = 5 2 documents")
    assert documents == ["Training document without an id", "Training document e1"]
    assert said[0] == "shares 4 n-grams of n = 3, 2 n-grams of n = 5"
    assert said[1].endswith("; 7 more of this pair left out of the details")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("town", ["t0"]),  # a set
        ("s3", ["s3"]),  # an id
        ("eval/space/test", ["s2", "s3", "s0"]),  # a path
        ("part-1.parquet", ["t0", "s0"]),
        ("which planet has", ["s0"]),  # an n-gram
        ("  WHICH planet, HAS ", ["s0"]),
        ("hot planet", ["s2", "s3"]),  # in the training text of s3
        ("nothing like that", []),
        ("", ["s2", "s3", "t0", "s0"]),
        ("!!", ["s2", "s3", "t0", "s0"]),
    ],
)
def test_search_finds_sets_ids_paths_and_ngrams(
    page: Path, browser: "Browser", words: str, found: list[str]
) -> None:
    with visit(browser, page) as seen:
        seen.page.fill("#filter", words)
        assert shown_instances(seen) == found
        told = seen.page.inner_text("#filter-result")
        is_all = len(found) == 4
        assert told == ("4 instances" if is_all else f"{len(found)} of 4 instances")
        assert not is_all or seen.page.locator(".instance[open]").count() == 1
        seen.page.press("#filter", "Escape")
        assert len(shown_instances(seen)) == 4


def test_the_page_is_used_by_keyboard(page: Path, browser: "Browser") -> None:
    with visit(browser, page) as seen:
        keys = seen.page.keyboard
        keys.press("Tab")
        assert seen.page.evaluate("document.activeElement.className") == "skip"
        keys.press("/")
        keys.type("town")
        assert shown_instances(seen) == ["t0"]
        keys.press("Escape")
        for _ in range(10):
            keys.press("Tab")
            if seen.page.evaluate(
                "document.activeElement.matches('.instance:last-of-type summary')"
            ):
                break
        card = seen.page.locator(".instance:last-of-type")
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
@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_asks_for_nothing_and_fits(page: Path, browser: "Browser", scheme, width) -> None:
    with visit(browser, page, width, scheme) as seen:
        seen.page.click("#open-all")
        sizes = seen.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        color = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        cell = seen.page.locator("#matrix-table td").first
        background = cell.evaluate("e => getComputedStyle(e).backgroundColor")
        assert seen.requests == [page.as_uri()]
        assert not seen.complaints
    assert sizes[0] <= sizes[1]
    assert (sum(map(int, color[4:-1].split(","))) > 600) == (scheme == "light")
    expected = getattr(cell_colors(3 / 4), scheme)
    assert background == f"rgb({', '.join(map(str, bytes.fromhex(expected[1:])))})"


def test_without_scripts_all_instances_are_there(page: Path, browser: "Browser") -> None:
    with visit(browser, page, has_script=False) as seen:
        assert len(shown_instances(seen)) == 4
        assert not seen.page.locator("#filter").is_visible()


def test_files_caps_boilerplate_letters_and_the_run(page: Path, browser: "Browser") -> None:
    with visit(browser, page) as seen:
        files = table(seen, "#files-table")
        boilerplate = table(seen, "#boilerplate-table")
        letters = table(seen, "#letters-table")
        left_out = seen.page.locator("#left-out li").all_inner_texts()
        facts = seen.page.locator("#facts").inner_text().splitlines()
        options = seen.page.locator("#options").inner_text().split()
    assert files[1:] == [
        ["gs://corpus/part-0.jsonl.gz", "3", "space 3"],
        ["gs://corpus/part-1.parquet", "2", "space 1, town 1"],
    ]
    assert boilerplate[1:] == [["terms of use", "3", "12,000"], ["all rights reserved", "3", "900"]]
    assert letters[1:] == [["text_not_a_string", "11"], ["json_invalid", "3"]]
    assert left_out == [
        "7 of 1 pair of an evaluation row and a training row, by --max_details_per_pair",
        "1,234 of 1 training file, by --max_details",
    ]
    assert facts[facts.index("training rows") + 1] == "5"
    assert options == ["ngram_lengths", "3,", "5", "tokenizer", "default"]


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
    content["tokenizer"] = HOSTILE
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
            for place in (".set", ".id", "#matrix-table tbody th", "#boilerplate-table tbody th"):
                assert HOSTILE in seen.page.locator(place).all_inner_texts()
            seen.page.fill("#filter", HOSTILE)
            assert len(shown_instances(seen)) == 2


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
        assert shown_instances(seen) == ["id �"]
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
        assert shown_instances(seen) == ["many"]


def test_no_hit_is_said_plainly(tmp_path: Path, browser: "Browser") -> None:
    page = made(tmp_path, {"clean": SETS["clean"]}, TRAINING)
    with visit(browser, page) as seen:
        assert seen.page.inner_text("#verdict") == (
            "No shared n-gram was found. None of 2 evaluation instances shares one with the "
            "training data."
        )
        assert table(seen, "#matrix-table")[1] == ["clean", *["0 % 0 of 2"] * 3]
        assert seen.page.locator(".instance").count() == 0
        body = seen.page.inner_text("body")
        assert not seen.complaints
    assert "No instance overlaps." in body and "No training file hits an instance." in body


def test_without_details_places_come_from_the_matches(tmp_path: Path, browser: "Browser") -> None:
    page = made(tmp_path, SETS, TRAINING, max_details=0)
    with visit(browser, page) as seen:
        seen.page.click("#open-all")
        assert "The texts are not shown" in seen.page.inner_text("main")
        assert seen.page.locator(".side").count() == 0
        card = seen.page.locator(".instance", has_text="s0")
        places = card.locator(".document").nth(1).locator("dd").all_inner_texts()
        documents = card.locator("h4").all_text_contents()
        seen.page.fill("#filter", "part-1.parquet")
        assert shown_instances(seen) == ["t0", "s0"]
    text = TRAINING["gs://corpus/part-1.parquet"][1][1]
    start = text.index("which planet")
    assert places == ["0–33", f"{start}–{start + 33}"]
    assert documents == ["Training document without an id", "Training document e1"]


def test_a_row_that_a_cap_leaves_out_is_beside_one_with_texts(tmp_path: Path, browser) -> None:
    page = made(tmp_path, SETS, TRAINING, max_details=3)
    with visit(browser, page) as seen:
        assert "The texts are not shown" not in seen.page.inner_text("main")
        cards = seen.page.locator(".instance").all()
        has_texts = [card.locator(".side").count() > 0 for card in cards]
        has_places = [card.locator(".places").count() > 0 for card in cards]
    assert has_texts == [not has for has in has_places] and set(has_texts) == {True, False}


# --- the numbers --------------------------------------------------------------------------------


def coverage_line(number: int, n: int, coverage: float, documents: int) -> dict[str, Any]:
    return {
        "eval_dataset": "set",
        "instance_id": f"i{number}",
        "eval_path": "eval/set/test.jsonl",
        "eval_row": number,
        "n": n,
        "num_train_documents": documents,
        "spans": [[0, 9]],
        "longest_span": 9,
        "num_tokens": 100,
        "num_covered_tokens": round(100 * coverage),
        "coverage": coverage,
    }


def test_the_worst_of_ten_thousand_instances(tmp_path: Path) -> None:
    write_output(tmp_path, {"set": [("a", PLANET)]}, {"t.jsonl": [("d", PLANET)]}, (3,))
    random = Random(1)
    lines = [
        coverage_line(number, n, random.randrange(101) / 100, random.randrange(1, 40))
        for number in random.sample(range(10_000), 10_000)
        for n in (3, 5)
    ]
    path = tmp_path / "stats/overlap_coverage.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    best: dict[int, tuple[float, int]] = {}
    for line in lines:
        rank = (line["coverage"], line["num_train_documents"])
        best[line["eval_row"]] = max(rank, best.get(line["eval_row"], rank))
    wanted = sorted(best, key=lambda row: (-best[row][0], -best[row][1], row))[:50]
    found = statistics_of(tmp_path).instances
    assert [instance.coverage[0].eval_row for instance in found] == wanted
    assert all([line.n for line in instance.coverage] == [3, 5] for instance in found)
    assert [instance.coverage[0].instance_id for instance in found] == [f"i{row}" for row in wanted]


def test_the_documents_that_share_most_are_shown(tmp_path: Path) -> None:
    words = PLANET.split()
    lengths = [4, 9, 3, 12, 5, 9, 3]
    training = {"t.jsonl": [(f"d{size}", " ".join(words[:size])) for size in lengths]}
    write_output(tmp_path, {"set": [("a", PLANET)]}, training, (3,))
    (instance,) = statistics_of(tmp_path).instances
    assert [document.train_row for document in instance.documents] == [3, 1, 5]
    assert [sum(d.num_ngrams.values()) for d in instance.documents] == [10, 7, 7]


def test_details_of_any_size_are_read_in_little_memory(tmp_path: Path) -> None:
    write_output(tmp_path, {"set": [("a", PLANET)]}, {"t.jsonl": [("d", PLANET)]}, (3,))
    path = tmp_path / "stats/overlap_details.jsonl.gz"
    (first, *_) = details = read_lines(path)
    other = json.dumps({**first, "eval_row": 99, "train_text": filler(20_000)}).encode() + b"\n"
    same = [json.dumps({**d, "train_text": f"{PLANET} {filler(20_000)}"}) for d in details]
    block = other * 50 + "".join(f"{line}\n" for line in same).encode()
    members = []
    for row in range(20):
        mine = block.replace(b'"train_row": 0', b'"train_row": %d' % row)
        members.append(gzip.compress(mine, 1))
    path.write_bytes(b"".join(members))
    assert 20 * len(block) > 64 << 20
    statistics_of(tmp_path)  # what is imported and cached does not count
    tracemalloc.start()
    (instance,) = statistics_of(tmp_path).instances
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(instance.documents) == 3 and instance.documents[0].in_eval.passages
    assert peak < 16 << 20


def test_details_of_another_spelling_are_read_as_well(tmp_path: Path) -> None:
    write_output(tmp_path, SETS, TRAINING, (3, 5))
    expected = statistics_of(tmp_path)
    path = tmp_path / "stats/overlap_details.jsonl.gz"
    turned = [dict(reversed(record.items())) for record in read_lines(path)]
    path.write_bytes(gzip.compress("".join(f"{json.dumps(r)}\n" for r in turned).encode()))
    assert statistics_of(tmp_path).instances == expected.instances


def test_the_fifty_files_that_hit_most(tmp_path: Path) -> None:
    write_output(tmp_path, SETS, TRAINING, (3,))
    random = Random(2)
    hits = {f"part-{number:03d}": random.randrange(1, 30) for number in range(300)}
    lines = [
        {
            "train_path": path,
            "eval_dataset": "space",
            "n": n,
            "num_instances": hits[path],
            "instance_ids": [str(i) for i in range(hits[path] if n == 3 else 1)],
        }
        for path in sorted(hits)
        for n in (3, 5)
    ]
    path = tmp_path / "stats/overlap_stats_by_train_path.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    statistics = statistics_of(tmp_path)
    wanted = sorted(hits, key=lambda path: (-hits[path], path))[:50]
    assert [(file.path, file.num_hit) for file in statistics.train_files] == [
        (path, hits[path]) for path in wanted
    ]
    assert statistics.num_train_files_hit == 300


def test_the_same_output_gives_the_same_page(page: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.html"
    assert report.main([str(page.parent / "output"), "--html", str(again)]) == 0
    assert again.read_bytes() == page.read_bytes()


def test_an_output_on_gs(page: Path, tmp_path: Path, gcs: Gcs) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(page.parent / "output", f"{bucket}/run[1]")
    html = tmp_path / "gs.html"
    assert report.main([f"{bucket}/run[1]/", f"--html={html}"]) == 0
    local = page.read_text().replace(str(page.parent / "output"), f"{bucket}/run[1]")
    assert html.read_text() == local
    assert report.main([str(page.parent / "output"), f"--html={bucket}/report.html"]) == 0
    from beam_pipeline.storage.files import open_file

    assert open_file(f"{bucket}/report.html").read() == page.read_bytes()


def test_a_folder_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    output = tmp_path / "out[1]*"
    output.mkdir()
    write_output(output, SETS, TRAINING, (3,), dead_letters={"json_invalid": 2})
    assert statistics_of(output).summary.counts["dead_letters"] == {"json_invalid": 2}


@pytest.mark.parametrize("max_details", [-1, 0])
def test_the_report_of_a_real_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_details: int
) -> None:
    """The job's own output gives what the folder made by plain loops gives, in all parts."""
    from beam_pipeline.overlap.__main__ import main

    monkeypatch.chdir(tmp_path)
    odd = ("odd", "a lone \ud800 surrogate and\tmore of it"), ("bare", "!!")
    sets = {**SETS, "odd": odd}
    training = {f"corpus/{Path(path).stem}.jsonl": texts for path, texts in TRAINING.items()}
    training["corpus/odd.jsonl"] = [("d \udfff", f"See: {odd[0][1]}"), ("x", "..."), (None, "red")]
    for path, texts in [
        *((eval_path(name), texts) for name, texts in sets.items()),
        *training.items(),
    ]:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        records = [{"text": text} | ({} if id is None else {"id": id}) for id, text in texts]
        Path(path).write_text("".join(f"{json.dumps(record)}\n" for record in records))
    argv = ["--input_path=corpus", "--output_path=real", "--ngram_length=3,5"]
    argv += [f"--decontaminate_source=eval/{name}" for name in sets]
    assert main([*argv, f"--max_details={max_details}"]) == 0
    Path("made").mkdir()
    write_output(
        Path("made"), sets, dict(sorted(training.items())), (3, 5), None if max_details else 0
    )
    real, own = statistics_of(Path("real")), statistics_of(Path("made"))
    assert len(real.instances) > 5 and real.num_train_files_hit == 3
    counts = own.summary.counts
    assert counts == {name: real.summary.counts[name] for name in counts}
    real.summary.counts = counts
    assert bool(real.left_out) == (max_details == 0)
    assert real == dataclasses.replace(own, path="real", left_out=real.left_out)


# --- pieces -------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted), max_size=30))
def test_merged_ranges_cover_the_same_places(spans: list[tuple[int, int]]) -> None:
    result = merge_spans(spans)
    places = {place for start, end in spans for place in range(start, end)}
    assert {place for start, end in result for place in range(start, end)} == places
    assert all(one[1] < other[0] for one, other in itertools.pairwise(result))


@given(st.data())
def test_passages_are_the_text_in_order(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([0, 10, WHOLE_CHARS, WHOLE_CHARS + 1, 5_000, 20_000]))
    random = Random(data.draw(st.integers(0, 9)))
    text = "".join(random.choices("ab \u0301\u200d\U0001f600", k=size))
    ends = st.tuples(st.integers(0, size), st.sampled_from([1, 20, 300, 3_000]))
    spans = merge_spans((s, min(size, s + n)) for s, n in data.draw(st.lists(ends, max_size=20)))
    shown, _ = passages(text, spans)
    at, shared = 0, set()
    for piece in shown:
        assert bool(piece.text) != bool(piece.num_omitted)
        assert text[at : at + len(piece.text)] == piece.text
        places = range(at, at + len(piece.text))
        if piece.is_shared:
            shared.update(places)
        else:
            assert not any(start < at + len(piece.text) and at < end for start, end in spans) or (
                piece.num_omitted
            )
        at += len(piece.text) + piece.num_omitted
    assert at == size
    assert sum(len(piece.text) for piece in shown) <= max(WHOLE_CHARS, 6 * 1_700)
    covered = {place for start, end in spans for place in range(start, end)}
    assert shared <= covered and (size > WHOLE_CHARS or shared == covered)
    assert bool(shared) == bool(covered)


def test_no_character_and_no_word_is_torn() -> None:
    text = "a\u0301" * 5_000
    # A window would begin and end within a character.
    gap, before, _, after, _ = passages(text, [(4_001, 4_011)]).pieces
    assert gap.num_omitted and before.text.startswith("a") and after.text.endswith("\u0301")
    words = "seven letters " * 500
    before, first, *_ = passages(words, [(3_010, 3_020)]).pieces
    assert before.num_omitted and first.text.startswith(("seven", "letters"))


def test_every_cell_can_be_read() -> None:
    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    shares = [0.0, *np.geomspace(1e-5, 1, 200)]
    all_colors = [cell_colors(float(share)) for share in shares]
    for colors in all_colors:
        for background, text in (colors[:2], colors[2:]):
            low, high = sorted((luminance(background), luminance(text)))
            assert (high + 0.05) / (low + 0.05) >= 4.5
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


# --- the picture --------------------------------------------------------------------------------


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


# --- errors -------------------------------------------------------------------------------------


def refusal(capsys: pytest.CaptureFixture, *argv: object) -> tuple[int, str]:
    code = report.main([str(argument) for argument in argv])
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("error: ") and error.count("\n") == 1
    return code, error


def test_an_unfinished_output_is_refused(tmp_path: Path, capsys) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        code, error = refusal(capsys, folder)
        assert code == 2 and "has no .SUCCESS" in error and str(folder) in error
    code, error = refusal(capsys, "strange://bucket/out")
    assert code == 2 and "strange://bucket/out" in error


@pytest.mark.parametrize("argv", [["--instances=-1"], ["--instances=1001"], ["--instances=x"], []])
def test_flags_are_checked(tmp_path: Path, capsys, argv: list[str]) -> None:
    code, _ = refusal(capsys, *([tmp_path] if argv else []), *argv)
    assert code == 2


@pytest.mark.parametrize(
    "name",
    [
        "progress/progress_summary.json",
        "stats/overlap_stats.jsonl",
        "stats/overlap_stats_by_train_path.jsonl",
        "stats/overlap_coverage.jsonl",
        "stats/overlap_details.jsonl.gz",
    ],
)
@pytest.mark.parametrize("damage", ["cut", "other fields", "gone"])
def test_a_damaged_output_is_named(tmp_path: Path, capsys, name: str, damage: str) -> None:
    write_output(tmp_path, SETS, TRAINING, (3,))
    path = tmp_path / name
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        data = b'{"something": "else"}\n'
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        if name.startswith("progress"):
            return
    html = tmp_path / "report.html"
    code, error = refusal(capsys, tmp_path, f"--html={html}")
    assert code == 1 and name in error and not html.exists()


def test_a_page_that_cannot_be_written(page: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    code, error = refusal(capsys, page.parent / "output", f"--html={tmp_path / 'file/report.html'}")
    assert code == 1 and "cannot write" in error


@pytest.mark.parametrize(("package", "argv"), [("jinja2", []), ("matplotlib", ["--png=x.png"])])
def test_a_missing_package_is_named_with_its_extra(
    page: Path, tmp_path: Path, package: str, argv: list[str]
) -> None:
    script = (
        "import sys, importlib.util as u; find = u.find_spec; "
        f"u.find_spec = lambda name, *more: None if name == {package!r} else find(name, *more); "
        "from beam_pipeline.overlap.report.__main__ import main; sys.exit(main())"
    )
    result = subprocess.run(
        [*warm_python(), "-c", script, str(page.parent / "output"), *argv],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert package in result.stderr and "pip install 'probeline[report]'" in result.stderr
    assert not list(tmp_path.iterdir())


def test_the_command_is_light_until_it_reads() -> None:
    heavy = ("apache_beam", "pyarrow", "numpy", "numba", "matplotlib", "jinja2")
    script = (
        "import sys, beam_pipeline.overlap.report.__main__; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=ROOT)
    assert result.stdout.strip() == b"[]", result.stderr


def test_errors_of_python_callers(tmp_path: Path) -> None:
    with pytest.raises(ProbelineError, match=r"no \.SUCCESS"):
        report.write_report(str(tmp_path))
