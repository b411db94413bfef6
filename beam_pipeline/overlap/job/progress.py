"""Progress of an overlap run, for eyes only: one small file for each piece of work, and a summary.

`progress/progress-00001.jsonl` is the first training file, or the first piece of it, and is
written over as the work goes on, so that nothing counts twice when a worker is retried. The same
line of JSON goes to the log.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

import orjson
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.overlap.job.units import Work
from beam_pipeline.overlap.ngrams.matching import Match
from beam_pipeline.overlap.results import layout
from beam_pipeline.overlap.results.output_files import json_line
from beam_pipeline.storage.files import atomic_write, open_file

_FOLDER = "progress"
HEARTBEAT_SECONDS = 30.0
_LOGGER = logging.getLogger("beam_pipeline")


class Heartbeat:
    """Tells every half minute, and at the end, how far a piece of work is."""

    def __init__(self, output: str, temp_folder: str, work: Work):
        self._path = FileSystems.join(output, _FOLDER, _name(work))
        self._temp_folder = temp_folder
        self._last = time.monotonic()
        self._line: dict[str, Any] = {
            "stage": "scan",
            "train_path": work.unit.path,
            "start": work.unit.start,
            "end": work.unit.end,
            "row_groups": list(work.unit.row_groups),
            "pass": work.part,
            "records": 0,
            "text_bytes": 0,
            "overlaps": 0,
            "is_done": False,
        }

    def count(self, records: int, text_bytes: int) -> None:
        """Adds what has been read."""
        self._line["records"] += records
        self._line["text_bytes"] += text_bytes
        if time.monotonic() - self._last >= HEARTBEAT_SECONDS:
            self._write()

    def found(self, match: Match) -> Match:
        """Adds an overlap, and returns it."""
        self._line["overlaps"] += 1
        return match

    def finish(self) -> None:
        """Says that the work is done."""
        self._line["is_done"] = True
        self._write()

    def _write(self) -> None:
        self._last = time.monotonic()
        line = {**self._line, "time": int(time.time())}
        _LOGGER.info(orjson.dumps(line).decode(errors="replace"))
        with atomic_write(self._path, self._temp_folder) as stream:
            stream.write(json_line(line))


def _name(work: Work) -> str:
    """Names what shows the progress of a piece of work: its file counted from 1, and the rest."""
    name = f"progress-{work.file_number + 1:05d}"
    if work.unit_number or work.part:
        name += f"-{work.unit_number + 1:05d}"
    if work.part:
        name += f"-pass-{work.part + 1:05d}"
    return f"{name}.jsonl"


def write_summary(output: str, temp_folder: str, summary: Mapping[str, Any]) -> None:
    """Writes progress_summary.json, over the one of the stage before."""
    path = FileSystems.join(output, layout.SUMMARY)
    with atomic_write(path, temp_folder) as stream:
        stream.write(orjson.dumps(dict(summary), option=orjson.OPT_INDENT_2) + b"\n")


def read_summary(output: str) -> dict[str, Any]:
    """Returns what progress_summary.json says."""
    with open_file(FileSystems.join(output, layout.SUMMARY)) as stream:
        return orjson.loads(stream.read())
