"""Jobs on a job server of Flink, Spark or Prism: waiting, hints and cancellation.

A cluster runs a job on when its launcher has ended, and holds its slots. The job server's own
cancellation does not reach a batch job on a Flink cluster, so that is cancelled over Flink's REST
interface if --flink_master names it.
"""

import contextlib
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import orjson
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    StandardOptions,
)
from apache_beam.runners.runner import PipelineState

from beam_pipeline.errors import ProbelineError, one_line
from beam_pipeline.jobs.beam_options import RUNNERS_WITH_OWN_FLAGS
from beam_pipeline.storage.matching import match_below

_SILENCE_S = 120.0  # without a file of a worker
_ANSWER_S, _CANCELLED_S = 10.0, 60.0
_OVER = ("CANCELED", "FAILED", "FINISHED")  # Flink's states


def has_job_server(options: PipelineOptions) -> bool:
    """Returns whether a job server runs the job, which may outlive this process."""
    endpoint = options.view_as(PortableOptions).job_endpoint
    return options.view_as(StandardOptions).runner in RUNNERS_WITH_OWN_FLAGS or bool(endpoint)


def run_to_end(pipeline: beam.Pipeline, run_folder: str) -> None:
    """Runs a pipeline on a job server to its end; cancels the job if the wait ends before it.

    `run_folder` is where workers write; without a file there for 120 s, a line says so.
    """
    options = pipeline.options
    cloud = options.view_as(GoogleCloudOptions)
    cloud.job_name = f"{cloud.job_name or 'probeline'}-{uuid.uuid4().hex[:12]}"  # to find it by
    result = None
    try:
        with _interrupts_deferred():  # a job that has no result yet cannot be cancelled
            result = pipeline.run()
        with _hinting(run_folder):
            result.wait_until_finish()
    except BaseException:
        if result is not None:
            _cancel(result, options)
        raise


@contextlib.contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Raises the first KeyboardInterrupt at the end of the block, the second one at once."""
    came: list[int] = []

    def later(number: int, _: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    handled = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if threading.current_thread() is threading.main_thread()
        and signal.getsignal(number) is signal.default_int_handler
    ]
    for number in handled:
        signal.signal(number, later)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _hinting(run_folder: str) -> Iterator[None]:
    """Prints one line if no worker has written to `run_folder` some time after the block begins."""

    def hint() -> None:
        with contextlib.suppress(OSError, ProbelineError):  # a worker has just removed a file
            if not match_below(f"{run_folder}/", ["*/**"]):
                _say(
                    f"no worker has written anything for {_SILENCE_S:.0f} s: if none has begun, "
                    "the log of the worker pool or the task managers says why (docs/engines.md)"
                )

    timer = threading.Timer(_SILENCE_S, hint)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _cancel(result: Any, options: PipelineOptions) -> None:
    """Cancels a job that is not over, and prints a line that says so."""
    name = options.view_as(GoogleCloudOptions).job_name
    asked: list[str] = []

    def ask() -> None:
        try:
            if not PipelineState.is_terminal(result.state):
                result.cancel()
                asked.append("")
        except Exception as error:
            asked.append(f" ({one_line(error)})")

    # Beam's calls have no time limit.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_ANSWER_S)
    if not asked and not thread.is_alive():
        return  # the job is over
    failure = asked[0] if asked else f" (no answer in {_ANSWER_S:.0f} s)"
    master = options.view_as(FlinkRunnerOptions).flink_master
    if not master.startswith("["):
        try:
            _say(f"job {name} on Flink at {master} is {_cancel_on_flink(master, name)}")
            return
        except (OSError, ValueError) as error:
            failure = f" ({one_line(error)})"
    line = (
        f"{'could not cancel' if failure else 'asked the job server to cancel'} job {name}{failure}"
    )
    if options.view_as(PortableOptions).environment_type != "LOOPBACK":  # it has no workers now
        line += (
            "; on a Flink cluster --flink_master=HOST:PORT makes sure of it, and "
            "curl -X PATCH 'HOST:PORT/jobs/ID?mode=cancel' cancels a job"
        )
    _say(line)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _cancel_on_flink(master: str, name: str) -> str:
    """Cancels a job by its name and waits for its end; returns what came of it.

    A job that the job server is still preparing gets to the cluster nevertheless, and is awaited.
    """
    address = (master if "://" in master else f"http://{master}").rstrip("/")
    state = "not there"
    deadline = time.monotonic() + _CANCELLED_S
    while time.monotonic() < deadline:
        jobs = _answer(f"{address}/jobs/overview")["jobs"]
        for job in (job for job in jobs if job["name"] == name):
            if (state := job["state"]) in _OVER:
                return state.lower()
            with contextlib.suppress(urllib.error.HTTPError):  # it has just ended
                _answer(f"{address}/jobs/{job['jid']}?mode=cancel", "PATCH")
        time.sleep(0.3)
    return f"still {state.lower()}"


def _answer(url: str, method: str = "GET") -> dict[str, Any]:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), None, _ANSWER_S) as got:
        return orjson.loads(got.read() or b"{}")
