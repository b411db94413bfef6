"""Dataflow: what is refused, each in one line, and what must be there for a job."""

import json
from pathlib import Path

import pytest

from beam_pipeline.main import main
from tests.support.dataflow_api import NO_WRITE_ACCESS, PROJECT, REGION, DataflowApi, State
from tests.support.dataflow_helpers import bucket as bucket
from tests.support.dataflow_helpers import dataflow as dataflow
from tests.support.dataflow_helpers import error_of, job_command
from tests.support.dataflow_helpers import measurements as measurements
from tests.support.engines import Gcs, stored_objects
from tests.support.faulty_gcs import faulty


@pytest.mark.parametrize("returns_active_job", [False, True])
def test_a_second_job_of_one_name(
    dataflow: DataflowApi, bucket: str, capsys, returns_active_job: bool
) -> None:
    dataflow.states = [State.JOB_STATE_RUNNING]
    dataflow.returns_active_job = returns_active_job
    body = json.dumps({"name": "rows", "clientRequestId": "another"}).encode()
    dataflow.create_job(body, PROJECT, REGION)
    error = error_of(capsys, *job_command(dataflow, bucket, "--job_name=rows"), code=2)
    assert "already" in error and "rows" in error and "--job_name" in error
    assert len(dataflow.jobs) == 1


def test_no_right_to_make_jobs(dataflow: DataflowApi, bucket: str, capsys, gcs: Gcs) -> None:
    dataflow.refusal = NO_WRITE_ACCESS
    error = error_of(capsys, *job_command(dataflow, bucket), code=1)
    assert "dataflow.jobs.create" in error and "Dataflow Developer" in error
    assert not stored_objects(f"{bucket}/out")  # a later run is not refused


def test_a_region_that_is_not_there(dataflow: DataflowApi, bucket: str, capsys) -> None:
    error = error_of(capsys, *job_command(dataflow, bucket, "--region=europe-west99"), code=1)
    assert "europe-west99" in error and "--region" in error


@pytest.mark.parametrize("place", ["temp_location", "output", "input"])
def test_no_right_to_a_bucket(
    dataflow: DataflowApi, bucket: str, gcs: Gcs, capsys, monkeypatch, place: str
) -> None:
    closed = gcs.make_bucket()
    flags = [each for each in job_command(dataflow, bucket) if not each.startswith(f"--{place}=")]
    name = closed.removeprefix("gs://")
    with faulty(gcs.endpoint, refuses=lambda _, sent: name in sent) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.endpoint)
        capsys.readouterr()
        assert main([*flags, f"--{place}={closed}/x"]) in (1, 2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("error: "), error
    assert name in error
    assert dataflow.jobs == []


@pytest.mark.parametrize("flag", ["project", "region", "temp_location"])
def test_what_every_job_needs(dataflow: DataflowApi, bucket: str, capsys, flag: str) -> None:
    flags = [each for each in job_command(dataflow, bucket) if not each.startswith(f"--{flag}=")]
    assert f"needs --{flag}" in error_of(capsys, *flags, code=2)


def test_paths_that_workers_cannot_see(
    dataflow: DataflowApi, bucket: str, tmp_path: Path, capsys
) -> None:
    for flag in (f"--output={tmp_path}", f"--input={tmp_path}/*"):
        flags = job_command(dataflow, bucket, flag)
        assert "gs://" in error_of(capsys, *flags, code=2)
