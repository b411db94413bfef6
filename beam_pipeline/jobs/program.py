"""Running a job's program, here or on Dataflow: exit codes, one-line errors, silence, signals."""

import contextlib
import logging
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.worker import sdk_worker

from beam_pipeline.cli.command import run_command
from beam_pipeline.errors import ProbelineError, UsageError, one_line, user_error
from beam_pipeline.jobs import dataflow
from beam_pipeline.jobs.dataflow import DataflowJob
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.storage.files import is_local


def run_program[Options, Result](
    argv: Sequence[str] | None,
    parse: Callable[[Sequence[str]], tuple[Options, PipelineOptions]],
    run: Callable[[Options, PipelineOptions], Result | None],
    report: Callable[[Options, Result, float], None],
    output_name: str,
) -> int:
    """Runs the command line of a job and returns the exit code, as `run_command`.

    Args:
      argv: the command line; None is that of this process. --debug lets Beam's log and tracebacks
        through.
      parse: returns the job's options and Beam's from a command line.
      run: runs the job to its end; returns None if it only wrote a template.
      report: prints the result and the seconds that the run took.
      output_name: what a finished output holds, in one word.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments

    def run_job(arguments: Sequence[str]) -> None:
        try:
            options, beam_options = parse(arguments)
            with contextlib.nullcontext() if debug else _quiet(beam_options):
                started = time.monotonic()
                result = run(options, beam_options)
            if result is None:
                print("the job's template is written; nothing has run yet")
            else:
                report(options, result, time.monotonic() - started)
        except Exception as error:
            if "KeyboardInterrupt" in repr(error):  # Beam wraps what stops a worker
                raise KeyboardInterrupt from error
            if debug:
                raise
            raise user_error(error) or ProbelineError(_unexpected(error)) from error

    stopped = f"stopped; the output holds no finished {output_name}"
    return run_command(arguments, run_job, stopped, debug=debug)


def tidy_up_on_sigterm() -> None:
    """Makes SIGTERM end this process as Ctrl-C does, so that temporary files are removed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def check_paths_are_shared(paths: Iterable[tuple[str, str]]) -> None:
    """Raises UsageError for the first (flag, path) that is local, where workers cannot see it."""
    for flag, path in paths:
        if is_local(path):
            raise UsageError(
                f"--{flag}={path} is on this machine, where Dataflow's workers do not see it: "
                "give a path on gs://"
            )


def new_pipeline(beam_options: PipelineOptions) -> beam.Pipeline:
    """Returns an empty pipeline; UsageError for options that Beam does not take."""
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
    """Runs a pipeline and waits for its end.

    Args:
      job: the job on Dataflow that the pipeline becomes; None for other runners.
      run: holds the output, which a submitted job takes over.
      watching: a context for a run on this machine, such as a progress display.

    Returns:
      False if only a template was written, which a Flex Template's launcher asks for.
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


def _unexpected(error: BaseException) -> str:
    if isinstance(error, grpc.RpcError | grpc.FutureTimeoutError):
        details = error.details() if isinstance(error, grpc.Call) else None
        return (
            f"the runner does not answer ({details or type(error).__name__}): check that it is "
            "running and what its log says, then run the same command again"
        )
    last_line = (str(error).strip().splitlines() or ["no message"])[-1]
    return f"unexpected {type(error).__name__}: {last_line}; --debug shows where"


@contextlib.contextmanager
def _quiet(beam_options: PipelineOptions) -> Iterator[None]:
    """Keeps Beam's log and warnings off the terminal; its errors come back as exceptions."""
    # It logs when the interpreter exits.
    logging.getLogger("apache_beam.utils.subprocess_server").setLevel(logging.ERROR)
    # A worker in this process prints each traceback that it also sends to the runner, which raises
    # it here. It may do so until the interpreter exits.
    sdk_worker.print = lambda *_, **__: None
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
    """Prints what ended a thread, unless a runner that is done closed its stream."""
    if not issubclass(failed.exc_type, grpc.RpcError):
        threading.__excepthook__(failed)
