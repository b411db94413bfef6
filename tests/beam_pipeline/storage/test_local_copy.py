"""Copies of remote files: fetched once for a machine, kept while used, removed after."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from beam_pipeline.errors import UsageError
from beam_pipeline.storage import local_copy
from beam_pipeline.storage.local_copy import on_this_machine, release

# Beam's own filesystem in memory is one of a process; a script stands for a worker.
_WORKER = """
import sys
from beam_pipeline.storage import local_copy
local_copy.open_file = lambda path: open(path.removeprefix("far://"), "rb")
path = local_copy.on_this_machine(sys.argv[1])
print(path, open(path).read(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch) -> Path:
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def start(path: Path) -> tuple[subprocess.Popen, str]:
    """Starts a worker that has a copy of a file until its input ends."""
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER, f"far://{path}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert worker.stdout is not None
    return worker, worker.stdout.readline().strip()


def copies(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def test_a_local_file_is_its_own_copy(tmp_path: Path) -> None:
    assert on_this_machine(str(tmp_path / "x")) == str(tmp_path / "x")


@pytest.mark.slow
def test_workers_share_a_copy(tmp_path: Path, own_folder: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("1")
    other.write_text("2")
    first, said = start(one)
    second, again = start(one)
    assert said == again and said.endswith(" 1")
    third, _ = start(other)
    assert len(copies(own_folder)) == 2  # the first is in use
    for worker in (first, second, third):
        worker.communicate("")
    fourth, _ = start(one)  # its copy is still there, and nothing had to be fetched
    assert len(copies(own_folder)) == 2
    another = tmp_path / "another"
    another.write_text("3")
    fifth, said = start(another)
    assert said.endswith(" 3")
    assert len(copies(own_folder)) == 2  # that of `other` has made room
    for worker in (fourth, fifth):
        worker.communicate("")


def test_partial_copy_of_a_killed_process(tmp_path: Path, own_folder: Path, monkeypatch) -> None:
    source = tmp_path / "one"
    source.write_text("whole")
    monkeypatch.setattr(local_copy, "open_file", lambda path: open(source, "rb"))
    copy = on_this_machine("far://x")
    release(copy)
    os.rename(copy, f"{copy}.tmp")
    Path(f"{copy}.tmp").write_text("wh")
    assert Path(on_this_machine("far://x")).read_text() == "whole"
    release(copy)


def test_released_copies_are_deleted(tmp_path: Path, own_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(local_copy, "open_file", lambda path: open(path[6:], "rb"))
    kept = on_this_machine(f"far://{write(tmp_path / 'kept')}")
    for number in range(5):
        path = f"far://{write(tmp_path / str(number))}"
        copy = on_this_machine(path)
        assert on_this_machine(path) == copy  # for another thread
        release(copy)
        assert Path(copy).read_text() == str(number)
        assert len(copies(own_folder)) <= 3
        release(copy)
    assert Path(kept).read_text() == "kept"
    release(kept)
    on_this_machine(f"far://{write(tmp_path / 'last')}")
    assert len(copies(own_folder)) == 1


def write(path: Path) -> Path:
    """Writes a file that holds its own name."""
    path.write_text(path.name)
    return path


@pytest.mark.parametrize("name", ["", "copies"])
def test_link_in_place_of_the_shared_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_bytes(b"x")
    place = Path(tempfile.gettempdir()) / f"probeline-{os.getuid()}" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(tmp_path / "mine")
    with pytest.raises(UsageError, match=r"is a link, which Probeline did not create: move it$"):
        on_this_machine("far://file")
    assert os.listdir(tmp_path / "mine") == ["file"]
