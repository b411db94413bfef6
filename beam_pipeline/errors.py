"""Errors for users: one line with the value seen, the limit, and the cure."""

import errno
import os
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

# The extra of setup.py that installs each optional package.
EXTRA_OF = {
    "apache_beam": "beam",
    "absl": "training",
    "grain": "training",
    **dict.fromkeys(("etils", "jax", "maxtext", "omegaconf", "yaml"), "maxtext"),
    "google": "gcp",
    "jinja2": "report",
    "matplotlib": "report",
    "torch": "torch",
}


class ProbelineError(Exception):
    """An error for users: the message states what failed, why, and the cure.

    Example:

        try:
            open_dataset("nowhere")
        except ProbelineError as error:
            print(error)
    """

    exit_code = 1


class UsageError(ProbelineError):
    """An invalid command or call; a program ends with exit code 2.

    Example:

        try:
            open_dataset("rows").rows("validation")
        except UsageError as error:
            print(error)  # there is no split 'validation': give train or test
    """

    exit_code = 2


class DetachedError(ProbelineError):
    """The launcher stopped waiting for a job that continues remotely."""

    exit_code = 130


def same_src_id(src_id: int, one: str, other: str) -> ProbelineError:
    """Returns the error for two probes with the same identifier."""
    return ProbelineError(
        f"probes {one} and {other} have the same src_id {src_id}: remove one of them from the input"
    )


_OUR_LINE = re.compile(
    r"beam_pipeline\.errors\.(ProbelineError|UsageError): (?P<message>.*?)"
    r"(?: \[while running .*)?$",
    re.MULTILINE,
)


def user_message(error: BaseException) -> str | None:
    """Returns the line of a ProbelineError, also from a worker's traceback; None for others."""
    if isinstance(error, ProbelineError):
        return re.sub(r" \[while running .*", "", str(error), flags=re.DOTALL)
    matches = list(_OUR_LINE.finditer(str(error)))
    return matches[-1]["message"] if matches else None


def user_error(error: BaseException) -> ProbelineError | None:
    """Returns `user_message` as an error of its kind, or `machine_error`; None for others."""
    message = user_message(error)
    kind = type(error) if isinstance(error, ProbelineError) else ProbelineError
    return machine_error(error) if message is None else kind(message)


_CURES = {
    errno.EFBIG: "raise the limit on file sizes (ulimit -f) or choose another file system",
    errno.ENFILE: "close other programs, or raise the system's limit on open files",
    errno.ENOSPC: "free some space or choose another folder, then run the same command again",
    errno.EDQUOT: "free some of the quota or choose another folder, then run the command again",
    errno.EACCES: "give this user the right to write there or choose another folder",
    errno.EPERM: "give this user the right to write there or choose another folder",
    errno.EROFS: "choose a folder on a file system that is not mounted read-only",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.EAGAIN: "raise the limit on threads (ulimit -u) or addresses (ulimit -v)",
    errno.ENOMEM: "free some memory, or raise the limit on it (ulimit -v)",
}
_STATUS_CURES = {
    401: "log in with `gcloud auth application-default login`",
    403: "give the account that runs this the role Storage Object User on the bucket",
    404: "check that the bucket exists and its name is right",
    429: "the storage is busy: run the same command again",
}


