"""The program of a job: a command line becomes a run, errors one line and an exit code.

Beam takes seconds to load, so a program imports it after --help and the check of flags, without the
garbage collector. Where they are installed, Beam imports pandas, MongoDB's client, IPython and
connectors to Google's services, Arrow imports pandas, and numba imports SciPy: half of the start-up
time of a small run. All of these are optional, so `lean_imports` makes their imports fail.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import glob
import importlib
import logging
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING

from beam_pipeline.cli.command import run_command
from beam_pipeline.errors import ProbelineError, machine_error, missing_extra, user_error

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions


OPTIONAL = (
    *("apache_beam.io.gcp.bigquery", "apache_beam.io.gcp.gcsfilesystem", "google.cloud.dataflow"),
    *("IPython", "apitools", "bson", "cffi", "colorama", "pandas", "scipy"),
)


def run_program[Options, Result](
    argv: Sequence[str] | None,
    parse: Callable[[Sequence[str]], tuple[Options, PipelineOptions]],
    run: Callable[[Options, PipelineOptions], Result | None],
    report: Callable[[Options, Result, float], None],
    output_name: str,
) -> int:
    """Runs the command line of a job and returns the exit code, as `run_command`.

    `run` returns None if it only wrote a template; `report` also takes the seconds of the run;
    `output_name` is for messages. --debug shows Beam's log and tracebacks.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments

    def run_job(arguments: Sequence[str]) -> None:
        try:
            with importing():
                options, beam_options = parse(arguments)
            with temporary_folder(), contextlib.nullcontext() if debug else quiet(beam_options):
                started = time.monotonic()
                result = run(options, beam_options)
            if result is None:
                print("the job's template is written; nothing has run yet")
            else:
                report(options, result, time.monotonic() - started)
        except Exception as error:
            if "KeyboardInterrupt" in repr(error):  # Beam wraps the exception that stops a worker
                raise KeyboardInterrupt from error
            if debug:
                raise
            if (known := missing_extra(error) or user_error(error)) is not None:
                raise known from error
            raise ProbelineError(unexpected(error)) from error

    stopped = f"stopped; the output holds no finished {output_name}"
    with lean_imports(arguments) if argv is None else contextlib.nullcontext():
        return run_command(arguments, run_job, stopped, debug=debug)


@contextlib.contextmanager
def quiet(beam_options: PipelineOptions) -> Iterator[None]:
    """Keeps Beam's log and warnings off the terminal; its errors still raise exceptions."""
    with importing():
        from apache_beam.options.pipeline_options import StandardOptions

        from beam_pipeline.jobs import beam_seams, dataflow
    # It logs when the interpreter exits.
    logging.getLogger("apache_beam.utils.subprocess_server").setLevel(logging.ERROR)
    beam_seams.silence_workers()
    with contextlib.ExitStack() as stack:
        if beam_options.view_as(StandardOptions).runner == dataflow.RUNNER:
            stack.enter_context(dataflow.log_shown())
        else:
            stack.callback(logging.disable, logging.root.manager.disable)
            logging.disable(logging.CRITICAL)
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        yield


def unexpected(error: BaseException) -> str:
    """Returns the message for an unexpected error."""
    import grpc

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
    if "remote prism binary" in str(error):
        return "Prism could not be downloaded: give its file, --prism_location=…/prism"
    if (known := machine_error(error, limits_only=False)) is not None:
        return str(known)
    kind = type(error).__name__
    last_line = (str(error).strip().splitlines() or ["no message"])[-1]
    if "BeamIOError" in kind + last_line:  # of a storage that only Beam reads, such as s3://
        return f"the storage refuses ({last_line}): check the path and its credentials"
    return f"unexpected {kind}: {last_line}; --debug shows where"


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


# --- imports ------------------------------------------------------------------------------------


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Disables the garbage collector, and Beam's log of missing modules, in the block."""
    disabled = logging.root.manager.disable
    logging.disable()
    gc.disable()  # what is imported stays
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        logging.disable(disabled)


class _Hidden(MetaPathFinder):
    """Hides modules from imports."""

    def __init__(self, names: Sequence[str]):
        self.names = names

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname in self.names:
            raise ModuleNotFoundError(f"{fullname} is hidden", name=fullname)


@contextlib.contextmanager
def lean_imports(arguments: Sequence[str]) -> Iterator[None]:
    """Makes imports of OPTIONAL modules fail in the block.

    Nothing fails if the command line names a runner, a path with a scheme, or a function
    (module:function), which may import anything.
    """
    may_need_all = any(
        text.startswith("--runner") or re.search(r"://|(^|=)[\w.]+:[\w.]+$", text)
        for text in arguments
    )
    finder = _Hidden(() if may_need_all else OPTIONAL)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy starts threads that spin
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        gc.freeze()  # the process ends: no last collection


def is_lean() -> bool:
    """Returns whether imports of OPTIONAL modules fail now."""
    return any(isinstance(finder, _Hidden) and finder.names for finder in sys.meta_path)


def call(lean: bool, module: str, function: str, *arguments: object) -> None:
    """Imports a function in a new process, leanly or not, and calls it."""
    with lean_imports([] if lean else ["--runner"]):
        with importing():
            target = getattr(importlib.import_module(module), function)
        target(*arguments)
