"""A run that is killed at any point leaves nothing that looks finished; the next one is whole."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beam_pipeline.errors import ProbelineError
from beam_pipeline.main import main
from beam_pipeline.manifest import open_dataset
from tests.helpers import measurements_table
from tests.test_main import FLAGS, files_of, make_dataset

# Runs `main` in a process that kills itself when a function is called for the n-th time.
SCRIPT = """
import os, signal, sys
import beam_pipeline.{module} as module
owner, name, after = {owner}, {name!r}, {after}
original, calls = getattr(owner, name), []
def killing(*args, **kwargs):
    calls.append(0)
    if len(calls) == after:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(owner, name, killing)
from beam_pipeline.main import main
main(sys.argv[1:])
"""

PHASES = {
    "reading": ("grouping", "module", "read_piece", 2),
    "closing chunks": ("claim_checks", "module.ClaimWriter", "close", 1),
    "sorting": ("external_sort", "module.ExternalSort", "sort", 3),
    "cutting rows": ("row_splitting", "module", "fit", 5),
    "staging": ("sharded_write", "module.StageRecords", "process", 4),
    "writing shards": ("sharded_write", "module.WriteShard", "_write", 2),
    "writing the index": ("sharded_write", "module.WriteShard", "_write_index", 2),
    "renaming the first shard": ("sharded_write", "module", "move", 1),
    "renaming another shard": ("sharded_write", "module", "move", 3),
    "before the manifest": ("commit", "module", "write_success", 1),
    "before _SUCCESS": ("commit", "module", "_write_whole", 2),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kills")
    table = measurements_table(2500, seed=1, num_probes=12)
    for number in range(3):
        pq.write_table(table.slice(number * 900, 900), folder / f"{number}.parquet")
    return folder / "*.parquet"


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return files_of(make_dataset(source, tmp_path_factory.mktemp("whole") / "out"))


@pytest.mark.parametrize("phase", PHASES)
def test_a_kill_changes_nothing(
    source: Path, expected: dict[str, bytes], tmp_path: Path, phase: str
) -> None:
    module, owner, name, after = PHASES[phase]
    script = SCRIPT.format(module=module, owner=owner, name=name, after=after)
    output = tmp_path / "out"
    flags = [f"--input={source}", f"--output={output}", "--inline_bytes=0", *FLAGS]
    process = subprocess.run([sys.executable, "-c", script, *flags], capture_output=True)
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    assert list(output.rglob("*")), "nothing was begun: the kill came too early to matter"
    with pytest.raises(ProbelineError, match="no finished dataset"):
        open_dataset(str(output))
    again = make_dataset(source, output)
    assert files_of(again) == expected
    left = {path.name for path in again.iterdir()}
    assert left == {"train", "test", "manifest.json", "_SUCCESS"}
    assert {str(p.relative_to(again)) for p in again.glob("t*/*")} == set(expected)


def test_a_kill_after_success_leaves_a_finished_dataset(
    source: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    script = SCRIPT.format(module="commit", owner="module", name="remove_folder", after=1)
    output = tmp_path / "out"
    flags = [f"--input={source}", f"--output={output}", *FLAGS]
    process = subprocess.run([sys.executable, "-c", script, *flags], capture_output=True)
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    assert open_dataset(str(output)) and files_of(output) == expected


def test_sigterm_tidies_up(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    table = measurements_table(60_000, seed=2, num_probes=3000)
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=1000)
    flags = [f"--input={tmp_path}/in.parquet", f"--output={output}", "--inline_bytes=0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "beam_pipeline.main", *flags], stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not list(output.glob(".probeline-temp/*/chunks/*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr.decode()
    assert b"stopped" in stderr
    assert not (output / "_SUCCESS").exists()
    assert not list(output.glob(".probeline-temp/*"))


def test_a_live_run_is_left_alone(source: Path, tmp_path: Path) -> None:
    """A run that waits before its commit is not disturbed by another; killed, it gives way."""
    output = tmp_path / "out"
    script = SCRIPT.format(module="commit", owner="module", name="write_success", after=1)
    pause = "print('waits', flush=True), signal.pause()"
    script = script.replace("os.kill(os.getpid(), signal.SIGKILL)", pause)
    flags = [f"--input={source}", f"--output={output}", *FLAGS]
    process = subprocess.Popen([sys.executable, "-c", script, *flags], stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline() == b"waits\n"
        before = sorted(path.name for path in output.rglob("*"))
        assert main(flags) == 2
        assert sorted(path.name for path in output.rglob("*")) == before
    finally:
        process.kill()
        process.communicate()
    assert files_of(make_dataset(source, output))
