"""The recall bench: what it plants, what must not be found, its scores, its peers, its tables."""

import gzip
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ROOT, overlap_recall, recall_scores, recall_table
from benchmarks.overlap_contenders import no_environment
from benchmarks.overlap_recall import PEERS, SWEPT_ROWS, SWEPT_TOKENS, Case
from benchmarks.recall_corpus import GUARD, KINDS, SHARED_BY, SHORT, write_corpus
from benchmarks.results import Results, Run
from tests.support.benches import run_the_bench, shown_in_a_document

NUM_ROWS, NUM_PER_KIND, NUM_BACKGROUND = 48, 4, 12


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recall") / "corpus"
    write_corpus(str(folder), None, NUM_ROWS, NUM_PER_KIND, NUM_BACKGROUND, seed=5)
    return folder


def texts(path: Path) -> dict[str, str]:
    records = map(json.loads, path.read_text().splitlines())
    return {record["id"]: record["text"] for record in records}


def grams(text: str, n: int = GUARD) -> set[tuple[str, ...]]:
    """N-grams by another way than the generator's."""
    tokens = re.findall(r"[^\s!-/:-@\[-`{-~]+", text.lower())
    return {tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1)}


def truth(corpus: Path) -> dict[str, Any]:
    return json.loads((corpus / "truth.json").read_text())


# --- the corpus ---------------------------------------------------------------------------------


def test_a_corpus_is_the_same_by_its_seed(corpus: Path, tmp_path: Path) -> None:
    for seed in (5, 6):
        folder = tmp_path / str(seed)
        write_corpus(str(folder), None, NUM_ROWS, NUM_PER_KIND, NUM_BACKGROUND, seed)
        for name in ("corpus.jsonl", "evals.jsonl", "truth.json", "evals/code.jsonl"):
            same = (folder / name).read_bytes() == (corpus / name).read_bytes()
            assert same == (seed == 5), name


def test_every_plant_is_where_the_truth_says(corpus: Path) -> None:
    documents, rows = texts(corpus / "corpus.jsonl"), texts(corpus / "evals.jsonl")
    plants = truth(corpus)["plants"]
    kinds = [plant["kind"] for plant in plants]
    assert kinds == [kind for kind in (*KINDS, SHORT) for _ in range(NUM_PER_KIND)]
    for plant in plants:
        kind, text = plant["kind"], plant["text"]
        document, row = documents[plant["document"]], rows["{}-{}".format(*plant["place"])]
        assert document.count(text) == 1 or (kind == SHORT and text in document)
        is_paragraph = (
            text in re.split(r"\n\n", document) or f"\n\n{text}\n\n" in f"\n\n{document}\n\n"
        )
        assert is_paragraph == (kind not in ("embedded", SHORT))
        if kind == "verbatim":
            assert text == row
        if kind in ("lines", "embedded"):
            assert text.split() == row.split() and grams(text) == grams(row)
            assert kind != "lines" or max(len(line.split()) for line in text.split("\n")) == 8
        if kind in ("prefix", "suffix"):
            assert text in " ".join(row.split()) and grams(text) < grams(row)
        if kind == "paraphrase":
            assert len(grams(text) & grams(row)) < len(grams(row)) / 2
        if kind == SHORT:
            assert not grams(row) and text == row


def test_kin_have_half_of_their_ngrams_in_the_plant(corpus: Path) -> None:
    rows = {name: grams(text) for name, text in texts(corpus / "evals.jsonl").items()}
    some = 0
    for plant in truth(corpus)["plants"]:
        planted = grams(plant["text"])
        kin = {name for name, own in rows.items() if own and 2 * len(own & planted) >= len(own)}
        kin.discard("{}-{}".format(*plant["place"]))
        assert {"{}-{}".format(*place) for place in plant["kin"]} == kin
        some += len(kin)
    assert some


