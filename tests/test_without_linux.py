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
from beam_pipeline.dataset.layout import Encoding
from tests.support.helpers import measurements_table
from tests.support.job_runs import FLAGS, files_of, make_dataset, write_input
from tests.support.repository import ROOT
from tests.support.waiting import is_alive, wait_until

# A job of several units in two spawned processes, or batches of a dataset. What a fork would share,
# such as the size of a unit, has to reach the workers in what the runner sends.
PROGRAM = """
import os, sys
from beam_pipeline.jobs import beam_options
from beam_pipeline.probe_rows import bucket, grouping
from beam_pipeline.sources import inputs

os.cpu_count = lambda: 2
beam_options._MIN_SPAWNED_UNITS = 4
grouping.UNIT_ROWS = inputs.UNIT_ROWS = 100
source, output, *flags = sys.argv[1:]  # without a source there is a dataset

def batch(**options):
    from training.dataset import DataConfig, build_dataset
    config = DataConfig(files=f"{output}/train", batch_size=2, crop_size=64, **options)
    iterator = iter(build_dataset(config))
    inputs = next(iterator)["inputs"].tolist()
    iterator.close()
    return inputs

if source:
    from beam_pipeline.main import main
    assert main([f"--input={source}", f"--output={output}", *flags]) == 0
else:
    assert batch(num_workers=1) == batch(cache_dir=flags[0]) == batch()
"""


def run(*arguments: str, **environment: str) -> list[str]:
    """Runs the program; returns the lines that it says."""
    environment["PYTHONPATH"] = f"{ROOT}/tests/support/without_linux:{ROOT}"
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.slow
def test_a_job_needs_nothing_of_linux(tmp_path: Path) -> None:
    source = write_input(
        tmp_path / "in", measurements_table(900, seed=1, num_probes=5), row_group_size=100
    )
    (tmp_path / "private" / "T").mkdir(parents=True)
    (tmp_path / "var").symlink_to("private")
    said = run(str(source), f"{tmp_path}/var/out", *FLAGS, TMPDIR=f"{tmp_path}/var/T")
    assert said[0] == "This process cannot fork: the job starts 2 worker processes"
    expected = make_dataset(source, tmp_path / "expected", "--direct_num_workers=1")
    assert files_of(tmp_path / "private" / "out") == files_of(expected)


@pytest.mark.slow
def test_a_loader_and_its_workers_need_nothing_of_linux(
    mixed: dict[Encoding, Path], tmp_path: Path
) -> None:
    run("", str(mixed["compact"]), str(tmp_path / "cache"))


SPAWNER = """
import time
from beam_pipeline.jobs import local_runner
print(local_runner._start(forks=False)[0].pid, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_no_spawned_worker_outlives_the_program() -> None:
    with subprocess.Popen([sys.executable, "-c", SPAWNER], stdout=subprocess.PIPE, cwd=ROOT) as it:
        assert it.stdout is not None
        worker = int(it.stdout.readline())
        assert is_alive(worker)
        it.kill()
    assert wait_until(lambda: not is_alive(worker))


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
