"""The bench of text with many hits: its corpus, its cases, what it reads of a run."""

import json
from pathlib import Path

import pytest

from benchmarks import overlap_hits, overlap_texts
from benchmarks.overlap_hits import CONTENDERS, LONG, PLAIN, PLANTED
from benchmarks.results import Results, Run

ROWS = [
    {"eval_key": "arc", "question": "Which rock floats?", "answer": "None", "is_correct": False},
    {"eval_key": "arc", "question": "Which rock floats?", "answer": "Pumice", "is_correct": True},
    {"eval_key": "gsm", "question": "How much is it?"},
]


def test_each_question_is_planted_once_with_its_right_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap_texts, "BLOCK_MB", 1)
    monkeypatch.setattr(overlap_texts, "EVALUATION_ROWS", 500)
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets/all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    overlap_hits.write_corpus(f"{tmp_path}/out", f"{tmp_path}/sets", 20, 1)
    assert sorted(path.name for path in (tmp_path / "out/evals").iterdir()) == [
        "arc.jsonl",
        "gsm.jsonl",
    ]
    planted, plain, long = (
        (tmp_path / f"out/training-{text}/train.jsonl").read_text()
        for text in (PLANTED, PLAIN, LONG)
    )
    assert planted.count("Which rock floats?\\nPumice") == 1 and planted.count("floats") == 1
    assert planted.count("How much is it?") == 1 and "floats" not in plain
    texts = [json.loads(line)["text"] for line in planted.splitlines()]
    assert json.loads(long)["text"] == "\n".join(texts)


def test_the_cost_of_a_match_is_what_the_same_text_without_them_does_not_take() -> None:
    runs = [
        Run({"contender": "none", "text": text}, {"cpu_s": cpu_s, "num_matches": matches})
        for text, cpu_s, matches in ((PLANTED, 7.0, 1_000_000), (PLAIN, 4.0, 0))
    ]
    options = {"rounds": 1, "mb": 20, "n": 13}
    shown = overlap_hits.markdown(Results("overlap_hits", "2026-01-01", options, runs=runs))
    assert "| 1,000,000 | 3.00 |" in shown


def test_what_peers_say_is_read(tmp_path: Path) -> None:
    said = "│ Contaminated matches   93 │\n│ Contaminated documents   1,091 │"
    assert overlap_hits.found("decon", tmp_path, said) == {"num_documents": 1091}
    (tmp_path / "_FINAL_SUMMARY.json").write_text('{"total_contaminated": 5}')
    assert overlap_hits.found("corpus-assay", tmp_path, "") == {"num_documents": 5}


def test_a_peer_without_a_program_is_named(tmp_path: Path, monkeypatch) -> None:
    for contender in CONTENDERS.values():
        monkeypatch.delenv(contender.program or "UNUSED", raising=False)
    for name in ("overlap-hits-1-20", "overlap-hits-rows-1"):
        (tmp_path / name).mkdir()
    args = ["--evals", str(tmp_path), "--mb=20", "--rounds=0", "--contenders", "decon"]
    folders = [f"--data_dir={tmp_path}", f"--results={tmp_path}/results"]
    assert overlap_hits.main([*args, *folders]) == 0
