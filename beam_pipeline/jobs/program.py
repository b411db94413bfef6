"""What is around a job when its program is run: exit codes, one-line errors, silence, signals.

`run_program` takes a command line and what a job does with it, and returns the exit code: 0, the
output is there; 1, the run failed; 2, the command cannot be run as given; 130, somebody ended it,
or ended the waiting for a job on Dataflow. `run_to_end` runs a pipeline here or on Dataflow.
"""

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

from beam_pipeline.errors import ProbelineError, UsageError, one_line, user_message
from beam_pipeline.jobs import dataflow
from beam_pipeline.jobs.dataflow import DataflowJob
from beam_pipeline.jobs.output_folder import Run
from beam_pipeline.storage.files import is_local


def run_program[Options, Result](
    argv: Sequence[str] | None,
    parse: Callable[[Sequence[str]], tuple[Options, PipelineOptions]],
    run: Callable[[Options, PipelineOptions], Result | None],
    report: Callable[[Options, Result, float], None],
    output_name: str,
) -> int:
    """Runs a command line (default: sys.argv) and returns the exit code.

    Args:
      parse: reads a command line; --debug in it lets Beam's log and tracebacks through.
      run: runs the job to its end; returns None if only a template of it was written.
      report: shows a person what came out, after so many seconds.
      output_name: what the output holds when all went well, in one word.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        options, beam_options = parse(arguments)
        with contextlib.nullcontext() if debug else _quiet(beam_options):
            started = time.monotonic()
            result = run(options, beam_options)
        if result is None:
            print("the job's template is written; nothing has run yet")
        else:
            report(options, result, time.monotonic() - started)
    except (KeyboardInterrupt, Exception) as error:
        if "KeyboardInterrupt" in repr(error):  # Beam wraps what stops a worker
            print(f"stopped; the output holds no finished {output_name}", file=sys.stderr)
            return 130
        if debug:
            raise
        print(f"error: {user_message(error) or _unexpected(error)}", file=sys.stderr)
        return error.exit_code if isinstance(error, ProbelineError) else 1
    return 0


def tidy_up_on_sigterm() -> None:
    """Makes SIGTERM end this process as Ctrl-C does, so that what a run left is removed."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def check_paths_are_shared(paths: Iterable[tuple[str, str]]) -> None:
    """Raises UsageError for the first (flag, path) that workers elsewhere do not see."""
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
    except ValueError as error:  # all that its validators found
        raise UsageError(f"Beam refuses the options: {one_line(error)}") from error


def run_to_end(
    pipeline: beam.Pipeline,
    job: DataflowJob | None,
    run: Run,
    watching: contextlib.AbstractContextManager[None] | None = None,
) -> bool:
    """Runs a pipeline and waits for its end, `watching` it if it runs here.

    Returns False if only its template was written, as a Flex Template's launcher asks for.
    """
    if job is not None:
        return dataflow.submit_and_wait(pipeline, job, run)
    with watching or contextlib.nullcontext():
        pipeline.run().wait_until_finish()
    return True


def _unexpected(error: BaseException) -> str:
    if isinstance(error, grpc.RpcError | grpc.FutureTimeoutError):
        details = error.details() if isinstance(error, grpc.Call) else None
        return (
            f"the runner does not answer ({details or type(error).__name__}): see whether it is "
            "running and what its log says, then run the same command again"
        )
    last_line = (str(error).strip().splitlines() or ["no message"])[-1]
    return f"unexpected {type(error).__name__}: {last_line}; --debug shows where"


@contextlib.contextmanager
def _quiet(beam_options: PipelineOptions) -> Iterator[None]:
    """Keeps Beam's log and warnings off the terminal: its errors come back as exceptions."""
    # This one speaks up when the interpreter exits.
    logging.getLogger("apache_beam.utils.subprocess_server").setLevel(logging.ERROR)
    # A worker in this process prints the traceback that it also sends to the runner, from which
    # it comes back to us; it may do so until the interpreter exits.
    sdk_worker.print = lambda *_, **__: None
    threading.excepthook = _print_unless_hung_up
    is_elsewhere = beam_options.view_as(StandardOptions).runner == dataflow.RUNNER
    with dataflow.log_shown() if is_elsewhere else _no_log(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _print_unless_hung_up(failed: threading.ExceptHookArgs) -> None:
    """Shows what ended a thread, unless it is that the runner, which is done, closed a stream."""
    if not issubclass(failed.exc_type, grpc.RpcError):
        threading.__excepthook__(failed)


@contextlib.contextmanager
def _no_log() -> Iterator[None]:
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(previous)
