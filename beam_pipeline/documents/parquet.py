"""Parquet: rows to batches of texts, with the bytes as Arrow holds them.

Only the columns of the text and the id are read, in pages, so that memory is bounded for a row
group of any size. Arrow does not check that strings in a file are UTF-8, so this module does.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.dataset.dead_letters import DeadLetter, excerpt
from beam_pipeline.documents.batch import DocumentBatch, array_buffers, decode, text_buffers
from beam_pipeline.documents.fields import (
    Fields,
    Path,
    document_id,
    id_at,
    parts_of,
    text_of,
    top_level,
)
from beam_pipeline.errors import ProbelineError
from beam_pipeline.storage.parquet import column_chunks

_TEXT_TYPES = (pa.string(), pa.large_string(), pa.string_view())
BINARY_TYPES = (pa.binary(), pa.large_binary(), pa.binary_view())


def columns_of(fields: Fields) -> Callable[[str, pa.Schema], list[str] | None]:
    """Returns a function that chooses a file's columns; ProbelineError for several texts."""

    def choose(path: str, schema: pa.Schema) -> list[str] | None:
        count = len(schema.get_all_field_indices(fields.text))
        if count > 1:
            raise ProbelineError(
                f"{path} has {count} columns named {fields.text!r}; it must be one"
            )
        return None if fields.hash_ids else columns_in(schema, fields)

    return choose


def columns_in(schema: pa.Schema, fields: Fields) -> list[str]:
    """Returns the columns that hold the text and the id, as far as a file has them."""
    of_text = top_level(fields.text, schema.names) if fields.nested else [fields.text]
    names = [*of_text, *top_level(fields.id, schema.names)]
    return [name for name in dict.fromkeys(names) if name in schema.names]


def take(column: pa.ChunkedArray, rows: np.ndarray) -> pa.ChunkedArray:
    """Returns the values of a column of any type at some rows, which may repeat."""
    try:
        return column.take(pa.array(rows))
    except pa.ArrowNotImplementedError:  # a view, or one within another type
        whole = column.combine_chunks()
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1) if len(rows) else []
        slices = [whole.slice(run[0], len(run)) for run in runs]
        return pa.chunked_array([pa.concat_arrays(slices)] if slices else [], column.type)


def rows_at(table: pa.Table, rows: np.ndarray, fields: Fields) -> pa.RecordBatch:
    """Returns the columns of the text and the id, at some rows."""
    names = columns_in(table.schema, fields)
    columns = [take(table.column(name), rows).combine_chunks() for name in names]
    return pa.record_batch(columns, names)


def texts_of(batch: pa.RecordBatch, fields: Fields) -> Iterator[str]:
    """Yields the texts of rows that have one."""
    found = read_batch("", batch, 0, fields)
    return (decode(found.text_bytes(index)) for index in range(len(found.rows)))


def parts_of_rows(batch: pa.RecordBatch, fields: Fields) -> list[list[tuple[Path, str]]]:
    """Returns `parts_of` of rows that have a text."""
    if fields.nested:
        return [parts_of(record, fields) for record in _records(batch)]
    return [[((fields.text,), text)] for text in texts_of(batch, fields)]


def id_path(schema: pa.Schema, fields: Fields) -> list[str] | None:
    """Returns the path of an id of text or 64-bit integers in structs; None for any other."""
    path = [fields.id] if fields.id in schema.names else fields.id.split(".")
    dtype: pa.DataType = pa.struct(list(schema))
    for name in path:
        if not pa.types.is_struct(dtype) or dtype.get_field_index(name) < 0:
            return None
        dtype = dtype.field(name).type
    plain = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    return path if plain in _TEXT_TYPES or dtype in (pa.int64(), pa.uint64()) else None


def id_values(batch: pa.RecordBatch, fields: Fields) -> list[Any]:
    """Returns the id of each row, None without one."""
    names = top_level(fields.id, batch.schema.names)
    if not names:
        return [None] * len(batch)
    name = names[0]
    values = python_values(batch.column(name))
    if name == fields.id:
        return values
    return [id_at({name: value}, fields.id) for value in values]


