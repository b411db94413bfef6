"""The whole job on a local Flink: the same bytes as in memory, also if tasks or workers fail."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import ProbelineError
from beam_pipeline.probe_rows import bucket, grouping, row_splitting
from beam_pipeline.shards import claim_checks
from beam_pipeline.storage import many_files
from benchmarks.engine_servers import Flink, free_port, running_server
from tests.support.engines import JAVA, flink_is_built
from tests.support.helpers import measurements_table
from tests.support.job_runs import FLAGS, make_dataset, write_input
from tests.support.kills import BUCKET_ROWS, KILL_POINTS
from tests.support.repository import ROOT
from tests.support.waiting import HANG_S, wait_until


@dataclass(frozen=True)
class FlinkCluster:
    """A job server and a Flink of separate processes."""

    port: int
    flink_port: int

    def flags(self) -> list[str]:
        """Returns the flags of `beam_pipeline.main` to run there."""
        command = {"command": str(ROOT / "scripts" / "beam_worker.py")}
        return [
            *("--runner=PortableRunner", f"--job_endpoint=127.0.0.1:{self.port}"),
            *("--environment_type=PROCESS", f"--environment_config={json.dumps(command)}"),
            *("--parallelism=2", f"--flink_master=127.0.0.1:{self.flink_port}"),
        ]

    def states(self) -> list[str]:
        """Returns the states of all jobs."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.flink_port}/jobs/overview") as got:
            return [job["state"] for job in json.load(got)["jobs"]]


@contextmanager
def running_flink_cluster(folder: Path, environment: dict[str, str]) -> Iterator[FlinkCluster]:
    """Runs a cluster with two task managers, whose workers have the environment."""
    flink_is_built()
    cluster = FlinkCluster(free_port(), free_port())
    command = ["scripts/flink_cluster.sh", str(cluster.port), str(folder), str(cluster.flink_port)]
    log = folder / "log"
    with running_server("the Flink cluster", command, cluster.port, log, environment | JAVA):
        yield cluster


# Beam's workers end with an exception when Flink, which is done, closes a stream.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture(scope="module")
def source(folder: Path) -> Path:
    """Probes of several rows in Parquet, of one row and one measurement in JSON; dead letters."""
    busy = measurements_table(3000, seed=1, num_probes=8)
    rare = measurements_table(60, seed=2, num_probes=40)
    bad = measurements_table(30, seed=3).set_column(4, "rtt", pa.array([np.nan] * 30))
    write_input(folder, busy, bad, row_group_size=500)
    lines = [json.dumps(row, default=str) for row in rare.to_pylist()]
    (folder / "rare.jsonl").write_text("\n".join(lines))
    return folder / "*"


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    files = whole(make_dataset(source, tmp_path_factory.mktemp("memory") / "out"))
    assert {"test", "dead_letter", "_SUCCESS"} <= {Path(name).parts[0] for name in files}
    return files


def whole(dataset: Path) -> dict[str, bytes]:
    """Returns the bytes of every file, hidden ones and those of a temporary folder too."""
    paths = [path for path in dataset.rglob("*") if path.is_file()]
    return {str(path.relative_to(dataset)): path.read_bytes() for path in paths}


@pytest.mark.parametrize(("inline_bytes", "parallelism"), [(0, 2), (1 << 16, 1)])
def test_flink_writes_the_same_bytes(
    source: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    flink: Flink,
    parallelism: int,
    inline_bytes: int,
) -> None:
    flags = [*flink.flags(parallelism), f"--inline_bytes={inline_bytes}"]
    assert whole(make_dataset(source, tmp_path / "out", *flags)) == expected


# What fails once, one call of each stage: its owner, its name and the number of the call.
FAULTS = {
    "closing chunks": (claim_checks.ClaimWriter, "close", 1),
    "cutting rows": (row_splitting, "fit", 5),
    "renaming a shard": (many_files, "_move", 3),
}


@pytest.mark.parametrize("where", FAULTS)
def test_a_task_that_fails_once_changes_nothing(
    source: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    flink: Flink,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    """Flink runs the failed task, and all that it needs, once more."""
    owner, name, at = FAULTS[where]
    original, calls = getattr(owner, name), []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        if len(calls) == at:
            raise RuntimeError(f"injected into {name}")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)
    monkeypatch.setattr(bucket, "BUCKET_ROWS", BUCKET_ROWS)
    monkeypatch.setattr(grouping, "SORT_MEMORY_BYTES", 4000)  # most probes go to the stateful cut
    dataset = make_dataset(source, tmp_path / "out", *flink.flags(), "--inline_bytes=0")
    assert len(calls) > at
    assert whole(dataset) == expected