def test_what_must_not_be_found_shares_nothing(corpus: Path) -> None:
    rows = [grams(text) for text in texts(corpus / "evals.jsonl").values()]
    every = set().union(*rows)
    kinds = truth(corpus)["documents"]
    for name, text in texts(corpus / "corpus.jsonl").items():
        shared = grams(text) & every
        if kinds[name] in ("background", "near", SHORT):
            assert not shared
        if kinds[name] == "boilerplate":
            assert shared
            assert sum(gram in own for own in rows for gram in [min(shared)]) > 1
    common = {gram for gram in every if sum(gram in own for own in rows) > SHARED_BY}
    assert common  # the instruction and the licence


def test_evaluation_sets_of_a_folder_are_planted(tmp_path: Path) -> None:
    lines = [
        {
            "question": f"What is {at} times {at} if {at * 7} of {at * 11} are gone, asks Ann",
            "answer": str(at),
        }
        for at in range(60)
    ]
    with gzip.open(tmp_path / "maths.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in [*lines, lines[0], {"other": 1}])
    write_corpus(str(tmp_path / "corpus"), str(tmp_path), 50, 2, 3, seed=1)
    rows = texts(tmp_path / "corpus/evals/maths.jsonl")
    assert len(rows) == 50 and all(re.search(r"\n\d+$", text) for text in rows.values())
    planted = [plant["kind"] for plant in truth(tmp_path / "corpus")["plants"]]
    assert planted[:2] == ["verbatim"] * 2


# --- scores -------------------------------------------------------------------------------------

TRUTH: dict[str, Any] = {
    "num_tokens": {"a": [20, 20, 3, 20]},
    "documents": {"verbatim-0": "verbatim", "lines-1": "lines", "near-0": "near"},
    "plants": [
        {"document": "verbatim-0", "kind": "verbatim", "place": ["a", 0], "kin": [["a", 3]]},
        {"document": "lines-1", "kind": "lines", "place": ["a", 1], "kin": []},
    ],
}


@pytest.mark.parametrize(
    ("unit", "items", "found", "false", "precision"),
    [
        ("pairs", {("verbatim-0", "a", 0), ("verbatim-0", "a", 3)}, (1, 0), {}, 1.0),
        ("pairs", {("lines-1", "a", 3), ("near-0", "a", 2)}, (0, 0),
         {"long rows": 1, "short rows": 1}, 0.0),
        ("rows", {("a", 0), ("a", 1), ("a", 2), ("a", 3)}, (1, 1), {"short rows": 1}, 2 / 3),
        ("documents", {"lines-1", "near-0"}, (0, 1), {"near": 1}, 0.5),
        ("documents", set(), (0, 0), {}, None),
    ],
)  # fmt: skip
def test_scores_tell_right_from_false(
    unit: str, items: set, found: tuple[int, int], false: dict[str, int], precision: float | None
) -> None:
    told = recall_scores.score(TRUTH, (unit, "x"), items)
    assert told["planted"] == {"verbatim": 1, "lines": 1}
    assert tuple(told["found"].values()) == found
    assert (told["false"], told["precision"]) == (false, precision)


# --- contenders ---------------------------------------------------------------------------------


def test_cases_have_every_limit_and_n() -> None:
    wanted = overlap_recall.cases(["probeline", *PEERS])
    assert len(wanted) == len(set(wanted)) == 3 + len(SWEPT_ROWS) + len(SWEPT_TOKENS) + 10
    assert {case.n for case in wanted if case.contender == "dolma, any n-gram"} == {8, 13}
    flags = {*overlap_recall.command(overlap_recall.LIMITED, Path("c"), Path("o"))}
    assert {
        "--drop_ngrams=c/common-50-drop_empty.jsonl",
        "--min_tokens=8",
        "--tokenizer=drop_empty",
    } <= flags


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_finds_a_copied_row(name: str, tmp_path: Path) -> None:
    if missing := no_environment(PEERS[name][0]):
        pytest.skip(missing)
    (tmp_path / "evals").mkdir()
    row = " ".join(f"word{at} of the list," for at in range(12))
    for path, records in (
        ("corpus.jsonl", {"copy-0": row, "other-0": "nothing of that kind is in this text " * 4}),
        ("evals.jsonl", {"set-0": row, "set-1": "another row with words of its own " * 5}),
    ):
        lines = (json.dumps({"id": key, "text": text}) + "\n" for key, text in records.items())
        (tmp_path / path).write_text("".join(lines))
    command = overlap_recall.command(Case(name, 8), tmp_path, tmp_path / "found")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "found").read_text())
    is_reversed = "--reverse" in PEERS[name]
    wanted = {"documents": ["copy-0"], "rows": ["set-0"], "pairs": [["copy-0", "set-0"]]}
    unit = "pairs" if "pairs" in told else "rows" if is_reversed else "documents"
    assert told[unit] == wanted[unit] and told["version"]


