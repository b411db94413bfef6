"""Forked worker processes: the same bytes, and an end in one line whatever ends them."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.helpers import measurements_table, quick_and_slow
from tests.support.job_runs import FLAGS, files_of, make_dataset, write_input
from tests.support.waiting import HANG_S, is_alive, wait_until
from tests.support.warm_python import warm_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")

# A job of eight work units on three cores, which tells the process that sorts each of them.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from beam_pipeline.main import main
from beam_pipeline.probe_rows import bucket, grouping
from beam_pipeline.sources import inputs

os.sched_getaffinity = lambda _: range(3)
grouping.UNIT_ROWS = inputs.UNIT_ROWS = 400
bucket.BUCKET_ROWS = 300
folder, pregroup = Path(sys.argv[1]), grouping.pregroup
(folder / "program").write_text(str(os.getpid()))

def told(*arguments):
    (folder / f"worker-{os.getpid()}").touch()
    WHAT
    return pregroup(*arguments)

grouping.pregroup = told
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    table = measurements_table(3000, seed=1, num_probes=12)
    return write_input(tmp_path / "in", table.slice(0, 1700), table.slice(1700))


def start(folder: Path, what: str, *flags: str) -> subprocess.Popen[str]:
    command = [*warm_python(), "-c", PROGRAM.replace("WHAT", what), str(folder), *FLAGS, *flags]
    flags = (f"--input={folder}/in", f"--output={folder}/out")
    environment = {**os.environ, "FORCE_COLOR": "1"}  # what a terminal sees; no thread shows it
    return subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True, env=environment)


def end_of(program: subprocess.Popen[str]) -> tuple[int, str]:
    """Returns the exit code and the last line on stderr, without what moves a cursor."""
    printed = program.communicate(timeout=HANG_S)[1]
    lines = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", printed).splitlines()
    return program.returncode, lines[-1] if lines else ""


def workers_of(folder: Path) -> set[int]:
    return {int(path.name.partition("-")[2]) for path in folder.glob("worker-*")}


COMPRESSED = "--array_record_options=group_size:1,zstd:1"  # whose writer has a thread


@pytest.mark.parametrize(
    "flags",
    [
        [],
        pytest.param([COMPRESSED], marks=pytest.mark.slow),
    ],
    ids=["all-cores", "compressed"],
)
def test_workers_are_processes_and_write_the_same_bytes(
    source: Path, tmp_path: Path, flags: list[str]
) -> None:
    code, line = end_of(start(tmp_path, "pass", *flags))
    assert code == 0, line
    workers = workers_of(tmp_path)
    assert len(workers) == 3 and int((tmp_path / "program").read_text()) not in workers
    alone = make_dataset(source, tmp_path / "other", *flags, "--direct_num_workers=1")
    assert files_of(tmp_path / "out") == files_of(alone)
    assert not any(map(is_alive, workers))


@pytest.mark.usefixtures("source")
def test_a_worker_that_is_killed_ends_the_job_in_one_line(tmp_path: Path) -> None:
    code, line = end_of(start(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)"))
    assert code == 1
    assert line.startswith(
        "error: a worker process ended with exit code -9, most likely because memory"
    )
    assert not (tmp_path / "out" / "_SUCCESS").exists()


@pytest.mark.usefixtures("source")
def test_an_error_in_a_worker_is_one_line(tmp_path: Path) -> None:
    damaged = tmp_path / "in" / "part-1.parquet"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:4] + b"\0" * 996 + data[1000:])
    code, line = end_of(start(tmp_path, "pass"))
    assert code == 1 and line.startswith(f"error: cannot read {damaged}")


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    "sent", quick_and_slow([signal.SIGKILL, signal.SIGTERM, signal.SIGINT], [signal.SIGKILL])
)
def test_no_worker_outlives_the_program(tmp_path: Path, sent: signal.Signals) -> None:
    program = start(tmp_path, f"time.sleep({HANG_S})")
    assert wait_until(lambda: len(workers_of(tmp_path)) == 3, lambda: program.poll() is None)
    os.kill(int((tmp_path / "program").read_text()), sent)
    program.communicate(timeout=HANG_S)
    assert wait_until(lambda: not any(map(is_alive, workers_of(tmp_path))))


def test_a_process_with_threads_does_not_fork() -> None:
    """Here, with one of a library."""
    starts_thread = (
        "from array_record.python.array_record_module import ArrayRecordWriter as W;"
        "W('/dev/null', 'group_size:1,zstd:1').close()"
    )
    script = (
        "from beam_pipeline.machine import can_fork\n"
        f"assert can_fork()\n{starts_thread}\nassert not can_fork()"
    )
    subprocess.run([*warm_python(), "-c", script], check=True, timeout=HANG_S)
