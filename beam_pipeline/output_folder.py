"""The output folder before and after a run: taken, cleaned of what a dead run left, given back.

A finished dataset is not touched unless asked to. A run that died leaves shards without
`_SUCCESS` and a temporary folder; the next run removes both. A lock file that the operating
system frees when its process dies keeps it from removing what a live run is writing.
"""

import contextlib
import fcntl
import os
import re
import uuid
from collections.abc import Iterator
from typing import TextIO

from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.errors import ProbelineError, UsageError, explained_os_errors
from beam_pipeline.files import is_local, remove_folder
from beam_pipeline.manifest import (
    DEAD_LETTER_FOLDER,
    INDEX_NAME,
    MANIFEST_NAME,
    SPLITS,
    SUCCESS_NAME,
)

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
        success = FileSystems.join(output, SUCCESS_NAME)
        is_finished = FileSystems.exists(success)
        if is_finished and not overwrite:
            raise UsageError(
                f"--output={output} holds a finished dataset: choose another folder, or say "
                "--overwrite to replace it"
            )
        clear = _remove_dead_runs if is_local(output) else _refuse_other_runs
        clear(temp)
        if is_finished:
            _delete([success])
        _delete(_leftovers(output))
        run_folder = FileSystems.join(temp, uuid.uuid4().hex[:12])
        try:
            yield run_folder
        finally:
            # The pipeline removes it too; here it is for runs that failed.
            remove_folder(run_folder)


@contextlib.contextmanager
def _locked(temp: str) -> Iterator[None]:
    with explained_os_errors("write", temp):
        lock = _open_lock(temp)
    with lock:
        try:
            yield
        finally:
            # While it is held, so that nobody can take a file that is about to go.
            with contextlib.suppress(OSError):  # another run may have begun by now
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
    return [
        FileSystems.join(folder, name)
        for folder, ours in (
            (output, rf"({MANIFEST_NAME}|{SUCCESS_NAME}\.\d+\.tmp|{MANIFEST_NAME}\.\d+\.tmp)"),
            *((FileSystems.join(output, split), _shard_or_index(split)) for split in SPLITS),
            (FileSystems.join(output, DEAD_LETTER_FOLDER), r"dead_letter_\d+-of-\d+\.parquet"),
        )
        for name in _names(folder)
        if re.fullmatch(ours, name)
    ]


def _shard_or_index(split: str) -> str:
    return rf"({split}_shard_\d+-of-\d+\.(arrayrecord|tfrecord)|{INDEX_NAME})"


def _names(folder: str) -> list[str]:
    if is_local(folder):  # whose name may have characters that a pattern means otherwise
        return os.listdir(folder) if os.path.isdir(folder) else []
    return [FileSystems.split(path)[1] for path in _matching([folder + "/*"])]


def _remove_dead_runs(temp: str) -> None:
    """Removes the temporary folders of all other runs; the lock says that they are dead."""
    for entry in os.scandir(temp):
        if entry.name != _LOCK_NAME:
            remove_folder(entry.path)


def _refuse_other_runs(temp: str) -> None:
    """Object stores have no lock that ends with its process, so a person has to tell."""
    files = _matching([temp + "/**"])
    if files:
        raise UsageError(
            f"{temp} holds files of another run, such as {files[0]}: if that run is over, remove "
            "the folder (gcloud storage rm -r), else choose another --output"
        )


def _matching(patterns: list[str]) -> list[str]:
    results = FileSystems.match(patterns)
    return [file.path for result in results for file in result.metadata_list]


def _delete(paths: list[str]) -> None:
    if not paths:
        return
    try:
        if is_local(paths[0]):
            for path in paths:
                os.remove(path)
        else:
            FileSystems.delete(paths)
    except (BeamIOError, OSError) as error:
        raise ProbelineError(
            f"cannot remove what an earlier run left: {error}; remove it by hand"
        ) from error
