"""The warnings of rows in scripts without spaces, and of rows of long tokens."""

import json
from pathlib import Path

import pytest

from beam_pipeline.overlap.__main__ import main
from tests.support.overlap_jobs import write_lines

QUESTION = "下列关于水循环的说法中，哪一项是正确的？海水蒸发后形成云。"
THAI = "ข้อใดต่อไปนี้เป็นเมืองหลวงของประเทศไทย"


def run(folder: Path, *flags: str) -> dict:
    paths = [f"--input_path={folder}/in", f"--decontaminate_source={folder}/eval"]
    one = "--direct_num_workers=1"
    assert main([*paths, f"--output_path={folder}/out", "--overwrite", one, *flags]) == 0
    return json.loads((folder / "out/progress/progress_summary.json").read_text())


def test_a_tokenizer_that_cannot_split_a_script_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    write_lines(
        tmp_path / "in/train.jsonl", {"text": f"昨天{QUESTION}"}, {"text": f"ก่อน{THAI}main()"}
    )
    write_lines(tmp_path / "eval/test.jsonl", {"text": QUESTION}, {"text": THAI})
    summary = run(tmp_path)
    (warning,) = summary["warnings"]
    assert warning == (
        "Warning: 2 of 2 evaluation rows are in scripts without spaces and have few tokens with "
        "--tokenizer=default, so that little of them is found; --tokenizer=multilingual finds it"
    )
    out, err = capsys.readouterr()
    assert err.count(warning) == out.count(warning) == 1
    assert (summary["counts"]["matches"], summary["counts"]["unspaced_eval_rows"]) == (0, 2)
    summary = run(tmp_path, "--tokenizer=multilingual")
    assert summary["counts"]["matches"] > 0 and not summary["warnings"]


def test_many_rows_of_long_tokens_are_a_warning(tmp_path: Path) -> None:
    rows = [{"text": "_".join(["word"] * 50) + f"_{at} more"} for at in range(16)]
    write_lines(tmp_path / "eval/test.jsonl", *rows, {"text": "a row of words"})
    write_lines(tmp_path / "in/train.jsonl", {"text": "a text of words"})
    (warning,) = run(tmp_path, "--tokenizer=whitespace")["warnings"]
    assert "16 of 17 evaluation rows have more than 40 bytes a token" in warning
