"""Parquet written anew, row group by row group: same schema, compression and values.

A row group in which no document changes is written as it was read. Memory holds a row group.
"""

from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipeline.overlap.documents.batch import decode, encode
from beam_pipeline.overlap.documents.json import Fields
from beam_pipeline.storage.matching import FileVersion
from beam_pipeline.storage.parquet import PIECE_BYTES, open_parquet

Change = Callable[[int, str], list[str]]  # as for JSON lines


def rewrite_parquet(
    file: FileVersion,
    stream: BinaryIO,
    rows: np.ndarray,
    change: Change,
    fields: Fields,
    is_split: bool,
) -> int:
    """Copies a file, but the records `rows` as `change` has them; returns the number of records.

    Pieces have `-0`, `-1`, … after their id where ids are strings; others keep their id.
    """
    first_row = 0
    with open_parquet(file.path, buffer_bytes=PIECE_BYTES, version=file.version) as parquet:
        codecs: Any = _codecs(parquet)  # by column, which Arrow's stub does not know
        with pq.ParquetWriter(stream, parquet.schema_arrow, compression=codecs) as writer:
            for number in range(parquet.num_row_groups):
                table = parquet.read_row_group(number)
                stop_row = first_row + len(table)
                first, stop = np.searchsorted(rows, [first_row, stop_row]).tolist()
                if stop > first:
                    here = rows[first:stop] - first_row
                    table = _rewritten(table, here, first, change, fields, is_split)
                writer.write_table(table, row_group_size=max(1, len(table)))
                first_row = stop_row
    return first_row


def _codecs(parquet: pq.ParquetFile) -> dict[str, str]:
    """Returns the compression of each column, as the first row group has it."""
    if not parquet.num_row_groups:
        return {}
    group = parquet.metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema: column.compression for column in columns}


def _rewritten(
    table: pa.Table, rows: np.ndarray, place: int, change: Change, fields: Fields, is_split: bool
) -> pa.Table:
    counts = np.ones(len(table), np.int64)
    texts, suffixes = [], []
    column = table.column(fields.text).take(pa.array(rows))
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    for number, data in enumerate(column.cast(pa.large_binary()).to_pylist()):
        pieces = change(place + number, decode(data))
        counts[rows[number]] = len(pieces)
        texts += map(encode, pieces)
        suffixes += [f"-{piece}" for piece in range(len(pieces))]
    is_changed = np.zeros(len(table), bool)
    is_changed[rows] = True
    which = np.repeat(np.arange(len(table)), counts)
    mask = pa.array(is_changed[which])
    table = table.take(pa.array(which))
    new = pa.array(texts, pa.large_binary()).view(pa.large_string())
    table = _replaced(table, fields.text, mask, new)
    if is_split and fields.id in table.schema.names:
        ids = table.column(fields.id)
        if pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type):
            kept = ids.filter(mask).cast(pa.large_string())
            parts = kept, pa.array(suffixes, pa.large_string()), pa.scalar("", pa.large_string())
            named = pc.binary_join_element_wise(*parts)
            table = _replaced(table, fields.id, mask, named)
    return table


def _replaced(table: pa.Table, name: str, mask: pa.Array, values: pa.Array) -> pa.Table:
    at = table.schema.get_field_index(name)
    field = table.schema.field(at)
    plain = table.column(at)
    if pa.types.is_dictionary(plain.type):
        plain = plain.cast(plain.type.value_type)
    plain = plain.cast(pa.large_string()).combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    changed = pc.replace_with_mask(plain, mask, values)
    if pa.types.is_dictionary(field.type):
        changed = changed.dictionary_encode()
    return table.set_column(at, field, changed.cast(field.type))
