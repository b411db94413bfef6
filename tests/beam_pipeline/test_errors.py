"""One line for a person out of whatever a runner made of it."""

import errno
from pathlib import Path

import pyarrow as pa
import pytest

from beam_pipeline.errors import (
    ProbelineError,
    UsageError,
    explained_os_errors,
    machine_error,
    user_error,
    user_message,
)
from beam_pipeline.jobs.program import unexpected

TRACEBACK = """Traceback (most recent call last):
  File "worker.py", line 1, in process
beam_pipeline.errors.ProbelineError: in.parquet has no column 'rtt'

During handling of the above exception, another exception occurred:

  File "worker.py", line 2, in process
beam_pipeline.errors.ProbelineError: cannot read in.parquet: repair it [while running 'Read']
"""


def test_the_last_of_our_lines_is_found_in_a_workers_traceback() -> None:
    assert user_message(RuntimeError(TRACEBACK)) == "cannot read in.parquet: repair it"


def test_our_own_is_its_own_line() -> None:
    assert user_message(UsageError("a; b [while running 'X/Y']")) == "a; b"
    assert user_message(ValueError("x")) is None


@pytest.mark.parametrize(
    ("number", "cure"),
    [(errno.ENOSPC, "free some space"), (errno.EACCES, "the right to write"), (errno.EIO, "check")],
)
def test_an_os_error_says_what_to_do(number: int, cure: str) -> None:
    with pytest.raises(ProbelineError, match=rf"cannot write /x: .*{cure}"):
        with explained_os_errors("write", "/x"):
            raise OSError(number, "reason")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("OSError: [Errno 28] x [while running 'Write/Map']", "cannot write a file: No space left"),
        ("OSError: [Errno 27] x: '/a b/c' [while running 'W']", "cannot write /a b/c: File too"),
        ("RuntimeError: OSError: [Errno 24] x: '/a' -> '/b'", "cannot use /a: Too many open files"),
        ("""ValueError: x: "/a": y [os_error_code='28']""", "cannot write /a: No space left"),
        ("RuntimeError: can't start new thread", "cannot start a thread or process: Resource"),
        ("numpy._core._exceptions._ArrayMemoryError: 9 GiB", "cannot use files or memory: Cannot"),
    ],
)
def test_a_limit_of_the_machine_in_a_workers_error(text: str, line: str) -> None:
    found = user_error(RuntimeError(text))
    assert found is not None and str(found).startswith(line)


def test_other_errors_are_no_limits_of_the_machine() -> None:
    for error in (OSError(errno.EIO, "x"), OSError("damaged"), ValueError("[Errno 28] in a text")):
        assert machine_error(error) is None
    for memory in (MemoryError(), ImportError("x.so: failed to map segment from shared object")):
        assert str(machine_error(memory)).startswith("cannot use files or memory")


def test_an_error_of_the_storage_in_a_worker_is_one_line() -> None:
    kind = "NotADirectoryError"
    error = RuntimeError(f"{kind}: [Errno 116] x: '/a b' [while running 'Write']")
    assert unexpected(error) == (
        "cannot use /a b: Stale file handle; check the path and the storage behind it"
    )
    assert unexpected(RuntimeError(f"{kind}: [Errno 116] x")).startswith("unexpected RuntimeError")
    assert unexpected(RuntimeError("in\nBeamIOError: no")).startswith("the storage refuses (Beam")


def test_arrows_words_for_a_lost_file_are_one_line(tmp_path: Path) -> None:
    lost = f"{tmp_path}/lost"
    with pytest.raises(OSError, match="Failed to open local file") as raised:
        pa.OSFile(lost)
    of_worker = RuntimeError(f"FileNotFoundError: {raised.value} [while running 'Read']")
    line = f"cannot use {lost}: No such file or directory; check the path and the storage behind it"
    assert unexpected(raised.value) == unexpected(of_worker) == line
