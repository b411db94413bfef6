"""Rewrites a training file as a clean file with the same format, compression, schema and order.

Files without contaminated documents are copied. JSON is copied in blocks of bytes: only changed
records are parsed, and only their text and id are replaced. Records are counted as in the scan:
blank lines do not count, and dead letters are copied. Parquet is copied one row group at a time.
"""

import bz2
import contextlib
import functools
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, BinaryIO, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipeline.documents.batch import decode, encode
from beam_pipeline.documents.fields import Fields
from beam_pipeline.documents.json import MAX_RECORD_BYTES, parse
from beam_pipeline.documents.json_records import Records, begins_array, split_records
from beam_pipeline.documents.json_text import MARK
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs.frame import FAULT
from beam_pipeline.overlap.removal.cutting import Changes, Cut, piece_id
from beam_pipeline.overlap.removal.training_files import (
    Counts,
    DocumentReader,
    Documents,
    TrainingFile,
)
from beam_pipeline.overlap.results.output_files import GzipMember, json_value
from beam_pipeline.storage.files import COPY_BYTES, create_file, open_file
from beam_pipeline.storage.lines import Compression, compression_of, decompressed, read_blocks
from beam_pipeline.storage.matching import FileVersion
from beam_pipeline.storage.parquet import PIECE_BYTES, column_chunks, open_parquet

_MARKED = json.dumps(MARK).encode()
_MAX_TRIES = 100  # to find a field among namesakes in nested objects
Write = Callable[[bytes | memoryview], Any]
Changed = Iterable[tuple[int, list[bytes]]]  # records that replace one, by its number
_GZIP_LEVEL = 1  # twice as fast as level 3, files 5 % larger


def clean_file(
    file: TrainingFile, documents: DocumentReader, target: str, fields: Fields, cut: Cut | None
) -> Counts:
    """Writes a clean file to `target`; a `cut` of None drops contaminated records."""
    changes = Changes(documents, cut)
    path, version = file.file.path, file.file.version
    num_rows = file.num_rows
    with create_file(target) as stream:
        if not file.num_documents:
            with open_file(path, version=version) as source:
                shutil.copyfileobj(source, stream, COPY_BYTES)
        elif file.format == "parquet":
            num_rows = rewrite_parquet(file.file, stream, changes, fields)
        else:
            with (
                open_file(path, version=version) as source,
                compressed(stream, compression_of(source)) as write,
            ):
                blocks = read_blocks(decompressed(source), write)
                num_rows = rewrite_json(blocks, file.format == "json", write, changes, fields)
    counts = changes.counts(num_rows, file.num_chars)
    check_counts(path, counts.total)
    return counts


def check_counts(path: str, total: Counter[str]) -> None:
    """Raises ProbelineError unless every record and character of a file is kept or removed."""
    is_whole = (
        total["records_in"] == total["records_kept"] + total["records_removed"]
        and total["contaminated"] == total["changed"] + total["records_removed"]
        and total["chars_in"] == total["chars_kept"] + total["chars_removed"]
        and total["contaminated_chars"] == total["contaminated_chars_kept"] + total["chars_removed"]
        and total["chars_kept"] >= total["contaminated_chars_kept"] >= 0
    )
    if not is_whole:
        raise ProbelineError(f"the counts of {path} do not add up, {dict(total)}: {FAULT}")


# --- compression ----------------------------------------------------------------------------------


@contextlib.contextmanager
def compressed(target: BinaryIO, compression: Compression | None) -> Iterator[Write]:
    """Yields a function that writes to a stream with compression."""
    if compression == "gzip":
        with GzipMember(target, _GZIP_LEVEL) as member:
            yield member.write
    elif compression == "bzip2":
        with bz2.BZ2File(target, "wb") as stream:
            yield stream.write
    elif compression == "zstd":
        wrapped = pa.PythonFile(_Unclosed(target), mode="w")
        with pa.CompressedOutputStream(wrapped, "zstd") as stream:
            yield stream.write
    else:
        yield target.write


class _Unclosed:
    """A stream that Arrow can close without closing the file."""

    closed = False

    def __init__(self, stream: BinaryIO):
        self._stream = stream

    def write(self, data: Any) -> int:
        return cast(int, self._stream.write(data))

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self.closed = True


# --- JSON -----------------------------------------------------------------------------------------


def rewrite_json(
    blocks: Iterable[bytes], may_be_array: bool, write: Write, changes: Changes, fields: Fields
) -> int:
    """Copies JSON lines or one array with the changes; returns the number of records.

    `blocks` is the file without its byte order mark, cut anywhere. Raises ProbelineError if an
    array element exceeds the max record size.
    """
    blocks = iter(blocks)
    first_block = next(blocks, b"")
    is_array = may_be_array and begins_array(first_block)
    rewrite = _rewrite_elements if is_array else _rewrite_lines
    row, separator = 0, b""
    pieces = split_records(chain([first_block], blocks), may_be_array, MAX_RECORD_BYTES)
    for records in pieces:
        documents = changes.within(row, row + records.count)
        changed = (
            (number, list(_changed(records.at(number), documents, index, changes, fields)))
            for index, number in enumerate((documents.rows - row).tolist())
        )
        separator = rewrite(records, changed, write, separator)
        row += records.count
    return row


