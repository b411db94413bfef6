"""Dataflow jobs as the launcher sees them: submission, waiting and lookup.

Errors of Google's service become one line. Ctrl-C stops the wait, not the job. The launcher of a
Flex Template sets --template_location: the job is then written there instead of run.
"""

import contextlib
import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import apache_beam as beam
from apache_beam.options import pipeline_options as beams
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

from beam_pipeline.errors import DetachedError, ProbelineError, UsageError, one_line, user_error
from beam_pipeline.storage import gcs

RUNNER = "DataflowRunner"
_RUNNERS_LOG = "apache_beam.runners.dataflow.dataflow_runner"
PINS = "templates/worker_requirements.txt"  # beside setup.py; written by make lock
_FINISHED_STATES = ("DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED")
_CURES = {
    401: "log in with `gcloud auth application-default login`",
    403: "give the account the roles Dataflow Developer and, on the workers' account, Service "
    "Account User, and enable the Dataflow API in the project",
    404: "check --project and --region",
    409: "wait for that job or give this one a different --job_name",
}


@dataclass(frozen=True)
class DataflowJob:
    """A job; its name is unique among active jobs, its id None until it is submitted."""

    project: str
    region: str
    name: str
    endpoint: str
    no_auth: bool = False
    id: str | None = None

    @property
    def page(self) -> str:
        """The job's page in Google's console."""
        place = f"{self.region}/{self.id}?project={self.project}"
        return f"https://console.cloud.google.com/dataflow/jobs/{place}"

    @property
    def cancel_command(self) -> str:
        place = f"--project={self.project} --region={self.region}"
        return f"gcloud dataflow jobs cancel {self.id} {place}"


def job_of(options: PipelineOptions) -> DataflowJob | None:
    """Returns the Dataflow job that options request, if any; UsageError if it cannot be run."""
    if options.view_as(beams.StandardOptions).runner != RUNNER:
        return None
    cloud = options.view_as(GoogleCloudOptions)
    temp_location = cloud.temp_location or cloud.staging_location
    needed = {"project": cloud.project, "region": cloud.region, "temp_location": temp_location}
    for flag, value in needed.items():
        if not value:
            raise UsageError(f"--runner={RUNNER} needs --{flag}: name it")
    prepare_workers(options)
    if not cloud.job_name:
        from apache_beam.runners.dataflow.internal.apiclient import Job

        cloud.job_name = Job.default_job_name(None)
    named = cloud.project, cloud.region, cloud.job_name, cloud.dataflow_endpoint
    return DataflowJob(*map(str, named), no_auth=bool(cloud.no_auth))


def prepare_workers(options: PipelineOptions) -> None:
    """Provides workers with this package and, from a clone, with pinned dependencies.

    setup.py allows version ranges, and autoscaling starts workers for hours, but only equal
    libraries write equal bytes. Workers of a clone thus install the versions of PINS, which Beam
    stages as --requirements_file. Raises UsageError if workers would lack the package, which
    Dataflow reports only after minutes.
    """
    setup = options.view_as(beams.SetupOptions)
    worker = options.view_as(beams.WorkerOptions)
    image = worker.sdk_container_image
    if not (setup.setup_file or setup.extra_packages or setup.requirements_file or image):
        raise UsageError(
            "--runner=DataflowRunner: the workers would lack Probeline; run this in a clone "
            "with --setup_file=./setup.py, or name an image that has it with "
            "--sdk_container_image"
        )
    if setup.setup_file and not os.path.isfile(setup.setup_file):
        raise UsageError(
            f"--setup_file={setup.setup_file}: there is no such file; run this in a clone, where "
            "it is ./setup.py"
        )
    if setup.setup_file and not (setup.requirements_file or image):
        pins = os.path.join(os.path.dirname(setup.setup_file), PINS)
        if os.path.isfile(pins):
            setup.requirements_file = pins
            # Otherwise Beam downloads all of them here and uploads them with each job.
            setup.requirements_cache = setup.requirements_cache or "skip"
    if worker.use_public_ips is False and (setup.setup_file or setup.requirements_file):
        print(
            "warning: --no_use_public_ips: workers install packages with pip, which waits without "
            "end unless Cloud NAT serves their subnetwork; an image needs no pip: give "
            "--sdk_container_image and no --setup_file",
            file=sys.stderr,
        )


