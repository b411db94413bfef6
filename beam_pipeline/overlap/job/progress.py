"""Progress of an overlap run, for information only: a file for each work unit, and a summary.

`progress/progress-00001.jsonl` is the first training file, or its first work unit. It is
overwritten, so that nothing counts twice when a worker retries. Each line is logged, too.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

import orjson
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.documents.batch import DocumentBatch
from beam_pipeline.documents.files import WorkUnit
from beam_pipeline.overlap.ngrams.matching import SharedNgrams
from beam_pipeline.overlap.results import layout
from beam_pipeline.overlap.results.output_files import json_line
from beam_pipeline.storage.files import atomic_write, open_file

_FOLDER = "progress"
HEARTBEAT_SECONDS = 30.0
_LOGGER = logging.getLogger("beam_pipeline")


class Heartbeat:
    """Writes every half minute, and at the end, how far the scan of a work unit is."""

    def __init__(self, output: str, temp_folder: str, unit: WorkUnit, index_shard: int):
        # Training files count from 1, and so do their work units and index shards.
        name = f"progress-{unit.file.number + 1:05d}"
        if unit.number or index_shard:
            name += f"-{unit.number + 1:05d}"
        if index_shard:
            name += f"-pass-{index_shard + 1:05d}"
        self._path = FileSystems.join(output, _FOLDER, f"{name}.jsonl")
        self._temp_folder = temp_folder
        self._last = time.monotonic()
        self._line: dict[str, Any] = {
            "stage": "scan",
            "train_path": unit.path,
            "start": unit.start,
            "end": unit.end,
            "row_groups": list(unit.row_groups),
            "pass": index_shard,
            "records": 0,
            "text_bytes": 0,
            "ngrams": 0,
            "overlaps": 0,
            "is_done": False,
        }

    def count(self, batch: DocumentBatch, shared: SharedNgrams) -> None:
        """Adds what has been read and compared, and the matches found in it."""
        self._line["records"] += batch.num_rows
        self._line["text_bytes"] += len(batch.utf8)
        self._line["ngrams"] += shared.num_ngrams
        self._line["overlaps"] += shared.num_matches
        if time.monotonic() - self._last >= HEARTBEAT_SECONDS:
            self._write()

    def finish(self) -> None:
        """Writes that the work is done."""
        self._line["is_done"] = True
        self._write()

    def _write(self) -> None:
        self._last = time.monotonic()
        line = {**self._line, "time": int(time.time())}
        _LOGGER.info(orjson.dumps(line).decode(errors="replace"))
        with atomic_write(self._path, self._temp_folder) as stream:
            stream.write(json_line(line))


def write_summary(output: str, temp_folder: str, summary: Mapping[str, Any]) -> None:
    """Writes progress_summary.json, over that of the stage before."""
    path = FileSystems.join(output, layout.SUMMARY)
    with atomic_write(path, temp_folder) as stream:
        stream.write(orjson.dumps(dict(summary), option=orjson.OPT_INDENT_2) + b"\n")


def read_summary(output: str) -> dict[str, Any]:
    """Returns the contents of progress_summary.json."""
    with open_file(FileSystems.join(output, layout.SUMMARY)) as stream:
        return orjson.loads(stream.read())