def _rewrite_lines(records: Records, changed: Changed, write: Write, _: bytes) -> bytes:
    data, at = records.content, 0
    for number, new in changed:
        start, stop = int(records.starts[number]), int(records.stops[number])
        write(data[at:start])
        write(b"\n".join(new))
        at = stop if new else stop + 1  # with its line feed
    write(data[at:])
    return b""


def _rewrite_elements(records: Records, changed: Changed, write: Write, separator: bytes) -> bytes:
    """Returns what goes before the next element: nothing before the first one."""
    data, starts, stops = records.content, records.starts.tolist(), records.stops.tolist()
    if records.max_bytes > MAX_RECORD_BYTES:
        raise ProbelineError(
            f"an element of a JSON array is longer than {MAX_RECORD_BYTES >> 20} MiB: convert the "
            "file to JSON lines and run the overlap job again"
        )
    if not starts:
        write(data)
        return separator
    write(data[: starts[0]])
    at = 0
    for number, new in chain(changed, [(len(starts), [])]):
        if at < number:
            write(separator)
            write(data[starts[at] : stops[number - 1]])
            separator = b","
        if new:
            write(separator + b",".join(new))
            separator = b","
        at = number + 1
    if (rest := data[stops[-1] :]) != b",":  # the bracket
        write(rest)
    return separator


def _changed(
    record: bytes, documents: Documents, index: int, changes: Changes, fields: Fields
) -> Iterator[bytes]:
    """Yields the records that replace a contaminated record."""
    values = parse(record)
    pieces = changes.texts(documents, index, values[fields.text])
    has_id = changes.is_split and fields.id != fields.text
    identifier = values.get(fields.id) if has_id else None
    names = [fields.text] if identifier is None else [fields.text, fields.id]
    places = _places_of(record, names) if pieces else None
    for number, piece in enumerate(pieces):
        new = {fields.text: piece}
        if identifier is not None:
            new[fields.id] = piece_id(str(identifier), number, piece)
        yield _with_values(record, values, places, new)
    if changes.is_split and identifier is None:
        changes.num_unnamed += len(pieces)


def _with_values(
    record: bytes,
    values: dict[str, Any],
    places: list[tuple[int, int, str]] | None,
    new: dict[str, str],
) -> bytes:
    """Returns a record with new values of some fields; other bytes are kept if possible."""
    if places is None:
        ending = record[len(record.rstrip()) :]
        return json.dumps({**values, **new}).encode() + ending
    parts, at = [], 0
    for start, end, name in places:
        is_ascii = record[start:end].isascii()
        value = json.dumps(new[name]).encode() if is_ascii else json_value(new[name])
        parts += [record[at:start], value]
        at = end
    return b"".join([*parts, record[at:]])


def _places_of(record: bytes, names: list[str]) -> list[tuple[int, int, str]] | None:
    """Returns the ranges of top-level values, ascending; None if one is ambiguous.

    Each try parses the record, which may have thousands of such fields in nested objects.
    """
    found = []
    for name in names:
        place = _place_of(record, name)
        if place is None:
            return None
        found.append((*place, name))
    return sorted(found)


def _place_of(record: bytes, name: str) -> tuple[int, int] | None:
    for match in islice(_field(name).finditer(record), _MAX_TRIES):
        start, end = match.span(1)
        try:
            marked = orjson.loads(record[:start] + _MARKED + record[end:])
        except orjson.JSONDecodeError:
            continue
        if marked.get(name) == MARK:
            return start, end
    return None


@functools.cache
def _field(name: str) -> re.Pattern[bytes]:
    """Returns the pattern of a field with a string, number or literal as its value."""
    key = re.escape(json_value(name))
    return re.compile(key + rb'\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*"|[^\s",\[\]{}]+)')


# --- Parquet --------------------------------------------------------------------------------------


def rewrite_parquet(file: FileVersion, stream: BinaryIO, changes: Changes, fields: Fields) -> int:
    """Copies a file, with the changes to contaminated records; returns the number of records.

    Pieces get ids of their own if ids are strings, otherwise the document's id.
    """
    first_row = 0
    with open_parquet(file.path, buffer_bytes=PIECE_BYTES, version=file.version) as parquet:
        codecs: Any = _codecs(parquet)  # by column, which Arrow's stub lacks
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
    """Returns the codec of each column in the first row group, as a writer expects it."""
    if not parquet.num_row_groups:
        return {}
    metadata = parquet.metadata
    columns = column_chunks(metadata, [0], range(metadata.num_columns))
    return {column.path_in_schema: _codec(column.compression) for column in columns}


def _codec(name: str) -> str:
    return "NONE" if name == "UNCOMPRESSED" else name


def _rewritten(
    table: pa.Table, rows: np.ndarray, documents: Documents, changes: Changes, fields: Fields
) -> pa.Table:
    """Returns a row group with the changes to contaminated documents, at `rows` in it."""
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
    """Returns the values of a string column, or None without one."""
    if name not in table.column_names:
        return None
    column = _plain(table.column(name))
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return column.to_pylist() if is_text else None


def _plain(column: pa.ChunkedArray, dtype: pa.DataType | None = None) -> pa.ChunkedArray:
    """Returns a column without dictionary encoding, cast to `dtype` if given."""
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
