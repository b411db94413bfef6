"""Jobs on Dataflow, seen from the launcher: submitted, waited for, asked about, in few words.

Beam stages and submits; what is here tells a person where the job is, turns what Google's
service refuses into one line, and leaves the job alone when only the waiting ends. A Flex
Template's launcher sets --template_location: then the job is written there and nobody waits.
"""

import contextlib
import logging
import os
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    StandardOptions,
    WorkerOptions,
)

from beam_pipeline.errors import DetachedError, ProbelineError, UsageError, one_line, user_message
from beam_pipeline.storage import gcs

RUNNER = "DataflowRunner"
_RUNNERS_LOG = "apache_beam.runners.dataflow.dataflow_runner"
_OVER = ("DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED")
_CURES = {
    401: "log in with `gcloud auth application-default login`",
    403: "give the account the roles Dataflow Developer and, on the workers' account, Service "
    "Account User, and enable the Dataflow API in the project",
    404: "check --project and --region",
    409: "wait for that job or give this one another --job_name",
}


@dataclass(frozen=True)
class DataflowJob:
    """A job by its name, which is unique among the active ones, and by its id once it has one."""

    project: str
    region: str
    name: str
    endpoint: str
    no_auth: bool = False
    id: str | None = None

    @property
    def page(self) -> str:
        """The job's page for a person to look at."""
        return (
            f"https://console.cloud.google.com/dataflow/jobs/{self.region}/{self.id}"
            f"?project={self.project}"
        )

    @property
    def cancel_command(self) -> str:
        return (
            f"gcloud dataflow jobs cancel {self.id} --project={self.project} --region={self.region}"
        )


def job_of(options: PipelineOptions) -> DataflowJob | None:
    """Returns the job that options ask for; None where they name another runner.

    Raises:
      UsageError: the job cannot be submitted, or its workers would not have this package.
    """
    if options.view_as(StandardOptions).runner != RUNNER:
        return None
    cloud = options.view_as(GoogleCloudOptions)
    for flag, value in (
        ("project", cloud.project),
        ("region", cloud.region),
        ("temp_location", cloud.temp_location or cloud.staging_location),
    ):
        if not value:
            raise UsageError(f"--runner={RUNNER} needs --{flag}: name it")
    _check_packages(options)
    if not cloud.job_name:
        from apache_beam.runners.dataflow.internal.apiclient import Job

        cloud.job_name = Job.default_job_name(None)
    return DataflowJob(
        str(cloud.project),
        str(cloud.region),
        str(cloud.job_name),
        str(cloud.dataflow_endpoint),
        bool(cloud.no_auth),
    )


def _check_packages(options: PipelineOptions) -> None:
    """Workers that lack this package would say so only after minutes of starting."""
    setup = options.view_as(SetupOptions)
    image = options.view_as(WorkerOptions).sdk_container_image
    if not (setup.setup_file or setup.extra_packages or setup.requirements_file or image):
        raise UsageError(
            f"--runner={RUNNER}: the workers would not have Probeline; run this in a clone with "
            "--setup_file=./setup.py, or name an image that holds it with --sdk_container_image"
        )
    if setup.setup_file and not os.path.isfile(setup.setup_file):
        raise UsageError(
            f"--setup_file={setup.setup_file}: there is no such file; run this in a clone, where "
            "it is ./setup.py"
        )


class _Run(Protocol):
    """What holds the output of a job, see `output_folder.Run`."""

    is_handed_over: bool

    def hand_over(self, job: DataflowJob) -> None: ...


def submit_and_wait(pipeline: beam.Pipeline, job: DataflowJob, run: _Run) -> bool:
    """Submits a job, hands the output over to it, and waits for its end.

    Returns False if only its template was written, for somebody else to start it.

    Raises:
      UsageError, ProbelineError: it was refused, it failed or it was cancelled.
      DetachedError: the waiting was ended; the job goes on.
    """
    from apache_beam.runners.dataflow.dataflow_runner import DataflowRuntimeException
    from apache_beam.runners.dataflow.internal.apiclient import DataflowJobAlreadyExistsError

    _check_staging(pipeline.options)
    try:
        with _explained(f"submit job {job.name} to Dataflow in {job.region}"):
            result: Any = pipeline.run()
    except DataflowJobAlreadyExistsError as error:
        raise UsageError(f"cannot submit job {job.name}: {one_line(error)}") from error
    if not result.has_job:
        run.hand_over(job)
        return False
    job = replace(job, id=result.job_id())
    run.hand_over(job)
    try:
        print(f"Dataflow job {job.id}: {job.page}", file=sys.stderr, flush=True)
        result.wait_until_finish()
    except DataflowRuntimeException as error:
        run.is_handed_over = False  # it is over
        raise _failure(job, error) from error
    except KeyboardInterrupt:
        raise DetachedError(
            f"stopped waiting; Dataflow job {job.id} goes on: {job.page}; to end it: "
            f"{job.cancel_command}"
        ) from None
    return True


