"""From the match files of a work unit to the lines of the output about its matches.

  match files → details      gzip member: a record for each match, with both texts
              → instances    gzip member: a record for each (document, evaluation set, n)
              → matches      Parquet: a row for each match, without texts
              → hits, left_out

Everything is in the order of (row, evaluation row, n, places there). Caps keep the first records
in this order, which are the smallest by key; all other files, and `count_details`, ignore caps. A
file is only made if it has something in it.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import groupby
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from beam_pipeline.overlap.documents.evaluation import EvaluationRow, EvaluationRows
from beam_pipeline.overlap.ngrams.matching import Places
from beam_pipeline.overlap.results.match_files import Keep, ScannedUnit, UnitMatch, read_matches
from beam_pipeline.overlap.results.output_files import (
    GzipMember,
    TableWriter,
    json_line,
    json_value,
)
from beam_pipeline.storage.files import atomic_write

_OFFSETS = pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32())]))
MATCHES_SCHEMA = pa.schema(
    [
        ("eval_dataset", pa.string()),
        ("eval_path", pa.string()),
        ("eval_row", pa.int64()),
        ("instance_id", pa.string()),
        ("train_path", pa.string()),
        ("train_row", pa.int64()),
        ("train_doc_id", pa.string()),
        ("n", pa.int32()),
        ("eval_offsets", _OFFSETS),
        ("train_offsets", _OFFSETS),
    ]
)
PAIRS = np.dtype([("number", "<u4"), ("n", "<u4")])
_MATCHES_AT_A_TIME = 1 << 14
_TEXT_BYTES_IN_MEMORY = 64 << 20  # of evaluation rows


class DetailsSize(NamedTuple):
    """The size of the details of a work unit before compression."""

    num_records: int
    num_bytes: int
    num_kept: int  # by --max_details_per_pair


class ExpandedUnit(NamedTuple):
    """What was written of a work unit; a path is None where there is nothing to write."""

    scanned: ScannedUnit
    details_path: str | None = None
    instances_path: str | None = None
    matches_path: str | None = None
    hits_path: str | None = None  # PAIRS, sorted: the evaluation rows hit, by n
    pairs_left_out_path: str | None = None
    num_records: int = 0  # details written
    num_bytes: int = 0  # of these, before compression
    num_left_out: int = 0  # by --max_details


# --- a record of details ------------------------------------------------------------------------


class _Head(NamedTuple):
    """An evaluation row, and the beginning of its details, each value encoded once."""

    row: EvaluationRow
    fields: dict[str, orjson.Fragment]
    num_bytes: int


class _Details:
    """Makes lines of details; what several lines share is encoded once."""

    def __init__(self, rows: EvaluationRows, scanned: ScannedUnit):
        self._rows = rows
        self._heads: dict[int, _Head] = {}  # the one used last at the end
        self._head_bytes = 0
        self._train_path = _fragment(scanned.train_path)
        self._row_offset = scanned.row_offset
        self._at_row, self._text = -1, _fragment("")

    def head(self, number: int) -> _Head:
        """Returns the head of an evaluation row; forgets others when their texts are many."""
        head = self._heads.pop(number, None)
        if head is None:
            head = _make_head(self._rows, number)
            self._head_bytes += head.num_bytes
        self._heads[number] = head
        while self._head_bytes > _TEXT_BYTES_IN_MEMORY and len(self._heads) > 1:
            self._head_bytes -= self._heads.pop(next(iter(self._heads))).num_bytes
        return head

    def line(self, match: UnitMatch) -> bytes:
        """Returns the line of a match."""
        if match.row != self._at_row:
            self._at_row, self._text = match.row, _fragment(match.text)
        ngram = _fragment(match.ngram)
        record = {
            **self.head(match.number).fields,
            "ngram": ngram,
            "eval_offsets": match.eval_places,
            "n": match.n,
            "train_path": self._train_path,
            "train_row": match.row + self._row_offset,
            "train_text": self._text,
            "train_ngram": ngram,
            "train_offsets": match.train_places,
        }
        if match.doc_id is not None:
            record["train_doc_id"] = _fragment(match.doc_id)
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def _make_head(rows: EvaluationRows, number: int) -> _Head:
    row = rows[number]
    values = (row.eval_dataset, row.eval_path, row.eval_row, rows.text(number))
    encoded = [json_value(value) for value in values]
    names = ("eval_dataset", "eval_path", "eval_row", "eval_text")
    fields: dict[str, orjson.Fragment]
    fields = dict(zip(names, map(orjson.Fragment, encoded), strict=True))
    return _Head(row, fields, sum(map(len, encoded)))


def _fragment(value: str) -> orjson.Fragment:
    return orjson.Fragment(json_value(value))


def count_details(
    scanned: ScannedUnit,
    rows: EvaluationRows,
    keep: Keep | None = None,
    max_details_per_pair: int | None = None,
) -> DetailsSize:
    """Returns the exact size that the details of a work unit have without caps."""
    details = _Details(rows, scanned)
    num_records = num_bytes = num_kept = 0
    matches = read_matches(scanned.paths, keep)
    for _, pair in groupby(matches, key=lambda match: (match.row, match.number)):
        sizes = [len(details.line(match)) for match in pair]
        num_bytes += sum(sizes)
        num_records += len(sizes)
        num_kept += len(sizes[:max_details_per_pair])
    return DetailsSize(num_records, num_bytes, num_kept)


def quotas(num_kept: Sequence[int], max_details: int | None) -> list[int | None]:
    """Returns how many details each work unit may write, so that the first `max_details` are.

    Args:
      num_kept: the number that the other cap keeps of each work unit, in the order of the output.
    """
    if max_details is None:
        return [None] * len(num_kept)
    before = np.cumsum([0, *num_kept], dtype=np.int64)[: len(num_kept)]
    return [max(0, max_details - count) for count in before.tolist()]


# --- a work unit --------------------------------------------------------------------------------


def expand_unit(
    scanned: ScannedUnit,
    prefix: str,
    temp_folder: str,
    rows: EvaluationRows,
    keep: Keep | None = None,
    max_details_per_pair: int | None = None,
    quota: int | None = None,
) -> ExpandedUnit:
    """Writes everything that the output has about the matches of a work unit.

    Args:
      prefix: the beginning of the paths of the files written.
      temp_folder: the folder for files that are not whole yet.
      keep: returns which matches count (`read_boilerplate`).
      max_details_per_pair: the number of details that a document and an evaluation row may have.
      quota: the number of details that the work unit may have, one of `quotas`.
    """
    with ExitStack() as stack:
        files = _LazyFiles(prefix, temp_folder, stack)
        expansion = _Expansion(scanned, rows, files, max_details_per_pair, quota)
        matches = read_matches(scanned.paths, keep)
        for _, document in groupby(matches, key=lambda match: match.row):
            expansion.add_document(document)
        expansion.add_hits()
    return ExpandedUnit(
        scanned,
        files.path("details.gz"),
        files.path("instances.gz"),
        files.path("matches.parquet"),
        files.path("hits"),
        files.path("left_out"),
        expansion.num_records,
        expansion.num_bytes,
        expansion.num_left_out,
    )


class _LazyFiles:
    """Files that are made when they are first asked for, and whole when the stack is closed."""

    def __init__(self, prefix: str, temp_folder: str, stack: ExitStack):
        self._prefix = prefix
        self._temp_folder = temp_folder
        self._stack = stack
        self._open: dict[str, Any] = {}

    def get(self, name: str, wrap: Callable[[BinaryIO], AbstractContextManager] | None = None):
        """Returns the file of a name, or what `wrap` makes of its stream."""
        if name not in self._open:
            file = atomic_write(f"{self._prefix}.{name}", self._temp_folder)
            stream = self._stack.enter_context(file)
            self._open[name] = self._stack.enter_context(wrap(stream)) if wrap else stream
        return self._open[name]

    def path(self, name: str) -> str | None:
        """Returns the path, None if the file was never asked for."""
        return f"{self._prefix}.{name}" if name in self._open else None


class _Expansion:
    """The records of one work unit, on their way to its files."""

    def __init__(
        self,
        scanned: ScannedUnit,
        rows: EvaluationRows,
        files: _LazyFiles,
        max_details_per_pair: int | None,
        quota: int | None,
    ):
        self._files = files
        self._max_details_per_pair = max_details_per_pair
        self._quota = quota
        self._details = _Details(rows, scanned)
        self._train_path = scanned.train_path
        self._row_offset = scanned.row_offset
        self._datasets = rows.datasets
        self._hits: set[tuple[int, int]] = set()
        self.num_records = self.num_bytes = self.num_left_out = 0

    def add_document(self, document: Iterator[UnitMatch]) -> None:
        """Adds all matches of one document."""
        hit: dict[tuple[int, int], set[str]] = defaultdict(set)
        matches: list[UnitMatch] = []
        for number, pair in groupby(document, key=lambda match: match.number):
            row, matches = self._details.head(number).row, list(pair)
            dataset = self._datasets.index(row.eval_dataset)
            kept = matches[: self._max_details_per_pair]
            for match in kept:
                self._add_detail(match)
            for match in matches:
                self._add_match(match, row)
                self._hits.add((number, match.n))
                hit[dataset, match.n].add(row.instance_id)
            if len(kept) < len(matches):
                self._add_left_out(matches[0], row, len(matches) - len(kept))
        self._add_instances(matches[0], hit)

    def _add_detail(self, match: UnitMatch) -> None:
        if self._quota is not None and self.num_records >= self._quota:
            self.num_left_out += 1
            return
        line = self._details.line(match)
        self._files.get("details.gz", GzipMember).write(line)
        self.num_records += 1
        self.num_bytes += len(line)

    def _add_match(self, match: UnitMatch, row: EvaluationRow) -> None:
        writer = self._files.get(
            "matches.parquet", functools.partial(TableWriter, schema=MATCHES_SCHEMA)
        )
        writer.add(
            _valid(row.eval_dataset),
            _valid(row.eval_path),
            row.eval_row,
            _valid(row.instance_id),
            _valid(self._train_path),
            match.row + self._row_offset,
            None if match.doc_id is None else _valid(match.doc_id),
            match.n,
            _offsets(match.eval_places),
            _offsets(match.train_places),
        )
        if writer.num_pending >= _MATCHES_AT_A_TIME:
            writer.flush()

    def _add_left_out(self, match: UnitMatch, row: EvaluationRow, count: int) -> None:
        record = {
            "eval_dataset": row.eval_dataset,
            "eval_path": row.eval_path,
            "eval_row": row.eval_row,
            "train_path": self._train_path,
            "train_row": match.row + self._row_offset,
            "num_left_out": count,
        }
        self._files.get("left_out").write(json_line(record))

    def _add_instances(self, match: UnitMatch, hit: dict[tuple[int, int], set[str]]) -> None:
        for (dataset, n), ids in sorted(hit.items()):
            record = {
                "eval_dataset": self._datasets[dataset],
                "n": n,
                "instance_ids": sorted(ids),
                "train_path": self._train_path,
                "train_doc_id": self._train_path if match.doc_id is None else match.doc_id,
                "train_row": match.row + self._row_offset,
            }
            self._files.get("instances.gz", GzipMember).write(json_line(record))

    def add_hits(self) -> None:
        """Adds which evaluation rows were hit; call this after all documents."""
        if self._hits:
            self._files.get("hits").write(np.array(sorted(self._hits), PAIRS).tobytes())


def _offsets(places: Places) -> list[dict[str, int]]:
    return [{"start": start, "end": end} for start, end in places]


def _valid(text: str) -> str:
    """Returns a text as Parquet takes it: lone surrogates as escapes, `\\ud800`."""
    return text.encode("utf-8", "backslashreplace").decode()
