"""Reports of small outputs: evaluation sets and training files, and what their pages show."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from beam_pipeline.overlap.report import __main__ as report
from beam_pipeline.overlap.report.output import Output
from beam_pipeline.overlap.report.statistics import Statistics, read_statistics
from tests.support.browser import Visit
from tests.support.overlap_folder import Texts, eval_path, write_output

if TYPE_CHECKING:
    from playwright.sync_api import Locator

_WORDS = [f"{one}{two}" for one in "bdfgklmnprst" for two in ("a", "e", "i", "o", "um", "ir")]
PLANET = "Which planet has the largest moon of all, and who saw it first?"
RTL = "ما هي عاصمة فرنسا وما هو أكبر نهر يمر بها"
COMBINING = "Cafe\u0301 de\u0301ja\u0300 vu in the old town of Kraków by night"


def filler(num_words: int = 40, seed: int = 0) -> str:
    """Returns words of no meaning, which texts of other seeds hardly share."""
    return " ".join(Random(f"filler {seed}").choices(_WORDS, k=num_words))


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
RULES = [
    {
        "eval_dataset": "space",
        "rule": "llama2",
        "n": 11,
        "score": "coverage",
        "num_instances": 4,
        "num_clean": 2,
        "num_between": 1,
        "num_dirty": 1,
        "num_dirty_by_short_texts": 1,
    }
]


def made(
    folder: Path, sets: Mapping[str, Texts], training: Mapping[str, Texts], *flags: str, **more: Any
) -> Path:
    """Writes an output for n of 3 and 5, and its report; returns the page."""
    output = folder / "output"
    output.mkdir()
    write_output(output, sets, training, (3, 5), **more)
    page = folder / "report.html"
    assert report.main([str(output), f"--html={page}", *flags]) == 0
    return page


def made_with_everything(folder: Path) -> Path:
    """Writes an output and its report that have something in every section."""
    return made(
        folder,
        SETS,
        TRAINING,
        "--format=html,csv,markdown",
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
        rules=RULES,
        max_document_frequency=800,
        max_details_per_pair=100,
        max_details=1_000,
    )


def statistics_of(output: Path, num_instances: int = 50) -> Statistics:
    """Reads what a report shows."""
    return read_statistics(Output(str(output)), num_instances, lambda _: None)


def table(seen: Visit, selector: str) -> list[list[str]]:
    """Returns the words of a table's rows, the head first."""
    rows = seen.page.locator(f"{selector} tr").all()
    return [[" ".join(t.split()) for t in row.locator("th, td").all_inner_texts()] for row in rows]


def marked(place: "Locator") -> list[str]:
    """Returns the texts that are highlighted."""
    return place.locator("mark").all_text_contents()


def shown_cards(seen: Visit) -> list[str]:
    """Returns the ids of the rows that are shown with documents."""
    return seen.page.locator(".instance:visible .id").all_text_contents()


def listed_rows(seen: Visit) -> list[str]:
    """Returns the ids in the list of rows."""
    return seen.page.locator("#rows-table tbody .id").all_text_contents()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a file of JSON lines."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.splitlines()]
