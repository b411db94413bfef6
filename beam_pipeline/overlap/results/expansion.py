"""From the match files of a work unit to the files of the output about its matches.

  match files → details      gzip member: a record for each match
              → train_texts  gzip member: the texts of the details, with --details=compact
              → instances    gzip member: a record for each (document, evaluation set, n)
              → matches      Arrow: a row for each match, without texts
              → documents    Parquet: a row for each contaminated document
              → hits, left_out

Everything is in the order of (row, evaluation row, n, places there). Caps are of details alone. A
file is only made if it has something in it.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.documents.batch import encode
from beam_pipeline.overlap.results.contaminated import DOCUMENTS_SCHEMA, ContaminatedDocuments
from beam_pipeline.overlap.results.details import (
    COMPACT,
    FULL,
    NONE,
    BlockMatches,
    DocumentPieces,
    Evaluation,
    Lines,
    document_pieces,
    read_matches,
)
from beam_pipeline.overlap.results.json_columns import (
    column_of,
    data_of,
    join_pieces,
    json_fields,
    json_numbers,
    json_strings,
    piece,
    record_lines,
)
from beam_pipeline.overlap.results.match_files import Block, Keep, ScannedUnit
from beam_pipeline.overlap.results.ordering import distinct
from beam_pipeline.overlap.results.output_files import (
    GzipMember,
    LazyFiles,
    arrow_writer,
    escape_surrogates,
    json_value,
    parquet_writer,
    strings_of,
)
from beam_pipeline.overlap.results.places import Places

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
# As they are before they are joined: each string once for many matches.
_JOINED_SCHEMA = pa.schema(
    [
        field.with_type(pa.dictionary(pa.int32(), field.type))
        if pa.types.is_string(field.type)
        else field
        for field in MATCHES_SCHEMA
    ]
)
PAIRS = np.dtype([("number", "<u4"), ("n", "<u4")])
_HALF = np.uint64(32)
_MIN_PENDING = 1 << 16
_FILES = (
    "details.gz", "instances.gz", "matches.arrow", "hits", "left_out", "train_texts.gz",
    "documents.parquet",
)  # fmt: skip


class ExpandedUnit(NamedTuple):
    """What was written of a work unit; a path is None where there is nothing to write."""

    scanned: ScannedUnit
    num_records: int = 0  # details written
    num_bytes: int = 0  # of these, before compression
    num_left_out: int = 0  # by --max_details
    details_path: str | None = None
    instances_path: str | None = None
    matches_path: str | None = None
    hits_path: str | None = None  # PAIRS, sorted: the evaluation rows hit, by n
    pairs_left_out_path: str | None = None
    train_texts_path: str | None = None
    documents_path: str | None = None


def expand_unit(
    scanned: ScannedUnit,
    prefix: str,
    temp_folder: str,
    evaluation: Evaluation,
    keep: Keep | None = None,
    max_details_per_pair: int | None = None,
    quota: int | None = None,
    mode: str = FULL,
) -> ExpandedUnit:
    """Writes everything that the output has about the matches of a work unit.

    Args:
      prefix: the beginning of the paths of the files written.
      keep: returns which n-grams count (`read_boilerplate`).
      max_details_per_pair: the number of details that a document and an evaluation row may have.
      quota: the number of details that the work unit may have, one of `quotas`.
      mode: FULL, COMPACT or NONE, of --details.
    """
    with LazyFiles(prefix, temp_folder) as files:
        details = _Details(files, scanned, evaluation, max_details_per_pair, quota, mode)
        instances = _InstanceLines(files, scanned, evaluation)
        documents = _Documents(files, scanned, evaluation)
        hits, pending = np.empty(0, np.uint64), []
        for found in read_matches(scanned, evaluation, keep):
            if mode != NONE:
                details.write(found)
            pairs = _pairs(found)
            instances.add(found.block, *pairs)
            pending.append(pairs[1].astype(np.uint64) << _HALF | pairs[2].astype(np.uint64))
            if sum(map(len, pending)) > max(len(hits), _MIN_PENDING):
                hits, pending = np.unique(np.concatenate([hits, *pending])), []
            places = found.train_places()
            documents.add(found, places)
            writer = files.get("matches.arrow", arrow_writer, schema=_JOINED_SCHEMA)
            writer.write_table(_match_table(found, scanned, evaluation, places))
        instances.flush()
        documents.flush()
        hits = np.unique(np.concatenate([hits, *pending]))
        if len(hits):
            as_pairs = np.empty(len(hits), PAIRS)
            as_pairs["number"], as_pairs["n"] = hits >> _HALF, hits
            files.get("hits").write(as_pairs.tobytes())
    counts = details.num_records, details.num_bytes, details.num_left_out
    return ExpandedUnit(scanned, *counts, *map(files.path, _FILES))


def _pairs(found: BlockMatches) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the documents, evaluation rows and n that have matches, each once."""
    columns = found.matches.documents, found.matches.rows, found.matches.lengths
    differs = np.ones(len(columns[0]), bool)
    differs[1:] = False
    for column in columns:
        differs[1:] |= column[1:] != column[:-1]
    documents, rows, lengths = (column[differs] for column in columns)
    return documents, rows, lengths


