"""Who writes an output folder on `gs://`: a marker object that one run at a time can hold.

A bucket has no lock that ends with its process. What it has are generations: a write can be made
to succeed only if nobody wrote since. The marker names the run, its process and its Dataflow job.
The launcher renews it; a marker that nobody renewed for LEASE_S, or whose job Dataflow knows to
be over, may be taken by the next run. Workers look at it before they give files their names, so
that a run which lost its marker cannot change what its successor writes.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.jobs import dataflow
from beam_pipeline.jobs.dataflow import DataflowJob
from beam_pipeline.storage import gcs

LEASE_S = 600.0
RENEW_S = 60.0


@dataclass(frozen=True)
class Marker:
    """What a worker needs to know of the marker: where it is and what it has to say."""

    path: str
    run: str

    def check(self) -> None:
        """Raises ProbelineError unless the output is still this run's."""
        found = gcs.read_object(self.path)
        if found is None or _owner(found.data).get("run") != self.run:
            raise ProbelineError(
                f"{self.path} no longer names this run: another run has taken the output, and "
                "this one stops before it changes anything there; choose another folder"
            )

    def release(self) -> None:
        """Removes the marker if it is still this run's."""
        found = gcs.read_object(self.path)
        if found is not None and _owner(found.data).get("run") == self.run:
            gcs.delete_object(self.path, found.generation)


class Holder:
    """The launcher's side of a marker: takes it, renews it, gives it back or hands it over."""

    def __init__(self, given: str, marker: Marker, job: DataflowJob | None):
        self._given = given
        self.marker = marker
        self._job = job
        self._lock = threading.Lock()  # of the generation
        self._stop = threading.Event()
        self._generation = self._take()
        self._thread = threading.Thread(target=self._renew, name="marker", daemon=True)
        self._thread.start()

    def _data(self) -> bytes:
        return orjson.dumps(
            {
                "run": self.marker.run,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "job": asdict(self._job) if self._job else None,
            }
        )

    def _take(self) -> int:
        path = self.marker.path
        for _ in range(3):  # as often may another run end just now
            generation = gcs.write_object(path, self._data(), 0)
            if generation is not None:
                return generation
            found = gcs.read_object(path)
            if found is None:
                continue
            _refuse_a_live_owner(self._given, path, found)
            generation = gcs.write_object(path, self._data(), found.generation)
            if generation is not None:
                return generation
        raise UsageError(
            f"{self._given} has just been taken by another run: wait for it or choose "
            "another folder"
        )

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_S):
            # A failure shows later, where it counts: when the workers look at the marker.
            with contextlib.suppress(ProbelineError), self._lock:
                self._write()

    def _write(self) -> None:
        generation = gcs.write_object(self.marker.path, self._data(), self._generation)
        self._generation = generation if generation is not None else self._generation

    def name_job(self, job: DataflowJob) -> None:
        """Writes down the job that holds the marker from now on."""
        with self._lock:
            self._job = job
            self._write()

    def stop(self) -> None:
        """Ends the renewals."""
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def held(given: str, path: str, run: str, job: DataflowJob | None) -> Iterator[Holder]:
    """Holds the marker of an output while the block runs; whoever made it last gives it back.

    Args:
      given: the output as the user gave it, flag and folder, for messages.
      path: of the marker.
      run: the name of the run.
      job: the job on Dataflow that the run is, if so.

    Raises:
      UsageError: another run holds it.
      ProbelineError: the bucket cannot be written.
    """
    holder = Holder(given, Marker(path, run), job)
    try:
        yield holder
    finally:
        holder.stop()


def _owner(data: bytes) -> dict[str, Any]:
    """Returns what a marker says; nothing if it is not ours."""
    with contextlib.suppress(orjson.JSONDecodeError):
        value = orjson.loads(data)
        if isinstance(value, dict):
            return value
    return {}


def _refuse_a_live_owner(given: str, path: str, found: gcs.Object) -> None:
    """Raises UsageError unless the run of a marker is over."""
    owner = _owner(found.data)
    written = found.updated or datetime.now(UTC)
    if owner.get("job"):
        job = DataflowJob(**owner["job"])
        try:
            active_id = dataflow.active_job_id(job, written + timedelta(seconds=LEASE_S))
        except ProbelineError as error:
            raise UsageError(
                f"{given} was given to Dataflow job {job.name}, and whether it still "
                f"runs cannot be told: {error}; if it is over, remove the marker with `gcloud "
                f"storage rm {path}`"
            ) from error
        if active_id:
            raise UsageError(
                f"{given} is being written by Dataflow job {job.name}: wait for it, "
                f"cancel it with `gcloud dataflow jobs cancel {active_id} --project={job.project} "
                f"--region={job.region}`, or choose another folder"
            )
        if job.id:
            return  # Dataflow knows the job, and that it is over
    left = LEASE_S - (datetime.now(UTC) - written).total_seconds()
    if left > 0:
        who = f"process {owner.get('pid', 'unknown')} on {owner.get('host', 'an unknown host')}"
        raise UsageError(
            f"{given} is being written by {who}: wait for it or choose another folder; "
            f"if it is dead, its claim ends in {left:.0f} s, or remove it with `gcloud storage rm "
            f"{path}`"
        )
