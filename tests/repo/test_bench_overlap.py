"""The overlap bench: its corpus, its peers, the check of what they found, its tables."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import orjson
import pytest

from benchmarks import (
    ROOT,
    bench_overlap,
    overlap_corpus,
    overlap_found,
    overlap_table,
    overlap_texts,
    results,
    runner,
)
from benchmarks.bench_overlap import Case, OverlapBench
from benchmarks.overlap_contenders import (
    CONTENDERS,
    OverlapJob,
    command,
    no_environment,
    obstacle,
)
from benchmarks.peers import joined_strings
from benchmarks.results import Results, Run
from tests.support.benches import run_the_bench, shown_in_a_document

PASSAGE = "The quick brown fox, it jumps over the lazy dog & runs through the wood at night"


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, Path]:
    """A training file with the passage in two of its documents, and an evaluation set."""
    training = [f"document {row} of {row * 7} words and more" for row in range(30)]
    training[4] += f" {PASSAGE.upper()} {PASSAGE}"
    training[9] = f"Ünï {PASSAGE}"
    evaluation = [f"Question: {PASSAGE}?", "jumps over the lazy", "is not there, " * 20]
    paths = tmp_path / "training.jsonl", tmp_path / "evaluation.jsonl"
    for path, texts in zip(paths, (training, evaluation), strict=True):
        path.write_bytes(b"".join(orjson.dumps({"text": text}) + b"\n" for text in texts))
    return paths


# --- the corpus -----------------------------------------------------------------------------


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap_texts, "BLOCK_MB", 1)
    monkeypatch.setattr(overlap_texts, "EVALUATION_ROWS", 500)


def test_a_corpus_is_the_same_in_every_format_and_by_its_seed(
    small_blocks: None, tmp_path: Path
) -> None:
    paths = [tmp_path / f"a.{name}" for name in overlap_corpus.FORMATS]
    for path in paths:
        overlap_texts.write_training(path, 0, 2, seed=7)
    sizes = [overlap_found.size([str(path)]) for path in paths]
    assert sizes == [sizes[0]] * len(paths)
    assert sizes[0]["text_bytes"] == pytest.approx(2e6, rel=0.1)
    rest, other = tmp_path / "rest.jsonl", tmp_path / "other.jsonl"
    overlap_texts.write_training(rest, 1, 2, seed=7)
    overlap_texts.write_training(other, 1, 2, seed=8)
    whole = (tmp_path / "a.jsonl").read_bytes()
    assert whole.endswith(rest.read_bytes()) and not whole.endswith(other.read_bytes())
    texts = [*joined_strings.texts(tmp_path / "a.jsonl")]
    assert 0.4 < sum(text.isascii() for text in texts) / len(texts) < 0.6


def test_every_passage_is_planted(small_blocks: None, tmp_path: Path) -> None:
    path, evaluation, more = (tmp_path / f"{name}.jsonl" for name in ("a", "e", "more"))
    overlap_texts.write_training(path, 0, 1, seed=1)
    overlap_texts.write_evaluation(evaluation, 500, seed=1)
    overlap_texts.write_evaluation(more, 1200, seed=1)
    assert more.read_bytes().startswith(evaluation.read_bytes())
    wanted = joined_strings.sets_of(joined_strings.texts(evaluation), [13])[13]
    hit = [
        row
        for row, text in enumerate(joined_strings.texts(path))
        if wanted & {*joined_strings.ngrams_of(joined_strings.tokens_of(text), 13)}
    ]
    assert len(hit) == overlap_texts.NUM_PLANTED


# --- what contenders find -------------------------------------------------------------------


def test_a_row_of_few_tokens_is_one_ngram_of_the_peer(
    own: tuple[Path, Path], tmp_path: Path
) -> None:
    told = {
        "lengths": [6],
        "num_read": 1,
        "num_documents": 1,
        "ngrams": [[4, "jumps over the lazy", 3, 2], [6, "it jumps over the lazy dog", 3, 2]],
    }
    output = tmp_path / "found"
    output.write_bytes(orjson.dumps(told))
    found = overlap_found.read_peer(output, own[1])
    # The first row has as many tokens as are asked for: its 4-grams are none of its own.
    rows = [(0, 6, "it jumps over the lazy dog", 3, 2), (1, 4, "jumps over the lazy", 3, 2)]
    assert found["num_ngrams"] == 2
    assert found["digest"] == overlap_found.summary(rows)["digest"]
    told["ngrams"][0][2] += 1
    output.write_bytes(orjson.dumps(told))
    assert overlap_found.read_peer(output, own[1])["digest"] != found["digest"]


@pytest.mark.parametrize("name", ["datatrove-split", "datatrove"])
def test_datatrove_drops_the_documents_with_a_hit(
    name: str, own: tuple[Path, Path], tmp_path: Path
) -> None:
    if missing := no_environment("datatrove"):
        pytest.skip(missing)
    job = OverlapJob([own[0]], own[1], [6], tmp_path)
    done = subprocess.run(command(name, job), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = runner.call("benchmarks.overlap_found:ngrams", job.output, job.evaluation)
    assert (found["num_read"], found["num_documents"]) == (30, 2)
    assert "digest" not in found


# --- the bench ------------------------------------------------------------------------------


def run_overlap(folder: Path, *flags: str, code: int = 0) -> Results:
    return run_the_bench("overlap", folder, *flags, module="bench_overlap", code=code)


@pytest.mark.slow
def test_in_a_users_corpus_the_peer_finds_what_the_job_finds(
    own: tuple[Path, Path], tmp_path: Path
) -> None:
    flags = [f"--corpus={own[0]}", f"--evaluation={own[1]}", "--lengths=3,6", "--rounds=1"]
    saved = run_overlap(tmp_path, *flags, "--contenders", "joined", "probeline")
    measured = [run for run in saved.runs if run.case["part"] == "peers"]
    assert [run.case["contender"] for run in measured] == ["joined", "probeline"]
    assert len(saved.runs) == 4  # two of them on 20 documents
    assert len({run.details["digest"] for run in measured}) == 1
    assert all(run.error is None and run.figures["cpu_s"] > 0 for run in saved.runs)
    for name in ("num_ngrams", "num_documents"):
        assert measured[0].figures[name] == measured[1].figures[name]
    assert measured[1].figures["num_documents"] == 2
    assert measured[1].figures["num_ngrams"] > 20
    assert "| joined strings in a set | 3,6 |" in shown_in_a_document("overlap", tmp_path)


@pytest.mark.slow
def test_all_parts_run(tmp_path: Path) -> None:
    flags = ["--mb=10", "--peer_mb=10", "--rounds=1", "--growth_rows=2000", "--lengths=5"]
    saved = run_overlap(tmp_path, *flags, "--contenders=probeline", "--formats=parquet")
    cases = [run.case for run in saved.runs]
    assert {case["part"] for case in cases} == {"start", "peers", "formats", "growth"}
    assert all(run.error is None for run in saved.runs)
    passes = {run.case["num_shards"]: run.figures.get("num_passes") for run in saved.runs}
    assert passes[4] == 4


def test_runs_that_found_something_else_fail(tmp_path: Path) -> None:
    folders = [f"--data_dir={tmp_path}", f"--results={tmp_path}"]
    bench = OverlapBench(bench_overlap.arguments(folders))
    case = Case("peers", "joined", 20, "jsonl", "13", 9000)
    size = {"num_texts": 5, "text_bytes": 99}
    assert bench.fault(case, {"num_read": 5, "digest": "a"}, size) is None
    other = replace(case, part="formats", contender="probeline", file_format="parquet")
    assert "other n-grams" in str(bench.fault(other, {"num_read": 5, "digest": "b"}, size))
    assert bench.fault(replace(other, mb=40), {"num_read": 5, "digest": "b"}, size) is None
    fault = bench.fault(case, {"num_read": 4, "digest": "a"}, size)
    assert fault == "it read 4 texts, not 5"


@pytest.mark.slow
def test_a_contender_that_fails_is_in_the_results(own: tuple[Path, Path], tmp_path: Path) -> None:
    own[0].write_text("no JSON\n")
    flags = [f"--corpus={own[0]}", f"--evaluation={own[1]}", "--lengths=5", "--rounds=1"]
    saved = run_overlap(tmp_path, *flags, "--contenders=joined", code=1)
    assert "JSONDecodeError" in str(saved.runs[-1].error)


def test_the_bench_itself_stays_small() -> None:
    # The peak memory of a child is never below what its parent used.
    script = "import sys, benchmarks.bench_overlap; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not {"apache_beam", "numba", "numpy", "pyarrow"} & {*done.stdout.split()}


def test_cases_and_what_cannot_run(tmp_path: Path) -> None:
    args = bench_overlap.arguments(["--mb=1001", "--peer_mb=90"])
    found = bench_overlap.cases(args)
    assert len(found) == len(set(found))
    sizes = {case.mb for case in found if case.part == "growth"}
    assert sizes == {240, 500, 1000, 2000}
    english = [case for case in found if case.contender == "datatrove" and case.part == "peers"]
    assert {case.mb for case in english} == {20}
    joined = next(case for case in found if case.contender == "joined" and case.part == "peers")
    assert joined.mb == 80 and joined.lengths == "13"
    assert obstacle("joined", "jsonl.zst", 1) is None
    assert obstacle("joined", "parquet", 1) == "it reads JSON lines, not .parquet"
    for case in found:
        start = replace(case, part="start", mb=0, file_format="jsonl.zst")
        assert start in found
    own_data = bench_overlap.arguments(["--corpus=a.b.jsonl.gz", "--evaluation=e.jsonl"])
    assert {case.file_format for case in bench_overlap.cases(own_data) if case.mb} == {"jsonl.gz"}


# --- the table ------------------------------------------------------------------------------


def run_of(case: Case, cpu_s: float, **figures: float) -> Run:
    measured = {"text_mb": float(max(case.mb, 0)), "wall_s": cpu_s, "cpu_s": cpu_s}
    return Run(asdict(case), {**measured, "peak_mib": 500.0, **figures}, None, 0, 0.1)


@pytest.fixture
def measured() -> Results:
    ours = Case("peers", "probeline", 200, "jsonl.zst", "13", 9000)
    starts = {name: replace(ours, part="start", contender=name, mb=0) for name in CONTENDERS}
    ngrams = {"num_ngrams": 40, "num_documents": 50}
    runs = [
        run_of(starts["probeline"], 3.0),
        run_of(starts["joined"], 1.0),
        replace(run_of(ours, 5.0, **ngrams), details={"digest": "a"}),
        replace(run_of(replace(ours, contender="joined"), 21.0, **ngrams), details={"digest": "a"}),
        run_of(replace(ours, part="formats"), 5.0, num_passes=1),
        run_of(replace(ours, part="growth", mb=400), 7.0, num_passes=2, num_indexed=15_600_000),
    ]
    options = {"rounds": 1, "versions_of_peers": {}}
    skipped = [{**asdict(replace(ours, contender="datatrove")), "reason": "it is not there"}]
    return Results("overlap", "2026-01-01T00:00:00+00:00", options, skipped=skipped, runs=runs)


def test_the_tables_tell_whole_runs_and_start_up_apart(measured: Results) -> None:
    shown = overlap_table.markdown(measured)
    ours = (
        "| Probeline, the whole job | 13 | 200 | 40.0 | 3.0 | 100 | 4.2 | 10.0 | 5.0 | 500 | 50 |"
    )
    assert ours in shown
    assert "| .jsonl.zst | 13 | 1 | 200 | 40.0 | 3.0 | 100 | 5.0 | 500 |" in shown
    assert "index of 15.6 M n-grams" in shown
    assert "| 400 | 2 | 7.0 | 3.0 | 10.0 | 7.0 | 500 |" in shown
    assert "found the same in the same text" in shown
    assert "datatrove, its English tokeniser did not run for n = 13: it is not there." in shown


def test_the_tables_tell_of_failures_and_of_what_is_unknown(measured: Results) -> None:
    start, _, ours, joined, *_ = measured.runs
    measured.runs = [start, ours, replace(joined, error="exit code 1: no", figures={})]
    shown = overlap_table.markdown(measured)
    assert (
        "| Probeline, the whole job | 13 | 200 | 40.0 | 3.0 | 100 |  |  | 5.0 | 500 | 50 |" in shown
    )
    assert "| joined strings in a set | failed |" in shown
    assert "joined strings in a set failed 1 of 1 runs for n = 13." in shown
    measured.runs = [start, replace(ours, figures={**ours.figures, "cpu_s": 3.1})]
    shown = overlap_table.markdown(measured)
    assert "| 64.5 | 3.0 |  |" in shown  # too short to tell it from the start


def test_the_note_tells_of_different_ngrams(measured: Results) -> None:
    measured.runs[3] = replace(measured.runs[3], details={"digest": "b"})
    assert "found DIFFERENT ONES" in overlap_table.markdown(measured)


def test_results_load_as_they_were_saved(measured: Results, tmp_path: Path) -> None:
    path = tmp_path / "overlap-x.json"
    results.save(measured, path)
    assert results.load(path) == measured
    assert json.loads(path.read_text())["medians"][0]["contender"] == "probeline"
