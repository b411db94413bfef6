"""The memory of a run does not grow with the places of its matches."""

import json
import random
import sys
from pathlib import Path

import pytest

from tests.support.peak_memory import peak_memory

MAX_MIB = 900  # of which some 400 are libraries; matches with all their places at once take 1,700


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
    command = [
        sys.executable,
        "-m",
        "beam_pipeline.overlap",
        f"--input_path={tmp_path}/train.jsonl",
    ]
    command += [f"--decontaminate_source=set={tmp_path}/rows.jsonl", "--ngram_length=13"]
    flags = [f"--output_path={tmp_path}/out", "--details=none"]
    assert peak_memory([*command, *flags]) < MAX_MIB
    summary = json.loads((tmp_path / "out/progress/progress_summary.json").read_text())
    assert summary["counts"]["matches"] >= 8 * 1500
