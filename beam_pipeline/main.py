"""Makes a dataset of probe rows from ping measurements.

On a laptop:
  python -m beam_pipeline.main --input 'data/*.parquet' --output rows

On Dataflow:
  python -m beam_pipeline.main --input 'gs://bucket/data/*.parquet' --output gs://bucket/rows \\
    --runner=DataflowRunner --project=P --region=R --temp_location=gs://bucket/temp \\
    --setup_file=./setup.py

Exit code 0: the dataset is there. 1: the run failed. 2: the command cannot be run as given. 130:
somebody ended it, or ended the waiting for a job on Dataflow.
"""

import contextlib
import logging
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence

import apache_beam as beam
import grpc
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.worker import sdk_worker

from beam_pipeline import dataflow_jobs, inputs, output_folder, probe_rows, progress
from beam_pipeline.errors import ProbelineError, UsageError, one_line, user_message
from beam_pipeline.files import is_local
from beam_pipeline.manifest import Dataset, open_dataset
from beam_pipeline.options import Options, parse
from beam_pipeline.summary import print_summary

_MAX_FILES_IN_LAUNCHER = 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        options, beam_options = parse(arguments)
        with contextlib.nullcontext() if debug else _quiet(beam_options):
            started = time.monotonic()
            dataset = run(options, beam_options)
        if dataset is None:
            print("the job's template is written; nothing has run yet")
        else:
            print_summary(dataset, time.monotonic() - started)
    except (KeyboardInterrupt, Exception) as error:
        if "KeyboardInterrupt" in repr(error):  # Beam wraps what stops a worker
            print("stopped; the output holds no finished dataset", file=sys.stderr)
            return 130
        if debug:
            raise
        print(f"error: {user_message(error) or _unexpected(error)}", file=sys.stderr)
        return error.exit_code if isinstance(error, ProbelineError) else 1
    return 0


def _unexpected(error: BaseException) -> str:
    if isinstance(error, grpc.RpcError | grpc.FutureTimeoutError):
        details = error.details() if isinstance(error, grpc.Call) else None
        return (
            f"the runner does not answer ({details or type(error).__name__}): see whether it is "
            "running and what its log says, then run the same command again"
        )
    last_line = (str(error).strip().splitlines() or ["no message"])[-1]
    return f"unexpected {type(error).__name__}: {last_line}; --debug shows where"


def run(options: Options, beam_options: PipelineOptions) -> Dataset | None:
    """Runs the job to its end and returns the finished dataset.

    Returns None if the options ask for a template, as a Flex Template's launcher does.

    Raises:
      ProbelineError: the run failed; nothing that looks finished is left.
    """
    job = dataflow_jobs.job_of(beam_options)
    if job is not None:
        _check_paths_are_shared(options)
    matched = inputs.match_files(options.input)
    read_options, dataset_options = options.read_options(), options.dataset_options()
    files: list = matched
    if len(matched) <= _MAX_FILES_IN_LAUNCHER:
        files = [inputs.inspect(*file, read_options) for file in matched]
    with output_folder.taken(options.output, options.overwrite, job) as taken:
        pipeline = _pipeline(beam_options)
        probe_rows.build(
            pipeline,
            files,
            options.output,
            taken,
            read_options,
            dataset_options,
            options.inline_bytes_for(beam_options),
            skip_bad_files=options.on_bad_file == "dead_letter",
        )
        if job is not None:
            if not dataflow_jobs.submit_and_wait(pipeline, job, taken):
                return None
        else:
            with _progress(files, taken.folder):
                pipeline.run().wait_until_finish()
    try:
        return open_dataset(options.output)
    except ProbelineError as error:
        raise ProbelineError(f"the runner ended without an error, yet {error}") from error


def _check_paths_are_shared(options: Options) -> None:
    for flag, path in [("output", options.output), *(("input", path) for path in options.input)]:
        if is_local(path):
            raise UsageError(
                f"--{flag}={path} is on this machine, where Dataflow's workers do not see it: "
                "give a path on gs://"
            )


def _pipeline(beam_options: PipelineOptions) -> beam.Pipeline:
    try:
        return beam.Pipeline(options=beam_options)
    except ValueError as error:  # all that its validators found
        raise UsageError(f"Beam refuses the options: {one_line(error)}") from error


def _progress(files: list, run_folder: str) -> contextlib.AbstractContextManager[None]:
    if not is_local(run_folder):
        return contextlib.nullcontext()  # nothing to look at from here
    known = files if files and isinstance(files[0], inputs.InputFile) else []
    units = inputs.plan_units(known)
    return progress.watched(run_folder, units, sys.stderr)


@contextlib.contextmanager
def _quiet(beam_options: PipelineOptions) -> Iterator[None]:
    """Keeps Beam's log and warnings off the terminal: its errors come back as exceptions."""
    # This one speaks up when the interpreter exits.
    logging.getLogger("apache_beam.utils.subprocess_server").setLevel(logging.ERROR)
    # A worker in this process prints the traceback that it also sends to the runner, from which
    # it comes back to us; it may do so until the interpreter exits.
    sdk_worker.print = lambda *_, **__: None
    threading.excepthook = _print_unless_hung_up
    is_elsewhere = beam_options.view_as(StandardOptions).runner == dataflow_jobs.RUNNER
    with dataflow_jobs.log_shown() if is_elsewhere else _no_log(), warnings.catch_warnings():
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


def _on_sigterm(*_: object) -> None:
    raise KeyboardInterrupt  # so that what the run left is removed


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _on_sigterm)
    sys.exit(main())
