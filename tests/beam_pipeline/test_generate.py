"""The manners of the command that simulates measurements: refusals, what exists, a full disk."""

import errno
import os
from pathlib import Path

import pytest

from tests.support.generated import files_of, run
from tests.support.repository import files_below


@pytest.mark.parametrize(
    "flag", ["--ipv6_share=nan", "--start=1969-12-31", "--output=gs://b/pings"]
)
def test_bad_values_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    assert run(tmp_path / "out", flag) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: {flag}") and message.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_existing_measurements_are_refused_unless_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--num_files=3") == 0
    before = files_below(tmp_path)
    assert run(tmp_path, "--num_files=2") == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "--overwrite" in message and str(tmp_path) in message
    assert files_below(tmp_path) == before
    assert run(tmp_path, "--num_files=2", "--overwrite") == 0
    assert [path.name for path in files_of(tmp_path)] == [
        "measurements-00000-of-00002.parquet",
        "measurements-00001-of-00002.parquet",
    ]


def test_what_a_dead_run_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "measurements-00007-of-00009.parquet.tmp"
    left.write_bytes(b"half")
    assert run(tmp_path) == 0
    assert not left.exists()


def test_a_full_disk_leaves_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace = os.replace

    def full_at_the_second(source: Path, target: Path) -> None:
        if "measurements-00001" in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full_at_the_second)
    assert run(tmp_path, "--num_files=3") == 1
    message = capsys.readouterr().err
    assert "No space left" in message and message.count("\n") == 1
    assert [path.name for path in files_of(tmp_path)] == ["measurements-00000-of-00003.parquet"]
    assert not list(tmp_path.rglob("*.tmp"))
