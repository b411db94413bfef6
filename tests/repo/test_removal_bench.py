"""The bench of the removal: its corpus, its peers, what counts, its table."""

from pathlib import Path

import orjson
import pytest

from benchmarks import overlap_removal, overlap_texts
from benchmarks.overlap_removal import CONTENDERS, MODES, Case, N, cases
from benchmarks.peers.plain_removal import pieces_of
from benchmarks.results import Results, Run
from tests.support.benches import run_the_bench, shown_in_a_document


@pytest.mark.slow
def test_a_hundredth_of_the_documents_has_a_passage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap_texts, "BLOCK_MB", 1)
    monkeypatch.setattr(overlap_texts, "EVALUATION_ROWS", 1_000)
    overlap_removal.write_corpus(f"{tmp_path}/corpus", 20, "jsonl", 1)
    documents, rows = (
        [orjson.loads(line)["text"] for line in (tmp_path / "corpus" / name).open("rb")]
        for name in ("in/train-000.jsonl", "quiz.jsonl")
    )
    assert len(documents) > 200
    for text, row in zip(documents[::100], rows, strict=False):
        assert " ".join(row.split(" ")[1 : 1 + N]) in text


def test_a_peer_takes_part_where_it_can() -> None:
    wanted = cases([*CONTENDERS], MODES, ["jsonl", "parquet"], 20)
    starts = {case.contender for case in wanted if not case.mb}
    assert starts == set(CONTENDERS)
    ways = {(case.contender, case.file_format, case.mode) for case in wanted if case.mb}
    assert ways == {
        *(("probeline", name, mode) for name in ("jsonl", "parquet") for mode in MODES),
        *(("plain", "jsonl", mode) for mode in MODES),
        ("duckdb", "parquet", "document"),
    }


def test_the_loop_cuts_at_spans_and_their_margins() -> None:
    text = "a" * 500 + "SHARED" + "b" * 300 + "AGAIN" + "c" * 500
    spans = [{"start": 500, "end": 506}, {"start": 806, "end": 811}]
    assert pieces_of(text, spans, "document") == []
    assert pieces_of(text, spans, "split") == ["a" * 300, "c" * 300]
    masked = text.replace("SHARED", "⟦removed⟧").replace("AGAIN", "⟦removed⟧")
    assert pieces_of(text, spans, "mask") == [masked]


def test_the_rate_is_of_the_text_alone() -> None:
    def run(contender: str, mb: int, cpu_s: float) -> Run:
        case = vars(Case(contender, "mask", "jsonl.gz", mb))
        figures = {"cpu_s": cpu_s, "text_mb": float(mb), "num_documents": mb}
        return Run(case, figures)

    runs = [run("probeline", 0, 1.0), run("probeline", 200, 3.0)]
    runs += [run("plain", 0, 1.0), run("plain", 200, 1.01)]
    found = Results("overlap_removal", "2026-01-01", {"rounds": 1}, runs=runs)
    shown = overlap_removal.markdown([found]).splitlines()
    assert shown[2].endswith("| 200 | 200 |  | 3.0 |  | 1.0 | 100 |")
    assert shown[3].endswith("| 1.0 |  |")  # the difference is noise


@pytest.mark.slow
def test_the_bench_runs_and_its_table_goes_into_a_document(tmp_path: Path) -> None:
    flags = ["--mb=20", "--rounds=1", "--formats", "jsonl.zst", "parquet"]
    flags += ["--modes", "document", "mask"]
    found = run_the_bench("overlap_removal", tmp_path, *flags)
    assert not [run for run in found.runs if run.error]
    assert len([run for run in found.runs if run.case["mb"]]) == 4 + 3
    assert shown_in_a_document("overlap_removal", tmp_path).strip() == overlap_removal.markdown(
        [found]
    )
