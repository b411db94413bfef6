"""The command of the overlap report: flags, filesystems, damage and errors."""

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from markupsafe import escape

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.report import __main__ as report
from tests.support.engines import Gcs
from tests.support.repository import ROOT
from tests.support.warm_python import warm_python


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


def test_an_unfinished_output(tmp_path: Path, capsys) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        code, error = refusal(capsys, folder)
        assert code == 2 and "has no .SUCCESS" in error and str(folder) in error
    code, error = refusal(capsys, "strange://bucket/out")
    assert code == 2 and "strange://bucket/out" in error
    with pytest.raises(ProbelineError, match=r"no \.SUCCESS"):
        report.write_report(str(tmp_path))


@pytest.mark.parametrize("argv", [["--instances=-1"], ["--instances=1001"], ["--instances=x"], []])
def test_invalid_flags(tmp_path: Path, capsys, argv: list[str]) -> None:
    code, _ = refusal(capsys, *([tmp_path] if argv else []), *argv)
    assert code == 2


@pytest.mark.parametrize("damage", ["cut", "other fields", "gone"])
@pytest.mark.parametrize(
    "name",
    [
        "progress/progress_summary.json",
        "stats/overlap_verdicts.jsonl",
        "stats/overlap_stats_by_train_path.jsonl",
        "stats/overlap_coverage.jsonl",
        "stats/overlap_details.jsonl.gz",
        "stats/overlap_matches.parquet",
        "stats/overlap_documents.parquet",
        "stats/report.json",
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
        data = b'{"something": "else"}\n'
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    elif name != "stats/report.json":
        path.unlink()
    html = tmp_path / "report.html"
    if (name, damage) == ("stats/report.json", "gone"):  # as an older version left it
        assert report.main([str(copy), f"--html={html}"]) == 0
        return
    code, error = refusal(capsys, copy, f"--html={html}")
    assert code == 1 and name in error and not html.exists()


def test_a_page_that_cannot_be_written(output: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    code, error = refusal(capsys, output, f"--html={tmp_path / 'file/report.html'}")
    assert code == 1 and "cannot write" in error


def test_a_missing_package_is_named_with_its_extra(output: Path, tmp_path: Path) -> None:
    script = (
        "import sys, importlib.util as u; find = u.find_spec; "
        "u.find_spec = lambda name, *more: None if name == 'jinja2' else find(name, *more); "
        "from beam_pipeline.overlap.report.__main__ import main; sys.exit(main())"
    )
    result = subprocess.run(
        [*warm_python(), "-c", script, str(output)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "jinja2" in result.stderr and "pip install 'probeline[report]'" in result.stderr
    assert not list(tmp_path.iterdir())


def test_the_command_imports_nothing_heavy_until_it_reads() -> None:
    heavy = ("apache_beam", "pyarrow", "numpy", "numba", "matplotlib", "jinja2")
    script = (
        "import sys, beam_pipeline.overlap.report.__main__; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=ROOT)
    assert result.stdout.strip() == b"[]", result.stderr
