"""Holding the output folder: refused runs, removed leftovers, and files that are never touched."""

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from beam_pipeline.dataset.manifest import (
    DEAD_LETTER_FOLDER,
    NEXT_FOLDER,
    SPLITS,
    SUCCESS_NAME,
    write_success,
)
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.jobs import output_folder, output_lease
from beam_pipeline.jobs.output_folder import TEMP_FOLDER
from beam_pipeline.overlap.job.launch import output_files
from beam_pipeline.overlap.results.layout import CLEAN_FOLDER, WORK_FOLDER
from beam_pipeline.probe_rows.switch import DATASET_FILES
from tests.support.repository import ROOT

taken = partial(output_folder.taken, files=DATASET_FILES)

OURS = (
    "manifest.json",
    "train/rows.parquet",
    "train/train_shard_00000-of-00002.arrayrecord",
    "train/train_shard_00001-of-00002.arrayrecord",
    "test/rows.parquet",
    "test/test_shard_00000-of-00001.tfrecord",
    "dead_letter/dead_letter_00000-of-00001.parquet",
    f"{TEMP_FOLDER}/0123456789ab/records/records-1",
    f"{TEMP_FOLDER}/0123456789ab/train/shard",
)
FOREIGN = (
    "README",
    "manifest",
    "manifest.json.bak",
    "notes/manifest.json",
    "train/notes.txt",
    "train/test_shard_00000-of-00001.arrayrecord",
    "train/deeper/train_shard_00000-of-00001.arrayrecord",
    "test/rows.parquet.bak",
    "dead_letter/mine.parquet",
    "other/train_shard_00000-of-00001.arrayrecord",
)


