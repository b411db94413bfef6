"""Monitoring of a run: counters, distributions, a line of JSON per error, a display of progress.

Counters and logs are informative only, since a retried bundle may count and log twice. The counts
in the manifest prove that nothing was lost. On Dataflow, counters are on the job's page under
"Custom counters", and errors in Cloud Logging. docs/operations.md lists the counters; a test
compares.

The display, for a local run, is one line that is redrawn, or a line every 5 seconds. A job derives
its progress from the run's temporary files, so a retry cannot count twice, and any runner that
shares the filesystem can be watched.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

import orjson
from apache_beam.metrics import Metrics
from apache_beam.metrics.metric import Metrics as _Kinds

from beam_pipeline.errors import one_line

NAMESPACE = "probeline"
COUNTERS = {
    "rows_read": "input rows, good and bad",
    "rows_left_out": "input rows that are not in the sample",
    "files_unreadable": "unreadable files, with --on_bad_file=dead_letter",
    "chunks": "chunks of a bucket of probes from one work unit",
    "grouped_by_probe_bytes": "bytes that went into the GroupByKey by probe",
    "probes": "probes sorted",
    "duplicates_dropped": "measurements that equal another, with --duplicates=drop",
    "spilled_bytes": "bytes that sorting wrote to storage because a probe exceeded its memory",
    "cut_bytes": "bytes that went into the stateful row split",
    "row_splits": "rows of probes with several rows",
    "grouped_by_shard_bytes": "bytes that went into the GroupByKey by shard",
    "records_written": "rows in shards",
    "bytes_written": "bytes of shards",
    "shards_written": "shards",
    "train_probes": "probes of the finished dataset's train split",
    "test_probes": "probes of the finished dataset's test split",
    "overlap_documents": "training documents with a text, scanned by the overlap job",
    "overlap_text_bytes": "bytes of text scanned by the overlap job, once per index shard",
    "overlap_matches": "n-grams that a training document shares with an evaluation row",
    "overlap_details": "records of overlap_details",
}
DISTRIBUTIONS = {
    "measurements_per_probe": "measurements of a probe",
    "record_bytes": "bytes of a record as written",
}
DEAD_LETTERS = "dead_letters_"  # followed by the reason
_LINE_SECONDS, _REDRAW_SECONDS = 5.0, 0.5
_LOGGER = logging.getLogger("beam_pipeline")


def counter(name: str) -> _Kinds.DelegatingCounter:
    """Returns one of COUNTERS; raises KeyError for any other name."""
    COUNTERS[name]
    return Metrics.counter(NAMESPACE, name)


def distribution(name: str) -> _Kinds.DelegatingDistribution:
    """Returns one of DISTRIBUTIONS; raises KeyError for any other name."""
    DISTRIBUTIONS[name]
    return Metrics.distribution(NAMESPACE, name)


def count_dead_letters(reason: str, count: int) -> None:
    """Counts dead letters of one reason."""
    Metrics.counter(NAMESPACE, f"{DEAD_LETTERS}{reason}").inc(count)


@contextlib.contextmanager
def logged(step: str, **where: object) -> Iterator[None]:
    """Logs an exception in the block as a line of JSON with its place, and re-raises it."""
    try:
        yield
    except Exception as error:
        fields = {"step": step, **where, "error": type(error).__name__, "message": one_line(error)}
        _LOGGER.error(orjson.dumps(fields).decode())
        raise


# --- progress -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """Progress of a phase: `done` of `total`, in the phase's own measure."""

    phase: str
    done: float
    total: float
    text: str
    rate_unit: str = ""  # of the rate in millions, such as M/s; "" hides the rate


class Clock:
    """Rate and time left of the current phase."""

    def __init__(self) -> None:
        self._phase = ""
        self._started = time.monotonic()

    def describe(self, snapshot: Snapshot) -> str:
        """Returns the line to display."""
        now = time.monotonic()
        if snapshot.phase != self._phase:
            self._phase, self._started = snapshot.phase, now
        elapsed = now - self._started
        line = f"{snapshot.phase}: {snapshot.text}"
        if snapshot.done <= 0 or elapsed < 1:
            return line
        rate = snapshot.done / elapsed
        if snapshot.rate_unit:
            line += f", {rate / 1e6:.2f} {snapshot.rate_unit}"
        left = int((snapshot.total - snapshot.done) / rate)
        return f"{line}, {left // 60}:{left % 60:02d} left"


@contextlib.contextmanager
def watched(look: Callable[[], Snapshot], stream: TextIO) -> Iterator[None]:
    """Displays what `look` returns on `stream` while the block runs."""
    from rich.console import Console  # not on workers
    from rich.status import Status

    console = Console(file=stream)
    stop = threading.Event()
    status = Status("starting", console=console) if console.is_terminal else None

    def show() -> None:
        clock = Clock()
        while not stop.wait(_REDRAW_SECONDS if status else _LINE_SECONDS):
            line = clock.describe(look())
            if status:
                status.update(line)
            else:
                print(line, file=stream, flush=True)

    thread = threading.Thread(target=show, name="progress", daemon=True)
    with status or contextlib.nullcontext():
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
