"""Runs all that follows the scan of an overlap run, without Beam: units to files, files to records.

Evaluation rows and training rows as `overlap_hits` has them go through the real index and
matcher, so that what comes out can be compared with the reference record by record.
"""

import gzip
import io
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.documents.batch import DocumentBatch, encode, text_buffers
from beam_pipeline.documents.files import InputFile, WorkUnit
from beam_pipeline.overlap.evaluation import EvaluationRows
from beam_pipeline.overlap.ngrams.index import IndexShard, build_index
from beam_pipeline.overlap.ngrams.matching import Matcher, SharedNgrams
from beam_pipeline.overlap.ngrams.postings import Postings
from beam_pipeline.overlap.ngrams.token_texts import (
    TokenTexts,
    open_token_texts,
    token_texts,
    write_token_texts,
)
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer
from beam_pipeline.overlap.results.boilerplate import (
    KEYS,
    boilerplate_of,
    find_boilerplate,
    read_boilerplate,
    write_boilerplate_lines,
    write_keys,
)
from beam_pipeline.overlap.results.counts import (
    Counts,
    add_counts,
    add_shared,
    count_shared,
    measure_unit,
    pack_counts,
)
from beam_pipeline.overlap.results.details import FULL, DetailsOptions, Evaluation, quotas
from beam_pipeline.overlap.results.expansion import ExpandedUnit, expand_unit
from beam_pipeline.overlap.results.layout import TRAIN_FILES
from beam_pipeline.overlap.results.match_files import (
    Keep,
    ScannedUnit,
    write_match_file,
)
from beam_pipeline.overlap.results.outputs import (
    FileGroup,
    Results,
    group_of,
    join_units,
    write_outputs,
)
from beam_pipeline.overlap.results.row_overlaps import BucketFiles, write_bucket
from beam_pipeline.storage.files import open_file
from beam_pipeline.storage.matching import FileVersion
from tests.support.overlap_hits import EvalRow, Options, Records, TrainRow
from tests.support.overlap_reference import INSTANCES

_NONE = np.empty(0, np.int64)
NOTHING = SharedNgrams(_NONE, _NONE, np.zeros(1, np.int64), _NONE, _NONE, 0)


def rows_of(rows: Sequence[EvalRow]) -> EvaluationRows:
    """Returns evaluation rows as the run has them, in several batches."""
    columns: dict[str, list[Any]] = {
        "eval_dataset": [encode(row.dataset) for row in rows],
        "eval_path": [encode(row.path) for row in rows],
        "eval_row": [row.row for row in rows],
        "instance_id": [encode(row.id) for row in rows],
        "text": [encode(row.text) for row in rows],
    }
    fields = [(name, pa.int64() if name == "eval_row" else pa.large_binary()) for name in columns]
    table = pa.table(columns, pa.schema(fields))
    cut = pa.Table.from_batches(table.to_batches(max_chunksize=3), table.schema)
    return EvaluationRows(cut, list(dict.fromkeys(row.dataset for row in rows)))


