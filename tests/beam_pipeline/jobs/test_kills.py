"""A job killed at any change of its output leaves nothing wrong; the next run writes all of it.

The quick tests kill the process. The slow ones go on from copies of the output that one run made
before its changes, links as links: what a kill at that moment leaves on the disk.
"""

import itertools
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.helpers import quick_and_slow
from tests.support.job_cases import JOBS, JobCase
from tests.support.kills import run_and_kill


class Undisturbed(NamedTuple):
    """A job's input and the output of a run without a kill."""

    folder: Path
    flags: list[str]
    before: dict[str, bytes]
    after: dict[str, bytes]
    num_changes: int


class Copied(NamedTuple):
    """An output folder, a folder with a copy of it before each change, and their number."""

    output: Path
    copies: Path
    num_changes: int


_runs: dict[str, Undisturbed] = {}
_copied: dict[str, Copied] = {}


def change_at(place: float, num_changes: int) -> int:
    """Returns the number of a change, given as a share of all or counted from the last one."""
    return max(1, round(num_changes * place if place > 0 else num_changes + place))


def run(
    job: JobCase, folder: Path, output: Path, at: int, *flags: str, **how: Any
) -> subprocess.CompletedProcess[str]:
    given = [*flags, f"--{job.output_flag}={output}", "--direct_num_workers=1"]
    return run_and_kill(job.module, job.setup, output, at, given, folder / "changes", **how)


def undisturbed(name: str, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    if name not in _runs:
        job, folder = JOBS[name], tmp_path_factory.mktemp("job")
        flags, output = job.prepare(folder), folder / "whole" / "out"
        if job.begin:
            job.begin(folder, output)
        before = job.files(output) or {"": b"nothing is finished"}
        done = run(job, folder, output, 0, *flags)
        assert done.returncode == 0, done.stderr
        num_changes = int((folder / "changes").read_text())
        _runs[name] = Undisturbed(folder, flags, before, job.files(output), num_changes)
    return _runs[name]


def copied(name: str, tmp_path_factory: pytest.TempPathFactory) -> Copied:
    if name not in _copied:
        job, whole = JOBS[name], undisturbed(name, tmp_path_factory)
        folder = tmp_path_factory.mktemp("copied")
        output, copies = folder / "out", folder / "copies"
        copies.mkdir()
        if job.begin:
            job.begin(whole.folder, output)
        done = run(job, folder, output, 0, *whole.flags, copies=copies)
        assert done.returncode == 0, done.stderr
        assert job.files(output) == whole.after
        num_changes = int((folder / "changes").read_text())
        assert num_changes - len(list(copies.iterdir())) < 5  # those before the folder is made
        _copied[name] = Copied(output, copies, num_changes)
    return _copied[name]


# Shares of all changes, and places counted from the last one.
SHARES = [0.05, 0.4, 0.75]
LAST = [-22, -15, -11, -9, -8, -7, -6, -5, -4, -3, -2, -1, 0]


def check_and_rerun(job: JobCase, whole: Undisturbed, folder: Path, output: Path) -> None:
    found = job.finished_files(output)
    if found is not None:  # whole, the old or the new; temporary files may remain
        assert whole.before.items() <= found.items() or whole.after.items() <= found.items()
    again = ["--overwrite"] if found is not None and not job.begin else []
    done = run(job, folder, output, 0, *whole.flags, *job.again, *again)
    assert done.returncode == 0, done.stderr
    assert job.files(output) == whole.after


KILLS = list(itertools.product(JOBS, (0.6, -7)))
QUICK = [("probe rows", 0.6)]


@pytest.mark.parametrize("kill", quick_and_slow(KILLS, QUICK), ids="{0[0]}-{0[1]}".format)
def test_kill_and_rerun(
    kill: tuple[str, float], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name, place = kill
    job, whole = JOBS[name], undisturbed(name, tmp_path_factory)
    output = tmp_path / "out"
    if job.begin:
        job.begin(whole.folder, output)
    killed = run(job, tmp_path, output, change_at(place, whole.num_changes), *whole.flags)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    check_and_rerun(job, whole, tmp_path, output)


@pytest.mark.slow
@pytest.mark.parametrize("place", [*SHARES, *LAST])
@pytest.mark.parametrize("name", JOBS)
def test_a_rerun_from_any_change(
    name: str, place: float, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    job, whole = JOBS[name], undisturbed(name, tmp_path_factory)
    output, copies, num_changes = copied(name, tmp_path_factory)
    shutil.rmtree(output, ignore_errors=True)
    copy = copies / str(change_at(place, num_changes))
    if copy.exists():  # not before the folder is made
        subprocess.run(["cp", "-a", copy, output], check=True)
    check_and_rerun(job, whole, tmp_path, output)


@pytest.mark.slow
@pytest.mark.parametrize("place", [0.3, 0.9])
@pytest.mark.parametrize("name", JOBS)
def test_an_output_folder_that_is_removed_is_one_line(
    name: str, place: float, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    job, whole = JOBS[name], undisturbed(name, tmp_path_factory)
    output, at = tmp_path / "out", change_at(place, whole.num_changes)
    if job.begin:
        job.begin(whole.folder, output)
    harm = "shutil.rmtree(folder, ignore_errors=True)"
    done = run(job, tmp_path, output, at, *whole.flags, harm=harm)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith("error: ") and str(output) in line
