"""Errors that a user can meet: one line with the value seen, the limit, and the cure.

A worker's exception reaches the launcher as the text of a traceback, on some runners only in
their log. `user_message` finds our line in it again, so that `main` can print that line alone.
"""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager


class ProbelineError(Exception):
    """The run failed; the message says what, why and what to do. Exit code 1."""


class UsageError(ProbelineError):
    """The command cannot be run as given. Exit code 2."""


def same_src_id(src_id: int, one: str, other: str) -> ProbelineError:
    """Returns the error of two probes that have one identifier."""
    return ProbelineError(
        f"probes {one} and {other} have the same src_id {src_id}: leave one of them out of the "
        "input"
    )


_OUR_LINE = re.compile(
    r"beam_pipeline\.errors\.(ProbelineError|UsageError): (?P<message>.*?)"
    r"(?: \[while running .*)?$",
    re.MULTILINE,
)


def user_message(error: BaseException) -> str | None:
    """Returns the one line meant for a person, or None if `error` is not one of ours."""
    if isinstance(error, ProbelineError):
        return re.sub(r" \[while running .*", "", str(error), flags=re.DOTALL)
    matches = list(_OUR_LINE.finditer(str(error)))
    return matches[-1]["message"] if matches else None


_CURES = {
    errno.ENOSPC: "free some space or choose another folder, then run the same command again",
    errno.EDQUOT: "free some of the quota or choose another folder, then run the command again",
    errno.EACCES: "give this user the right to write there or choose another folder",
    errno.EPERM: "give this user the right to write there or choose another folder",
    errno.EROFS: "choose a folder on a file system that is not mounted read-only",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


def explained(action: str, path: str, error: OSError) -> ProbelineError:
    """Returns an OSError as one line: `cannot action path: reason; cure`."""
    cure = _CURES.get(error.errno or 0, "check the path and the storage behind it")
    return ProbelineError(f"cannot {action} {path}: {error.strerror or error}; {cure}")


@contextmanager
def explained_os_errors(action: str, path: str) -> Iterator[None]:
    """Raises an OSError from inside as `explained`."""
    try:
        yield
    except OSError as error:
        raise explained(action, path, error) from error