# --- details ------------------------------------------------------------------------------------


class _Details:
    """Writes the details of a work unit, and what caps leave out of them."""

    def __init__(
        self,
        files: LazyFiles,
        scanned: ScannedUnit,
        evaluation: Evaluation,
        max_per_pair: int | None,
        quota: int | None,
        mode: str,
    ):
        self.num_records = self.num_bytes = self.num_left_out = 0
        self._files, self._scanned, self._evaluation = files, scanned, evaluation
        self._max_per_pair, self._quota, self._mode = max_per_pair, quota, mode
        self._block: Block | None = None
        self._pieces: DocumentPieces
        self._last_document = -1  # of the block whose text has been written

    def write(self, found: BlockMatches) -> None:
        """Writes the lines of some matches."""
        if found.block is not self._block:
            self._block, self._last_document = found.block, -1
            self._pieces = document_pieces(found.block, self._scanned, self._mode)
        is_kept = found.is_in_first(self._max_per_pair)
        if not is_kept.all():
            self._files.get("left_out").write(self._left_out(found, is_kept))
        kept = np.flatnonzero(is_kept)
        room = len(kept) if self._quota is None else min(len(kept), self._quota - self.num_records)
        self.num_left_out += len(kept) - room
        self.num_records += room
        if room:
            lines = Lines(found, self._pieces, self._evaluation, self._mode)
            self.num_bytes += int(lines.sizes[kept[:room]].sum())
            member = self._files.get("details.gz", GzipMember)
            for data in lines.some(kept[:room]):
                member.write(data)
            if self._mode == COMPACT:
                self._write_texts(found.matches.documents[kept[:room]])

    def _write_texts(self, documents: np.ndarray) -> None:
        documents = np.unique(documents)
        documents = documents[documents > self._last_document]
        if len(documents):
            self._last_document = int(documents[-1])
            member = self._files.get("train_texts.gz", GzipMember)
            for at in documents.tolist():
                member.write(self._pieces.texts[at].as_py())

    def _left_out(self, found: BlockMatches, is_kept: np.ndarray) -> memoryview:
        starts = found.pair_starts()
        counts = np.add.reduceat(~is_kept, starts, dtype=np.int64)
        starts, counts = starts[counts > 0], counts[counts > 0]
        numbers, of_row = distinct(found.matches.rows[starts])
        rows = self._evaluation.rows.take(numbers, with_texts=False).take(pa.array(of_row))
        train_rows = found.block.rows[found.matches.documents[starts]] + self._scanned.row_offset
        fields = {
            **json_fields(rows, "eval_dataset", "eval_path", "eval_row"),
            "train_path": piece(json_value(self._scanned.unit.path)),
            "train_row": json_numbers(train_rows),
            "num_left_out": json_numbers(counts),
        }
        return data_of(record_lines(fields))


# --- instances ----------------------------------------------------------------------------------