def fill(folder: Path, names) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def files_below(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def finished(tmp_path) -> Path:
    """A finished dataset with foreign files in its folder."""
    folder = tmp_path / "out"
    fill(folder, [*(name for name in OURS if not name.startswith(TEMP_FOLDER)), *FOREIGN])
    write_success(str(folder), b"{}")
    return folder


# --- an empty place -------------------------------------------------------------------------------


def test_a_run_that_fails_leaves_what_it_made_but_no_temporary_files(tmp_path):
    with pytest.raises(RuntimeError, match="the run failed"):
        with taken(str(tmp_path), overwrite=False) as run:
            fill(Path(run.folder), ["chunks/unit-0"])
            fill(tmp_path, ["train/train_shard_00000-of-00002.arrayrecord"])
            raise RuntimeError("the run failed")
    assert files_below(tmp_path) == {"train/train_shard_00000-of-00002.arrayrecord"}
    assert not (tmp_path / TEMP_FOLDER).exists()


# --- a finished dataset ---------------------------------------------------------------------------


def test_a_finished_dataset_is_refused_and_untouched(finished):
    before = {name: (finished / name).read_bytes() for name in files_below(finished)}
    folders = {path for path in finished.rglob("*") if path.is_dir()}
    with pytest.raises(UsageError, match=r"holds a finished dataset: .*--overwrite"):
        with taken(str(finished), overwrite=False):
            pytest.fail("the folder was taken")
    assert {name: (finished / name).read_bytes() for name in files_below(finished)} == before
    assert {path for path in finished.rglob("*") if path.is_dir()} == folders


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("files", "other"), [(DATASET_FILES, ".SUCCESS"), (output_files(False), SUCCESS_NAME)]
)
def test_what_another_program_has_finished_there_stays(tmp_path, files, other, overwrite):
    (tmp_path / other).touch()
    with (
        pytest.raises(UsageError, match=rf"{re.escape(str(tmp_path))} holds {re.escape(other)}, "),
        output_folder.taken(str(tmp_path), overwrite, files=files),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [other]


def test_overwrite_removes_success_first_and_nothing_foreign(finished, monkeypatch):
    """A run that dies while it removes must not leave a dataset that looks whole."""
    removed = []
    delete = output_folder.delete_files

    def spy(paths):
        removed.append([str(Path(path).relative_to(finished)) for path in paths])
        delete(paths)

    monkeypatch.setattr(output_folder, "delete_files", spy)
    with taken(str(finished), overwrite=True):
        left = {name for name in files_below(finished) if not name.startswith(TEMP_FOLDER)}
    assert left == set(FOREIGN)
    assert removed[0] == [SUCCESS_NAME]
    assert set(removed[1]) == {name for name in OURS if not name.startswith(TEMP_FOLDER)}


# --- what a dead run left -------------------------------------------------------------------------


def test_what_a_dead_run_left_is_removed_and_foreign_files_stay(tmp_path):
    """Whatever characters the folder's name has: it is no pattern."""
    output = tmp_path / "out [1] *?"
    fill(output, OURS + FOREIGN)
    fill(output, [f"{TEMP_FOLDER}/lock"])
    with taken(str(output), overwrite=False):
        left = files_below(output)
    assert left == {*FOREIGN, f"{TEMP_FOLDER}/lock"}
    assert files_below(output) == set(FOREIGN)


# --- a live run -----------------------------------------------------------------------------------


HOLD = """
import sys
from beam_pipeline.jobs.output_folder import taken
from beam_pipeline.probe_rows.switch import DATASET_FILES
with taken(sys.argv[1], overwrite=False, files=DATASET_FILES) as run:
    open(sys.argv[1] + "/train_marker", "w").close()
    print(run.folder, flush=True)
    sys.stdin.read()
"""


def test_a_live_run_is_waited_for_and_a_killed_one_is_not(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        run_folder = Path(process.stdout.readline().strip())
        fill(run_folder, ["records/records-1"])
        with pytest.raises(UsageError, match=f"is being written by process {process.pid}:"):
            with taken(str(tmp_path), overwrite=True):
                pytest.fail("the folder was taken from a live run")
        assert (run_folder / "records/records-1").exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (run_folder / "records/records-1").exists()
        with taken(str(tmp_path), overwrite=False) as own:
            assert not run_folder.exists()
            assert Path(own.folder) != run_folder
    finally:
        process.kill()
        process.communicate()
    assert files_below(tmp_path) == {"train_marker"}


def test_a_lock_that_its_holder_removes_at_the_last_moment_does_not_let_two_in(
    tmp_path, monkeypatch
):
    """The first run ends between the second's opening of the lock file and its locking it."""
    flock = output_lease.fcntl.flock
    removed = []

    def removed_before(lock, flags):
        if not removed:
            removed.append(lock.name)
            os.remove(lock.name)
        flock(lock, flags)

    monkeypatch.setattr(output_lease.fcntl, "flock", removed_before)
    with taken(str(tmp_path), overwrite=False):
        assert removed == [str(tmp_path / TEMP_FOLDER / "lock")]
        with pytest.raises(UsageError, match="is being written"):
            with taken(str(tmp_path), overwrite=False):
                pytest.fail("two runs hold the folder")


def test_a_run_may_end_while_the_next_one_begins(tmp_path, monkeypatch):
    """It creates the temporary folder again while the first run still removes it."""
    remove = os.remove

    def next_one_begins(path):
        remove(path)
        if str(path).endswith("/lock"):
            Path(path).write_text("1")

    with taken(str(tmp_path), overwrite=False):
        monkeypatch.setattr(output_lease.os, "remove", next_one_begins)
    assert files_below(tmp_path) == {f"{TEMP_FOLDER}/lock"}


# --- a place that cannot be written ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["file", "file/out"])
def test_a_place_that_cannot_be_a_folder_is_one_line_with_its_name(tmp_path, name):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ProbelineError, match=rf"cannot write {tmp_path}/{name}/") as refusal:
        with taken(str(tmp_path / name), overwrite=True):
            pytest.fail("the folder was taken")
    assert "\n" not in str(refusal.value)
    assert (tmp_path / "file").read_text() == "in the way"


# --- what must not be touched ---------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("how", ["as it is", "through a link", "relative", "on macOS"])
def test_an_input_among_the_files_of_the_output_is_refused(tmp_path, monkeypatch, name, how):
    output = tmp_path / "out"
    fill(output, [name])
    path = str(output / name)
    if how == "through a link":
        path = str(tmp_path / "link")
        os.symlink(output / name, path)
    elif how == "relative":
        monkeypatch.chdir(tmp_path)
        path = f"./out/../out/{name}"
    elif how == "on macOS":  # whose file system ignores case
        monkeypatch.setattr("sys.platform", "darwin")
        path = str(output / name).upper()
    with pytest.raises(UsageError, match=r"among the files of --output=.*choose another output"):
        with taken(f"{output}/", overwrite=True, inputs=[path]):
            pytest.fail("the folder was taken")
    assert files_below(output) == {name}


@pytest.mark.parametrize("path", ["in.parquet", "README", "other/rows.parquet", "../train/a"])
def test_an_input_beside_the_files_of_the_output_is_read(tmp_path, path):
    with taken(str(tmp_path), overwrite=False, inputs=[str(tmp_path / path)]):
        pass


OWN_FOLDERS = (
    (DATASET_FILES, (NEXT_FOLDER, *SPLITS, DEAD_LETTER_FOLDER)),
    (output_files(skip_existing=False), (WORK_FOLDER, "tmp", "stats", CLEAN_FOLDER)),
    (output_files(skip_existing=True), (WORK_FOLDER,)),
)


@pytest.mark.parametrize("is_finished", [False, True])
@pytest.mark.parametrize(
    ("files", "name"),
    [
        *((DATASET_FILES, f"{TEMP_FOLDER}{name}") for name in ("", "/lock", "/0123456789ab")),
        *((files, name) for files, names in OWN_FOLDERS for name in names),
    ],
)
def test_links_in_place_of_own_folders_are_not_followed(tmp_path, files, name, is_finished):
    """Whatever stands below the link, every file there stays, and the link does, too."""
    target, output = tmp_path / "mine", tmp_path / "out"
    ours = [path.partition("/")[2] or path for path in OURS]
    fill(target, [*ours, *FOREIGN, "a.jsonl", "records/data", "dead_letter_00000-of-00001.parquet"])
    kept = files_below(target)
    fill(output, [files.success] if is_finished else [])
    place = output / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target / "records/data" if name.endswith("/lock") else target)
    with pytest.raises(UsageError, match=rf"{re.escape(name.split('/')[0])}.*: move it"):
        with output_folder.taken(str(output), overwrite=True, files=files):
            pytest.fail("the folder was taken")
    assert files_below(target) == kept and place.is_symlink()


