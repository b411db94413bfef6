"""Parquet written anew, row group by row group: same schema, compression and values.

A row group in which no document changes is written as it was read. Memory holds a row group.
"""

from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipeline.documents.batch import decode, encode
from beam_pipeline.documents.fields import Fields
from beam_pipeline.overlap.removal.changes import Changes, piece_id
from beam_pipeline.overlap.removal.training_files import Documents
from beam_pipeline.storage.matching import FileVersion
from beam_pipeline.storage.parquet import PIECE_BYTES, open_parquet


def rewrite_parquet(file: FileVersion, stream: BinaryIO, changes: Changes, fields: Fields) -> int:
    """Copies a file, with its contaminated records as `changes` has them; returns its records.

    Pieces have ids of their own where ids are strings; others keep that of their document.
    """
    first_row = 0
    with open_parquet(file.path, buffer_bytes=PIECE_BYTES, version=file.version) as parquet:
        codecs: Any = _codecs(parquet)  # by column, which Arrow's stub does not know
        with pq.ParquetWriter(stream, parquet.schema_arrow, compression=codecs) as writer:
            for number in range(parquet.num_row_groups):
                table = parquet.read_row_group(number)
                documents = changes.within(first_row, first_row + len(table))
                first_row += len(table)
                if len(documents.rows):
                    rows = documents.rows - (first_row - len(table))
                    table = _rewritten(table, rows, documents, changes, fields)
                writer.write_table(table, row_group_size=max(1, len(table)))
    return first_row


def _codecs(parquet: pq.ParquetFile) -> dict[str, str]:
    """Returns the codec of each column, as the first row group has it and a writer takes it."""
    if not parquet.num_row_groups:
        return {}
    group = parquet.metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema: _codec(column.compression) for column in columns}


def _codec(name: str) -> str:
    return "NONE" if name == "UNCOMPRESSED" else name


def _rewritten(
    table: pa.Table, rows: np.ndarray, documents: Documents, changes: Changes, fields: Fields
) -> pa.Table:
    """Returns a row group in which the contaminated documents have the places `rows`."""
    counts = np.ones(len(table), np.int64)
    taken = table.select(_columns(table, fields)).take(pa.array(rows))
    has_id = changes.is_split and fields.id != fields.text
    ids = _strings(taken, fields.id) if has_id else None
    texts: list[bytes] = []
    names: list[str | None] = []
    for index, data in enumerate(_plain(taken.column(fields.text), pa.large_binary()).to_pylist()):
        pieces = changes.texts(documents, index, decode(data))
        counts[rows[index]] = len(pieces)
        texts += map(encode, pieces)
        identifier = ids[index] if ids else None
        if identifier is None:
            changes.num_unnamed += len(pieces) if changes.is_split else 0
            names += [None] * len(pieces)
        else:
            names += [piece_id(identifier, *piece) for piece in enumerate(pieces)]
    is_changed = np.zeros(len(table), bool)
    is_changed[rows] = True
    which = np.repeat(np.arange(len(table)), counts)
    mask = pa.array(is_changed[which])
    table = table.take(pa.array(which))
    new = pa.array(texts, pa.large_binary()).view(pa.large_string())
    table = _replaced(table, fields.text, mask, new)
    if ids is not None:
        table = _replaced(table, fields.id, mask, pa.array(names, pa.large_string()))
    return table


def _columns(table: pa.Table, fields: Fields) -> list[str]:
    return [name for name in dict.fromkeys((fields.text, fields.id)) if name in table.column_names]


def _strings(table: pa.Table, name: str) -> list[str | None] | None:
    """Returns the values of a column, None if there is none of strings."""
    if name not in table.column_names:
        return None
    column = _plain(table.column(name))
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return column.to_pylist() if is_text else None


def _plain(column: pa.ChunkedArray, dtype: pa.DataType | None = None) -> pa.ChunkedArray:
    """Returns a column that is no dictionary, of some type or of its own."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column if dtype is None else column.cast(dtype)


def _replaced(table: pa.Table, name: str, mask: pa.Array, values: pa.Array) -> pa.Table:
    at = table.schema.get_field_index(name)
    field = table.schema.field(at)
    plain = _plain(table.column(at), pa.large_string()).combine_chunks()
    changed = pc.replace_with_mask(plain, mask, values)
    if pa.types.is_dictionary(field.type):
        changed = changed.dictionary_encode()
    return table.set_column(at, field, changed.cast(field.type))
