"""Rewrites a training file as a clean file with the same format, compression, schema and order.

Files without contaminated documents are copied. JSON is copied in blocks of bytes: only changed
records are parsed, and only their text and id are replaced. Records are counted as in the scan:
blank lines do not count, and dead letters are copied. Parquet is copied one row group at a time.
"""

import bz2
import contextlib
import json
import lzma
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipeline.documents.batch import decode, encode
from beam_pipeline.documents.fields import Fields, places_at, text_of
from beam_pipeline.documents.json import MAX_RECORD_BYTES, Place, members_of, parse_object
from beam_pipeline.documents.json_records import Records, begins_array, split_records
from beam_pipeline.documents.parquet import (
    BINARY_TYPES,
    id_path,
    id_values,
    rows_at,
    take,
    texts_of,
)
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs.frame import FAULT
from beam_pipeline.overlap.removal.cutting import Changes, Cut
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

Write = Callable[[bytes | memoryview], Any]
Changed = Iterable[tuple[int, list[bytes]]]  # records that replace one, by its number
_GZIP_LEVEL = 1  # twice as fast as level 3, files 5 % larger


def clean_file(
    file: TrainingFile,
    documents: DocumentReader,
    target: str,
    fields: Fields,
    cut: Cut | None,
    min_coverage: float = 0.0,
) -> Counts:
    """Writes a clean file to `target`; a `cut` of None drops contaminated records."""
    changes = Changes(documents, cut, min_coverage)
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
        and total["contaminated"]
        == total["changed"] + total["records_removed"] + total["below_min_coverage"]
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
    elif compression == "xz":
        with lzma.LZMAFile(target, "wb", preset=1) as stream:
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
            (number, new)
            for index, number in enumerate((documents.rows - row).tolist())
            if (new := _changed(records.at(number), documents, index, changes, fields)) is not None
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
        has_line_feed = data[stop : stop + 1] == b"\n"
        at = stop if new or not has_line_feed else stop + 1
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
) -> list[bytes] | None:
    """Returns the records that replace a contaminated record; None if it stays."""
    values = parse_object(record)
    pieces = changes.texts(documents, index, text_of(values, fields))
    if pieces is None:
        return None
    changed: list[bytes] = []
    if not pieces:
        return changed
    text = decode(record)
    members = dict(members_of(text))
    # From here on, the text is a top-level string.
    text_place, id_place = members[fields.text], _place_of_id(text, members, values, fields)
    for number, piece in enumerate(pieces):
        new: list[tuple[Place, Any]] = [(text_place, piece)]
        if changes.is_split:
            identifier = changes.new_id(id_place and id_place.value, number, piece)
            if id_place and identifier is not None:
                new.append((id_place, identifier))
        changed.append(encode(_with_values(text, sorted(new))))
    return changed


def _place_of_id(
    text: str, members: dict[str | int, Place], values: dict[str, Any], fields: Fields
) -> Place | None:
    """Returns the place of a record's id, which may be nested; None without one."""
    if fields.id == fields.text:
        return None
    if fields.id in members or "." not in fields.id:
        return members.get(fields.id)
    path = next((path for path, _ in places_at(values, fields.id)), ())
    place = None
    for key in path:
        place = (dict(members_of(text, place.start)) if place else members)[key]
    return place


def _with_values(text: str, new: list[tuple[Place, Any]]) -> str:
    """Returns a record with new values at some places, ascending; all else is kept."""
    parts, at = [], 0
    for (start, end, _), value in new:
        is_ascii = text[start:end].isascii()
        parts += [text[at:start], json.dumps(value) if is_ascii else json_value(value).decode()]
        at = end
    return "".join([*parts, text[at:]])


# --- Parquet --------------------------------------------------------------------------------------


def rewrite_parquet(file: FileVersion, stream: BinaryIO, changes: Changes, fields: Fields) -> int:
    """Copies a file, with the changes to contaminated records; returns the number of records.

    Pieces get ids of their own if ids are strings or integers of 64 bits, otherwise the document's.
    Nested columns keep their names, which `use_compliant_nested_type` would change.
    """
    first_row = 0
    with open_parquet(file.path, buffer_bytes=PIECE_BYTES, version=file.version) as parquet:
        codecs: Any = _codecs(parquet)  # by column, which Arrow's stub lacks
        with pq.ParquetWriter(
            stream, parquet.schema_arrow, compression=codecs, use_compliant_nested_type=False
        ) as writer:
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
    counts, is_changed = np.ones(len(table), np.int64), np.zeros(len(table), bool)
    path = id_path(table.schema, fields) if fields.id != fields.text else None
    taken = rows_at(table, rows, fields)
    ids = id_values(taken, fields) if path else [None] * len(rows)
    texts: list[str] = []
    names: list[Any] = []
    for index, text in enumerate(texts_of(taken, fields)):
        pieces = changes.texts(documents, index, text)
        if pieces is None:
            continue
        row = rows[index]
        counts[row], is_changed[row] = len(pieces), True
        texts += pieces
        if changes.is_split:
            names += [changes.new_id(ids[index], *piece) for piece in enumerate(pieces)]
    which = np.repeat(np.arange(len(table)), counts)
    mask = pa.array(is_changed[which])
    table = pa.table([take(column, which) for column in table.columns], table.schema)
    new = [([fields.text], texts)] if texts else []
    for (name, *inner), values in [*new, (path, names)] if names and path else new:
        at = table.schema.get_field_index(name)
        changed = _replaced(table.column(at).combine_chunks(), inner, mask, values)
        table = table.set_column(at, table.schema.field(at), changed)
    return table


def _replaced(column: pa.Array, path: Sequence[str], mask: pa.Array, values: list[Any]) -> pa.Array:
    """Returns a column of text or integers, at a path within structs, with new values."""
    dtype = column.type
    if path:
        at = dtype.get_field_index(path[0])
        parts = [column.field(number) for number in range(dtype.num_fields)]
        parts[at] = _replaced(parts[at], path[1:], mask, values)
        return pa.StructArray.from_arrays(parts, fields=list(dtype), mask=column.is_null())
    if pa.types.is_integer(dtype):
        return pc.replace_with_mask(column, mask, pa.array(values, dtype))
    value_type = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    encoded = [None if value is None else encode(value) for value in values]
    plain = column.cast(value_type).cast(pa.large_binary())
    changed = pc.replace_with_mask(plain, mask, pa.array(encoded, pa.large_binary()))
    if value_type not in BINARY_TYPES:
        changed = changed.view(pa.large_string())  # without a check of UTF-8
    if pa.types.is_dictionary(dtype):
        changed = changed.dictionary_encode()
    return changed.cast(dtype)
