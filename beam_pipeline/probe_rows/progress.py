"""Progress of a run, seen from outside: what lies in its temporary folder tells how far it is.

No worker reports anything, so nothing can be counted twice by a retry and any runner that
shares the filesystem can be watched. On a terminal one line is redrawn, elsewhere a plain line
comes every few seconds.
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.status import Status

from beam_pipeline.sources.inputs import WorkUnit

_LINE_SECONDS, _REDRAW_SECONDS = 5.0, 0.5
_UNIT = re.compile(r"unit-(\d+)-")
_SHARD = re.compile(r"(train|test)_shard_(\d+)-of-(\d+)\.")


@dataclass(frozen=True)
class Snapshot:
    """How far a phase is: `done` of `total`, in the phase's own measure."""

    phase: str
    done: float
    total: float
    text: str


def look(run_folder: str, units: Sequence[WorkUnit]) -> Snapshot:
    """Tells from the files of a run how far it is."""
    shards = {_SHARD.match(name).groups() for name in _names(run_folder, "train", "test")}  # type: ignore[union-attr]
    if shards:
        expected = {split: int(count) for split, _, count in shards}
        total = sum(expected.values())
        return Snapshot("writing", len(shards), total, f"{len(shards)} of {total} shards")
    staged = _size(run_folder, "records")
    if staged:
        total = max(staged, _size(run_folder, "chunks"))  # what was small traveled otherwise
        done = staged
        text = f"{staged / 1e6:,.0f} of about {total / 1e6:,.0f} MB"
        return Snapshot("sorting", done, total, text)
    seen = {int(_UNIT.match(name)[1]) for name in _names(run_folder, "chunks")}  # type: ignore[index]
    if not units:  # so many files that the workers planned them
        return Snapshot("reading", 0, 0, f"{len(seen)} units of work")
    done = [unit for unit in units if unit.index in seen]
    files = len({piece.path for unit in done for piece in unit.pieces})
    all_files = len({piece.path for unit in units for piece in unit.pieces})
    text = f"{files} of {all_files} files"
    rows, all_rows = _rows(done), _rows(units)
    if all_rows:
        text += f", {rows / 1e6:,.1f} of {all_rows / 1e6:,.1f} M measurements"
        return Snapshot("reading", rows, all_rows, text)
    return Snapshot("reading", _bytes(done), max(1, _bytes(units)), text)


def _rows(units: Sequence[WorkUnit]) -> int:
    return sum(unit.num_rows for unit in units)


def _bytes(units: Sequence[WorkUnit]) -> int:
    return sum(piece.num_bytes for unit in units for piece in unit.pieces)


def _names(run_folder: str, *kinds: str) -> list[str]:
    names = []
    for kind in kinds:
        with contextlib.suppress(FileNotFoundError):
            names += os.listdir(os.path.join(run_folder, kind))
    return [name for name in names if _UNIT.match(name) or _SHARD.match(name)]


def _size(run_folder: str, kind: str) -> int:
    size = 0
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(os.path.join(run_folder, kind)):
            with contextlib.suppress(FileNotFoundError):
                size += entry.stat().st_size
    return size


class _Clock:
    """Rate and time left of the phase that is going on."""

    def __init__(self) -> None:
        self._phase = ""
        self._started = time.monotonic()

    def describe(self, snapshot: Snapshot) -> str:
        now = time.monotonic()
        if snapshot.phase != self._phase:
            self._phase, self._started = snapshot.phase, now
        elapsed = now - self._started
        line = f"{snapshot.phase}: {snapshot.text}"
        if snapshot.done <= 0 or elapsed < 1:
            return line
        rate = snapshot.done / elapsed
        if "measurements" in snapshot.text:
            line += f", {rate / 1e6:.2f} M/s"
        left = int((snapshot.total - snapshot.done) / rate)
        return f"{line}, {left // 60}:{left % 60:02d} left"


@contextlib.contextmanager
def watched(run_folder: str, units: Sequence[WorkUnit], stream: TextIO) -> Iterator[None]:
    """Shows the progress of a run on `stream` while the block runs."""
    console = Console(file=stream)
    stop = threading.Event()
    status = Status("starting", console=console) if console.is_terminal else None

    def show() -> None:
        clock = _Clock()
        while not stop.wait(_REDRAW_SECONDS if status else _LINE_SECONDS):
            line = clock.describe(look(run_folder, units))
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