def batch_rows(
    metadata: pq.FileMetaData,
    row_groups: Sequence[int],
    column: str,
    max_bytes: int,
    max_rows: int,
) -> int:
    """Returns the rows per batch, by the size of one top-level column or, if "", of all."""
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    columns = [index for index, path in enumerate(paths) if column in ("", path)]
    num_rows = 1 + sum(metadata.row_group(index).num_rows for index in row_groups)
    chunks = column_chunks(metadata, row_groups, columns)
    num_bytes = 1 + max(0, sum(chunk.total_uncompressed_size for chunk in chunks))  # of damage
    return max(1, min(max_rows, max_bytes * num_rows // num_bytes))


def read_batch(path: str, batch: pa.RecordBatch, first_row: int, fields: Fields) -> DocumentBatch:
    """Returns the texts of rows, the first of which has row `first_row`."""
    return (_read_nested if fields.nested else _read_column)(path, batch, first_row, fields)


def _read_column(path: str, batch: pa.RecordBatch, first_row: int, fields: Fields) -> DocumentBatch:
    has_text = fields.text in batch.schema.names
    column = batch.column(fields.text) if has_text else pa.nulls(batch.num_rows)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    num_without_text = len(batch) - len(rows)
    if column.type not in (*_TEXT_TYPES, *BINARY_TYPES, pa.null()):
        odd = [(first_row + row, excerpt(str(column[row]).encode())) for row in rows.tolist()]
        letters = [DeadLetter(path, row, "text_not_a_string", value) for row, value in odd]
        empty = array_buffers(pa.array([], pa.large_binary()))
        return DocumentBatch(len(batch), rows[:0], *empty, [], num_without_text, letters)
    texts = column.cast(pa.large_binary()).drop_null()
    bad = _not_utf8(texts)
    letters = [
        DeadLetter(path, first_row + int(rows[at]), "utf8_invalid", excerpt(texts[at].as_py()))
        for at in bad
    ]
    if bad:
        is_good = np.ones(len(texts), bool)
        is_good[bad] = False
        texts, rows = texts.filter(pa.array(is_good)), rows[is_good]
    ids = _read_ids(batch, rows, fields)
    buffers = array_buffers(texts)
    return DocumentBatch(len(batch), rows + first_row, *buffers, ids, num_without_text, letters)


def _read_nested(path: str, batch: pa.RecordBatch, first_row: int, fields: Fields) -> DocumentBatch:
    rows: list[int] = []
    texts: list[str] = []
    letters: list[DeadLetter] = []
    for row, record in enumerate(_records(batch), first_row):
        try:
            text = text_of(record, fields)
        except (TypeError, UnicodeDecodeError) as error:
            is_utf8 = isinstance(error, TypeError)
            reason = "text_not_a_string" if is_utf8 else "utf8_invalid"
            letters.append(DeadLetter(path, row, reason, ""))
            continue
        if text is not None:
            rows.append(row)
            texts.append(text)
    of_rows = np.array(rows, np.int64)
    ids = _read_ids(batch, of_rows - first_row, fields)
    num_without_text = len(batch) - len(rows) - len(letters)
    buffers = text_buffers(texts)
    return DocumentBatch(len(batch), of_rows, *buffers, ids, num_without_text, letters)


def _records(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    columns = [python_values(column) for column in batch.columns]
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _not_utf8(texts: pa.LargeBinaryArray) -> list[int]:
    """Returns the indices of byte strings that are not UTF-8; lone surrogates are allowed."""
    bad = []
    try:
        texts.cast(pa.large_string())
    except pa.ArrowInvalid:
        for at, text in enumerate(texts.to_pylist()):
            try:
                decode(text)
            except UnicodeDecodeError:
                bad.append(at)
    return bad


def _read_ids(batch: pa.RecordBatch, rows: np.ndarray, fields: Fields) -> list[str | None]:
    if fields.hash_ids:
        records = _records(batch)
        return [document_id(records[row], fields.id) for row in rows.tolist()]
    values = id_values(batch, fields)
    return [None if values[row] is None else str(values[row]) for row in rows.tolist()]


def python_values(column: pa.Array) -> list[Any]:
    """Returns a column's values; times and dates beyond Python's range as integers."""
    if getattr(column.type, "unit", None) == "ns":
        column = column.cast(pa.int64())
    try:
        return column.to_pylist()
    except (OverflowError, ValueError):  # a date beyond Python's range
        return column.cast(pa.int32() if column.type == pa.date32() else pa.int64()).to_pylist()
