"""From the parts of a unit of documents to what the run's files say of its matches.

  parts → details      gzip member: a record a match, with both texts
        → instances    gzip member: a record a (document, evaluation set, n)
        → matches      Parquet: a row a match, without texts
        → hits, left_out

Everything is in the order of (row, evaluation row, n, places there). Caps keep the first records
in this order, which are the smallest by key; all else, and `count_details` before them, tells what
there is without caps. A file is only made if it has something in it.
"""

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.overlap.ngrams.matching import Places
from beam_pipeline.overlap.results.match_files import Keep, PartMatch, merged
from beam_pipeline.overlap.results.output_files import GzipMember, json_line, json_value
from beam_pipeline.overlap.results.row_overlaps import Rows, head_of
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
_TEXT_BYTES_IN_MEMORY = 64 << 20
_HEADS_IN_MEMORY = 1 << 14


class Unit(NamedTuple):
    """A unit whose rows have been numbered."""

    part_paths: Sequence[str]  # one for each pass
    train_path: str
    first_row: int  # what is added to the rows in the parts


class DetailsSize(NamedTuple):
    """How much the details of a unit are, before they are compressed."""

    num_records: int
    num_bytes: int
    num_kept: int  # by --max_details_per_pair


class ExpandedUnit(NamedTuple):
    """What was written of a unit; a path is None where there is nothing to tell."""

    train_path: str
    details_path: str | None = None
    instances_path: str | None = None
    matches_path: str | None = None
    hits_path: str | None = None  # PAIRS, sorted: the evaluation rows hit, by n
    pairs_left_out_path: str | None = None
    num_records: int = 0  # details written
    num_bytes: int = 0  # of these, before compression
    num_left_out: int = 0  # by --max_details


# --- a record of details ------------------------------------------------------------------------


class _Lines:
    """Puts together lines of details from pieces, each text of which is encoded once."""

    def __init__(self, rows: Rows, unit: Unit):
        self._rows = rows
        self._train_path = json_value(unit.train_path)
        self._first_row = unit.first_row
        self._heads: OrderedDict[int, bytes] = OrderedDict()
        self._head_bytes = 0
        self._at_row = -1
        self._document = self._tail = b""

    def pieces(self, match: PartMatch) -> tuple[bytes, ...]:
        """Returns the pieces of the line of a match."""
        if match.row != self._at_row:
            self._at_row = match.row
            self._document = b',"train_path":%b,"train_row":%d,"train_text":%b,"train_ngram":' % (
                self._train_path,
                match.row + self._first_row,
                json_value(match.text),
            )
            self._tail = b"}\n"
            if match.doc_id is not None:
                self._tail = b',"train_doc_id":%b}\n' % json_value(match.doc_id)
        ngram = json_value(match.ngram)
        return (
            self._head(match.number),
            ngram,
            b',"eval_offsets":',
            orjson.dumps(match.eval_places),
            b',"n":%d' % match.n,
            self._document,
            ngram,
            b',"train_offsets":',
            orjson.dumps(match.train_places),
            self._tail,
        )

    def _head(self, number: int) -> bytes:
        if (known := self._heads.get(number)) is not None:
            self._heads.move_to_end(number)
            return known
        rows = self._rows
        head = b'{"eval_dataset":%b,"eval_path":%b,"eval_row":%d,"eval_text":%b,"ngram":' % (
            json_value(rows.dataset(number)),
            json_value(rows.path(number)),
            rows.row(number),
            json_value(rows[number]),
        )
        self._heads[number] = head
        self._head_bytes += len(head)
        while self._head_bytes > _TEXT_BYTES_IN_MEMORY and len(self._heads) > 1:
            self._head_bytes -= len(self._heads.popitem(last=False)[1])
        return head


def count_details(
    unit: Unit, rows: Rows, keep: Keep | None = None, max_details_per_pair: int | None = None
) -> DetailsSize:
    """Returns how much the details of a unit are without caps, to the byte."""
    lines = _Lines(rows, unit)
    num_records = num_bytes = num_kept = 0
    for _, pair in groupby(merged(unit.part_paths, keep), key=_pair_of):
        of_pair = 0
        for match in pair:
            of_pair += 1
            num_bytes += sum(map(len, lines.pieces(match)))
        num_records += of_pair
        num_kept += of_pair if max_details_per_pair is None else min(of_pair, max_details_per_pair)
    return DetailsSize(num_records, num_bytes, num_kept)


