"""Beam's internals that Probeline replaces or reads, which an upgrade of Beam may change.

SEAMS lists them all. Nothing is replaced by an import: `patch_beam` is for processes in which the
in-memory runner runs, `silence_workers` for those in which workers may run. Another module that
needs an internal of Beam gets it here.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import grpc
from apache_beam.portability import python_urns
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.runners.worker import sdk_worker, statesampler
from apache_beam.transforms import userstate

from beam_pipeline.errors import ProbelineError

TESTED_BEAM = "2.77"
SEAMS: dict[Any, tuple[str, ...]] = {
    userstate: ("get_dofn_specs",),
    statesampler: ("StateSampler",),
    sdk_worker: ("SdkHarness",),  # and the `print` that it calls
    worker_handlers: (
        *("DATA_BUFFER_TIME_LIMIT_MS", "STATE_CACHE_SIZE_MB", "FNAPI_RUNNER_CAPABILITIES"),
        "GrpcWorkerHandler",
    ),
    worker_handlers.WorkerHandler: ("_registered_environments",),
    worker_handlers.ControlConnection: ("abort",),
}
_NEVER_MS = 1 << 40
_SAMPLING_PERIOD_MS = 5

GrpcWorkerHandler = worker_handlers.GrpcWorkerHandler


def check_beam() -> None:
    """Raises ProbelineError if this version of Beam lacks one of SEAMS."""
    missing = [name for owner, names in SEAMS.items() for name in names
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
    threading.excepthook = _print_unless_hung_up


def _print_unless_hung_up(failed: threading.ExceptHookArgs) -> None:
    """Prints the exception of a thread, unless a finished runner closed its stream."""
    if not issubclass(failed.exc_type, grpc.RpcError):
        threading.__excepthook__(failed)


@contextlib.contextmanager
def worker_processes(make: Callable[..., GrpcWorkerHandler]) -> Iterator[None]:
    """Makes the in-memory runner get its worker processes from `make` in the block.

    `make` takes the arguments of GrpcWorkerHandler.
    """
    registered = worker_handlers.WorkerHandler._registered_environments
    beams_own = registered[python_urns.SUBPROCESS_SDK]
    registered[python_urns.SUBPROCESS_SDK] = (lambda _, *arguments: make(*arguments), bytes)
    try:
        yield
    finally:
        registered[python_urns.SUBPROCESS_SDK] = beams_own


def work(address: str, worker_id: str) -> None:
    """Works for the in-memory runner at an address until it says that it is done."""
    sdk_worker.SdkHarness(
        address,
        worker_id=worker_id,
        state_cache_size=worker_handlers.STATE_CACHE_SIZE_MB << 20,
        runner_capabilities=worker_handlers.FNAPI_RUNNER_CAPABILITIES,
    ).run()
