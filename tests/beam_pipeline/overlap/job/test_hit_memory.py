"""The memory of a run is bounded: with many places of matches, long documents, many rows."""

import json
import random
import sys
from pathlib import Path

import pytest

from benchmarks import overlap_hits
from tests.support.peak_memory import peak_memory

MAX_MIB = 900  # of which some 400 are libraries; matches with all their places at once take 1,700
MAX_MIB_OF_ROWS = 750  # with two workers, which take 660; without handing pages back 830


@pytest.mark.slow
def test_a_template_of_many_rows_repeated_in_a_document_is_held_in_pieces(tmp_path: Path) -> None:
    rng = random.Random(0)

    def words(count: int) -> str:
        return " ".join(f"w{rng.randrange(10**6):x}" for _ in range(count))

    template = words(20)
    rows = [{"id": str(at), "text": f"{template} {words(5)}"} for at in range(1500)]
    repeated = " ".join(f"{template} {words(2)}" for _ in range(1500))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "train.jsonl").write_text(json.dumps({"id": "d", "text": repeated}) + "\n")
    assert peak_of_run(tmp_path) < MAX_MIB
    summary = json.loads((tmp_path / "out/progress/progress_summary.json").read_text())
    assert summary["counts"]["matches"] >= 8 * 1500


@pytest.mark.slow
def test_a_long_document_of_many_hits_is_scanned_in_sections(tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = [" ".join(rng.choices("abcdefgh", k=40)) for _ in range(200)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    text = "\n".join(
        " ".join(rng.choices("stuvwxyz", k=3000)) + rows[at % 200] for at in range(8000)
    )
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": text}) + "\n")
    assert len(text) > 48_000_000  # scanned at once it takes 1,400 MiB
    assert peak_of_run(tmp_path) < MAX_MIB
    summary = json.loads((tmp_path / "out/progress/progress_summary.json").read_text())
    assert summary["counts"]["matches"] >= 27 * 200


@pytest.mark.slow
def test_five_million_matches_of_a_hundred_thousand_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap_hits, "_NUM_ROWS", 100_000)
    overlap_hits.write_rows_corpus(str(tmp_path / "corpus"), 1)
    rows, training = (tmp_path / f"corpus/{name}" for name in ("evals-rows", "training-rows"))
    assert peak_of_run(tmp_path, rows, training) < MAX_MIB_OF_ROWS
    summary = json.loads((tmp_path / "out/progress/progress_summary.json").read_text())
    assert summary["counts"]["eval_rows"] == 100_000
    assert summary["counts"]["matches"] >= 5_000_000


def peak_of_run(folder: Path, rows: Path | None = None, training: Path | None = None) -> float:
    command = [sys.executable, "-m", "beam_pipeline.overlap", "--ngram_length=13"]
    command.append(f"--input_path={training or folder / 'train.jsonl'}")
    command.append(f"--decontaminate_source=set={rows or folder / 'rows.jsonl'}")
    return peak_memory([*command, f"--output_path={folder}/out", "--details=none"])
