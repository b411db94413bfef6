"""`run_command`: error reporting and exit codes of all programs.

The exit codes are 0 for success, 1 for a failure, 2 for an invalid command and 130 for Ctrl-C.
Errors that users can meet are one line on stderr, without a traceback.
"""

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Sequence

from beam_pipeline.errors import (
    ProbelineError,
    UsageError,
    extras_of,
    machine_error,
    missing_extra,
    one_line,
    printable,
)
from beam_pipeline.machine import require_threads

_NUM_THREADS = 32  # Arrow, numba and Beam start about as many


def run_command(
    argv: Sequence[str] | None,
    run: Callable[[Sequence[str]], int | None],
    stopped: str,
    failure_code: int | None = None,
    debug: bool = False,
) -> int:
    """Runs a program and returns its exit code.

    Args:
      argv: the command line; None means that of this process.
      run: the program; returns its exit code, or None for 0.
      stopped: message after Ctrl-C, such as "stopped; no report was written".
      failure_code: the exit code of every error, where 1 means something else.
      debug: raise errors, so that Python prints their tracebacks.
    """
    try:
        _check_current_folder()
        require_threads(_NUM_THREADS)
        return run(sys.argv[1:] if argv is None else argv) or 0
    except KeyboardInterrupt:
        print(stopped, file=sys.stderr)
        return 130
    except (ProbelineError, OSError, MemoryError) as error:
        if debug:
            raise
        known = error if isinstance(error, ProbelineError) else machine_error(error) or error
        print(f"error: {printable(one_line(known))}", file=sys.stderr)
        return failure_code or getattr(error, "exit_code", 1)
    except (ImportError, RuntimeError) as error:
        known = missing_extra(error) or machine_error(error)
        if debug or known is None:
            raise
        print(f"error: {known}", file=sys.stderr)
        return failure_code or known.exit_code


def _check_current_folder() -> None:
    """Raises UsageError if the current folder was removed: libraries fail there in many ways."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "the current folder was removed: cd to another one, then run the same command again"
        ) from None


def tidy_up_on_signals() -> None:
    """Makes SIGTERM and SIGHUP end this process as Ctrl-C does: temporary files are removed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, signal.default_int_handler)


def require_packages(option: str, *packages: str) -> None:
    """Raises UsageError if an option, such as --html, needs packages that are not installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise UsageError(
            f"{option} needs {' and '.join(missing)}: pip install {extras_of(missing)}"
        )
