"""Progress of a job run, seen from outside: the files in its temporary folder tell how far it is.

  chunks/unit-000007-…                     reading: this work unit has been read
  records/records-…                        sorting: rows are staged
  train/train_shard_00001-of-00004.…       writing: this shard is being written

So a retry cannot count twice, and any runner that shares the filesystem can be watched. A terminal
shows one line that changes, a log a line every few seconds.
"""

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.status import Status

from beam_pipeline.dataset.manifest import SPLITS
from beam_pipeline.sources.inputs import WorkUnit
from beam_pipeline.storage.files import file_infos

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
    """Returns how far a job run is; `units` are those of the input, empty if workers plan them."""
    shards = {found for split in SPLITS for found in _names(run_folder, split, _SHARD)}
    if shards:
        total = sum(int(count) for _, count in {(split, count) for split, _, count in shards})
        return Snapshot("writing", len(shards), total, f"{len(shards)} of {total} shards")
    if staged := _size(run_folder, "records"):
        total = max(staged, _size(run_folder, "chunks"))  # small chunks traveled inline
        text = f"{staged / 1e6:,.0f} of about {total / 1e6:,.0f} MB"
        return Snapshot("sorting", staged, total, text)
    seen = {int(number) for (number,) in _names(run_folder, "chunks", _UNIT)}
    if not units:
        return Snapshot("reading", 0, 0, f"{len(seen)} work units")
    done = [piece for unit in units if unit.index in seen for piece in unit.pieces]
    pieces = [piece for unit in units for piece in unit.pieces]
    text = f"{len({p.path for p in done})} of {len({p.path for p in pieces})} files"
    if num_rows := sum(piece.num_rows for piece in pieces):
        rows_read = sum(piece.num_rows for piece in done)
        text += f", {rows_read / 1e6:,.1f} of {num_rows / 1e6:,.1f} M measurements"
        return Snapshot("reading", rows_read, num_rows, text)
    num_bytes = sum(piece.num_bytes for piece in pieces)
    return Snapshot("reading", sum(p.num_bytes for p in done), max(1, num_bytes), text)


def _files(run_folder: str, kind: str) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return list(Path(run_folder, kind).iterdir())
    return []


def _names(run_folder: str, kind: str, pattern: re.Pattern[str]) -> list[tuple[str, ...]]:
    """Returns the groups of the pattern for each file of a kind whose name matches."""
    found = (pattern.match(path.name) for path in _files(run_folder, kind))
    return [match.groups() for match in found if match]


def _size(run_folder: str, kind: str) -> int:
    infos = file_infos(map(str, _files(run_folder, kind)))
    return sum(info.num_bytes for info in infos.values() if info)


class _Clock:
    """Rate and time left of the current phase."""

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
    """Shows the progress of a job run on `stream` while the block runs."""
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
