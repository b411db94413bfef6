"""Worker processes for Beam's in-memory runner.

Beam's own workers are threads, which share one interpreter lock, or processes that import
everything again: 2.5 CPU-seconds each. Ours are forked from this process after its imports, and
share its memory.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions

from beam_pipeline import kernels
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs import beam_seams
from beam_pipeline.jobs.beam_options import IN_MEMORY_RUNNER
from beam_pipeline.jobs.machine import can_fork, importing

_PR_SET_PDEATHSIG = 1
_DYING_S = 1
_Worker = tuple[BaseProcess, Connection]


@contextlib.contextmanager
def forked_workers(beam_options: PipelineOptions) -> Iterator[None]:
    """Patches the in-memory runner, and forks its workers if its options request processes."""
    direct = beam_options.view_as(DirectOptions)
    is_local = beam_options.view_as(StandardOptions).runner == IN_MEMORY_RUNNER
    if is_local:
        beam_seams.patch_beam()
    if not is_local or direct.direct_running_mode != "multi_processing" or not can_fork():
        yield
        return
    with importing():  # the workers' garbage collectors then skip these objects and pages
        kernels.load()
    waiting = [_fork() for _ in range(direct.direct_num_workers)]
    workers = [process for process, _ in waiting]
    try:
        with beam_seams.worker_processes(
            lambda *arguments: _ForkedWorkerHandler(waiting.pop(), *arguments)
        ):
            yield
    except Exception as error:
        for process in workers:
            process.join(_DYING_S)
            if (process.exitcode or 0) < 0:
                raise ProbelineError(_why_ended(process.exitcode)) from error
        raise
    finally:
        for process in workers:
            process.kill()


def _fork() -> _Worker:
    ours, theirs = multiprocessing.Pipe()
    arguments = (theirs, os.getpid())
    process = multiprocessing.get_context("fork").Process(target=_work, args=arguments, daemon=True)
    process.start()
    return process, ours


def _work(connection: Connection, parent: int) -> None:
    """Waits for the runner's address and works for it as long as the parent lives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the runner, which ends this
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    address, worker_id = connection.recv()
    beam_seams.work(address, worker_id)


def _why_ended(exit_code: int | None) -> str:
    """Returns a message with a process's exit code, negative for a signal, and the cure."""
    why = f"a worker process ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:
        return f"{why}, most likely because memory ran out: give a smaller --direct_num_workers"
    return f"{why}: run the same command with --direct_num_workers=1"


class _ForkedWorkerHandler(beam_seams.GrpcWorkerHandler):
    """Starts and stops a forked worker for the runner."""

    def __init__(self, worker: _Worker, *arguments: object):
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._process, self._connection = worker
        self._is_stopping = threading.Event()

    def start_worker(self) -> None:
        self._connection.send((self.control_address, self.worker_id))
        threading.Thread(target=self._watch, daemon=True).start()

    def stop_worker(self) -> None:
        self._is_stopping.set()
        self._process.join()

    def _watch(self) -> None:
        """Fails the runner's pending requests if the worker dies; they would wait forever."""
        self._process.join()
        why = _why_ended(self._process.exitcode)
        while not self._is_stopping.wait(0.1):
            with contextlib.suppress(RuntimeError):  # the runner has just added a request
                self.control_conn.abort(RuntimeError(why))
