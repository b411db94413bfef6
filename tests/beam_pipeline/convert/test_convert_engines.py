"""A conversion that is killed, whose steps are repeated, and that runs on other engines and GCS."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from beam_pipeline.convert import pipeline, shards, staging
from beam_pipeline.convert.__main__ import main
from beam_pipeline.convert.layout import MANIFEST, SUCCESS
from tests.support.conversions import flags_of, records_of, small_units, write_sources
from tests.support.engines import Flink, Gcs, stored_objects
from tests.support.helpers import quick_and_slow
from tests.support.overlap_jobs import files_below
from tests.support.repository import ROOT
from tests.support.warm_python import warm_python

__all__ = ["small_units"]
pytestmark = pytest.mark.usefixtures("small_units")

# Runs `main` in a process that kills itself when a function of the job is called for the n-th time.
_SCRIPT = """
import importlib, os, signal, sys
from beam_pipeline.convert import blocks, units
units.UNIT_BYTES, blocks.BLOCK_BYTES = 5000, 2000
module, name, after = sys.argv[1], sys.argv[2], int(sys.argv[3])
owner = importlib.import_module(f"beam_pipeline.{module}")
original, calls = getattr(owner, name), []
def killing(*args, **kwargs):
    calls.append(0)
    if len(calls) == after:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(owner, name, killing)
from beam_pipeline.convert.__main__ import main
sys.exit(main(sys.argv[4:]))
"""
KILLS = {
    "reading": ("convert.staging", "read_unit", 2),
    "staging": ("convert.staging", "stage_unit", 9),
    "planning": ("convert.pipeline", "plan_shards", 1),
    "writing shards": ("convert.shards", "write_shard", 2),
    "before the names": ("convert.commit", "move_files", 1),
    "amid the names": ("storage.many_files", "_move", 2),
    "before the manifest": ("convert.commit", "write_guarded", 1),
    "before .SUCCESS": ("convert.commit", "write_guarded", 2),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conversion")
    write_sources(folder / "in")
    return folder / "in"


@pytest.fixture
def expected(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What an undisturbed run writes; all runs tell the same time."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    output = source.parent / "out"
    if not (output / SUCCESS).exists():
        assert main([*flags_of(source, output), "--direct_num_workers=1"]) == 0
        assert len(records_of(output)) == 1600
    return files_below(output)


@pytest.mark.parametrize("phase", quick_and_slow(KILLS, ("before .SUCCESS",)))
def test_a_killed_run_leaves_nothing_finished_and_the_next_writes_the_same_bytes(
    source: Path, expected: dict[str, bytes], tmp_path: Path, phase: str
) -> None:
    flags = [*flags_of(source, tmp_path / "out"), "--direct_num_workers=1"]
    module, name, after = KILLS[phase]
    killed = subprocess.run(
        [*warm_python(), "-c", _SCRIPT, module, name, str(after), *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -9, killed.stderr
    assert not (tmp_path / "out" / SUCCESS).exists()
    assert main(flags) == 0
    assert files_below(tmp_path / "out") == expected


def test_steps_that_are_repeated_change_nothing(
    source: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repeat(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def twice(*args):
            original(*args)
            return original(*args)

        monkeypatch.setattr(owner, name, twice)

    repeat(staging, "stage_unit")
    repeat(pipeline, "plan_shards")
    repeat(shards, "write_shard")
    repeat(pipeline, "commit")
    assert main([*flags_of(source, tmp_path / "out"), "--direct_num_workers=1"]) == 0
    assert files_below(tmp_path / "out") == expected


def test_two_processes_write_the_same_bytes(
    source: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    assert main([*flags_of(source, tmp_path / "out"), "--direct_num_workers=2"]) == 0
    assert files_below(tmp_path / "out") == expected


def test_prism_writes_the_same_bytes(
    source: Path, expected: dict[str, bytes], tmp_path: Path, prism: str
) -> None:
    flags = [*flags_of(source, tmp_path / "out"), "--runner=PrismRunner"]
    assert main([*flags, f"--prism_location={prism}", "--environment_type=LOOPBACK"]) == 0
    assert files_below(tmp_path / "out") == expected


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_flink_writes_the_same_bytes(
    source: Path, expected: dict[str, bytes], tmp_path: Path, flink: Flink
) -> None:
    assert main([*flags_of(source, tmp_path / "out"), *flink.flags()]) == 0
    assert files_below(tmp_path / "out") == expected


def test_objects_are_read_and_written(source: Path, expected: dict[str, bytes], gcs: Gcs) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(source, f"{bucket}/in")
    flags = flags_of(f"{bucket}/in/*", f"{bucket}/out", "--direct_num_workers=1")
    assert main(flags) == 0
    written = stored_objects(f"{bucket}/out")
    assert set(written) == set(expected)
    told = {MANIFEST, SUCCESS}  # of paths and versions that are others here
    assert {name: written[name] for name in set(written) - told} == {
        name: expected[name] for name in set(expected) - told
    }
    found, known = (json.loads(files[MANIFEST]) for files in (written, expected))
    assert (found["counts"], found["shards"]) == (known["counts"], known["shards"])
