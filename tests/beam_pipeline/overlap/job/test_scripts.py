"""Texts in scripts without spaces: the warning where they are lost, and how they are found."""

import json
from pathlib import Path

import pytest

from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.remove import main as remove
from tests.support.overlap_jobs import write_lines

QUESTION = "下列关于水循环的说法中，哪一项是正确的？海水蒸发后形成云。"
THAI = "ข้อใดต่อไปนี้เป็นเมืองหลวงของประเทศไทย"
BEFORE, AFTER = "昨天老师在课堂上说了很多话，" * 3, "大家都记了笔记main函数。" * 3
TEXTS = [f"{BEFORE}{QUESTION}{AFTER}", "没有什么可看的东西", f"ก่อน{THAI}main()"]
N = 12


def run(folder: Path, *flags: str, corpus: str = "in", output: str = "out") -> int:
    write_lines(
        folder / "eval/quiz/test.jsonl", {"id": "zh", "text": QUESTION}, {"id": "th", "text": THAI}
    )
    return main(
        [
            *(f"--input_path={folder}/{corpus}", f"--decontaminate_source={folder}/eval/quiz"),
            *(f"--output_path={folder}/{output}", f"--ngram_length={N}", "--direct_num_workers=1"),
            *flags,
        ]
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_lines(tmp_path / "in/train.jsonl", *({"text": text} for text in TEXTS))
    return tmp_path


def summary_of(folder: Path, output: str = "out") -> dict:
    return json.loads((folder / output / "progress/progress_summary.json").read_text())


def test_a_tokenizer_that_cannot_split_a_script_is_a_warning(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run(folder) == 0
    summary = summary_of(folder)
    (warning,) = summary["warnings"]
    assert warning == (
        "Warning: 2 of 2 evaluation rows are in scripts without spaces and have few tokens with "
        "--tokenizer=default, so that little of them is found; --tokenizer=multilingual finds it"
    )
    out, err = capsys.readouterr()
    assert err.count(warning) == out.count(warning) == 1
    assert (summary["counts"]["matches"], summary["counts"]["unspaced_eval_rows"]) == (0, 2)


@pytest.mark.parametrize(("num_rows", "num_warnings"), [(15, 0), (16, 1)])
def test_many_rows_of_long_tokens_are_a_warning(
    tmp_path: Path, num_rows: int, num_warnings: int
) -> None:
    rows = [{"text": "_".join(["word"] * 50) + f"_{at} more"} for at in range(num_rows)]
    write_lines(tmp_path / "eval/long/test.jsonl", *rows, {"text": "a row of words"})
    write_lines(tmp_path / "in/train.jsonl", {"text": "a text of words"})
    paths = [f"--input_path={tmp_path}/in", f"--decontaminate_source={tmp_path}/eval/long"]
    assert main([*paths, f"--output_path={tmp_path}/out", "--tokenizer=whitespace"]) == 0
    warnings = summary_of(tmp_path)["warnings"]
    assert len(warnings) == num_warnings
    for warning in warnings:
        assert "16 of 17 evaluation rows have more than 40 bytes a token" in warning


@pytest.mark.parametrize(
    ("mode", "texts"),
    [
        ("split", [BEFORE[:-2], AFTER[1:], TEXTS[1], "ก่"]),
        ("mask", [f"{BEFORE}⟦removed⟧。{AFTER}", TEXTS[1], "ก่อน⟦removed⟧main()"]),
    ],
)
def test_a_passage_in_such_a_script_is_removed(folder: Path, mode: str, texts: list[str]) -> None:
    assert run(folder, "--tokenizer=multilingual") == 0
    assert summary_of(folder)["warnings"] == []
    flags = [f"--remove={mode}", "--margin_chars=2", "--min_piece_chars=1"]
    paths = [f"--result_path={folder}/out", f"--output_path={folder}/clean"]
    assert remove([*paths, *flags, "--direct_num_workers=1"]) == 0
    lines = (folder / "clean/documents/train.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == texts
    again = {"corpus": "clean/documents", "output": "again"}
    assert run(folder, "--tokenizer=multilingual", **again) == 0
    assert summary_of(folder, "again")["counts"]["matches"] == 0
