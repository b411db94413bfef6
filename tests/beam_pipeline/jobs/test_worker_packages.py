"""What workers of Dataflow install: the versions of a clone, which are all that they need."""

from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions
from google.cloud.dataflow_v1beta3 import types

from beam_pipeline.jobs.dataflow import PINS, prepare_workers
from beam_pipeline.main import main
from tests.support.clean_environment import copy_of_the_project, new_environment, pip
from tests.support.dataflow_api import DataflowApi, State
from tests.support.dataflow_helpers import (
    IMAGE,
    do_the_work,
    error_of,
    job_command,
    local_dataset,
    staged,
)
from tests.support.dataflow_helpers import bucket as bucket
from tests.support.dataflow_helpers import dataflow as dataflow
from tests.support.dataflow_helpers import measurements as measurements
from tests.support.engines import Gcs, stored_objects


def test_workers_without_the_package_are_refused(
    dataflow: DataflowApi, bucket: str, capsys
) -> None:
    error = error_of(capsys, *job_command(dataflow, bucket, image=None), code=2)
    assert "--setup_file=./setup.py" in error
    flags = job_command(dataflow, bucket, "--setup_file=./no/setup.py", image=None)
    assert "./no/setup.py" in error_of(capsys, *flags, code=2)
    assert dataflow.jobs == []


SETUP = "from setuptools import setup\nsetup(name='small', version='1', packages=[])\n"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with a setup.py, of a package without code, and the versions of its dependencies."""
    folder = tmp_path / "clone"
    (folder / "templates").mkdir(parents=True)
    (folder / "setup.py").write_text(SETUP)
    (folder / PINS).write_text("numpy==2.0.0\n")
    return folder


def test_workers_of_a_clone_get_its_versions(
    dataflow: DataflowApi, bucket: str, clone: Path, tmp_path: Path
) -> None:
    dataflow.states = [State.JOB_STATE_CANCELLED]
    assert main(job_command(dataflow, bucket, f"--setup_file={clone}/setup.py", image=None)) == 1
    (job,) = dataflow.jobs
    found = staged(job)
    assert found["requirements.txt"] == b"numpy==2.0.0\n"
    assert not [name for name in found if name.endswith(".whl")]  # workers get them from the index
    names = {package.name for package in job.environment.worker_pools[0].packages}
    assert {"requirements.txt", "workflow.tar.gz"} <= names


@pytest.mark.parametrize(
    ("flags", "requirements", "cache"),
    [
        (["--setup_file={}/setup.py"], "{}/" + PINS, "skip"),
        (["--setup_file={}/setup.py", "--requirements_cache=/c"], "{}/" + PINS, "/c"),
        (["--setup_file={}/setup.py", "--requirements_file=mine.txt"], "mine.txt", None),
        (["--setup_file={}/setup.py", f"--sdk_container_image={IMAGE}"], None, None),
    ],
)
def test_what_a_person_says_of_packages_holds(
    clone: Path, flags: list[str], requirements: str | None, cache: str | None
) -> None:
    options = PipelineOptions([flag.format(clone) for flag in flags])
    prepare_workers(options)
    setup = options.view_as(SetupOptions)
    assert setup.requirements_file == (requirements and requirements.format(clone))
    assert setup.requirements_cache == cache


# --- the proof that workers could do it -----------------------------------------------------------


@pytest.mark.slow
def test_workers_with_beam_and_the_staged_package_alone_make_the_dataset(
    dataflow: DataflowApi, bucket: str, gcs: Gcs, measurements: Path, tmp_path: Path, capsys
) -> None:
    """As on Dataflow: Beam is in the container, the rest comes from the sdist that was staged."""
    project = copy_of_the_project(tmp_path / "project", PINS)
    reports = []

    def work(job: types.Job) -> None:
        (pool,) = job.environment.worker_pools
        files = staged(job)
        names = {package.name for package in pool.packages}
        assert names == {
            *("requirements.txt", "workflow.tar.gz"),
            "submission_environment_dependencies.txt",
        }
        for name in names:
            (tmp_path / name).write_bytes(files[name])
        python = new_environment(tmp_path / "container")
        pip(python, "install", "apache-beam[gcp]==2.77.0")
        pip(python, "install", "--requirement", str(tmp_path / "requirements.txt"))
        pip(python, "install", str(tmp_path / "workflow.tar.gz"))
        reports.append(do_the_work(python, tmp_path / "work", job))

    dataflow.worker = work
    flags = job_command(dataflow, bucket, f"--setup_file={project}/setup.py", image=None)
    result = main(flags)
    assert result == 0, capsys.readouterr().err
    (report,) = reports
    assert report["source"].startswith(str(tmp_path / "container"))
    assert {"Commit the dataset", "Group into rows/Cut rows", "Write shards/Write shard"} <= set(
        report["steps"]
    )
    found = stored_objects(f"{bucket}/out")
    expected = local_dataset(measurements, tmp_path / "local")
    assert {name: found[name] for name in expected} == expected
    assert set(found) == {*expected, "README.md", "croissant.json", "manifest.json", "_SUCCESS"}