@pytest.mark.slow
def test_the_job_finds_every_copy(tmp_path: Path) -> None:
    sizes = [f"--num_rows={NUM_ROWS}", f"--num_per_kind={NUM_PER_KIND}", "--num_background=9"]
    saved = run_the_bench(
        "recall", tmp_path, *sizes, "--contenders=probeline", module="overlap_recall"
    )
    assert all(run.error is None for run in saved.runs)
    (run,) = (
        run for run in saved.runs if Case(**run.case) == Case("probeline", tokenizer="drop_empty")
    )
    told = {(score["unit"], score["detector"]): score for score in run.details["scores"]}
    for n in ("n = 8", "n = 13"):
        pairs = told["pairs", n]
        copies = {kind: pairs["found"][kind] for kind in ("verbatim", "lines", "embedded", SHORT)}
        assert set(copies.values()) == {NUM_PER_KIND}, n
    assert told["rows", "gpt3"] == told["rows", "n = 13"] | {"detector": "gpt3"}
    shown = shown_in_a_document("recall", tmp_path)
    assert "| Probeline: n = 8 | 4 |" in shown and "`--min_tokens`" in shown


# --- the tables ---------------------------------------------------------------------------------


def test_the_tables_tell_units_and_limits_apart() -> None:
    def run_of(case: Case, *scores: dict[str, Any]) -> Run:
        return Run(vars(case), {}, None, details={"scores": [*scores]})

    found = {"planted": {"verbatim": 60, "short": 60}, "found": {"verbatim": 59, "short": 7}}
    pairs = {"unit": "pairs", "detector": "n = 8", **found, "false": {"long rows": 1234}}
    both = [
        {**each, "detector": detector, "precision": 0.9}
        for detector in ("n = 8", "n = 13")
        for each in (pairs, {**pairs, "unit": "rows"})
    ]
    peer = {"unit": "documents", "detector": "", **found, "false": {"near": 2}, "precision": None}
    runs = [
        run_of(Case("probeline"), *both),
        run_of(Case("probeline", min_tokens=8), *both),
        run_of(Case("datatrove, cut at spaces", 13), peer),
    ]
    names: list[str] = ["rounds", "num_rows", "num_per_kind", "num_background", "seed"]
    options = dict.fromkeys(names, 1)
    skipped = [{**vars(Case("datatrove, cut at spaces", 8)), "reason": "it is not there"}]
    results = Results("recall", "2026-01-01T00:00:00+00:00", options, skipped=skipped, runs=runs)
    shown = recall_table.markdown(results)
    assert "| Probeline: n = 8 | 59 | 7 | 0 | 1,234 | 90.0% |" in shown
    assert "| datatrove, cut at spaces, n = 13 | 59 | 7 | 0 | 2 | 0 |  |" in shown
    assert "| 8 | 13 | 59 | 7 | 1,234 | 0 | 1,234 | 0 |" in shown  # of --min_tokens
    assert "`K`** " not in shown
    assert "datatrove, cut at spaces, n = 8 did not run: it is not there." in shown
