"""The output folder before and after a run: taken, cleaned of what a dead run left, given back.

A finished dataset is not touched unless asked to. A run that died leaves shards without
`_SUCCESS` and a temporary folder; the next run removes both. A lock file that the operating
system frees when its process dies keeps it from removing what a live run is writing.
"""

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from typing import TextIO

from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.errors import ProbelineError, UsageError, explained_os_errors
from beam_pipeline.files import is_local
from beam_pipeline.manifest import DEAD_LETTER_FOLDER, MANIFEST_NAME, SPLITS, SUCCESS_NAME

TEMP_FOLDER = ".probeline-temp"
_LOCK_NAME = "lock"


@contextlib.contextmanager
def taken(output: str, overwrite: bool) -> Iterator[str]:
    """Holds the output folder for one run; yields the run's own folder for temporary files.

    Raises:
      UsageError: a finished dataset is there and `overwrite` is not set, or a run is writing it.
      ProbelineError: the folder cannot be written.
    """
    temp = FileSystems.join(output, TEMP_FOLDER)
    with _locked(temp) if is_local(output) else contextlib.nullcontext():
        if FileSystems.exists(FileSystems.join(output, SUCCESS_NAME)):
            if not overwrite:
                raise UsageError(
                    f"--output={output} holds a finished dataset: choose another folder, or say "
                    "--overwrite to replace it"
                )
            _delete([FileSystems.join(output, SUCCESS_NAME)])
        _delete(_leftovers(output))
        run_folder = FileSystems.join(temp, uuid.uuid4().hex[:12])
        try:
            yield run_folder
        finally:
            # The pipeline removes it too; here it is for runs that failed.
            _delete(_leftovers_of_temp(output))


@contextlib.contextmanager
def _locked(temp: str) -> Iterator[None]:
    with explained_os_errors("write", temp):
        lock = _open_lock(temp)
    with lock:
        try:
            yield
        finally:
            # While it is held, so that nobody can take a file that is about to go.
            os.remove(lock.name)
            os.rmdir(temp)


def _open_lock(temp: str) -> TextIO:
    """Returns the lock file, locked; UsageError if a live process holds it."""
    path = os.path.join(temp, _LOCK_NAME)
    while True:
        os.makedirs(temp, exist_ok=True)
        lock = open(path, "a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise UsageError(
                f"--output={os.path.dirname(temp)} is being written by process {owner}: wait for "
                "it or choose another folder"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(lock.fileno()).st_ino:
                lock.truncate(0)
                lock.write(str(os.getpid()))
                lock.flush()
                return lock
        lock.close()  # its last holder removed it between our two calls: try again


def _leftovers(output: str) -> list[str]:
    """Returns what an unfinished run may have left, and nothing that is not ours."""
    patterns = [FileSystems.join(output, MANIFEST_NAME + "*")]
    for split in SPLITS:
        patterns += [
            FileSystems.join(output, split, f"{split}_shard_*"),
            FileSystems.join(output, split, "rows.parquet"),
        ]
    patterns.append(FileSystems.join(output, DEAD_LETTER_FOLDER, "dead_letter_*"))
    return _matching(patterns) + _leftovers_of_temp(output)


def _leftovers_of_temp(output: str) -> list[str]:
    temp = FileSystems.join(output, TEMP_FOLDER)
    if not is_local(output):
        return _matching([temp + "/**"])
    if not os.path.isdir(temp):
        return []
    return [entry.path for entry in os.scandir(temp) if entry.name != _LOCK_NAME]


def _matching(patterns: list[str]) -> list[str]:
    results = FileSystems.match(patterns)
    return [file.path for result in results for file in result.metadata_list]


def _delete(paths: list[str]) -> None:
    if not paths:
        return
    try:
        FileSystems.delete(paths)
    except BeamIOError as error:
        raise ProbelineError(
            f"cannot remove {paths[0]}, left by an earlier run: {error}; remove it by hand"
        ) from error
