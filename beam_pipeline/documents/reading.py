"""Reads work units as the records of their container, and as batches of texts.

  WorkUnit → read_unit → Records of JSON, RecordBatch of Parquet, lists of TFRecord
                            | Fields
                            v
                         read_texts → DocumentBatch

JSON and TFRecord may be compressed with gzip, bzip2, xz or Zstandard; files are local or on `gs://`.
Memory: a few MiB, or a few times the largest record.
"""

import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import cast

import pyarrow as pa

from beam_pipeline.dataset.tfrecord import DamagedRecordError, read_records
from beam_pipeline.documents import json as document_json
from beam_pipeline.documents import parquet as document_parquet
from beam_pipeline.documents.batch import DocumentBatch
from beam_pipeline.documents.fields import Fields, leaf_names
from beam_pipeline.documents.files import CURE, InputFile, WorkUnit, cut_into_work_units
from beam_pipeline.documents.json import BadRecordError
from beam_pipeline.documents.json_records import ArrayError, Records, split_records
from beam_pipeline.errors import ProbelineError
from beam_pipeline.storage.files import open_file
from beam_pipeline.storage.lines import (
    DAMAGE,
    decompressed,
    explained_damage,
    read_blocks,
    read_blocks_of_range,
)
from beam_pipeline.storage.matching import unchanged
from beam_pipeline.storage.parquet import PIECE_BYTES, open_parquet

Piece = Records | pa.RecordBatch | list[bytes | DamagedRecordError]
Columns = Callable[[str, pa.Schema], list[str] | None]
DAMAGED = (*DAMAGE, ArrayError, DamagedRecordError)  # raised by `read_unit` for a damaged file
_BATCH_BYTES = 4 << 20
_MAX_BATCH_RECORDS = 4096
_LIST_LEVELS = re.compile(r"\.list\.(element|item)\b")  # of a column of Parquet


# --- containers -----------------------------------------------------------------------------------


def read_unit(
    unit: WorkUnit,
    max_record_bytes: int | None = None,
    columns: Columns | None = None,
    sized_by: str = "",
    by_line: bool = False,
) -> Iterator[Piece]:
    """Yields all records of a work unit, a few MiB at a time.

    A blank line is not a record. A file named .json is one array if it begins with `[`. Objects
    that are not one to a line are found by their brackets unless `by_line`. A record
    longer than `max_record_bytes` is cut one byte beyond it (JSON) or skipped (TFRecord). `columns`
    chooses those of Parquet, None for all; the size of `sized_by`, or of all, limits a batch.

    Raises one of DAMAGED if the file cannot be read further, ProbelineError if it was changed or is
    compressed despite its name.
    """
    with unchanged(unit.file.file):
        if unit.file.format == "parquet":
            yield from _read_parquet(unit, columns or (lambda *_: None), sized_by)
        elif unit.file.format == "tfrecord":
            yield from _read_tfrecord(unit, max_record_bytes)
        else:
            yield from _read_json(unit, max_record_bytes, by_line)


def _read_json(unit: WorkUnit, max_record_bytes: int | None, by_line: bool) -> Iterator[Records]:
    with open_file(unit.path, version=unit.file.file.version) as stream:
        if not unit.is_range:
            blocks = read_blocks(decompressed(stream))
        elif unit.start == 0 and decompressed(stream) is not stream:
            raise ProbelineError(
                f"{unit.path} is compressed, but its name does not end in .gz, .zst, .bz2 or .xz: "
                "rename it"
            )
        else:
            blocks = read_blocks_of_range(stream, unit.start, unit.end)
        may_be_array = unit.file.format == "json"
        limit = max_record_bytes or document_json.MAX_RECORD_BYTES
        yield from split_records(blocks, may_be_array, limit, not unit.is_range and not by_line)


def _read_parquet(unit: WorkUnit, columns: Columns, sized_by: str) -> Iterator[pa.RecordBatch]:
    version = unit.file.file.version
    with open_parquet(unit.path, buffer_bytes=PIECE_BYTES, version=version) as parquet:
        groups = list(unit.row_groups)
        num_rows = document_parquet.batch_rows(
            parquet.metadata, groups, sized_by, _BATCH_BYTES, _MAX_BATCH_RECORDS
        )
        chosen = columns(unit.path, parquet.schema_arrow)
        yield from parquet.iter_batches(num_rows, groups, chosen, use_threads=False)


def _read_tfrecord(
    unit: WorkUnit, max_record_bytes: int | None
) -> Iterator[list[bytes | DamagedRecordError]]:
    limit = max_record_bytes or document_json.MAX_RECORD_BYTES
    with open_file(unit.path, version=unit.file.file.version) as stream:
        records = read_records(decompressed(stream), limit)
        failure: Exception | None = None
        while failure is None:
            batch: list[bytes | DamagedRecordError] = []
            num_bytes = 0
            try:
                while num_bytes < _BATCH_BYTES and len(batch) < _MAX_BATCH_RECORDS:
                    batch.append(record := next(records))
                    num_bytes += len(record) if isinstance(record, bytes) else 0
            except (StopIteration, *DAMAGED) as error:
                failure = error
            yield batch
        if not isinstance(failure, StopIteration):  # the records before it are whole
            raise failure


# --- texts ----------------------------------------------------------------------------------------


def read_texts(unit: WorkUnit, fields: Fields = Fields()) -> Iterator[DocumentBatch]:  # noqa: B008
    """Yields the texts of a work unit of JSON or Parquet, a few MiB at a time."""
    row = unit.first_row or 0
    columns, sized_by = document_parquet.columns_of(fields), "" if fields.nested else fields.text
    pieces = read_unit(unit, None, columns, sized_by)
    while True:
        with explained_damage(unit.path, CURE, (ArrayError,), row=row):
            piece = next(pieces, None)
            if piece is None:
                return
            if isinstance(piece, pa.RecordBatch):
                batch = document_parquet.read_batch(unit.path, piece, row, fields)
            else:
                batch = document_json.read_batch(unit.path, cast(Records, piece), row, fields)
            del piece  # it takes as much memory as the texts
        row += batch.num_rows
        if batch.num_rows:
            yield batch


def fields_of(file: InputFile) -> list[str]:
    """Returns the names of the fields of a file's first readable record, nested ones dotted."""
    unit = cut_into_work_units(file, max(1, file.num_bytes))[0]
    with explained_damage(unit.path, CURE, (ArrayError,), row=0):
        if unit.file.format == "parquet":
            with open_parquet(unit.path) as parquet:
                columns = map(parquet.schema.column, range(len(parquet.schema)))
                return [_LIST_LEVELS.sub("", column.path) for column in columns]
        pieces = cast(Iterator[Records], read_unit(unit))
        for record in chain.from_iterable(records.each() for records in pieces):
            try:
                document = document_json.parse(record)
            except BadRecordError:
                continue
            if isinstance(document, dict):
                return list(dict.fromkeys(leaf_names(document, in_lists=True)))
    return []
