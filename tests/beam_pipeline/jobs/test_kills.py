"""A job killed at any change of its output leaves nothing wrong; the next run writes all of it.

Copies of the output that one run made before each of its changes, links as links, are what a kill
at that moment leaves on the disk. All of them are checked, and jobs go on from some.
"""

import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.job_cases import JOBS, JobCase
from tests.support.kills import run_and_kill


class Whole(NamedTuple):
    """A job's input, the output of a run without a kill, and how often that changed its folder."""

    flags: list[str]
    before: dict[str, bytes]
    after: dict[str, bytes]
    num_changes: int


def begun(job: JobCase, folder: Path, name: str) -> Path:
    """Returns the folder of a new output, with what the job begins with."""
    output = folder / name / "out"
    if job.begin:
        job.begin(folder, output)
    return output


def run(
    job: JobCase, folder: Path, output: Path, at: int, *flags: str, **how: Any
) -> subprocess.CompletedProcess[str]:
    given = [*flags, f"--{job.output_flag}={output}", "--direct_num_workers=1"]
    return run_and_kill(job.module, job.setup, output, at, given, folder / "changes", **how)


def run_whole(job: JobCase, folder: Path, copies: Path | None = None) -> Whole:
    """Runs a job without a kill; `copies` gets the output before each change, by its number."""
    flags, output = job.prepare(folder), begun(job, folder, "whole")
    before = job.files(output) or {"": b"nothing is finished"}
    done = run(job, folder, output, 0, *flags, copies=copies)
    assert done.returncode == 0, done.stderr
    return Whole(flags, before, job.files(output), int((folder / "changes").read_text()))


def change_at(place: float, num_changes: int) -> int:
    """Returns the number of a change, given as a share of all or counted from the last one."""
    return max(1, round(num_changes * place if place > 0 else num_changes + place))


def check_left(job: JobCase, whole: Whole, output: Path) -> None:
    """Checks that a reader finds nothing, or all of the old or new files; others may remain."""
    found = job.finished_files(output)
    if found is not None:
        assert whole.before.items() <= found.items() or whole.after.items() <= found.items()


def check_rerun(job: JobCase, whole: Whole, folder: Path, output: Path) -> None:
    is_finished = not job.begin and (output / job.success).exists()
    again = ["--overwrite"] if is_finished else []
    done = run(job, folder, output, 0, *whole.flags, *job.again, *again)
    assert done.returncode == 0, done.stderr
    assert job.files(output) == whole.after


def check_kill(job: JobCase, whole: Whole, folder: Path, place: float) -> None:
    output = begun(job, folder, "killed")
    killed = run(job, folder, output, change_at(place, whole.num_changes), *whole.flags)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    check_left(job, whole, output)
    check_rerun(job, whole, folder, output)


def test_kill_and_rerun(tmp_path: Path) -> None:
    job = JOBS["probe rows"]
    check_kill(job, run_whole(job, tmp_path), tmp_path, 0.6)


# Shares of all changes, and places counted from the last one: each has two of the jobs.
RERUNS = [0.05, 0.4, 0.75, -22, -15, -11, -9, -8, -7, -6, -5, -4, -3, -2, -1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_kills_at_any_change(name: str, tmp_path: Path) -> None:
    job, number, copies = JOBS[name], [*JOBS].index(name), tmp_path / "copies"
    copies.mkdir()
    whole = run_whole(job, tmp_path, copies)
    left = {int(path.name): path for path in copies.iterdir()}
    assert whole.num_changes - len(left) < 5  # those before the folder is made
    # Files tell the path of the output: copies are moved there.
    output = tmp_path / "whole" / "out"
    reruns = {change_at(place, whole.num_changes) for place in RERUNS[number % 3 :: 3]}
    for change in range(1, whole.num_changes + 1):
        shutil.rmtree(output, ignore_errors=True)
        if change in left:
            left[change].rename(output)
            check_left(job, whole, output)
        if change in reruns:
            check_rerun(job, whole, tmp_path, output)
    check_kill(job, whole, tmp_path, (0.6, -7)[number % 2])

    output = begun(job, tmp_path, "removed")
    at = change_at((0.3, 0.9)[number % 2], whole.num_changes)
    harm = "shutil.rmtree(folder, ignore_errors=True)"
    done = run(job, tmp_path, output, at, *whole.flags, harm=harm)
    *progress, error = done.stderr.splitlines()
    assert done.returncode == 1 and error.startswith("error: ") and str(output) in error
    assert all(re.match("(reading|sorting|writing): ", line) for line in progress), done.stderr
