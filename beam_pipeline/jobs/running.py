"""Runs a pipeline to its end, here or on Dataflow, quietly and with one-line errors."""

import atexit
import contextlib
import glob
import logging
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from beam_pipeline.errors import UsageError, one_line
from beam_pipeline.jobs import dataflow
from beam_pipeline.jobs.dataflow import DataflowJob
from beam_pipeline.jobs.local_runner import patch_beam, silence_workers
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.storage.files import is_local


def check_paths_are_shared(paths: Iterable[tuple[str, str]]) -> None:
    """Raises UsageError for the first (flag, path) that is local, where workers cannot see it."""
    for flag, path in paths:
        if is_local(path):
            raise UsageError(
                f"--{flag}={path} is on this machine, where Dataflow's workers do not see it: "
                "give a path on gs://"
            )


def new_pipeline(beam_options: PipelineOptions) -> beam.Pipeline:
    """Returns an empty pipeline; UsageError for options that Beam rejects."""
    patch_beam()
    try:
        return beam.Pipeline(options=beam_options)
    except ValueError as error:
        raise UsageError(f"Beam refuses the options: {one_line(error)}") from error


def run_to_end(
    pipeline: beam.Pipeline,
    job: DataflowJob | None,
    run: JobRun,
    watching: contextlib.AbstractContextManager[None] | None = None,
) -> bool:
    """Runs a pipeline to its end; returns False if it only wrote a template.

    `run` holds the output, which a submitted Dataflow `job` takes over. `watching` is a context for
    a local run, such as a progress display.
    """
    if job is not None:
        try:
            return dataflow.submit_and_wait(pipeline, job, run.hand_over)
        except dataflow.JobFailedError:
            run.is_handed_over = False  # the job is over and will not tidy up
            raise
    with watching or contextlib.nullcontext():
        pipeline.run().wait_until_finish()
    return True


def unexpected(error: BaseException) -> str:
    """Returns the message for an unexpected error."""
    if isinstance(error, grpc.RpcError | grpc.FutureTimeoutError):
        details = error.details() if isinstance(error, grpc.Call) else None
        return (
            f"the runner does not answer ({details or type(error).__name__}): check that it is "
            "running, read its log, then run the same command again"
        )
    if "job server jar" in str(error):
        return (
            "the runner's job server could not be downloaded: start one and give --job_endpoint, "
            "or name its file, such as with --flink_job_server_jar"
        )
    last_line = (str(error).strip().splitlines() or ["no message"])[-1]
    return f"unexpected {type(error).__name__}: {last_line}; --debug shows where"


@contextlib.contextmanager
def temporary_folder() -> Iterator[None]:
    """Puts temporary files in a folder deleted at exit, since Beam leaves many behind."""
    environment, default = os.environ.get("TMPDIR"), tempfile.tempdir
    folder = tempfile.mkdtemp(prefix="probeline-")
    # Deleted at exit: a server that Beam starts is stopped then, and fails without its folder.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = default
        if environment is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = environment
        if not glob.glob(f"{folder}/beam-temp*"):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def quiet(beam_options: PipelineOptions) -> Iterator[None]:
    """Keeps Beam's log and warnings off the terminal; its errors still raise exceptions."""
    # It logs when the interpreter exits.
    logging.getLogger("apache_beam.utils.subprocess_server").setLevel(logging.ERROR)
    silence_workers()
    threading.excepthook = _print_unless_hung_up
    with contextlib.ExitStack() as stack:
        if beam_options.view_as(StandardOptions).runner == dataflow.RUNNER:
            stack.enter_context(dataflow.log_shown())
        else:
            stack.callback(logging.disable, logging.root.manager.disable)
            logging.disable(logging.CRITICAL)
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        yield


def _print_unless_hung_up(failed: threading.ExceptHookArgs) -> None:
    """Prints the exception of a thread, unless a finished runner closed its stream."""
    if not issubclass(failed.exc_type, grpc.RpcError):
        threading.__excepthook__(failed)
