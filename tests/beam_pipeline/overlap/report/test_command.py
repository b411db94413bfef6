"""The command of the overlap report: flags, filesystems, damage and errors."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from markupsafe import escape

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.report import __main__ as report
from tests.support.engines import Gcs
from tests.support.overlap_folder import write_output
from tests.support.overlap_report import SETS, TRAINING
from tests.support.repository import ROOT
from tests.support.warm_python import warm_python


def test_the_same_output_gives_the_same_page(page: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.html"
    assert report.main([str(page.parent / "output"), "--html", str(again)]) == 0
    assert again.read_bytes() == page.read_bytes()


def test_an_output_on_gs(page: Path, tmp_path: Path, gcs: Gcs) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(page.parent / "output", f"{bucket}/run[1]")
    html = tmp_path / "gs.html"
    assert report.main([f"{bucket}/run[1]/", f"--html={html}"]) == 0
    local = page.read_text().replace(str(page.parent / "output"), f"{bucket}/run[1]")
    command = f"--result_path {bucket}/run[1]"
    quoted = escape(f"--result_path '{bucket}/run[1]'")
    assert html.read_text() == local.replace(command, str(quoted))
    assert report.main([str(page.parent / "output"), f"--html={bucket}/report.html"]) == 0
    from beam_pipeline.storage.files import open_file

    assert open_file(f"{bucket}/report.html").read() == page.read_bytes()


def refusal(capsys: pytest.CaptureFixture, *argv: object) -> tuple[int, str]:
    code = report.main([str(argument) for argument in argv])
    out, error = capsys.readouterr()
    assert out == "" and error.startswith("error: ") and error.count("\n") == 1
    return code, error


def test_an_unfinished_output_is_refused(tmp_path: Path, capsys) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        code, error = refusal(capsys, folder)
        assert code == 2 and "has no .SUCCESS" in error and str(folder) in error
    code, error = refusal(capsys, "strange://bucket/out")
    assert code == 2 and "strange://bucket/out" in error


@pytest.mark.parametrize("argv", [["--instances=-1"], ["--instances=1001"], ["--instances=x"], []])
def test_flags_are_checked(tmp_path: Path, capsys, argv: list[str]) -> None:
    code, _ = refusal(capsys, *([tmp_path] if argv else []), *argv)
    assert code == 2


@pytest.mark.parametrize(
    "name",
    [
        "progress/progress_summary.json",
        "stats/overlap_stats.jsonl",
        "stats/overlap_stats_by_train_path.jsonl",
        "stats/overlap_coverage.jsonl",
        "stats/overlap_details.jsonl.gz",
        "stats/overlap_ngrams.jsonl.gz",
        "stats/overlap_matches.parquet",
        "stats/overlap_documents.parquet",
    ],
)
@pytest.mark.parametrize("damage", ["cut", "other fields", "gone"])
def test_a_damaged_output_is_named(tmp_path: Path, capsys, name: str, damage: str) -> None:
    write_output(tmp_path, SETS, TRAINING, (3,))
    path = tmp_path / name
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        data = b'{"something": "else"}\n'
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        if name.startswith("progress"):
            return
    html = tmp_path / "report.html"
    code, error = refusal(capsys, tmp_path, f"--html={html}")
    assert code == 1 and name in error and not html.exists()


def test_a_page_that_cannot_be_written(page: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    code, error = refusal(capsys, page.parent / "output", f"--html={tmp_path / 'file/report.html'}")
    assert code == 1 and "cannot write" in error


@pytest.mark.parametrize(("package", "argv"), [("jinja2", []), ("matplotlib", ["--png=x.png"])])
def test_a_missing_package_is_named_with_its_extra(
    page: Path, tmp_path: Path, package: str, argv: list[str]
) -> None:
    script = (
        "import sys, importlib.util as u; find = u.find_spec; "
        f"u.find_spec = lambda name, *more: None if name == {package!r} else find(name, *more); "
        "from beam_pipeline.overlap.report.__main__ import main; sys.exit(main())"
    )
    result = subprocess.run(
        [*warm_python(), "-c", script, str(page.parent / "output"), *argv],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert package in result.stderr and "pip install 'probeline[report]'" in result.stderr
    assert not list(tmp_path.iterdir())


def test_the_command_is_light_until_it_reads() -> None:
    heavy = ("apache_beam", "pyarrow", "numpy", "numba", "matplotlib", "jinja2")
    script = (
        "import sys, beam_pipeline.overlap.report.__main__; "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=ROOT)
    assert result.stdout.strip() == b"[]", result.stderr


def test_errors_of_python_callers(tmp_path: Path) -> None:
    with pytest.raises(ProbelineError, match=r"no \.SUCCESS"):
        report.write_report(str(tmp_path))
