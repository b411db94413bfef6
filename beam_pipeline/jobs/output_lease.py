"""Exclusive access to an output folder: by a lock file, or by a marker object on `gs://`.

The operating system releases a lock file when its process dies. A bucket has no such lock, but
generations: a write can be conditional on the generation read before. The marker names the run, its
process and its Dataflow job. The launcher renews it. The next run may take a marker that was not
renewed for LEASE_S, or whose Dataflow job has ended.

A surviving worker of a run that lost its marker must not change what its successor writes. A file
is thus complete in the run's own folder before its worker checks the marker, and gets its final
name by a copy on the server. The successor takes the marker, removes that folder, and only then the
files in the output. A later copy finds no source. The remaining risk is a copy that the server is
making at that moment: at most gcs.REQUESTS_AT_A_TIME per worker.
"""

import contextlib
import fcntl
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TextIO, cast

import msgspec
import orjson

from beam_pipeline.errors import ProbelineError, UsageError, explained_os_errors
from beam_pipeline.jobs import dataflow
from beam_pipeline.jobs.dataflow import DataflowJob
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import open_own

LEASE_S = 600.0
RENEW_S = 60.0


@contextlib.contextmanager
def lock_folder(folder: str, name: str, given: str) -> Iterator[None]:
    """Holds a lock file for the block, then removes it, and its folder if that is empty.

    `given` is the output's flag and folder, for messages. Raises UsageError if a live process holds
    the lock, ProbelineError if the folder cannot be written.
    """
    with explained_os_errors("write", folder):
        lock = _open_lock(folder, name, given)
    with lock:
        try:
            yield
        finally:
            # Under the lock: nobody may take a file that is about to be removed.
            _remove_lock(lock.name)


def _remove_lock(path: str) -> None:
    with contextlib.suppress(OSError):  # another run may have begun by now
        os.remove(path)
        os.rmdir(os.path.dirname(path))


def _open_lock(folder: str, name: str, given: str) -> TextIO:
    path = os.path.join(folder, name)
    while True:
        _refuse_in_the_way(folder, stat.S_ISDIR, "folder")
        os.makedirs(folder, exist_ok=True)
        _refuse_in_the_way(path, stat.S_ISREG, "file")
        lock = cast(TextIO, open_own(path, "a+"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise UsageError(
                f"{given} is being written by process {owner}: wait for it or choose another folder"
            ) from None
        except OSError:  # the file system has no locks
            if os.fstat(lock.fileno()).st_size == 0:  # of no other run
                _remove_lock(path)
            raise
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(lock.fileno()).st_ino:
                try:
                    lock.truncate(0)
                    lock.write(str(os.getpid()))
                    lock.flush()
                except OSError:  # of the storage
                    _remove_lock(path)
                    raise
                return lock
        lock.close()  # its last holder removed it between our two calls: try again


def _refuse_in_the_way(path: str, is_right: Callable[[int], bool], kind: str) -> None:
    """Raises UsageError for a path of a different type, such as a link out of the folder."""
    with contextlib.suppress(FileNotFoundError):
        if not is_right(os.lstat(path).st_mode):
            raise UsageError(
                f"{path} is not a {kind}, and Probeline did not create it: move it away"
            )


class LostOutputError(ProbelineError):
    """The marker no longer names this run."""


@dataclass(frozen=True)
class Marker:
    """The marker object for workers: its path and the run that holds it."""

    path: str
    run: str

    def check(self) -> None:
        """Raises LostOutputError unless this run still holds the output."""
        if self._generation() is None:
            raise LostOutputError(
                f"{self.path} no longer names this run: another run has taken the output, and "
                "this one stops before it changes anything there; choose another folder"
            )

    def release(self) -> None:
        """Removes the marker if this run still holds it."""
        if (generation := self._generation()) is not None:
            gcs.delete_object(self.path, generation)

    def _generation(self) -> int | None:
        found = gcs.read_object(self.path)
        is_ours = found is not None and _owner(found.data).get("run") == self.run
        return found.generation if found and is_ours else None


class Lease:
    """The launcher's side of a marker: takes and renews it, and names the job that inherits it.

    `given` is the output's flag and folder, for messages, `job` the Dataflow job about to be
    submitted, if any. Raises UsageError if another run holds the marker, ProbelineError if the
    bucket cannot be written.
    """

    def __init__(self, given: str, marker: Marker, job: DataflowJob | None):
        self._given = given
        self._marker = marker
        self._job = job
        self._lock = threading.Lock()  # guards the job and the generation
        self._stop = threading.Event()
        self._generation = self._take()
        self._thread = threading.Thread(target=self._renew, name="marker", daemon=True)
        self._thread.start()

    def name_job(self, job: DataflowJob) -> None:
        """Makes the submitted job the holder of the marker."""
        with self._lock:
            self._job = job
            self._rewrite()

    def close(self) -> None:
        """Stops the renewals without releasing the marker; may be repeated."""
        self._stop.set()
        self._thread.join()

    def _write(self, generation: int) -> int | None:
        owner = {
            "run": self._marker.run,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "job": asdict(self._job) if self._job else None,
        }
        return gcs.write_object(self._marker.path, orjson.dumps(owner), generation)

    def _take(self) -> int:
        for _ in range(3):  # another run may end, or take it, at this moment
            if generation := self._write(0):
                return generation
            if found := gcs.read_object(self._marker.path):
                _refuse_a_live_owner(self._given, self._marker.path, found)
                if generation := self._write(found.generation):
                    return generation
        raise UsageError(
            f"{self._given} has just been taken by another run: wait for it or choose "
            "another folder"
        )

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_S):
            # Workers notice a lost marker when they check it.
            with contextlib.suppress(ProbelineError), self._lock:
                self._rewrite()

    def _rewrite(self) -> None:
        self._generation = self._write(self._generation) or self._generation


def _owner(data: bytes) -> dict[str, Any]:
    """Returns the contents of a marker; an empty dict if it is not ours."""
    with contextlib.suppress(ValueError):
        return msgspec.json.decode(data, type=dict)
    return {}


def _refuse_a_live_owner(given: str, path: str, found: gcs.Object) -> None:
    """Raises UsageError unless the run that wrote the marker has ended."""
    owner = _owner(found.data)
    written = found.updated or datetime.now(UTC)
    if owner.get("job"):
        job = DataflowJob(**owner["job"])
        try:
            active_id = dataflow.active_job_id(job, written + timedelta(seconds=LEASE_S))
        except ProbelineError as error:
            raise UsageError(
                f"{given} was given to Dataflow job {job.name}, and its state is "
                f"unknown: {error}; if it has ended, remove the marker with `gcloud "
                f"storage rm {path}`"
            ) from error
        if active_id:
            raise UsageError(
                f"{given} is being written by Dataflow job {job.name}: wait for it, cancel it with "
                f"`{replace(job, id=active_id).cancel_command}`, or choose another folder"
            )
        if job.id:
            return  # Dataflow knows the job: it has ended
    left = LEASE_S - (datetime.now(UTC) - written).total_seconds()
    if left > 0:
        who = f"process {owner.get('pid', 'unknown')} on {owner.get('host', 'an unknown host')}"
        raise UsageError(
            f"{given} is being written by {who}: wait for it or choose another folder; "
            f"if it is dead, its claim ends in {left:.0f} s, or remove it with `gcloud storage rm "
            f"{path}`"
        )
