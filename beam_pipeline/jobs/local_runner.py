"""Beam's in-memory runner: every internal of Beam that Probeline changes or uses.

Beam's own workers are threads, which share one interpreter lock, or processes that import
everything again: 2.5 CPU-seconds each. Ours are forked from this process after its imports, and
share its memory. `check_beam` fails early if Beam lacks these internals.
"""

import contextlib
import ctypes
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.worker import sdk_worker, statesampler
from apache_beam.transforms import userstate

from beam_pipeline import kernels
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs.beam_options import IN_MEMORY_RUNNER
from beam_pipeline.jobs.machine import can_fork, importing

TESTED_BEAM = "2.77"
_INTERNALS: dict[Any, tuple[str, ...]] = {
    userstate: ("get_dofn_specs",),
    statesampler: ("StateSampler",),
    sdk_worker: ("SdkHarness",),
    worker_handlers: (
        *("DATA_BUFFER_TIME_LIMIT_MS", "STATE_CACHE_SIZE_MB", "FNAPI_RUNNER_CAPABILITIES"),
        "GrpcWorkerHandler",
    ),
    worker_handlers.WorkerHandler: ("_registered_environments",),
}
_NEVER_MS = 1 << 40
_SAMPLING_PERIOD_MS = 5
_PR_SET_PDEATHSIG = 1
_DYING_S = 1
_Worker = tuple[BaseProcess, Connection]


def check_beam() -> None:
    """Raises ProbelineError if this version of Beam lacks the internals used here."""
    missing = [name for owner, names in _INTERNALS.items() for name in names
               if not hasattr(owner, name)]  # fmt: skip
    if missing:
        raise ProbelineError(
            f"apache-beam {beam.__version__} lacks {', '.join(missing)}, which Probeline uses: "
            f"install apache-beam=={TESTED_BEAM}.*"
        )


@functools.cache
def patch_beam() -> None:
    """Patches the runner and the workers of this process; call it before workers are forked."""
    check_beam()
    # Beam inspects the signatures of a DoFn six times, a tenth of a second in all.
    userstate.get_dofn_specs = functools.cache(userstate.get_dofn_specs)
    # A bundle ends only when the thread that samples its state wakes up: every 200 ms by default.
    statesampler.StateSampler = functools.partial(
        statesampler.StateSampler, sampling_period_ms=_SAMPLING_PERIOD_MS
    )
    # With several workers, a thread of Beam flushes each stream every second. It may do so within
    # an element, as our coders are Python, or drop what is written meanwhile.
    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = _NEVER_MS


def silence_workers() -> None:
    """Keeps off the terminal the tracebacks that workers also send to the runner."""
    sdk_worker.print = lambda *_, **__: None


@contextlib.contextmanager
def forked_workers(beam_options: PipelineOptions) -> Iterator[None]:
    """Makes the in-memory runner use forked workers if its options request processes."""
    patch_beam()
    direct = beam_options.view_as(DirectOptions)
    is_local = beam_options.view_as(StandardOptions).runner == IN_MEMORY_RUNNER
    if not is_local or direct.direct_running_mode != "multi_processing" or not can_fork():
        yield
        return
    with importing():  # the workers' garbage collectors then skip these objects and pages
        kernels.load()
    waiting = [_fork() for _ in range(direct.direct_num_workers)]
    workers = [process for process, _ in waiting]
    registered = worker_handlers.WorkerHandler._registered_environments
    beams_own = registered[python_urns.SUBPROCESS_SDK]
    registered[python_urns.SUBPROCESS_SDK] = (
        lambda _, *arguments: _ForkedWorkerHandler(waiting.pop(), *arguments),
        bytes,
    )
    try:
        yield
    except Exception as error:
        for process in workers:
            process.join(_DYING_S)
            if (process.exitcode or 0) < 0:
                raise ProbelineError(_why_ended(process.exitcode)) from error
        raise
    finally:
        registered[python_urns.SUBPROCESS_SDK] = beams_own
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
    sdk_worker.SdkHarness(
        address,
        worker_id=worker_id,
        state_cache_size=worker_handlers.STATE_CACHE_SIZE_MB << 20,
        runner_capabilities=worker_handlers.FNAPI_RUNNER_CAPABILITIES,
    ).run()


def _why_ended(exit_code: int | None) -> str:
    """Returns a message with a process's exit code, negative for a signal, and the cure."""
    why = f"a worker process ended with exit code {exit_code}"
    if exit_code == -signal.SIGKILL:
        return f"{why}, most likely because memory ran out: give a smaller --direct_num_workers"
    return f"{why}: run the same command with --direct_num_workers=1"


class _ForkedWorkerHandler(worker_handlers.GrpcWorkerHandler):
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
            for name in list(self.control_conn._futures_by_id):
                future = self.control_conn._futures_by_id.pop(name)
                future.set(beam_fn_api_pb2.InstructionResponse(instruction_id=name, error=why))
