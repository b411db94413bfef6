"""Evaluation sets: every row with a text has a number, and what is read comes back."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_pipeline.documents.batch import decode
from beam_pipeline.documents.fields import Fields, record_hash
from beam_pipeline.errors import UsageError
from beam_pipeline.overlap.evaluation import (
    EvaluationRows,
    fingerprint_rows,
    match_evaluation,
    write_rows,
)
from beam_pipeline.overlap.evaluation_sources import (
    EvaluationSource,
    dataset_name,
    evaluation_sources,
    parse_evaluation_source,
)
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS, Tokenizer, tokenizer_named
from tests.support.overlap_jobs import write_lines

FIELDS = Fields("text", "id")


@pytest.fixture
def sets(tmp_path: Path) -> list[str]:
    mmlu, gsm8k = tmp_path / "mmlu-dolma-1a2b3c", tmp_path / "gsm8k"
    odd = [{"id": 7, "text": "a\ud800"}, {"id": 8}, {"id": 9, "text": None}, {"text": "", "x": 1}]
    write_lines(mmlu / "b.jsonl", *odd)
    with (mmlu / "b.jsonl").open("a") as file:
        file.write('{\n{"id": "ü", "text": "İ"}\n')
    write_lines(mmlu / "a.jsonl", {"id": "first", "text": "one"})
    write_lines(gsm8k / "x.jsonl", {"id": None, "text": "two"})
    return [str(mmlu), f"maths={gsm8k}"]


def column(rows: EvaluationRows, name: str, numbers: Iterable[int] | None = None) -> list[Any]:
    """Returns a column of some rows, or of all."""
    numbers = range(len(rows)) if numbers is None else numbers
    values = rows.take(np.array(numbers, np.int64))[name].to_pylist()
    return [decode(value) if isinstance(value, bytes) else value for value in values]


def texts_of(rows: EvaluationRows) -> list[str]:
    return column(rows, "text")


def test_a_folder_of_lm_eval_has_a_set_per_task(tmp_path: Path) -> None:
    time, unread = "_2026-10-01T00-00-00", list[str]()
    for model in ("one", "two"):
        for name in (f"results{time}.json", f"samples_a{time}.jsonl", "log.txt"):
            write_lines(tmp_path / model / name, {})
    write_lines(tmp_path / f"one/samples_b_c{time}.jsonl", {})

    def sets(*sources: str, is_lm_eval: bool = True) -> list[tuple[str, str]]:
        found = match_evaluation(sources, (), False, is_lm_eval, unread)
        return [(name, file.path.rpartition("/")[2].partition("_20")[0]) for name, file, _ in found]

    one, two = (f"{tmp_path}/{model}" for model in ("one", "two"))
    assert sets(one, two) == [("a", "samples_a"), ("b_c", "samples_b_c"), ("two-a", "samples_a")]
    assert unread == [f"{one}/log.txt", f"{two}/log.txt"]
    assert sets(f"x={one}") == [("x", "samples_a"), ("x", "samples_b_c")]
    assert sets(f"{one}/results{time}.json") == [("one", "results")]
    assert sets(two, is_lm_eval=False) == [("two", "results"), ("two", "samples_a")]


def test_rows_come_back_in_order(sets: list[str], tmp_path: Path) -> None:
    path = str(tmp_path / "rows.arrow")
    counts, letters = write_rows(match_evaluation(sets), path, FIELDS)
    assert counts == {"eval_records": 8, "eval_rows": 5, "eval_without_text": 2}
    assert [(letter.row, letter.reason) for letter in letters] == [(4, "json_invalid")]
    rows = EvaluationRows.open(path)
    assert rows.datasets == ["mmlu", "maths"]
    assert texts_of(rows) == ["one", "a\ud800", "", "İ", "two"]
    assert column(rows, "eval_dataset") == ["mmlu"] * 4 + ["maths"]
    assert column(rows, "eval_row") == [0, 0, 3, 5, 0]
    names = [path.rpartition("/")[2] for path in column(rows, "eval_path")]
    assert names == ["a.jsonl", *["b.jsonl"] * 3, "x.jsonl"]
    hashes = [record_hash(record) for record in ({"text": "", "x": 1}, {"id": None, "text": "two"})]
    ids = ["first", "7", hashes[0], "ü", hashes[1]]
    assert column(rows, "instance_id") == ids
    for some in ([], [0], [4], [1, 1, 3]):  # from several batches of the file
        assert column(rows, "instance_id", some) == [ids[number] for number in some]
    joined = [
        utf8[bounds[at] : bounds[at + 1]].tobytes()
        for utf8, bounds in rows.texts()
        for at in range(len(bounds) - 1)
    ]
    assert joined == [text.encode("utf-8", "surrogatepass") for text in texts_of(rows)]


def test_a_limit_takes_the_first_rows_of_each_set(sets: list[str], tmp_path: Path) -> None:
    path = str(tmp_path / "rows.arrow")
    write_rows(match_evaluation(sets), path, FIELDS, 2)
    assert texts_of(EvaluationRows.open(path)) == ["one", "a\ud800", "two"]


def halves(text: str) -> list[tuple[str, int, int]]:
    return [(text[:2], 0, 2)]


def test_fingerprint_depends_on_all_that_shapes_a_match(sets: list[str], tmp_path: Path) -> None:
    path = str(tmp_path / "rows.arrow")
    write_rows(match_evaluation(sets), path, FIELDS)
    default = TOKENIZERS["default"]
    prints = [
        fingerprint_rows(path, (5,), default, {"parts": 1}),
        fingerprint_rows(path, (5, 6), default, {"parts": 1}),
        fingerprint_rows(path, (5,), TOKENIZERS["no_lowercase"], {"parts": 1}),
        fingerprint_rows(path, (5,), default, {"parts": 2}),
        fingerprint_rows(path, (5,), Tokenizer("mine", function=halves), {"parts": 1}),  # type: ignore[arg-type]
        fingerprint_rows(path, (5,), Tokenizer("mine", function=len), {"parts": 1}),  # type: ignore[arg-type]
    ]
    write_rows(match_evaluation(sets[:1]), path, FIELDS)
    prints.append(fingerprint_rows(path, (5,), default, {"parts": 1}))
    assert len(set(prints)) == len(prints)
    write_rows(match_evaluation(sets), path, FIELDS)
    assert fingerprint_rows(path, (5, 5), tokenizer_named("default"), {"parts": 1}) == prints[0]


def test_rows_of_several_batches_are_found(tmp_path: Path) -> None:
    texts = [f"text {number} " + "x" * (number % 7) * 3000 for number in range(3000)]
    records = [{"id": number, "text": text} for number, text in enumerate(texts)]
    again = [{"id": 5, "text": "another"}, records[6]]  # an id of two texts, and a row twice
    file = write_lines(tmp_path / "many/x.jsonl", *records, *again)
    path = str(tmp_path / "rows.arrow")
    write_rows(match_evaluation([str(file)]), path, FIELDS)
    rows = EvaluationRows.open(path)
    assert len(rows.texts()) > 1
    some = sorted(np.random.default_rng(0).integers(0, 3000, 50).tolist())
    assert column(rows, "text", some) == [texts[number] for number in some]
    assert column(rows, "instance_id", some) == list(map(str, some))
    assert rows.count_repeated_ids() == 1


# --- names and paths ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("gs://bucket/evals/mmlu-dolma-1a2b3c", "mmlu"),
        ("gs://bucket/evals/mmlu-dolma-1a2b3c/**/x[0-9]/*.json", "mmlu"),
        ("gs://bucket/evals/gsm8k*/main.parquet", "evals"),
        ("/evals/gsm8k-main-abcdefa", "gsm8k-main-abcdefa"),
        ("/evals/gsm8k-1a2b3c-dolma", "gsm8k-1a2b3c"),
        ("/evals/-dolma", "-dolma"),
        ("mmlu=gs://b/x", "mmlu"),
        ("/e/lang=en/x.jsonl", "lang=en"),
        ("gs://b/lang=en", "lang=en"),
    ],
)
def test_name_of_a_set(path: str, name: str) -> None:
    given = path.removeprefix("mmlu=")
    assert parse_evaluation_source(path) == EvaluationSource(name, given)
    assert given != path or dataset_name(path) == name


def test_name_of_a_set_by_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dataset_name(f"{tmp_path}/arc[1]") == tmp_path.name
    (tmp_path / "arc[1]-dolma").mkdir()
    assert dataset_name(f"{tmp_path}/arc[1]-dolma") == "arc[1]"
    (tmp_path / "arc-dolma-0a1b2c").mkdir()
    monkeypatch.chdir(tmp_path / "arc-dolma-0a1b2c")
    assert dataset_name("test.jsonl") == dataset_name(".") == dataset_name("*.json") == "arc"
    assert dataset_name("sub/../x/") == "x"
    with pytest.raises(UsageError, match=r"no folder .*NAME=/"):
        dataset_name("/test.jsonl")


def test_folders_of_one_name_are_different_sets() -> None:
    given = ["hub/gsm8k/main", "hub/hellaswag/main/a.json", "hub/gsm8k/main/b.json", "arc=x/main"]
    names = [source.name for source in evaluation_sources(given)]
    assert names == ["main", "hellaswag-main", "main", "arc"]
    assert [s.name for s in evaluation_sources(["x=a/b", "x=c/d", "e/x"])] == ["x", "x", "e-x"]
    with pytest.raises(UsageError, match="NAME=gs://x"):
        evaluation_sources(["x=a/b", "gs://x"])
