"""The progress display of a local run: one line that is redrawn, or a line every 5 seconds.

A job derives its progress from the run's temporary files, so a retry cannot count twice, and any
runner that shares the filesystem can be watched.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.status import Status

_LINE_SECONDS, _REDRAW_SECONDS = 5.0, 0.5


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