@pytest.mark.parametrize("name", OURS[:6])
def test_links_in_place_of_own_files_lose_the_link_only(tmp_path, name):
    fill(tmp_path, ["mine"])
    place = tmp_path / "out" / name
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "mine")
    with taken(str(tmp_path / "out"), overwrite=True):
        pass
    assert (tmp_path / "mine").read_text() == "mine" and not os.path.lexists(place)


@pytest.mark.parametrize("name", ["", "/stray"])
def test_a_stray_file_is_one_line_with_its_name(tmp_path, name):
    fill(tmp_path, [f"{TEMP_FOLDER}{name}"])
    with pytest.raises(UsageError, match=r"\.probeline-temp.*: move it away$"):
        with taken(str(tmp_path), overwrite=False):
            pytest.fail("the folder was taken")
    assert files_below(tmp_path) == {f"{TEMP_FOLDER}{name}"}


@pytest.mark.parametrize("name", ["README.md", f"{TEMP_FOLDER}/lock"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    with contextlib.suppress(UsageError), taken(str(tmp_path), overwrite=True):
        pass
    assert (tmp_path / name).is_fifo()


@pytest.mark.parametrize("call", ["os.getpid", "fcntl.flock"])
def test_a_lock_that_cannot_be_taken_is_removed(tmp_path: Path, call: str) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ESTALE, "Stale file handle")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ProbelineError, match="Stale file"):
        patch.setattr(call, fail)
        with output_lease.lock_folder(f"{tmp_path}/temp", "lock", "--output=out"):
            pass
    assert not list(tmp_path.iterdir())