class _InstanceLines:
    """Writes the lines of instances; those of one document come from many matches."""

    def __init__(self, files: LazyFiles, scanned: ScannedUnit, evaluation: Evaluation):
        self._files, self._scanned, self._evaluation = files, scanned, evaluation
        self._block: Block | None = None
        self._pending: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, block: Block, *pairs: np.ndarray) -> None:
        """Takes (documents, evaluation rows, n) of a block, in the order of documents."""
        is_next = block is not self._block or pairs[0][0] != self._pending[-1][0][-1]
        if is_next:
            self.flush()
        self._block = block
        self._pending.append((pairs[0], pairs[1], pairs[2]))

    def flush(self) -> None:
        """Writes the lines of all documents that have been taken."""
        if not self._pending or self._block is None:
            return
        block, path = self._block, json_value(self._scanned.unit.path)
        assert block.ids is not None
        ids = json_strings(block.ids.fill_null(encode(self._scanned.unit.path)))
        ends = join_pieces(
            [
                piece(b'"train_path":' + path + b',"train_doc_id":'),
                ids,
                piece(b',"train_row":'),
                json_numbers(block.rows + self._scanned.row_offset),
                piece(b"}"),
            ]
        )
        documents, rows, lengths = map(np.concatenate, zip(*self._pending, strict=True))
        self._pending = []
        lines = self._evaluation.instances.lines(documents, rows, lengths, ends)
        member = self._files.get("instances.gz", GzipMember)
        member.write(data_of(lines))


# --- tables -------------------------------------------------------------------------------------


class _Documents:
    """Writes the contaminated documents, those of a block at a time."""

    def __init__(self, files: LazyFiles, scanned: ScannedUnit, evaluation: Evaluation):
        self._files, self._scanned, self._evaluation = files, scanned, evaluation
        self._block: Block | None = None
        self._documents: ContaminatedDocuments

    def add(self, found: BlockMatches, places: Places) -> None:
        """Takes some matches of a block, and the places of their n-grams in documents."""
        if found.block is not self._block:
            self.flush()
            self._block, names = found.block, self._evaluation.rows.datasets
            self._documents = ContaminatedDocuments(found.block, self._scanned, names)
        datasets = self._evaluation.instances.datasets_of(found.matches.rows)
        of_places = found.block.documents[found.shared]
        self._documents.add(places, of_places, found.matches.documents, datasets)

    def flush(self) -> None:
        """Writes the documents of the last block."""
        if self._block is not None:
            writer = self._files.get("documents.parquet", parquet_writer, schema=DOCUMENTS_SCHEMA)
            writer.write_table(self._documents.table())


def _match_table(
    found: BlockMatches, scanned: ScannedUnit, evaluation: Evaluation, places: Places
) -> pa.Table:
    """Returns rows of _JOINED_SCHEMA.

    Args:
      places: of the n-grams in documents.
    """
    matches, block = found.matches, found.block
    assert block.ids is not None
    numbers, of_row = distinct(matches.rows)
    rows = evaluation.rows.take(numbers, with_texts=False)
    path = pa.array([escape_surrogates(scanned.unit.path)])
    train = _offsets(places)
    columns = [
        *(_repeated(column_of(rows, name), of_row) for name in ("eval_dataset", "eval_path")),
        column_of(rows, "eval_row").take(pa.array(of_row)),
        _repeated(column_of(rows, "instance_id"), of_row),
        _repeated(path, np.zeros(len(of_row), np.int32)),
        block.rows[matches.documents] + scanned.row_offset,
        _repeated(block.ids, matches.documents),
        matches.lengths.astype(np.int32),
        _offsets(found.eval_places(evaluation)),
        train.take(pa.array(found.of_match)),
    ]
    return pa.table(columns, _JOINED_SCHEMA)


def _repeated(values: pa.Array, which: np.ndarray) -> pa.DictionaryArray:
    """Returns some of these values as strings."""
    numbers = pa.array(which.astype(np.int32))
    return pa.DictionaryArray.from_arrays(numbers, strings_of(values))


def _offsets(places: Places) -> pa.ListArray:
    fields = places.starts.view(np.int32), places.ends.view(np.int32)
    structs = pa.StructArray.from_arrays(fields, ["start", "end"])
    return pa.ListArray.from_arrays(places.bounds.astype(np.int32), structs)
