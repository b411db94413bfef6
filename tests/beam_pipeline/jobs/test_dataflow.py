"""Dataflow: the job as it is submitted to a fake of the service, and its work done from that.

The jobs are not run by Google here. The proof that they could be is in test_worker_packages: the
staged pipeline does its work in an environment that has only Beam and what was staged.
"""

import json
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from google.cloud.dataflow_v1beta3 import types

from beam_pipeline.main import main
from tests.support.dataflow_api import NO_WRITE_ACCESS, PROJECT, REGION, DataflowApi, State
from tests.support.dataflow_helpers import IMAGE, error_of, job_command, options_of, staged
from tests.support.dataflow_helpers import bucket as bucket
from tests.support.dataflow_helpers import dataflow as dataflow
from tests.support.dataflow_helpers import measurements as measurements
from tests.support.engines import Gcs, stored_objects
from tests.support.faulty_gcs import faulty
from tests.support.helpers import quick_and_slow
from tests.support.repository import ROOT
from tests.support.waiting import HANG_S
from tests.support.warm_python import warm_python


def submitted(flags: list[str]) -> subprocess.Popen:
    """Starts a launcher; returns when it has submitted its job and said so."""
    launcher = subprocess.Popen(
        [*warm_python(), "-m", "beam_pipeline.main", *flags],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launcher.stderr
    too_long = threading.Timer(HANG_S, launcher.kill)
    too_long.start()
    said = []
    for line in launcher.stderr:
        said.append(line)
        if line.startswith("Dataflow job "):
            too_long.cancel()
            return launcher
    pytest.fail(f"the launcher ended with {launcher.wait()}: {said}")


# --- the job as it is sent ------------------------------------------------------------------------


def test_the_job_is_what_the_flags_say(
    dataflow: DataflowApi, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No temporary file stays."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    account = f"worker@{PROJECT}.iam.gserviceaccount.com"
    flags = [
        *("--job_name=rows-of-may", "--labels=team=net", "--labels=cost=research"),
        *(f"--staging_location={bucket}/staging", "--worker_machine_type=n2-highmem-4"),
        *("--disk_size_gb=120", "--num_workers=3", "--max_num_workers=40"),
        *("--number_of_worker_harness_threads=4", "--no_use_public_ips", "--network=net-1"),
        f"--service_account_email={account}",
        *("--experiments=no_use_multiple_sdk_containers", "--experiments=shuffle_mode=service"),
    ]
    # Nobody waits: what is looked at is there before the job ends.
    dataflow.states = [State.JOB_STATE_CANCELLED]
    assert main(job_command(dataflow, bucket, *flags)) == 1
    assert list(folder.iterdir()) == []
    (job,) = dataflow.jobs
    assert (job.name, job.project_id, job.location) == ("rows-of-may", PROJECT, REGION)
    assert job.type_ == types.JobType.JOB_TYPE_BATCH
    assert dict(job.labels) == {"team": "net", "cost": "research"}

    environment, (pool,) = job.environment, job.environment.worker_pools
    assert environment.service_account_email == account
    experiments = set(environment.experiments)
    assert {"no_use_multiple_sdk_containers", "shuffle_mode=service"} <= experiments
    assert "use_multiple_sdk_containers" not in experiments
    assert (pool.machine_type, pool.disk_size_gb) == ("n2-highmem-4", 120)
    assert (pool.num_workers, pool.autoscaling_settings.max_num_workers) == (3, 40)
    assert (pool.network, pool.num_threads_per_worker) == ("net-1", 4)
    assert pool.ip_configuration.name == "WORKER_IP_PRIVATE"
    assert pool.worker_harness_container_image == IMAGE
    assert options_of(job)["options"]["pipelineUrl"].startswith(f"{bucket}/staging/rows-of-may.")
    assert set(staged(job)) == {"submission_environment_dependencies.txt", "pipeline.pb"}


# --- a job's life, as the launcher shows it -------------------------------------------------------
# A job that ends well is in probe_rows/test_anonymized_runs.py.


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "Workflow failed. Causes: The zone has no n2-highmem-4 machines left.",
            "no n2-highmem-4 machines left",
        ),
        (
            'Traceback (most recent call last):\n  File "…/grouping.py", line 1, in process\n'
            "beam_pipeline.errors.ProbelineError: probes 1.2.3.4 and 5.6.7.8 have the same src_id "
            "9: remove one of them from the input [while running 'Write shards/Write shard']",
            "probes 1.2.3.4 and 5.6.7.8 have the same src_id 9: remove one of them from the input",
        ),
    ],
    ids=["of the service", "of ours on a worker"],
)
def test_a_failed_job_is_the_last_thing_it_said(
    dataflow: DataflowApi, bucket: str, capsys, said: str, shown: str
) -> None:
    dataflow.states = [State.JOB_STATE_RUNNING, State.JOB_STATE_FAILED]
    dataflow.messages = [
        (types.JobMessageImportance.JOB_MESSAGE_BASIC, "Starting 3 workers..."),
        (types.JobMessageImportance.JOB_MESSAGE_ERROR, said),
    ]
    error = error_of(capsys, *job_command(dataflow, bucket), code=1)
    assert dataflow.jobs[0].id in error or "Traceback" in said
    assert shown in error and "while running" not in error


@pytest.mark.parametrize("more", quick_and_slow([[], ["--no_auth"]], [[]]))
def test_ctrl_c_leaves_the_job_running_which_keeps_its_output(
    dataflow: DataflowApi, bucket: str, capsys, more: list[str]
) -> None:
    """A run that only stopped waiting left its job behind; a second one must not clean up."""
    dataflow.states = [State.JOB_STATE_RUNNING]
    launcher = submitted(job_command(dataflow, bucket, "--job_name=first", *more))
    launcher.send_signal(signal.SIGINT)
    _, errors = launcher.communicate(timeout=HANG_S)
    (job,) = dataflow.jobs
    assert launcher.returncode == 130 and "Traceback" not in errors
    assert f"gcloud dataflow jobs cancel {job.id} --project={PROJECT} --region={REGION}" in errors
    assert not [request for request in dataflow.requests if "PUT" in request]  # nobody cancelled
    error = error_of(capsys, *job_command(dataflow, bucket, "--job_name=second", *more), code=2)
    assert "first" in error and "gcloud dataflow jobs cancel" in error
    dataflow.set_states(job.id, State.JOB_STATE_CANCELLED)
    dataflow.states = [State.JOB_STATE_FAILED]
    error_of(capsys, *job_command(dataflow, bucket, "--job_name=second", *more), code=1)
    assert [job.name for job in dataflow.jobs] == ["first", "second"]


# --- refusals -----------------------------------------------------------------------------------


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


@pytest.mark.parametrize("place", ["temp_location", "output"])
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


def test_what_every_job_needs(dataflow: DataflowApi, bucket: str, tmp_path: Path, capsys) -> None:
    """A region, for example, and paths that workers see."""
    flags = [each for each in job_command(dataflow, bucket) if not each.startswith("--region=")]
    assert "needs --region" in error_of(capsys, *flags, code=2)
    for flag in (f"--output={tmp_path}", f"--input={tmp_path}/*"):
        flags = job_command(dataflow, bucket, flag)
        assert "gs://" in error_of(capsys, *flags, code=2)