def tokens_of_rows(rows: EvaluationRows, tokenizer: Tokenizer) -> TokenTexts:
    """Returns the tokens of evaluation rows from their file, whose name is gone by then."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/tokens", "wb") as stream:
            write_token_texts((token_texts(*some, tokenizer) for some in rows.texts()), stream)
        return open_token_texts(f"{folder}/tokens")


def batch_of(training: Sequence[TrainRow], first_row: int = 0) -> DocumentBatch:
    """Returns training rows of one file as a reader does, their rows less `first_row`."""
    buffers = text_buffers([row.text for row in training])
    places = np.array([row.row - first_row for row in training], np.int64)
    num_rows = int(places[-1]) + 1 if len(training) else 0
    ids = [row.id for row in training]
    return DocumentBatch(num_rows, places, *buffers, ids, num_rows - len(places), [])


def scanned_unit(
    path: str,
    match_files: Sequence[tuple[str, Any]],
    row_offset: int = 0,
    number: int = 0,
    file_number: int = 0,
) -> ScannedUnit:
    """Returns a work unit of a training file with its match files and their batches, written."""
    unit = WorkUnit(InputFile(FileVersion(path, 0, 0), "jsonl", number=file_number), number)
    return ScannedUnit(unit, tuple(file for file, _ in match_files), match_files[0][1], row_offset)


@dataclass(frozen=True)
class Cut:
    """How the work is cut, which must not change any record."""

    num_index_shards: int = 1
    rows_per_unit: int = 3
    is_relative: bool = False


class Gathering:
    """A run in a folder: `records()` is what it wrote."""

    def __init__(
        self,
        folder: Path | str,
        rows: Sequence[EvalRow],
        training: Sequence[TrainRow],
        options: Options,
        cut: Cut = Cut(),
        mode: str = FULL,
    ):
        self.output, self.work, self.temp = (f"{folder}/{name}" for name in ("out", "work", "temp"))
        self.options, self.cut, self.mode = options, cut, mode
        self.rows = rows_of(rows)
        tokens = tokens_of_rows(self.rows, options.tokenizer)
        indexes = [
            build_index(
                self.rows.texts(),
                options.lengths,
                options.tokenizer,
                IndexShard(number, cut.num_index_shards),
                options.skip_degenerate,
            )
            for number in range(cut.num_index_shards)
        ]
        postings = [Postings(index, tokens) for index in indexes]
        self.evaluation = Evaluation(self.rows, postings)
        self.matchers = [
            Matcher(*pair, options.tokenizer) for pair in zip(indexes, postings, strict=True)
        ]
        self.units = list(self._scanned(training))
        self.keep, boilerplate_paths = self._boilerplate()
        self.details = DetailsOptions(mode, options.max_details_per_pair, options.max_details)
        measured = [
            measure_unit(unit, self.evaluation, self.details, self.keep) for unit in self.units
        ]
        self.sizes = [size for _, size in measured]
        rows_of_units = [rows for rows, _ in measured]
        buckets = [self._bucket(*each) for each in self._counted(rows_of_units)]
        self.expanded = list(self._expanded())
        self.groups = list(self._joined())
        given = options.lengths, self.details, options.rules
        results = Results(
            self.expanded, self.groups, buckets, *given, boilerplate_paths=boilerplate_paths
        )
        self.names = write_outputs(self.output, self.temp, self.rows, results)

    def _scanned(self, training: Sequence[TrainRow]) -> Iterator[ScannedUnit]:
        cut = self.cut
        of_path = defaultdict(list)
        for row in sorted(training, key=lambda row: row[:2]):
            of_path[row.path].append(row)
        self.num_files = len(of_path)
        for number, (path, documents) in enumerate(of_path.items()):
            for at in range(0, len(documents), cut.rows_per_unit):
                some = documents[at : at + cut.rows_per_unit]
                first_row = some[0].row if cut.is_relative else 0
                batch = batch_of(some, first_row)
                files = []
                for index_shard, matcher in enumerate(self.matchers):
                    file = f"{self.work}/matches-{number}-{at}-{index_shard}"
                    scanned = [(batch, matcher.shared(batch.utf8, batch.bounds))]
                    files.append((file, write_match_file(file, self.temp, scanned)))
                yield scanned_unit(path, files, first_row, at, number)

    def _counted(self, rows_of_units: Sequence[np.ndarray]) -> list[tuple[int, Counts]]:
        """Returns the counts of all work units by bucket, as they go through a shuffle."""
        buckets: dict[int, list[Counts]] = defaultdict(list)
        for unit, rows in zip(self.units, rows_of_units, strict=True):
            for bucket, packed in pack_counts(
                unit.paths, rows, self.evaluation.postings, self.keep
            ):
                buckets[bucket].append(packed.counts())
        return [(bucket, add_counts(counts)) for bucket, counts in sorted(buckets.items())]

    def _bucket(self, bucket: int, counts: Counts) -> BucketFiles:
        prefix, texts = f"{self.work}/bucket-{bucket:03d}", self.evaluation.postings[0].texts
        if self.keep is None:
            return write_bucket(prefix, self.temp, counts, self.rows, texts)
        dropped = boilerplate_of(f"{self.work}/boilerplate", bucket, self.evaluation.postings)
        return write_bucket(prefix, self.temp, counts, self.rows, texts, dropped)

    def _boilerplate(self) -> tuple[Keep | None, list[str] | None]:
        most = self.options.max_document_frequency
        if most is None:
            return None, None
        counts = add_shared(count_shared(unit.paths) for unit in self.units)
        found = find_boilerplate(counts, most, np.empty(0, KEYS))
        paths = [f"{self.work}/boilerplate-{half}" for half in range(2)]
        for half, lines_path in enumerate(paths):
            write_boilerplate_lines(lines_path, self.temp, found[half::2], self.evaluation.postings)
        path = f"{self.work}/boilerplate"
        write_keys(path, self.temp, [found[:3], found[3:]])
        return read_boilerplate(path), paths

    def _expanded(self) -> Iterator[ExpandedUnit]:
        may_write = quotas([size.details.num_kept for size in self.sizes], self.details.max_total)
        for at, (unit, quota) in enumerate(zip(self.units, may_write, strict=True)):
            prefix = f"{self.work}/unit-{at:03d}"
            given = self.evaluation, self.details, self.keep, quota
            yield expand_unit(unit, prefix, self.temp, *given)

    def _joined(self) -> Iterator[FileGroup]:
        groups: dict[int, list[ExpandedUnit]] = defaultdict(list)
        for unit in reversed(self.expanded):
            groups[group_of(unit.scanned.order[0], self.num_files)].append(unit)
        for number, units in sorted(groups.items()):
            yield join_units(number, units, f"{self.work}/group-{number:03d}", self.temp)

    def records(self) -> dict[str, Records]:
        """Returns the records of all files of the output; the files of instances are one."""
        found = {}
        for name in self.names:
            if name == TRAIN_FILES:
                continue
            key = INSTANCES if name.startswith("tmp/") else name
            found[key] = found.get(key, []) + read_records(f"{self.output}/{name}")
        return found


def read_records(path: str) -> Records:
    """Returns the records of a file of the output, as its name says what it is."""
    data = read_bytes(path)
    if path.endswith(".parquet"):
        return pq.read_table(io.BytesIO(data)).to_pylist()
    if path.endswith(".gz"):
        data = gzip.decompress(data)
    return [json.loads(line) for line in data.splitlines()]


def read_bytes(path: str) -> bytes:
    with open_file(path) as stream:
        return stream.read()