class JobFailedError(ProbelineError):
    """A submitted job failed or was cancelled."""


def submit_and_wait(
    pipeline: beam.Pipeline, job: DataflowJob, on_submitted: Callable[[DataflowJob], None]
) -> bool:
    """Submits a job and waits for its end; returns False if it only wrote a template.

    `on_submitted` is called with the job, and its id, once Dataflow or a template holds it.

    Raises:
      UsageError, ProbelineError: Dataflow rejected the job.
      JobFailedError: it failed or was cancelled.
      DetachedError: Ctrl-C ended the wait; the job continues.
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
        on_submitted(job)
        return False
    job = replace(job, id=result.job_id())
    on_submitted(job)
    try:
        print(f"Dataflow job {job.id}: {job.page}", file=sys.stderr, flush=True)
        result.wait_until_finish()
    except DataflowRuntimeException as error:
        raise _failure(job, error) from error
    except KeyboardInterrupt:
        raise DetachedError(
            f"stopped waiting; Dataflow job {job.id} continues: {job.page}; to cancel it: "
            f"{job.cancel_command}"
        ) from None
    return True


def _check_staging(options: PipelineOptions) -> None:
    """Raises ProbelineError for a missing or closed bucket, which Beam would retry for minutes."""
    cloud = options.view_as(GoogleCloudOptions)
    for folder in (cloud.temp_location, cloud.staging_location):
        if folder and folder.startswith("gs://"):
            path = f"{folder.rstrip('/')}/probeline-{uuid.uuid4().hex}"
            generation = gcs.write_object(path, b"", 0)
            if generation is not None:
                gcs.delete_object(path, generation)


@contextlib.contextmanager
def log_shown() -> Iterator[None]:
    """Shows Dataflow's messages about a job on stderr, and hides Beam's other logs."""
    root, runner = logging.getLogger(), logging.getLogger(_RUNNERS_LOG)
    handler = logging.StreamHandler()
    with contextlib.ExitStack() as stack:
        for logger, level in ((root, logging.CRITICAL + 1), (runner, logging.INFO)):
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(level)
        stack.callback(runner.removeHandler, handler)
        runner.addHandler(handler)
        yield


def _failure(job: DataflowJob, error: Any) -> JobFailedError:
    state = str(error.result.state).removeprefix("JOB_STATE_").lower()
    reason = user_error(error)
    if reason is None:
        last_lines = str(error).strip().splitlines()[-1:]
        reason = f"its last message: {last_lines[0]}" if state == "failed" else "by somebody"
    return JobFailedError(f"Dataflow job {job.id} was {state}: {reason}; see {job.page}")


def active_job_id(job: DataflowJob, created_until: datetime) -> str | None:
    """Returns the id of a job that has not ended, else None; ProbelineError without an answer.

    A job without an id is looked up by name; one created after `created_until` is a different job.
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
        active = dataflow.ListJobsRequest.Filter.ACTIVE
        same_name = dataflow.ListJobsRequest(
            filter=active, name=job.name, project_id=job.project, location=job.region
        )
        for found in client.list_jobs(same_name):
            is_it = found.name == job.name and found.create_time <= created_until
            if is_it and not _is_over(found):
                return found.id
    return None


def _is_over(job: Any) -> bool:
    return job.current_state.name.removeprefix("JOB_STATE_") in _FINISHED_STATES


def _jobs_client(job: DataflowJob) -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import dataflow_v1beta3 as dataflow

    is_local = "localhost" in job.endpoint  # Beam's own test for a stand-in
    endpoint = job.endpoint if is_local else job.endpoint.removeprefix("https://")
    return dataflow.JobsV1Beta3Client(
        credentials=AnonymousCredentials() if job.no_auth else None,
        client_options={"api_endpoint": endpoint.rstrip("/")},
        transport="rest" if is_local else None,
    )


@contextlib.contextmanager
def _explained(action: str) -> Iterator[None]:
    """Converts exceptions of Google's client into one line: what failed, why, and the cure."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except (GoogleAPICallError, GoogleAuthError) as error:
        status = int(getattr(error, "code", None) or 401)
        cure = _CURES.get(status, "check the options that it names, or run the command again")
        kind = UsageError if status in (400, 409) else ProbelineError
        raise kind(f"cannot {action}: {one_line(error)}; {cure}") from error
