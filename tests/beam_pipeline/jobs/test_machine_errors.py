"""A full disk and other limits of the machine, at any step of a program: one line with the cure.

The line is executed: once the limit is gone, the same command writes what it would have written.
"""

import errno
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.helpers import measurements_table
from tests.support.job_cases import JOBS, JobCase
from tests.support.job_runs import FLAGS, write_input
from tests.support.kills import run_and_kill

CURES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of the quota",
    errno.EFBIG: r"raise the limit on file sizes \(ulimit -f\)",
    errno.EROFS: "choose a folder on a file system",
    errno.EMFILE: r"raise the limit on open files \(ulimit -n\)",
    errno.ENOMEM: "free some memory",
}
# Shares of all changes, whose number differs by a few from run to run (renewals of the lease).
PLACES = dict(zip(CURES, (0.05, 0.25, 0.4, 0.55, 0.7, 0.85), strict=True))
_LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"


def _dataset(folder: Path) -> list[str]:
    from beam_pipeline.main import main

    source = write_input(folder / "in", measurements_table(800, seed=1, num_probes=6))
    assert main([f"--input={source}", f"--output={folder}/rows", *FLAGS]) == 0
    return [f"{folder}/rows"]


PROGRAMS = {
    **JOBS,
    "export": JobCase("beam_pipeline.export.__main__", "", _dataset),
    "inspect": JobCase("beam_pipeline.inspect.__main__", "", _dataset),
}


class Program:
    """A program and its input, with the outcome of a run that no limit disturbs."""

    def __init__(self, name: str, folder: Path):
        self.case, self.name, self.folder = PROGRAMS[name], name, folder
        self.flags = self.case.prepare(folder)
        self.num_changes = 0

    def begin(self, number: int) -> Path:
        """Returns a new output."""
        output = self.folder / f"run-{number}" / "out"
        if self.case.begin:
            self.case.begin(self.folder, output)
        return output

    def run(
        self, output: Path, at: int = 0, fault: int = 0, setup: str = "", again: bool = False
    ) -> subprocess.CompletedProcess[str]:
        named = {"export": [f"--output={output}/x.parquet"], "inspect": [f"--html={output}/x.html"]}
        flags = named.get(self.name)
        if flags is None:
            flags = [f"--{self.case.output_flag}={output}", "--direct_num_workers=1"]
            flags += self.case.again if again else []
        setup = f"{self.case.setup}\n{setup}"
        log = self.folder / "changes"
        flags = [*self.flags, *flags]
        done = run_and_kill(self.case.module, setup, str(output), at, flags, log, fault=fault)  # type: ignore[arg-type]
        if not done.returncode:
            self.num_changes = int(log.read_text())
        return done


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "export" else pytest.mark.slow) for n in PROGRAMS],
)
def test_one_line_and_its_cure(name: str, tmp_path: Path) -> None:
    program = Program(name, tmp_path)
    whole = program.begin(0)
    done = program.run(whole, fault=errno.ENOSPC)  # only counts
    assert done.returncode == 0, done.stderr
    wanted, num_changes = program.case.files(whole), program.num_changes
    cases = [(number, max(1, round(num_changes * place)), "") for number, place in PLACES.items()]
    cases.append((errno.EFBIG, 0, _LIMIT))
    of_program = cases[[*PROGRAMS].index(name) % 3 :: 3]  # each case in a third of the programs
    for count, (number, at, setup) in enumerate(of_program, 1):
        output = program.begin(count)
        done = program.run(output, at, number if at else 0, setup)
        assert done.returncode == 1, (name, number, at, done.stderr)
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        # Of an ArrayRecord writer, whose errors have no number.
        cures = f"{CURES[number]}|free some space or check the storage"
        assert re.search(cures, line), (name, number, at, line)
        assert re.search(r"cannot (write|use) /\S+: ", line), line  # of the output, or temporary
        assert "unexpected" not in line and "Traceback" not in done.stderr
        if os.path.isdir(output):
            assert [each.name for each in output.rglob(".probeline-temp/*")] in ([], ["lock"])
    done = program.run(output, again=True)
    assert done.returncode == 0, done.stderr
    assert program.case.files(output) == wanted