def _pair_of(match: PartMatch) -> tuple[int, int]:
    return match.row, match.number


def quotas(num_kept: Sequence[int], max_details: int | None) -> list[int | None]:
    """Returns how many details each unit may write, so that the first `max_details` are written.

    Args:
      num_kept: of each unit, in the order of the output, what the other cap keeps.
    """
    if max_details is None:
        return [None] * len(num_kept)
    before = np.concatenate([[0], np.cumsum(num_kept, dtype=np.int64)])
    return [max(0, max_details - int(sum_before)) for sum_before in before[: len(num_kept)]]


# --- a unit -------------------------------------------------------------------------------------


def expand_unit(
    unit: Unit,
    prefix: str,
    temp_folder: str,
    rows: Rows,
    keep: Keep | None = None,
    max_details_per_pair: int | None = None,
    quota: int | None = None,
) -> ExpandedUnit:
    """Writes all that the output says of the matches of a unit.

    Args:
      prefix: what the paths of the files written begin with.
      temp_folder: where files are before they are whole.
      keep: tells the matches that count (`Boilerplate.keep`).
      max_details_per_pair: how many details a document and an evaluation row may have.
      quota: how many details the unit may have, one of `quotas`.
    """
    with ExitStack() as stack:
        expansion = _Expansion(unit, prefix, temp_folder, rows, stack)
        for _, document in groupby(merged(unit.part_paths, keep), key=lambda match: match.row):
            expansion.add_document(document, max_details_per_pair, quota)
        expansion.add_hits()
    return expansion.result()


class _Expansion:
    """The files of one unit, each made when something is written to it."""

    def __init__(self, unit: Unit, prefix: str, temp_folder: str, rows: Rows, stack: ExitStack):
        self._unit = unit
        self._rows = rows
        self._lines = _Lines(rows, unit)
        self._head = functools.lru_cache(_HEADS_IN_MEMORY)(functools.partial(head_of, rows))
        self._datasets = {name: at for at, name in enumerate(rows.datasets)}
        self._hits: set[tuple[int, int]] = set()
        self._num_records = self._num_bytes = self._num_left_out = 0
        files = [
            _LazyFile(f"{prefix}.{name}", temp_folder, stack)
            for name in ("details.gz", "instances.gz", "matches.parquet", "left_out.jsonl", "hits")
        ]
        self._details, self._instances, self._matches_file, self._left_out, self._hits_file = files
        self._matches = _MatchTable(self._matches_file, unit)

    def add_document(
        self, document: Iterator[PartMatch], max_per_pair: int | None, quota: int | None
    ) -> None:
        """Adds all matches of one document."""
        hit: dict[tuple[int, int], set[str]] = defaultdict(set)
        match = None
        for number, pair in groupby(document, key=lambda match: match.number):
            head = self._head(number)
            dataset = self._datasets[head["eval_dataset"]]
            of_pair = 0
            for match in pair:
                of_pair += 1
                if max_per_pair is None or of_pair <= max_per_pair:
                    self._add_detail(match, quota)
                self._matches.add(match, head)
                self._hits.add((number, match.n))
                hit[dataset, match.n].add(head["instance_id"])
            if max_per_pair is not None and of_pair > max_per_pair:
                assert match is not None
                self._add_left_out(match, head, of_pair - max_per_pair)
        assert match is not None
        self._add_instances(match, hit)

    def _add_detail(self, match: PartMatch, quota: int | None) -> None:
        if quota is not None and self._num_records >= quota:
            self._num_left_out += 1
            return
        pieces = self._lines.pieces(match)
        self._details.member().write(*pieces)
        self._num_records += 1
        self._num_bytes += sum(map(len, pieces))

    def _add_left_out(self, match: PartMatch, head: dict[str, Any], count: int) -> None:
        record = {
            "eval_dataset": head["eval_dataset"],
            "eval_path": head["eval_path"],
            "eval_row": head["eval_row"],
            "train_path": self._unit.train_path,
            "train_row": match.row + self._unit.first_row,
            "num_left_out": count,
        }
        self._left_out.stream().write(json_line(record))

    def _add_instances(self, match: PartMatch, hit: dict[tuple[int, int], set[str]]) -> None:
        path = self._unit.train_path
        names = self._rows.datasets
        for (dataset, n), ids in sorted(hit.items()):
            record = {
                "eval_dataset": names[dataset],
                "n": n,
                "instance_ids": sorted(ids),
                "train_path": path,
                "train_doc_id": path if match.doc_id is None else match.doc_id,
                "train_row": match.row + self._unit.first_row,
            }
            self._instances.member().write(json_line(record))

    def add_hits(self) -> None:
        """Call this when all documents have been added."""
        self._matches.flush()
        if self._hits:
            self._hits_file.stream().write(np.array(sorted(self._hits), PAIRS).tobytes())

    def result(self) -> ExpandedUnit:
        """Returns what was written; call this when the files are whole."""
        return ExpandedUnit(
            train_path=self._unit.train_path,
            details_path=self._details.made(),
            instances_path=self._instances.made(),
            matches_path=self._matches_file.made(),
            hits_path=self._hits_file.made(),
            pairs_left_out_path=self._left_out.made(),
            num_records=self._num_records,
            num_bytes=self._num_bytes,
            num_left_out=self._num_left_out,
        )


