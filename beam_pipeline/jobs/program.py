"""The program of a job: its command line becomes a run, its errors one line and an exit code.

Beam takes seconds to load. So a program imports it where it is used, after --help has been printed
or an unknown flag refused.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from beam_pipeline.cli.command import missing_extra, run_command
from beam_pipeline.errors import ProbelineError, user_error
from beam_pipeline.jobs.lean_imports import importing, lean_imports

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions


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
            with importing():
                options, beam_options = parse(arguments)
                from beam_pipeline.jobs.running import quiet, temporary_folder

            with temporary_folder(), contextlib.nullcontext() if debug else quiet(beam_options):
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
            if (known := missing_extra(error) or user_error(error)) is not None:
                raise known from error
            from beam_pipeline.jobs.running import unexpected

            raise ProbelineError(unexpected(error)) from error

    stopped = f"stopped; the output holds no finished {output_name}"
    with lean_imports(arguments) if argv is None else contextlib.nullcontext():
        return run_command(arguments, run_job, stopped, debug=debug)