# Python runs this in every process that finds it on its path. The worker that is first to make a
# call so many times kills itself, or its parent; its successor does not.
KILLING = """
import os, signal, sys
def kill_once(owner, name, after, marker, victim):
    original, calls = getattr(owner, name), []
    def killing(*args, **kwargs):
        calls.append(0)
        if len(calls) == after:
            try:
                open(marker, "x").close()
            except FileExistsError:
                pass
            else:
                os.kill(victim(), signal.SIGKILL)
        return original(*args, **kwargs)
    setattr(owner, name, killing)
if any(name in " ".join(sys.orig_argv) for name in ("SdkHarness", "beam_worker")):
    import beam_pipeline.probe_rows.bucket as bucket
    bucket.BUCKET_ROWS = {bucket_rows}
"""
KILL = """
    import beam_pipeline.{module} as module
    kill_once({owner}, {name!r}, {after}, {marker!r}, os.{victim})
"""


def environment(tmp_path: Path, *kills: tuple[str, tuple[str, str, str, int]]) -> dict[str, str]:
    """Returns the variables with which workers kill themselves or their parents, each kill once.

    A kill has a process, getpid or getppid, and a place; it leaves the file killed-PROCESS.
    """
    code = KILLING.format(bucket_rows=BUCKET_ROWS)
    for victim, (module, owner, name, after) in kills:
        marker = str(tmp_path / f"killed-{victim}")
        code += KILL.format(
            module=module, owner=owner, name=name, after=after, marker=marker, victim=victim
        )
    folder = tmp_path / "site"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    # Beam starts a worker as `python`, whatever runs the launcher.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def test_a_bad_file_is_one_line(source: Path, tmp_path: Path, flink: Flink) -> None:
    """What a worker raises comes back through Flink; nothing that looks finished is left."""
    bad = tmp_path / "bad.parquet"
    pq.write_table(measurements_table(500, seed=4), bad)
    content = bytearray(bad.read_bytes())
    content[4:40] = bytes(36)  # the head of the first page; the file's own stands at its end
    bad.write_bytes(content)
    output = tmp_path / "out"
    command = [
        sys.executable, "-m", "beam_pipeline.main", f"--input={source}", f"--input={bad}",
        f"--output={output}", *flink.flags(),
    ]  # fmt: skip
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in result.stderr.splitlines() if "reading: " not in line]
    assert len(lines) == 1 and lines[0].startswith("error: cannot read"), result.stderr
    assert str(bad) in lines[0] and "--on_bad_file=dead_letter" in lines[0]
    assert result.returncode == 1
    assert not list(output.rglob("*"))
    with pytest.raises(ProbelineError, match="not a finished dataset"):
        open_dataset(str(output))


@pytest.mark.slow
@pytest.mark.flink
def test_a_cluster_loses_a_worker_and_a_task_manager_and_a_launcher(
    source: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """The parent of a worker is its task manager. A launcher that is stopped cancels its job."""
    kills = ("getpid", KILL_POINTS["sorting"]), ("getppid", KILL_POINTS["writing shards"])
    command = [sys.executable, "-m", "beam_pipeline.main", f"--input={source}", *FLAGS]
    with running_flink_cluster(tmp_path, environment(tmp_path, *kills)) as cluster:
        flags = [*command, *cluster.flags(), "--inline_bytes=0"]
        done = subprocess.run([*flags, f"--output={tmp_path / 'out'}"], stderr=subprocess.PIPE)
        log = (tmp_path / "log").read_text()
        assert done.returncode == 0, done.stderr.decode()[-1000:] + log[-3000:]
        killed = {path.name for path in tmp_path.glob("killed-*")}
        assert killed == {"killed-getpid", "killed-getppid"}
        assert whole(tmp_path / "out") == expected
        stopped = [*flags, f"--output={tmp_path / 'stopped'}"]
        launcher = subprocess.Popen(stopped, stderr=subprocess.PIPE, text=True)
        assert wait_until(lambda: "RUNNING" in cluster.states(), lambda: launcher.poll() is None)
        launcher.terminate()
        _, said = launcher.communicate(timeout=HANG_S)
        assert sorted(cluster.states()) == ["CANCELED", "FINISHED"]
    assert re.search(r"^job probeline-\w+ on Flink at .* is canceled$", said, re.MULTILINE), said
    assert not list((tmp_path / "stopped").rglob("*"))


def test_spark_writes_the_same_bytes(
    source: Path,
    expected: dict[str, bytes],
    tmp_path: Path,
    spark: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket, "BUCKET_ROWS", BUCKET_ROWS)
    monkeypatch.setattr(grouping, "SORT_MEMORY_BYTES", 4000)  # most probes go to the stateful cut
    fits: list[Any] = []
    fit = row_splitting.fit
    monkeypatch.setattr(row_splitting, "fit", lambda *a, **k: (fits.append(a), fit(*a, **k))[1])
    assert whole(make_dataset(source, tmp_path / "out", *spark, "--inline_bytes=0")) == expected
    assert fits
