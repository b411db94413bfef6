"""CSV and Markdown of the overlap report have the figures of the page."""

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from beam_pipeline.overlap.report import __main__ as report
from beam_pipeline.overlap.report.sets import LEVELS
from beam_pipeline.overlap.report.tables import Table, csv_of, markdown_of, share_text
from beam_pipeline.report.tables import count_text
from tests.support.browser import visit
from tests.support.overlap_folder import write_output
from tests.support.overlap_report import table

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TEXT = "one text that is in both"
NAMES = ("sets", "rules", "fields", "rows")
NAMES += ("removal", "removal_by_file", "removal_by_set", "removed")
NAMES += (
    "train_files",
    "boilerplate",
    "dead_letters",
    "run",
    "options",
)


def read_csv(page: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(page.with_name(f"report.{name}.csv").read_text())))


def spellings(value: str) -> set[str]:
    """Returns how a page may write a value of CSV: as text, a count or a share."""
    try:
        number = float(value)
    except ValueError:
        return {value}
    return {value, count_text(number), share_text(number)}


def test_every_table_is_a_file(page: Path) -> None:
    assert {path.name for path in page.parent.glob("report.*")} == {
        "report.html",
        "report.md",
        *(f"report.{name}.csv" for name in NAMES),
    }


def test_csv_has_the_figures_of_the_page(page: Path, browser: "Browser") -> None:
    with visit(browser, page, has_script=False) as seen:
        on_page = {
            name: table(seen, f"#{name.replace('_', '-')}-table")
            for name in (
                *("rules", "removal_by_file", "removal_by_set"),
                "boilerplate",
            )
        }
        matrices = [table(seen, f"#matrix-{place}") for place in range(len(LEVELS))]
        files = table(seen, "#files-table")
        facts = [
            dict(zip(*[iter(seen.page.locator(f"#{name} :is(dt, dd)").all_inner_texts())] * 2))
            for name in ("facts", "options")
        ]
    with visit(browser, page) as seen:
        listed = table(seen, "#rows-table")
    for name, (head, *rows) in on_page.items():
        lines = read_csv(page, name)
        assert list(lines[0]) == head
        assert [list(line.values()) for line in lines] == [
            [cell.replace(",", "") for cell in row] for row in rows
        ]
    sets = read_csv(page, "sets")
    for level, (_, *rows) in zip(LEVELS, matrices, strict=True):
        for name, covered, *cells in rows:
            for n, cell in zip(("any", "3", "5"), cells, strict=True):
                (line,) = (
                    line
                    for line in sets
                    if (line["evaluation set"], line["n"]) == (name, n)
                    and float(line["coverage at least"]) == level
                )
                share = share_text(float(line["share"])).replace("\u00a0", " ")
                assert cell == f"{share} {line['instances hit']} of {line['instances']}"
                assert n != "any" or line["tokens covered"] == covered
    rows = read_csv(page, "rows")
    assert len(rows) == len(listed) - 1 == 4
    for row, (_, name, id, tokens, coverage, _, path, number) in zip(rows, listed[1:], strict=True):
        assert [row["evaluation set"], row["id"], row["file"], row["row"]] == [
            *(name, id, path, number)
        ]
        assert tokens == f"{row['tokens covered']} of {row['tokens']}"
        assert coverage == share_text(float(row["coverage"])).replace("\u00a0", " ")
    matrix = read_csv(page, "train_files")
    assert [
        [row["training file"], row["instances"], ", ".join(
            f"{name} {row[name]}" for name in ("space", "town", "clean") if row[name] != "0"
        )]
        for row in matrix
    ] == files[1:]  # fmt: skip
    for name, said in zip(("run", "options"), facts, strict=True):
        columns = [list(row.values()) for row in read_csv(page, name)]
        assert said == {key: value or "–" for key, value in columns}


def test_markdown_has_the_cells_of_csv(page: Path) -> None:
    text = page.with_name("report.md").read_text().replace("\\", "")
    parts = text.split("\n## ")[1:]
    for name, part in zip(NAMES, parts, strict=True):
        lines = [line[2:-2].split(" | ") for line in part.splitlines() if line.startswith("|")]
        expected = read_csv(page, name)
        assert bool(lines) == bool(expected) != ("None." in part)
        if not lines:
            continue
        head, _, *rows = lines
        assert head == list(expected[0])
        for row, line in zip(rows, expected, strict=True):
            for cell, value in zip(row, line.values(), strict=True):
                assert cell in spellings(value), (name, value)


def test_odd_values_stay_in_their_cells() -> None:
    names = ['a "quoted", one', "two\nlines | of | it", "*bold* `code` <b>", None]
    columns = {"name": names * 14, "share": [0.0, 0.25, 0.9999, 1.0] * 14}
    odd = Table("odd", "Odd", pa.table(columns))
    rows = list(csv.reader(io.StringIO(csv_of(odd).decode())))
    assert [row[0] for row in rows] == ["name", *[*names[:3], ""] * 14]
    text = markdown_of([odd], "a # b").decode()
    assert text.startswith("# a \\# b\n") and text.endswith("\n6 more are not shown.\n")
    assert "| two lines \\| of \\| it | 25.0\u00a0% |" in text
    assert "| \\*bold\\* \\`code\\` \\<b\\> | \\>99.9\u00a0% |" in text


@pytest.mark.parametrize("formats", ["csv", "markdown, csv"])
def test_only_the_formats_asked_for_are_written(page: Path, tmp_path: Path, formats: str) -> None:
    argv = [str(page.parent / "output"), f"--html={tmp_path}/r.html", f"--format={formats}"]
    assert report.main(argv) == 0
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {f"r.{name}.csv" for name in NAMES} | (
        {"r.md"} if "markdown" in formats else set()
    )


def test_an_unknown_format_is_named(page: Path, capsys: pytest.CaptureFixture) -> None:
    assert report.main([str(page.parent / "output"), "--format=csv,pdf"]) == 2
    assert "--format=pdf: give some of html, csv, markdown" in capsys.readouterr().err


def test_files_have_all_boilerplate_and_all_fields(tmp_path: Path) -> None:
    ngrams = [{"ngram": f"n {at}", "n": 2, "documents": 9} for at in range(60)]
    sets, training = {"a": [("0", TEXT)]}, {"t.jsonl": [("d", TEXT)]}
    (tmp_path / "output").mkdir()
    folder = write_output(tmp_path / "output", sets, training, [2], boilerplate=ngrams)
    rows = [{"eval_dataset": "a", "fields_hit": hit} for hit in (["q"], ["q", "answer"], ["q"])]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "stats/overlap_fields.jsonl").write_text(lines)
    assert report.main([str(folder), f"--html={tmp_path}/report.html", "--format=csv"]) == 0
    page = tmp_path / "report.html"
    assert len(read_csv(page, "boilerplate")) == 60
    assert [list(row.values()) for row in read_csv(page, "fields")] == [
        ["a", "q", "2"],
        ["a", "q, answer", "1"],
    ]
