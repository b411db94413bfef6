"""Writes the output files about the matches of a work unit, from its match files.

  match files → details      gzip member: a record per match
              → train_texts  gzip member: the texts of the details, with --details=compact
              → instances    gzip member: a record per (document, evaluation set, n)
              → matches      Arrow: a row per match, without texts
              → documents    Arrow: a row per contaminated document
              → letters      Arrow: dead letters, with their rows in the file
              → hits         PAIRS, sorted: evaluation rows hit, by n
              → left_out     a record per pair of texts with fewer details than matches

One pass over the matches writes all, in the order of (row, evaluation row, n, places there). Caps
affect details only. Empty files are not created.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset import dead_letters
from beam_pipeline.documents.batch import encode
from beam_pipeline.overlap.results.contaminated import ContaminatedDocuments
from beam_pipeline.overlap.results.counts import Sum
from beam_pipeline.overlap.results.details import NONE, DetailsOptions, Evaluation, UnitLines
from beam_pipeline.overlap.results.match_files import Block, Keep, ScannedUnit, letters_path
from beam_pipeline.overlap.results.matches import BlockMatches, distinct, read_matches
from beam_pipeline.overlap.results.output_files import (
    PLACES,
    GzipMember,
    LazyFiles,
    arrow_writer,
    column_of,
    escape_surrogates,
    json_numbers,
    json_strings,
    json_value,
    piece,
    strings_of,
)
from beam_pipeline.storage.parquet import read_row_groups

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
        ("eval_offsets", PLACES),
        ("train_offsets", PLACES),
    ]
)
# Before files are joined: strings are stored once for many matches.
_JOINED_SCHEMA = pa.schema(
    [
        field.with_type(pa.dictionary(pa.int32(), field.type))
        if pa.types.is_string(field.type)
        else field
        for field in MATCHES_SCHEMA
    ]
)
PAIRS = np.dtype([("number", "<u4"), ("n", "<u4")])


class ExpandedUnit(NamedTuple):
    """The files written for a work unit."""

    scanned: ScannedUnit
    num_details: int = 0
    num_left_out: int = 0  # by --max_details
    paths: Mapping[str, str] = {}  # of the files that are not empty, by name
    num_short_documents: int = 0  # contaminated by short rows alone
    num_short_chars: int = 0  # of these documents


def expand_unit(
    scanned: ScannedUnit,
    prefix: str,
    temp_folder: str,
    evaluation: Evaluation,
    options: DetailsOptions,
    keep: Keep | None = None,
    quota: int | None = None,
    short_rows_contaminate: bool = True,
) -> ExpandedUnit:
    """Writes the files `prefix`.* of a work unit, with at most `quota` details."""
    with LazyFiles(prefix, temp_folder) as files:
        details = UnitLines(scanned, evaluation, options)
        instances = _InstanceLines(files, scanned, evaluation)
        documents = ContaminatedDocuments(files, scanned, evaluation, short_rows_contaminate)
        hits = Sum(PAIRS, ("number", "n"))
        for found in read_matches(scanned.paths, evaluation.postings, keep):
            if options.mode != NONE:
                details.write(found, files, quota)
            pairs = found.pairs()
            instances.add(found.block, *pairs)
            hit = np.empty(len(pairs[1]), PAIRS)
            hit["number"], hit["n"] = pairs[1:]
            hits.add(hit)
            places = found.train_places()
            documents.add(found, places)
            writer = files.get("matches.arrow", arrow_writer, schema=_JOINED_SCHEMA)
            writer.write_table(_match_table(found, scanned, evaluation, places))
        if scanned.summary.letters:
            writer = files.get("letters.arrow", arrow_writer, schema=dead_letters.SCHEMA)
            for table in read_row_groups(letters_path(scanned.paths[0])):
                rows = pa.array(table.column("row").to_numpy() + scanned.row_offset)
                writer.write_table(table.set_column(1, "row", rows))
        instances.flush()
        documents.flush()
        if len(found := hits.records()):
            files.get("hits").write(found.tobytes())
    of_short = documents.num_short_documents, documents.num_short_chars
    return ExpandedUnit(scanned, details.num_written, details.num_left_out, files.paths, *of_short)


# --- instances ----------------------------------------------------------------------------------


class _InstanceLines:
    """Writes the lines of instances; a document's lines come from many matches."""

    def __init__(self, files: LazyFiles, scanned: ScannedUnit, evaluation: Evaluation):
        self._files, self._scanned, self._evaluation = files, scanned, evaluation
        self._block: Block | None = None
        self._pending: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, block: Block, *pairs: np.ndarray) -> None:
        """Adds (documents, evaluation rows, n) of a block, in the order of documents."""
        is_next = block is not self._block or pairs[0][0] != self._pending[-1][0][-1]
        if is_next:
            self.flush()
        self._block = block
        self._pending.append((pairs[0], pairs[1], pairs[2]))

    def flush(self) -> None:
        """Writes the lines of all added documents."""
        if not self._pending or self._block is None:
            return
        block, path = self._block, json_value(self._scanned.unit.path)
        assert block.ids is not None
        fields = {
            "train_path": piece(path),
            "train_doc_id": json_strings(block.ids.fill_null(encode(self._scanned.unit.path))),
            "train_row": json_numbers(block.rows + self._scanned.row_offset),
        }
        documents, rows, lengths = map(np.concatenate, zip(*self._pending, strict=True))
        self._pending = []
        lines = self._evaluation.instances.document_lines(documents, rows, lengths, fields)
        self._files.get("instances.gz", GzipMember).write(lines)


# --- matches ------------------------------------------------------------------------------------


def _match_table(
    found: BlockMatches, scanned: ScannedUnit, evaluation: Evaluation, places: pa.ListArray
) -> pa.Table:
    """Returns rows of _JOINED_SCHEMA, given the PLACES of n-grams in documents."""
    matches, block = found.matches, found.block
    assert block.ids is not None
    numbers, of_row = distinct(matches.rows)
    rows = evaluation.rows.take(numbers, with_texts=False)
    path = pa.array([escape_surrogates(scanned.unit.path)])
    columns = [
        *(_repeated(column_of(rows, name), of_row) for name in ("eval_dataset", "eval_path")),
        column_of(rows, "eval_row").take(pa.array(of_row)),
        _repeated(column_of(rows, "instance_id"), of_row),
        _repeated(path, np.zeros(len(of_row), np.int32)),
        block.rows[matches.documents] + scanned.row_offset,
        _repeated(block.ids, matches.documents),
        matches.lengths.astype(np.int32),
        found.eval_places(),
        places.take(pa.array(found.of_match)),
    ]
    return pa.table(columns, _JOINED_SCHEMA)


def _repeated(values: pa.Array, which: np.ndarray) -> pa.DictionaryArray:
    """Returns values by index, as strings."""
    numbers = pa.array(which.astype(np.int32))
    return pa.DictionaryArray.from_arrays(numbers, strings_of(values))
