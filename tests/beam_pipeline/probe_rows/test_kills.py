"""A kill of the runner beside the worker.

Kills at every change of the output are in jobs/test_kills.py, for all jobs.
"""

import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import ProbelineError
from tests.support.helpers import measurements_table
from tests.support.job_runs import FLAGS, files_of, make_dataset
from tests.support.kills import KILL_POINTS, kill_script
from tests.support.waiting import HANG_S, wait_until


@pytest.fixture(scope="module")
def source(folder: Path) -> Path:
    table = measurements_table(2500, seed=1, num_probes=12)
    for number in range(3):
        pq.write_table(table.slice(number * 900, 900), folder / f"{number}.parquet")
    return folder / "*.parquet"


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return files_of(make_dataset(source, tmp_path_factory.mktemp("whole") / "out"))


def test_a_kill_of_prism_changes_nothing(
    source: Path, expected: dict[str, bytes], tmp_path: Path, prism: str
) -> None:
    """The runner is a process beside the worker: without it there is one line and exit code 1."""
    output, sorting = tmp_path / "out", tmp_path / "sorting"
    script = kill_script(*KILL_POINTS["sorting"])
    # It waits in the middle, so that the kill does not come too late.
    pause = f"(open({str(sorting)!r}, 'x').close(), __import__('time').sleep(3))"
    script = script.replace("os.kill(os.getpid(), signal.SIGKILL)", pause)
    on_prism = ["--inline_bytes=0", "--runner=PrismRunner", f"--prism_location={prism}"]
    flags = [f"--input={source}", f"--output={output}", *FLAGS, *on_prism]
    process = subprocess.Popen([sys.executable, "-c", script, *flags], stderr=subprocess.PIPE)
    assert wait_until(sorting.exists, lambda: process.poll() is None), process.communicate()
    (runner,) = psutil.Process(process.pid).children()
    runner.kill()
    _, stderr = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    lines = stderr.decode().splitlines()
    assert len(lines) == 1 and "the runner does not answer" in lines[0], lines
    assert not list(output.rglob("*"))
    with pytest.raises(ProbelineError, match="not a finished dataset"):
        open_dataset(str(output))
    assert files_of(make_dataset(source, output, *on_prism)) == expected
    assert {path.name for path in output.iterdir()} == {
        "train", "test", "README.md", "croissant.json", "manifest.json", "_SUCCESS"
    }  # fmt: skip
