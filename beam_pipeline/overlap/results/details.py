"""From the match files of a work unit to the lines of the output about its matches.

  match files → details      gzip member: a record for each match, with both texts
              → instances    gzip member: a record for each (document, evaluation set, n)
              → matches      Parquet: a row for each match, without texts
              → hits, left_out

Everything is in the order of (row, evaluation row, n, places there). Caps keep the first records
in this order, which are the smallest by key; all other files, and `count_details`, ignore caps. A
file is only made if it has something in it.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from beam_pipeline.overlap.documents.evaluation import EvaluationRow, EvaluationRows
from beam_pipeline.overlap.ngrams.matching import Places
from beam_pipeline.overlap.results.match_files import Keep, ScannedUnit, UnitMatch, read_matches
from beam_pipeline.overlap.results.output_files import (
    GzipMember,
    LazyFiles,
    escape_surrogates,
    json_line,
    json_value,
    make_table,
    parquet_writer,
)

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
    num_records: int = 0  # details written
    num_bytes: int = 0  # of these, before compression
    num_left_out: int = 0  # by --max_details
    details_path: str | None = None
    instances_path: str | None = None
    matches_path: str | None = None
    hits_path: str | None = None  # PAIRS, sorted: the evaluation rows hit, by n
    pairs_left_out_path: str | None = None


# --- a record of details ------------------------------------------------------------------------


class _Details:
    """Makes lines of details; what several lines share is encoded once."""

    def __init__(self, rows: EvaluationRows, scanned: ScannedUnit):
        self._rows = rows
        self._scanned = scanned
        # By number, an evaluation row and the first fields of its details.
        self._heads: dict[int, tuple[EvaluationRow, dict[str, orjson.Fragment]]] = {}
        self._head_bytes = 0
        self._train_path = _fragment(scanned.unit.path)
        self._at_row, self._text = -1, _fragment("")

    def row(self, number: int) -> EvaluationRow:
        """Returns an evaluation row."""
        return self._head(number)[0]

    def _head(self, number: int) -> tuple[EvaluationRow, dict[str, orjson.Fragment]]:
        if number not in self._heads:
            row = self._rows[number]
            head = {
                "eval_dataset": row.eval_dataset,
                "eval_path": row.eval_path,
                "eval_row": row.eval_row,
                "eval_text": self._rows.text(number),
                "eval_instance_id": row.instance_id,
            }
            encoded = list(map(json_value, head.values()))
            self._head_bytes += sum(map(len, encoded))
            if self._head_bytes > _TEXT_BYTES_IN_MEMORY:
                self._heads.clear()
                self._head_bytes = sum(map(len, encoded))
            fields = dict(zip(head, map(orjson.Fragment, encoded), strict=True))
            self._heads[number] = row, fields
        return self._heads[number]

    def line(self, match: UnitMatch) -> bytes:
        """Returns the line of a match."""
        if match.row != self._at_row:
            self._at_row, self._text = match.row, _fragment(match.text)
        ngram = _fragment(match.ngram)
        record = {
            **self._head(match.number)[1],
            "ngram": ngram,
            "eval_offsets": match.eval_places,
            "n": match.n,
            "train_path": self._train_path,
            "train_row": match.row + self._scanned.row_offset,
            "train_text": self._text,
            "train_ngram": ngram,
            "train_offsets": match.train_places,
        }
        if match.doc_id is not None:
            record["train_doc_id"] = _fragment(match.doc_id)
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


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
      num_kept: of each work unit in the order of the output, by --max_details_per_pair.
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
      keep: returns which matches count (`read_boilerplate`).
      max_details_per_pair: the number of details that a document and an evaluation row may have.
      quota: the number of details that the work unit may have, one of `quotas`.
    """
    details = _Details(rows, scanned)
    hits: set[tuple[int, int]] = set()
    table: list[tuple] = []
    num_records = num_bytes = num_left_out = 0
    with LazyFiles(prefix, temp_folder) as files:
        matches = read_matches(scanned.paths, keep)
        for _, document in groupby(matches, key=lambda match: match.row):
            instances: dict[tuple[int, int], set[str]] = defaultdict(set)
            for number, pair in groupby(document, key=lambda match: match.number):
                row, found = details.row(number), list(pair)
                kept = found[:max_details_per_pair]
                room = len(kept) if quota is None else min(len(kept), quota - num_records)
                for match in kept[:room]:
                    line = details.line(match)
                    files.get("details.gz", GzipMember).write(line)
                    num_bytes += len(line)
                num_records += room
                num_left_out += len(kept) - room
                if len(kept) < len(found):
                    record = _left_out_record(scanned, found[0], row, len(found) - len(kept))
                    files.get("left_out").write(json_line(record))
                for match in found:
                    hits.add((number, match.n))
                    instances[rows.datasets.index(row.eval_dataset), match.n].add(row.instance_id)
                table += (_match_row(scanned, match, row) for match in found)
                if len(table) >= _MATCHES_AT_A_TIME:
                    _write_matches(files, table)
            for (dataset, n), ids in sorted(instances.items()):
                record = _instance_record(scanned, found[0], rows.datasets[dataset], n, ids)
                files.get("instances.gz", GzipMember).write(json_line(record))
        _write_matches(files, table)
        if hits:
            files.get("hits").write(np.array(sorted(hits), PAIRS).tobytes())
    paths = map(files.path, ("details.gz", "instances.gz", "matches.parquet", "hits", "left_out"))
    return ExpandedUnit(scanned, num_records, num_bytes, num_left_out, *paths)


def _left_out_record(
    scanned: ScannedUnit, match: UnitMatch, row: EvaluationRow, count: int
) -> dict[str, Any]:
    return {
        "eval_dataset": row.eval_dataset,
        "eval_path": row.eval_path,
        "eval_row": row.eval_row,
        "train_path": scanned.unit.path,
        "train_row": match.row + scanned.row_offset,
        "num_left_out": count,
    }


def _instance_record(
    scanned: ScannedUnit, match: UnitMatch, dataset: str, n: int, ids: set[str]
) -> dict[str, Any]:
    return {
        "eval_dataset": dataset,
        "n": n,
        "instance_ids": sorted(ids),
        "train_path": scanned.unit.path,
        "train_doc_id": scanned.unit.path if match.doc_id is None else match.doc_id,
        "train_row": match.row + scanned.row_offset,
    }


def _match_row(scanned: ScannedUnit, match: UnitMatch, row: EvaluationRow) -> tuple:
    """Returns a row of MATCHES_SCHEMA."""
    return (
        escape_surrogates(row.eval_dataset),
        escape_surrogates(row.eval_path),
        row.eval_row,
        escape_surrogates(row.instance_id),
        escape_surrogates(scanned.unit.path),
        match.row + scanned.row_offset,
        None if match.doc_id is None else escape_surrogates(match.doc_id),
        match.n,
        _offsets(match.eval_places),
        _offsets(match.train_places),
    )


def _write_matches(files: LazyFiles, table: list[tuple]) -> None:
    """Writes rows of MATCHES_SCHEMA as a row group and removes them from the list."""
    if table:
        writer = files.get("matches.parquet", parquet_writer, schema=MATCHES_SCHEMA)
        writer.write_table(make_table(table, MATCHES_SCHEMA))
        table.clear()


def _offsets(places: Places) -> list[dict[str, int]]:
    return [{"start": start, "end": end} for start, end in places]
