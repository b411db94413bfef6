"""Work units to output records: bytes as they are, or fields as a tf.train.Example.

  JSON: a string is a bytes_list of its UTF-8; an integer, true or false an int64_list, any other
  number a float_list of float32; a list of these gives all its values.
  Parquet: strings and binary are a bytes_list, integers and booleans an int64_list, floats a
  float_list of float32; a column of lists of these gives all values of its list.

null gives no feature. A batch counts the records read before any is converted, so the counts prove
that no record is lost.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from beam_pipeline.convert.options import RecordOptions
from beam_pipeline.dataset.dead_letters import DeadLetter, excerpt
from beam_pipeline.dataset.tf_example import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    Feature,
    encode_features,
    entry_encoder,
    join_entries,
)
from beam_pipeline.dataset.tfrecord import DamagedRecordError
from beam_pipeline.documents.files import Format, WorkUnit
from beam_pipeline.documents.json import BadRecordError, parse_strict
from beam_pipeline.documents.json_records import Records
from beam_pipeline.documents.reading import DAMAGED, Columns, read_unit
from beam_pipeline.errors import ProbelineError, UsageError, one_line
from beam_pipeline.sources.reading import UnreadableInputError
from beam_pipeline.storage.lines import damage_reason

MAX_RECORD_BYTES = 256 << 20  # ArrayRecord's writer takes six times as much memory
_TARGETS = {BYTES_LIST: pa.large_binary(), FLOAT_LIST: pa.float32(), INT64_LIST: pa.int64()}
_IS_OF_KIND = {
    BYTES_LIST: (
        *(kinds.is_string, kinds.is_large_string, kinds.is_string_view),
        *(kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view),
        kinds.is_fixed_size_binary,
    ),
    FLOAT_LIST: (kinds.is_floating,),
    INT64_LIST: (kinds.is_integer, kinds.is_boolean),
}
_IS_LIST = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)


class Batch(NamedTuple):
    """`num_read` records of the input: records for the output and dead letters."""

    num_read: int
    records: Sequence[bytes]
    letters: list[DeadLetter]
    num_blank: int = 0  # lines of only whitespace, which are not records
    num_bytes: int = 0  # of JSON lines, decompressed, with line feeds
    is_whole: bool = True  # False: its only letter stands for the unreadable rest of the file


def read_batches(unit: WorkUnit, options: RecordOptions) -> Iterator[Batch]:
    """Yields all records of a work unit.

    Raises ProbelineError if the file is damaged and --on_bad_file is "fail", or if it is not the
    file that was planned.
    """
    path, problem = unit.path, unit.file.problem
    first_row = row = unit.first_row or 0
    names = list(options.fields)
    columns: Columns = lambda _, schema: names or schema.names  # noqa: E731
    pieces = read_unit(unit, MAX_RECORD_BYTES, columns, by_line=True)
    try:
        for piece in pieces if problem is None else ():
            if isinstance(piece, Records):
                batch = _batch_of_lines(path, piece, row, options)
            elif isinstance(piece, pa.RecordBatch):
                batch = _batch_of_rows(path, piece, row, options)
            else:
                batch = _batch_of_tfrecord(path, piece, row)
            yield batch
            row += batch.num_read + batch.num_blank
    except DAMAGED as error:
        problem = damage_reason(path, error)
    if problem is not None:
        unreadable = UnreadableInputError(path, row, problem, row - first_row)
        if options.on_bad_file == "fail":
            raise unreadable.as_error()
        yield Batch(1, [], [unreadable.as_letter()], is_whole=False)
        return
    if unit.num_rows is not None and row - first_row != unit.num_rows:
        raise ProbelineError(
            f"{path} has {row - first_row} rows from row {first_row} on, but its footer says "
            f"{unit.num_rows}: it is damaged; repair or remove it"
        )


def _batch_of_tfrecord(path: str, found: list[bytes | DamagedRecordError], first_row: int) -> Batch:
    records = [record for record in found if isinstance(record, bytes)]
    letters = [
        DeadLetter(path, row, "record_damaged", one_line(record))
        for row, record in enumerate(found, first_row)
        if not isinstance(record, bytes)
    ]
    return Batch(len(found), records, letters)


# --- JSON lines -----------------------------------------------------------------------------------


def _batch_of_lines(path: str, found: Records, first_row: int, options: RecordOptions) -> Batch:
    record, fields = options.record_of("jsonl"), options.fields
    lines = found.each()
    counts = found.num_blank, len(found.content)
    if record == "bytes" and found.max_bytes <= MAX_RECORD_BYTES:
        return Batch(len(lines), lines, [], *counts)
    records, letters = [], []
    for number, line in enumerate(lines):
        try:
            if len(line) > MAX_RECORD_BYTES:
                raise BadRecordError("record_too_long")
            if record == "json":
                parse_strict(line)
            records.append(example_of_line(line, fields) if record == "tf_example" else line)
        except BadRecordError as bad:
            row = first_row + found.data.count(b"\n", 0, int(found.starts[number]))
            letters.append(DeadLetter(path, row, str(bad), excerpt(line)))
    return Batch(len(lines), records, letters, *counts)


def example_of_line(line: bytes, fields: Sequence[str] = ()) -> bytes:
    """Returns the fields of a JSON object, by default all, as a tf.train.Example.

    Raises BadRecordError if the line is not an object, lacks a field, or holds what a
    tf.train.Example cannot: objects, nested lists, lists of several kinds, large numbers.
    """
    found = parse_strict(line)
    if not isinstance(found, dict):
        raise BadRecordError("json_not_an_object")
    if any(name not in found for name in fields):
        raise BadRecordError("field_missing")
    taken = {name: found[name] for name in fields} if fields else found
    features = (_feature(name, value) for name, value in taken.items() if value is not None)
    try:
        return encode_features(features)
    except OverflowError as error:
        raise BadRecordError("number_out_of_range") from error
    except UnicodeEncodeError as error:
        raise BadRecordError("utf8_invalid") from error


def _feature(name: str, value: Any) -> Feature:
    values = value if isinstance(value, list) else [value]
    types = {type(item) for item in values}
    if types <= {str}:
        return Feature(name, BYTES_LIST, [text.encode() for text in values])
    if types <= {int, bool}:
        return Feature(name, INT64_LIST, values)
    if types <= {int, float}:
        if any(map(math.isinf, values)):  # JSON has no infinity: the number is too large
            raise OverflowError
        return Feature(name, FLOAT_LIST, values)
    raise BadRecordError("field_unsuited")


# --- rows of Parquet ------------------------------------------------------------------------------


def _batch_of_rows(path: str, batch: pa.RecordBatch, row: int, options: RecordOptions) -> Batch:
    batch = batch.select(list(options.fields) or batch.schema.names)
    convert, reason = examples_of_rows, "value_unsuited"
    if options.record_of("parquet") == "bytes":
        convert, reason = bytes_of_rows, "value_null"
    found = convert(batch)
    records = [each for each in found if each is not None and len(each) <= MAX_RECORD_BYTES]
    letters = [
        DeadLetter(path, row + at, reason if record is None else "record_too_long", "")
        for at, record in enumerate(found if len(records) < len(found) else [])
        if record is None or len(record) > MAX_RECORD_BYTES
    ]
    return Batch(len(found), records, letters)


def bytes_of_rows(batch: pa.RecordBatch) -> list[bytes | None]:
    """Returns the bytes of the only column; None for a null."""
    return _plain(batch.column(0), BYTES_LIST).to_pylist()


def examples_of_rows(batch: pa.RecordBatch) -> list[bytes | None]:
    """Returns each row as a tf.train.Example; None if one of its lists holds a null or a number is
    too large for a float32."""
    is_bad = np.zeros(batch.num_rows, bool)
    columns: list[list[bytes]] = []
    for name in sorted(batch.schema.names):
        column = batch.column(name)
        kind, values = (_list_values if _is_list(column.type) else _values)(column, is_bad)
        encode = entry_encoder(name, kind)
        columns.append([b"" if value is None else encode(value) for value in values])
    rows = zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)
    return [None if bad else join_entries(row) for bad, row in zip(is_bad.tolist(), rows)]


def _is_list(dtype: pa.DataType) -> bool:
    return any(check(dtype) for check in _IS_LIST)


def _kind_of(dtype: pa.DataType) -> int | None:
    dtype = dtype.value_type if kinds.is_dictionary(dtype) else dtype  # type: ignore[attr-defined]
    if kinds.is_uint64(dtype):
        return None
    found = (kind for kind, checks in _IS_OF_KIND.items() if any(is_of(dtype) for is_of in checks))
    return next(found, None)


def _plain(column: Any, kind: int) -> Any:
    """Returns a column without a dictionary, cast to the type of its kind of list."""
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return pc.cast(column, _TARGETS[kind], safe=False)


def _values(column: Any, is_bad: np.ndarray) -> tuple[int, list[Sequence[Any] | None]]:
    kind = _kind_of(column.type)
    assert kind is not None
    plain = _plain(column, kind)
    is_bad |= _overflow(column, plain, kind)
    return kind, [None if value is None else (value,) for value in plain.to_pylist()]


def _list_values(column: Any, is_bad: np.ndarray) -> tuple[int, list[Any]]:
    kind = _kind_of(column.type.value_type)
    assert kind is not None
    flat = column.flatten()
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = (ends - lengths).tolist()
    plain = _plain(flat, kind)
    wrong = _overflow(flat, plain, kind) | flat.is_null().to_numpy(zero_copy_only=False)
    is_bad[np.searchsorted(ends, np.flatnonzero(wrong), "right")] = True
    # NumPy would convert integers with a null to floats.
    values = plain.to_pylist() if kind == BYTES_LIST else pc.fill_null(plain, 0).to_numpy()
    is_null = column.is_null().to_pylist()
    return kind, [
        None if null else values[start:end]
        for null, start, end in zip(is_null, starts, ends.tolist(), strict=True)
    ]


def _overflow(column: Any, plain: Any, kind: int) -> np.ndarray:
    """Returns which finite numbers overflow a float32."""
    if kind != FLOAT_LIST or column.type != pa.float64():
        return np.zeros(len(column), bool)
    became = pc.and_(pc.is_finite(column), pc.invert(pc.is_finite(plain)))
    return pc.fill_null(became, False).to_numpy(zero_copy_only=False)


# --- checks of the options ------------------------------------------------------------------------


def checker(options: RecordOptions) -> Callable[[str, Format, pa.Schema | None], None]:
    """Returns the check that --record and --fields suit a file, for `documents.files.inspect`."""

    def check(path: str, file_format: Format, schema: pa.Schema | None) -> None:
        _check_options(path, file_format, options)
        if schema is not None:
            _check_columns(path, schema, options)

    return check


def _check_options(path: str, file_format: str, options: RecordOptions) -> None:
    record = options.record_of(file_format)
    if file_format == "tfrecord" and record != "bytes":
        raise UsageError(
            f"--record={record} does not apply to TFRecord, such as {path}, whose records are "
            "copied: leave it out"
        )
    if file_format == "parquet" and record == "json":
        raise UsageError(
            f"--record=json is for JSON lines, and {path} is Parquet: pass tf_example or bytes"
        )
    if options.fields and record == "bytes" and file_format != "parquet":
        raise UsageError(
            f"--fields={','.join(options.fields)} requires --record=tf_example for {path}, whose "
            "records are copied whole"
        )


def _check_columns(path: str, schema: pa.Schema, options: RecordOptions) -> None:
    """Raises ProbelineError unless the columns exist, once each, and have suitable types."""
    shown = ", ".join(schema.names) or "no columns"
    names = options.fields or tuple(schema.names)
    for name in names:
        if (count := len(schema.get_all_field_indices(name))) != 1:
            raise ProbelineError(f"{path} has {count} columns named {name!r}; it has {shown}")
    is_bytes = options.record_of("parquet") == "bytes"
    if is_bytes and len(names) != 1:
        raise UsageError(
            f"--record=bytes takes one column, and {path} has {shown}: name it with --fields"
        )
    for name in names:
        dtype = schema.field(name).type
        kind = _kind_of(dtype.value_type if _is_list(dtype) else dtype)  # type: ignore[attr-defined]
        if is_bytes and (kind != BYTES_LIST or _is_list(dtype)):
            raise ProbelineError(
                f"the column {name!r} of {path} is of type {dtype}: --record=bytes takes strings "
                "or binary"
            )
        if kind is None:
            raise ProbelineError(
                f"the column {name!r} of {path} is of type {dtype}, which a tf.train.Example "
                "cannot hold: choose other columns with --fields, or cast it"
            )
