"""Evaluation rows whose texts and ids are in fields of their own."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from tests.support.overlap_hits import EvalRow, Options, TrainRow
from tests.support.overlap_jobs import SHARED, read_lines, write_lines
from tests.support.overlap_reference import expected_outputs

ANSWER = "because the teacher said so on a rainy day in may"
SEEN = [SHARED, f"{SHARED} {ANSWER}", "not a word of this is in any question"]
ROWS: list[dict[str, Any]] = [
    {"qid": 7, "doc": {"question": SHARED, "choices": ["x", ANSWER]}, "gold": 1},
    {"qid": 8, "doc": {"question": "who has ever asked this before", "choices": [ANSWER]}},
    {"qid": 9, "doc": {"question": "what is not in there at all", "choices": None}, "gold": 2},
    {"qid": 10, "doc": {"question": None}},
]


def run(folder: Path, *flags: str, path: Path | None = None) -> int:
    source = path or write_lines(folder / "eval/quiz/test.jsonl", *ROWS)
    train = write_lines(folder / "in/train.jsonl", *({"content": text} for text in SEEN))
    return main(
        [
            *(f"--input_path={train}", f"--decontaminate_source=quiz={source}"),
            *(f"--output_path={folder}/out", "--text_field=content", "--ngram_length=6", *flags),
        ]
    )


def compare(folder: Path, rows: list[EvalRow]) -> None:
    train = str(folder / "in/train.jsonl")
    training = [TrainRow(train, row, None, text) for row, text in enumerate(SEEN)]
    expected = expected_outputs(rows, training, Options((6,), TOKENIZERS["default"]))
    for name in ("overlap_stats.jsonl", "overlap_details.jsonl.gz"):
        assert read_lines(folder / "out/stats" / name) == expected[f"stats/{name}"]


def test_each_field_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    flags = [f"--eval_text_field=doc.{name}" for name in ("question", "choices")]
    assert run(tmp_path, *flags, "--eval_fields=each", "--eval_id_field=qid") == 0
    where = str(tmp_path / "eval/quiz/test.jsonl")
    question, choices = "quiz:doc.question", "quiz:doc.choices"
    rows = [
        *(
            EvalRow(question, where, at, str(7 + at), row["doc"]["question"])
            for at, row in enumerate(ROWS[:3])
        ),
        EvalRow(choices, where, 0, "7", f"x\n{ANSWER}"),
        EvalRow(choices, where, 1, "8", ANSWER),
    ]
    compare(tmp_path, rows)
    both = ["doc.question", "doc.choices"]
    found = read_lines(tmp_path / "out/stats/overlap_fields.jsonl")
    assert [
        (row["eval_dataset"], row["instance_id"], row["eval_row"], row["fields_hit"])
        for row in found
    ] == [("quiz", "7", 0, both), ("quiz", "8", 1, both[1:])]
    for name, share in (("coverage", 11 / 12), ("ngram_coverage", 6 / 7)):  # but for x
        expected = [{"doc.question": 1.0, "doc.choices": share}, {"doc.choices": 1.0}]
        assert [row[name] for row in found] == expected
    out = capsys.readouterr().out
    lines = {f"1 row of quiz hit in {fields}" for fields in ("doc.question, doc.choices", both[1])}
    assert lines <= set(out.splitlines())
    assert "3 texts of 1 training file and 5 rows of 1 evaluation file" in out
    assert (tmp_path / "out/clean" / f"{question}.jsonl").exists()


def test_samples_of_lm_evaluation_harness(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    samples = [
        {
            "doc_id": 0,
            "doc": {"question": question},
            "target": target,
            "arguments": {"gen_args_0": {"arg_0": f"Q: {question}\nA:", "arg_1": " so"}},
            "resps": [["[invalid]"]],
            "filter": "none",
            "doc_hash": question[:4],
        }
        for question, target in ((SHARED, ANSWER), ("who has ever asked this before", "1"))
    ]
    path = write_lines(tmp_path / "eval/samples_quiz_2026.jsonl", *samples)
    assert run(tmp_path, path=path) == 1
    assert "say --eval_format=lm_eval for samples" in capsys.readouterr().err
    assert run(tmp_path, "--eval_format=lm_eval", path=path) == 0
    texts = [f"Q: {SHARED}\nA:\n{ANSWER}", "Q: who has ever asked this before\nA:\n1"]
    ids = [SHARED[:4], "who "]
    rows = [
        EvalRow("quiz", str(path), at, name, text)
        for at, (name, text) in enumerate(zip(ids, texts, strict=True))
    ]
    compare(tmp_path, rows)


def test_a_field_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "eval").mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS), table := tmp_path / "eval/test.parquet")
    for path, flags, message in (
        (table, [], "its records have qid, doc.question, doc.choices, gold; name the field with"),
        (None, ["--eval_text_field=doc.question,anwser"], "in the field 'anwser': correct --eval"),
        (None, ["--eval_text_field=doc"], "no record with a text in the field 'doc'"),
    ):
        assert run(tmp_path, *flags, path=path) == 1
        assert message in capsys.readouterr().err
