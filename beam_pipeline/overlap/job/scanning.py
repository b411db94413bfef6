"""The scan: training files → work units → match files in storage, and work units with their rows.

A work unit with match files is not scanned again, so that runs can resume. Only training texts and
n-grams that match leave the worker, and they go to storage, not through a shuffle. An index shard
is mapped from one local file, whose pages all processes of a machine share.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import orjson
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.documents.batch import DocumentBatch
from beam_pipeline.documents.fields import Fields
from beam_pipeline.documents.files import WORK_UNIT_BYTES, InputFile, WorkUnit, cut_into_work_units
from beam_pipeline.documents.reading import read_texts
from beam_pipeline.jobs.monitoring import count_dead_letters, counter
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.overlap.job.preparing import Prepared, freeing_step
from beam_pipeline.overlap.ngrams.index import open_index
from beam_pipeline.overlap.ngrams.matching import Matcher, SharedNgrams
from beam_pipeline.overlap.ngrams.postings import Postings
from beam_pipeline.overlap.ngrams.tokenizers import tokenizer_named
from beam_pipeline.overlap.results.match_files import (
    ScannedUnit,
    ScanSummary,
    read_summary,
    write_match_file,
)
from beam_pipeline.overlap.results.output_files import json_line
from beam_pipeline.storage.files import atomic_write, exists
from beam_pipeline.storage.local_copy import on_this_machine, release

# With several index shards, a group of work units is scanned with each in turn, opening it once.
# So a group's text is several times the size of an index shard, as long as there are enough
# groups for many workers.
_MIN_GROUP_BYTES = 16 * WORK_UNIT_BYTES
_GROUP_BYTES_PER_INDEX_BYTE = 4
_MIN_GROUPS = 256
_PROGRESS_FOLDER = "progress"
HEARTBEAT_SECONDS = 30.0
_LOGGER = logging.getLogger("beam_pipeline")


def plan_work_units(
    file_number: int, file: InputFile, num_groups: int
) -> Iterator[tuple[str, WorkUnit]]:
    """Yields the work units of a file, keyed by group (`count_groups`)."""
    for unit in cut_into_work_units(file, WORK_UNIT_BYTES):
        key = str(int(unit.name, 16) % num_groups) if num_groups else unit.name
        yield key, unit._replace(file=file._replace(number=file_number))


def count_groups(num_bytes: int, num_index_shards: int, index_bytes: int) -> int:
    """Returns the number of groups of work units, or 0 to scan each work unit on its own."""
    if num_index_shards == 1:
        return 0
    worth_opening = min(_GROUP_BYTES_PER_INDEX_BYTE * index_bytes, num_bytes // _MIN_GROUPS)
    return max(1, num_bytes // max(_MIN_GROUP_BYTES, worth_opening))


def number_rows(units: Iterable[ScannedUnit]) -> Iterator[ScannedUnit]:
    """Sets the row offset of each work unit of a file, by summing the rows of those before."""
    first_row = 0
    for scanned in sorted(units, key=lambda scanned: scanned.order):
        row_offset = first_row if scanned.unit.first_row is None else 0
        yield scanned._replace(row_offset=row_offset)
        first_row += scanned.summary.num_rows


class Heartbeat:
    """Logs the progress of a work unit's scan and writes it every half minute and at the end.

    `progress/progress-00001.jsonl` is the first training file, or its first work unit. The file is
    overwritten, so that retries count only once.
    """

    def __init__(self, output: str, temp_folder: str, unit: WorkUnit, index_shard: int):
        name = f"progress-{unit.file.number + 1:05d}"  # all numbers in names begin at 1
        if unit.number or index_shard:
            name += f"-{unit.number + 1:05d}"
        if index_shard:
            name += f"-pass-{index_shard + 1:05d}"
        self._path = FileSystems.join(output, _PROGRESS_FOLDER, f"{name}.jsonl")
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
        """Adds a batch and its shared n-grams."""
        self._line["records"] += batch.num_rows
        self._line["text_bytes"] += len(batch.utf8)
        self._line["ngrams"] += shared.num_ngrams
        self._line["overlaps"] += shared.num_matches
        if time.monotonic() - self._last >= HEARTBEAT_SECONDS:
            self._write()

    def finish(self) -> None:
        """Records that the work is done."""
        self._line["is_done"] = True
        self._write()

    def _write(self) -> None:
        self._last = time.monotonic()
        line = {**self._line, "time": int(time.time())}
        _LOGGER.info(orjson.dumps(line).decode(errors="replace"))
        with atomic_write(self._path, self._temp_folder) as stream:
            stream.write(json_line(line))


class Scan(beam.DoFn):
    """(group, [WorkUnit]) → (path, ScannedUnit); a DoFn, since a Matcher is not thread-safe."""

    def __init__(self, run: JobRun, fields: Fields, tokenizer: str):
        self._run, self._fields, self._tokenizer = run, fields, tokenizer
        self._matchers: dict[str, tuple[Matcher, str]] = {}  # by path, and the local copy

    def process(
        self, keyed: tuple[str, Iterable[WorkUnit]], prepared: Prepared, index_paths: Sequence[str]
    ) -> Iterator[tuple[str, ScannedUnit]]:
        units = sorted(keyed[1], key=lambda unit: (unit.file.number, unit.number))
        shards = range(prepared.num_index_shards)
        summaries: list[list[ScanSummary]] = [[] for _ in units]
        # This order keeps one index shard in memory at a time.
        for shard in shards:
            for unit, found in zip(units, summaries, strict=True):
                with freeing_step("Scan", path=unit.path, start=unit.start, index_shard=shard):
                    found.append(self._scan(unit, shard, prepared))
        for unit, found in zip(units, summaries, strict=True):
            summary = found[0]._replace(num_matches=sum(each.num_matches for each in found))
            paths = tuple(prepared.match_path(unit, shard) for shard in shards)
            yield unit.path, ScannedUnit(unit, paths, summary)

    def _scan(self, unit: WorkUnit, index_shard: int, prepared: Prepared) -> ScanSummary:
        path = prepared.match_path(unit, index_shard)
        if exists(path):
            return read_summary(path)
        temp_folder = self._run.folder
        heartbeat = Heartbeat(self._run.output, temp_folder, unit, index_shard)
        scanned = self._read_and_match(unit, self._matcher(prepared, index_shard), heartbeat)
        summary = write_match_file(path, temp_folder, scanned)
        heartbeat.finish()
        counter("overlap_matches").inc(summary.num_matches)
        if index_shard == 0:
            counter("overlap_documents").inc(summary.num_texts)
            for reason, count in summary.letters.items():
                count_dead_letters(reason, count)
        return summary

    def _read_and_match(
        self, unit: WorkUnit, matcher: Matcher, heartbeat: Heartbeat
    ) -> Iterator[tuple[DocumentBatch, SharedNgrams]]:
        for batch in read_texts(unit, self._fields):
            shared = matcher.shared(batch.utf8, batch.bounds)
            yield batch, shared
            counter("overlap_text_bytes").inc(len(batch.utf8))
            heartbeat.count(batch, shared)

    def _matcher(self, prepared: Prepared, index_shard: int) -> Matcher:
        path = prepared.index_path(index_shard)
        if path not in self._matchers:
            self.teardown()
            copy = on_this_machine(path)
            index = open_index(copy, prepared.fingerprint)
            postings = Postings(index, prepared.open_tokens())
            matcher = Matcher(index, postings, tokenizer_named(self._tokenizer))
            self._matchers[path] = matcher, copy
        return self._matchers[path][0]

    def teardown(self) -> None:
        """Releases the index shard, so that its copy can be removed."""
        while self._matchers:
            _, (_, copy) = self._matchers.popitem()
            release(copy)