_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_MACHINE = (*_WRITING, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
_OS_ERROR = re.compile(
    r"\b(?:OS|Permission|FileNotFound|\w+Directory|Timeout)Error: \[Errno (\d+)\] .*?"
    r"(?:(?::| file) '(.*?)'(?: -> '.*'|\. Detail: .*?)?)?(?: \[while running .*)?$",  # or Arrow's
    re.MULTILINE,
)
# Such as: Failed writing: "/x": Failed to write 9 bytes: … left on device [os_error_code='28']
_TENSORSTORE_ERROR = re.compile(r"\"(?P<path>[^\"]+)\": .*\[os_error_code='(?P<number>\d+)'\]")
_MEMORY_ERROR = re.compile(
    r"(?:^|: )[\w.]*MemoryError\b|failed to map segment from shared object", re.MULTILINE
)


def machine_error(error: BaseException, limits_only: bool = True) -> ProbelineError | None:
    """Returns the line for a limit of the machine, such as a full disk, not a fault of the input.

    Also from a worker's traceback; None for other errors. Without `limits_only`, the line for any
    error of the storage that names a path.
    """
    text, number, path = f"{type(error).__name__}: {error}", 0, ""
    if matches := _OS_ERROR.findall(text):
        number, path = int(matches[-1][0]), matches[-1][1]
    elif match := _TENSORSTORE_ERROR.search(text):
        number, path = int(match["number"]), match["path"]
    if isinstance(error, OSError):
        number, path = error.errno or 0, str(error.filename or path)
    if _MEMORY_ERROR.search(text):
        number = errno.ENOMEM
    if "RuntimeError: can't start new thread" in text:
        number = errno.EAGAIN
    if number not in _MACHINE and (limits_only or not (number and path)):
        return None
    is_write = number in _WRITING
    action, what = ("write", "a file") if is_write else ("use", "files or memory")
    if number == errno.EAGAIN:
        action, what = "start", "a thread or process"
    return explained(action, path or what, OSError(number, os.strerror(number)))


@contextmanager
def machine_errors() -> Generator[None]:
    """Raises `machine_error` for errors in the block that have one, so that no input is blamed."""
    try:
        yield
    except OSError as error:
        if (known := machine_error(error)) is None:
            raise
        raise known from error


def one_line(error: BaseException) -> str:
    """Returns an error's message without its line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def number_of(count: int, noun: str) -> str:
    """Returns a count with its noun: 1 file, 2,000 files."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def program(command: str, module: str) -> str:
    """Returns the name of a program for a hint: `probeline command` if this one was so started."""
    return f"probeline {command}" if sys.argv[0].startswith("probeline ") else f"python -m {module}"


def shortened(names: Sequence[str], most: int = 12) -> str:
    """Returns a list of names for a message, cut with a count."""
    shown = ", ".join(name[:40] for name in names[:most]) or "none"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def printable(text: str) -> str:
    """Returns a text for a terminal, with control characters and undecodable bytes as escapes."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in text
    )


def explained(action: str, path: str, error: Exception) -> ProbelineError:
    """Returns a storage error as one line: `cannot <action> <path>: <reason>; <cure>`."""
    if isinstance(error, OSError) and error.errno:
        cure = _CURES.get(error.errno, "check the path and the storage behind it")
        if action == "read":
            cure = cure.replace("write there or choose another folder", "read it")
        return ProbelineError(f"cannot {action} {path}: {error.strerror or error}; {cure}")
    error = _cause(error)
    status = int(getattr(error, "code", None) or 0)
    cure = "run the same command again" if status >= 500 else "check the path and the storage"
    return ProbelineError(
        f"cannot {action} {path}: {one_line(error)}; {_STATUS_CURES.get(status, cure)}"
    )


def _cause(error: Exception) -> Exception:
    """Returns the storage's own error.

    Beam's filesystems collect errors; an upload in chunks reports its status without the reason.
    """
    collected: dict[object, object] = getattr(error, "exception_details", None) or {}
    error = next((cause for cause in collected.values() if isinstance(cause, Exception)), error)
    if type(error).__name__ != "InvalidResponse":  # of google-cloud-storage
        return error
    from google.api_core import exceptions

    refused: Any = error
    return cast(Any, exceptions).from_http_response(refused.response)


@contextmanager
def explained_os_errors(action: str, path: str) -> Generator[None]:
    """Converts errors of local and remote storage in the block into those of `explained`."""
    try:
        yield
    except Exception as error:
        is_remote = type(error).__module__.startswith("google.")  # not loaded for local paths
        if not isinstance(error, OSError) and not is_remote:
            raise
        raise explained(action, path, error) from error


def missing_extra(error: BaseException) -> UsageError | None:
    """Returns the cure for a failed import of an optional package; None for other errors."""
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in EXTRA_OF:
        return None
    name = "google-cloud-storage, for gs://," if package == "google" else package
    return UsageError(f"{name} is not installed: pip install {extras_of([package])}")


def extras_of(packages: Sequence[str]) -> str:
    """Returns what pip installs for packages, with their extras."""
    extras = dict.fromkeys(EXTRA_OF[package] for package in packages)
    return f"'probeline[{','.join(extras)}]'"