class _LazyFile:
    """A file that is made when it is first asked for, and whole when the stack is left."""

    def __init__(self, path: str, temp_folder: str, stack: ExitStack):
        self._path = path
        self._temp_folder = temp_folder
        self._stack = stack
        self._stream: BinaryIO | None = None
        self._member: GzipMember | None = None

    def stream(self) -> BinaryIO:
        if self._stream is None:
            self._stream = self._stack.enter_context(atomic_write(self._path, self._temp_folder))
        return self._stream

    def member(self) -> GzipMember:
        if self._member is None:
            self._member = self._stack.enter_context(GzipMember(self.stream()))
        return self._member

    def parquet(self) -> pq.ParquetWriter:
        writer = pq.ParquetWriter(self.stream(), MATCHES_SCHEMA, compression="zstd")
        return self._stack.enter_context(writer)

    def made(self) -> str | None:
        """Returns the path, None if the file was never asked for."""
        return None if self._stream is None else self._path


class _MatchTable:
    """The matches without texts, written some thousand at a time."""

    def __init__(self, file: _LazyFile, unit: Unit):
        self._file = file
        self._writer: pq.ParquetWriter | None = None
        self._train_path = _valid(unit.train_path)
        self._first_row = unit.first_row
        self._clear()

    def _clear(self) -> None:
        self._rows: list[tuple] = []
        self._eval_places: list[Places] = []
        self._train_places: list[Places] = []

    def add(self, match: PartMatch, head: dict[str, Any]) -> None:
        self._rows.append(
            (
                _valid(head["eval_dataset"]),
                _valid(head["eval_path"]),
                head["eval_row"],
                _valid(head["instance_id"]),
                self._train_path,
                match.row + self._first_row,
                None if match.doc_id is None else _valid(match.doc_id),
                match.n,
            )
        )
        self._eval_places.append(match.eval_places)
        self._train_places.append(match.train_places)
        if len(self._rows) >= _MATCHES_AT_A_TIME:
            self.flush()

    def flush(self) -> None:
        """Writes what has been gathered."""
        if not self._rows:
            return
        if self._writer is None:
            self._writer = self._file.parquet()
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(zip(*self._rows, strict=True), MATCHES_SCHEMA, strict=False)
        ]
        arrays += [_offsets(self._eval_places), _offsets(self._train_places)]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=MATCHES_SCHEMA))
        self._clear()


def _offsets(places: list[Places]) -> pa.ListArray:
    bounds = np.cumsum([0, *map(len, places)], dtype=np.int32)
    flat = np.array([pair for pairs in places for pair in pairs], np.int32)
    struct = pa.StructArray.from_arrays(
        [pa.array(flat[:, 0]), pa.array(flat[:, 1])], fields=list(_OFFSETS.value_type)
    )
    return pa.ListArray.from_arrays(bounds, struct, type=_OFFSETS)


def _valid(text: str) -> str:
    """Returns a text as Parquet takes it: lone surrogates as escapes, `\\ud800`."""
    return text.encode("utf-8", "backslashreplace").decode()
