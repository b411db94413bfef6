"""Worker processes for Beam's in-memory runner.

Beam's own workers are threads, which share one interpreter lock. Ours are forked from this process
after its imports, and share its memory. Where it cannot fork, they are processes that import
everything again: 1.5 CPU-seconds each.
"""

import contextlib
import logging
import multiprocessing
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions

from beam_pipeline import kernels
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs import beam_seams
from beam_pipeline.jobs.beam_options import IN_MEMORY_RUNNER
from beam_pipeline.jobs.program import call, importing, is_lean
from beam_pipeline.machine import can_fork, end_with_parent

_DYING_S, _STOPPING_S = 1, 5
_Worker = tuple[BaseProcess, Connection]


@contextlib.contextmanager
def local_workers(beam_options: PipelineOptions) -> Iterator[None]:
    """Patches the in-memory runner, and starts its workers if its options request processes."""
    direct = beam_options.view_as(DirectOptions)
    is_local = beam_options.view_as(StandardOptions).runner == IN_MEMORY_RUNNER
    if is_local:
        beam_seams.patch_beam()
    if not is_local or direct.direct_running_mode != "multi_processing":
        yield
        return
    if forks := can_fork():
        with importing():  # the workers' garbage collectors then skip these objects and pages
            kernels.load()
    waiting = [_start(forks) for _ in range(direct.direct_num_workers)]
    workers = [process for process, _ in waiting]
    try:
        with beam_seams.worker_processes(
            lambda *arguments: _WorkerHandler(waiting.pop(), *arguments)
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


def _start(forks: bool) -> _Worker:
    ours, theirs = multiprocessing.Pipe()
    if forks:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        return process, ours
    arguments = (is_lean(), __name__, _work.__name__, theirs, logging.root.manager.disable)
    process = multiprocessing.get_context("spawn").Process(target=call, args=arguments, daemon=True)
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")  # else a user's would be imported
    resource_tracker.ensure_running()  # it unblocks SIGINT
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # see `_work`
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        sys.modules["__main__"] = main
    return process, ours


def _work(connection: Connection, disabled_log: int = logging.NOTSET) -> None:
    """Waits for the runner's address and works for it as long as the parent lives."""
    if disabled_log:  # a fork has the log, and the rest of `program.quiet`, from its parent
        logging.disable(disabled_log)
        warnings.simplefilter("ignore")
        beam_seams.silence_workers()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the runner, which ends this
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    beam_seams.patch_beam()
    address, worker_id = connection.recv()
    beam_seams.work(address, worker_id)


def _why_ended(exit_code: int | None) -> str:
    """Returns a message with a process's exit code, negative for a signal, and the cure."""
    why = f"a worker process ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:
        return f"{why}, most likely because memory ran out: give a smaller --direct_num_workers"
    return f"{why}: run the same command with --direct_num_workers=1"


class _WorkerHandler(beam_seams.GrpcWorkerHandler):
    """Starts and stops a worker process for the runner."""

    def __init__(self, worker: _Worker, *arguments: object):
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._process, self._connection = worker
        self._is_stopping = threading.Event()

    def start_worker(self) -> None:
        self._connection.send((self.control_address, self.worker_id))
        threading.Thread(target=self._watch, daemon=True).start()

    def stop_worker(self) -> None:
        self._is_stopping.set()
        self._process.join(_STOPPING_S)
        self._process.kill()  # one that was still starting would look for the runner forever

    def _watch(self) -> None:
        """Fails the runner's pending requests if the worker dies; they would wait forever."""
        self._process.join()
        why = _why_ended(self._process.exitcode)
        while not self._is_stopping.wait(0.1):
            with contextlib.suppress(RuntimeError):  # the runner has just added a request
                self.control_conn.abort(RuntimeError(why))