def _check_staging(options: PipelineOptions) -> None:
    """Raises ProbelineError for a bucket that is missing or closed: Beam tries for minutes."""
    cloud = options.view_as(GoogleCloudOptions)
    for folder in (cloud.temp_location, cloud.staging_location):
        if folder and folder.startswith("gs://"):
            path = f"{folder.rstrip('/')}/probeline-{uuid.uuid4().hex}"
            generation = gcs.write_object(path, b"", 0)
            if generation is not None:
                gcs.delete_object(path, generation)


@contextlib.contextmanager
def log_shown() -> Iterator[None]:
    """Shows what Dataflow says of a job on stderr, and nothing else that Beam logs."""
    root, runner = logging.getLogger(), logging.getLogger(_RUNNERS_LOG)
    handler = logging.StreamHandler()
    levels = root.level, runner.level
    root.setLevel(logging.CRITICAL + 1)
    runner.setLevel(logging.INFO)
    runner.addHandler(handler)
    try:
        yield
    finally:
        runner.removeHandler(handler)
        root.setLevel(levels[0])
        runner.setLevel(levels[1])


def _failure(job: DataflowJob, error: Any) -> ProbelineError:
    state = str(error.result.state).removeprefix("JOB_STATE_").lower()
    reason = user_message(error)
    if reason is None:
        last_lines = str(error).strip().splitlines()[-1:]
        reason = f"the last it said: {last_lines[0]}" if state == "failed" else "by somebody"
    return ProbelineError(f"Dataflow job {job.id} was {state}: {reason}; see {job.page}")


def active_job_id(job: DataflowJob, created_until: datetime) -> str | None:
    """Returns the id of the job if it is not over yet.

    A job whose id is not known is looked for by its name, among those created until then: a
    later one has only taken the name.

    Raises:
      ProbelineError: Dataflow does not tell.
    """
    try:
        from google.api_core.exceptions import NotFound
        from google.cloud import dataflow_v1beta3 as dataflow
    except ImportError as error:
        raise ProbelineError("it takes the extra gcp: pip install 'probeline[gcp]'") from error
    with _explained(f"ask Dataflow for job {job.name} in {job.region}"):
        client = _jobs_client(job)
        if job.id:
            wanted = dataflow.GetJobRequest(
                job_id=job.id, project_id=job.project, location=job.region
            )
            try:
                return None if _is_over(client.get_job(wanted)) else job.id
            except NotFound:
                return None
        of_that_name = dataflow.ListJobsRequest(
            filter=dataflow.ListJobsRequest.Filter.ACTIVE,
            name=job.name,
            project_id=job.project,
            location=job.region,
        )
        for found in client.list_jobs(of_that_name):
            is_it = found.name == job.name and found.create_time <= created_until
            if is_it and not _is_over(found):
                return found.id
    return None


def _is_over(job: Any) -> bool:
    return job.current_state.name.removeprefix("JOB_STATE_") in _OVER


def _jobs_client(job: DataflowJob) -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import dataflow_v1beta3 as dataflow

    is_local = "localhost" in job.endpoint  # as Beam tells a test's stand-in
    return dataflow.JobsV1Beta3Client(
        credentials=AnonymousCredentials() if job.no_auth else None,
        client_options={
            "api_endpoint": job.endpoint.rstrip("/")
            if is_local
            else job.endpoint.removeprefix("https://").rstrip("/")
        },
        transport="rest" if is_local else None,
    )


@contextlib.contextmanager
def _explained(action: str) -> Iterator[None]:
    """Raises what Google's client raises as one line: what failed, why, and the cure."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except (GoogleAPICallError, GoogleAuthError) as error:
        status = int(getattr(error, "code", None) or 401)
        cure = _CURES.get(status, "check the options that it names, or run the command again")
        kind = UsageError if status in (400, 409) else ProbelineError
        raise kind(f"cannot {action}: {one_line(error)}; {cure}") from error
