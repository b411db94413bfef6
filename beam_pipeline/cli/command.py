"""`run_command`: how every program reports errors and ends.

The exit codes are 0 for success, 1 for a failure, 2 for a command that cannot be run as given and
130 for Ctrl-C. An error that a user can meet is one line on stderr, without a traceback.
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence

from beam_pipeline.errors import ProbelineError, UsageError, one_line


def run_command(
    argv: Sequence[str] | None,
    run: Callable[[Sequence[str]], int | None],
    stopped: str,
    failure_code: int | None = None,
    debug: bool = False,
) -> int:
    """Runs a program and returns its exit code.

    Args:
      argv: the command line; None is that of this process.
      run: runs the program on its arguments; what it returns is the exit code, None is 0.
      stopped: what to say after Ctrl-C, such as "stopped; no report was written".
      failure_code: the exit code of every error, where 1 means something else.
      debug: raise errors, so that Python prints their tracebacks.
    """
    try:
        return run(sys.argv[1:] if argv is None else argv) or 0
    except KeyboardInterrupt:
        print(stopped, file=sys.stderr)
        return 130
    except (ProbelineError, OSError) as error:
        if debug:
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return failure_code or getattr(error, "exit_code", 1)


def require_packages(option: str, extra_of: Mapping[str, str]) -> None:
    """Raises UsageError if an option needs optional packages that are not installed.

    Args:
      option: the flag, such as "--html".
      extra_of: the packages, and for each the extra of setup.py that installs it.
    """
    missing = [package for package in extra_of if importlib.util.find_spec(package) is None]
    if missing:
        extras = ",".join(extra_of[package] for package in missing)
        raise UsageError(f"{option} needs {' and '.join(missing)}: pip install '.[{extras}]'")
