"""A job killed at any change of its output leaves nothing wrong; the next run writes all of it."""

import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

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


_runs: dict[str, Undisturbed] = {}


def run(
    job: JobCase, folder: Path, output: Path, at: int, *flags: str
) -> subprocess.CompletedProcess[str]:
    given = [*flags, f"--{job.output_flag}={output}", "--direct_num_workers=1"]
    return run_and_kill(job.module, job.setup, output, at, given, folder / "changes")


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


# Shares of all changes, and places counted from the last one.
SHARES = [0.02, 0.2, 0.4, 0.6, 0.75, 0.85]
LAST = [-28, -22, -18, -15, -13, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1, 0]


@pytest.mark.parametrize("place", quick_and_slow([*SHARES, *LAST], (0.6, -7)))
@pytest.mark.parametrize("name", JOBS)
def test_kill_and_rerun(
    name: str, place: float, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    job, whole = JOBS[name], undisturbed(name, tmp_path_factory)
    output = tmp_path / "out"
    if job.begin:
        job.begin(whole.folder, output)
    at = max(1, round(whole.num_changes * place) if place > 0 else whole.num_changes + place)
    killed = run(job, tmp_path, output, int(at), *whole.flags)
    # The number of changes varies a little, so the last places may be behind the end.
    ends = (-signal.SIGKILL, 0) if -3 < place <= 0 else (-signal.SIGKILL,)
    assert killed.returncode in ends, killed.stderr
    found = job.finished_files(output)
    if found is not None:  # whole, the old or the new; temporary files may remain
        assert whole.before.items() <= found.items() or whole.after.items() <= found.items()
    again = ["--overwrite"] if found is not None and not job.begin else []
    done = run(job, tmp_path, output, 0, *whole.flags, *job.again, *again)
    assert done.returncode == 0, done.stderr
    assert job.files(output) == whole.after
