"""What macOS lacks is missed by nothing: simulated, since no test has run on a Mac.

The programs run without /proc, CPU affinity, forks and glibc's functions, with 256 open files, and
below a folder that is a link, as macOS's /tmp is (`tests/support/without_linux`).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from beam_pipeline import machine
from tests.support.helpers import measurements_table
from tests.support.job_runs import FLAGS, files_of, make_dataset, write_input
from tests.support.repository import ROOT

# A job of several units in two spawned processes, then batches of it. What a fork would share, such
# as the size of a unit, has to reach the workers in what the runner sends.
PROGRAM = """
import os, sys
from beam_pipeline.jobs import beam_options
from beam_pipeline.probe_rows import bucket, grouping
from beam_pipeline.sources import inputs

os.cpu_count = lambda: 2
beam_options._MIN_SPAWNED_UNITS = 4
grouping.UNIT_ROWS = inputs.UNIT_ROWS = 100
source, output, *flags = sys.argv[1:]

def batch(**options):
    from training.dataset import DataConfig, build_dataset
    config = DataConfig(files=f"{output}/train", batch_size=2, crop_size=64, **options)
    iterator = iter(build_dataset(config))
    inputs = next(iterator)["inputs"].tolist()
    iterator.close()
    return inputs

from beam_pipeline.main import main
assert main([f"--input={source}", f"--output={output}", *flags]) == 0
first = batch()
assert batch(cache_dir=f"{output}-cache") == first
WORKERS
"""
BATCH_WORKERS = "assert batch(num_workers=2) == first"


@pytest.mark.parametrize("more", ["", pytest.param(BATCH_WORKERS, marks=pytest.mark.slow)])
def test_a_job_and_a_loader_need_nothing_of_linux(tmp_path: Path, more: str) -> None:
    source = write_input(
        tmp_path / "in", measurements_table(900, seed=1, num_probes=5), row_group_size=100
    )
    (tmp_path / "private" / "T").mkdir(parents=True)
    (tmp_path / "var").symlink_to("private")
    without = f"{ROOT}/tests/support/without_linux:{ROOT}"
    environment = {**os.environ, "PYTHONPATH": without, "TMPDIR": f"{tmp_path}/var/T"}
    script = PROGRAM.replace("WORKERS", more)
    command = [sys.executable, "-c", script, str(source), f"{tmp_path}/var/out", *FLAGS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0] == (
        "This process cannot fork: the job starts 2 worker processes"
    )
    expected = make_dataset(source, tmp_path / "expected", "--direct_num_workers=1")
    assert files_of(tmp_path / "private" / "out") == files_of(expected)


@pytest.mark.parametrize("cause", ["darwin", "no /proc"])
def test_a_process_that_cannot_be_seen_to_have_one_thread_does_not_fork(
    monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    monkeypatch.setattr("threading.active_count", lambda: 1)
    monkeypatch.setattr(machine, "_threads", lambda: ["python"])
    assert machine.can_fork()
    if cause == "darwin":
        monkeypatch.setattr("sys.platform", "darwin")
    else:
        monkeypatch.setattr(machine, "_threads", lambda: os.listdir("/no/proc"))
    assert not machine.can_fork()
