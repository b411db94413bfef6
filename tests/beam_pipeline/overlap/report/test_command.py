"""The command of the overlap report: flags, filesystems, damage and errors."""

import shutil
from pathlib import Path

import pytest
from markupsafe import escape

from beam_pipeline.overlap.report import __main__ as report
from tests.support.engines import Gcs


def test_equal_outputs_give_equal_pages(output: Path, page: Path, tmp_path: Path) -> None:
    assert report.main([str(output), f"--html={tmp_path}/again.html"]) == 0
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_an_output_on_gs(output: Path, page: Path, tmp_path: Path, gcs: Gcs) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(output, f"{bucket}/run[1]")
    html = tmp_path / "gs.html"
    assert report.main([f"{bucket}/run[1]/", f"--html={html}"]) == 0
    path, remote = str(output), f"{bucket}/run[1]"
    local = page.read_text().replace(f"overlap: {path}<", f"overlap: {remote}<")
    local = local.replace(f"<bdi>{path}</bdi>", f"<bdi>{remote}</bdi>", 2)
    quoted = f"--result_path {escape(f"'{remote}'")}"
    assert html.read_text() == local.replace(f"--result_path {path}", quoted)
    assert report.main([path, f"--html={bucket}/report.html"]) == 0
    from beam_pipeline.storage.files import open_file

    assert open_file(f"{bucket}/report.html").read() == page.read_bytes()


def refusal(capsys: pytest.CaptureFixture, *argv: object) -> tuple[int, str]:
    capsys.readouterr()
    code = report.main([str(argument) for argument in argv])
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("error: ") and error.count("\n") == 1
    return code, error


def test_no_output_and_invalid_flags(tmp_path: Path, capsys) -> None:
    assert refusal(capsys, tmp_path, "--instances=1001")[0] == 2
    code, error = refusal(capsys, tmp_path)
    assert code == 2 and "has no .SUCCESS" in error and str(tmp_path) in error
    code, error = refusal(capsys, "strange://bucket/out")
    assert code == 2 and "strange://bucket/out" in error


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("progress/progress_summary.json", "cut"),
        ("stats/overlap_verdicts.jsonl", "cut"),
        ("stats/overlap_stats_by_train_path.jsonl", "gone"),
        ("stats/overlap_coverage.jsonl", "other fields"),
        ("stats/overlap_details.jsonl.gz", "cut"),
        ("stats/overlap_matches.parquet", "gone"),
        ("stats/overlap_documents.parquet", "other fields"),
        ("stats/report.json", "cut"),
    ],
)
def test_a_damaged_output(output: Path, tmp_path: Path, capsys, name: str, damage: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(output, copy)
    path = copy / name
    data = path.read_bytes()
    (copy / "stats/report.json").unlink()  # so that the other files are read
    if damage == "cut":
        path.write_bytes(data[:-9])
    elif damage == "other fields":
        path.write_bytes(b'{"something": "else"}\n')
    else:
        path.unlink()
    html = tmp_path / "report.html"
    code, error = refusal(capsys, copy, f"--html={html}")
    assert code == 1 and name in error and not html.exists()


def test_a_page_that_cannot_be_written(output: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    code, error = refusal(capsys, output, f"--html={tmp_path / 'file/report.html'}")
    assert code == 1 and "cannot write" in error
