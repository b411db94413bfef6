"""A record as one Arrow IPC stream with one row, and its columns; `tf_example` is the other form.

Streams have compact buffers, without validity bitmaps or slice offsets, so their bytes follow from
their values alone. Arrow takes 40 µs to write a record of any size, so it writes only a template,
and a kernel fills in the differences. A record consists of 8-byte words:

  schema | metadata: sizes and places of buffers | buffers, the measurements among them | end
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset.addresses import string_buffers
from beam_pipeline.kernels import kernel, subkernel

RECORD_SCHEMA = pa.schema(
    [
        ("src_id", pa.int64()),
        ("measurements", pa.binary()),
        ("n_measurements", pa.int32()),
        ("time_span_seconds", pa.float64()),
        ("first_timestamp", pa.timestamp("us")),
        ("last_timestamp", pa.timestamp("us")),
        ("src_addr", pa.string()),
        ("row_index", pa.int32()),
    ]
)
END_OF_STREAM = 0xFFFFFFFF  # as a little-endian word of 8 bytes


class RowColumns(NamedTuple):
    """The values of RECORD_SCHEMA; timestamps are µs since 1970."""

    src_id: int
    measurements: bytes | pa.Buffer
    n_measurements: int
    time_span_seconds: float
    first_timestamp: int
    last_timestamp: int
    src_addr: str
    row_index: int


def schema_message(schema: pa.Schema) -> bytes:
    """Returns the initial bytes of every stream of a schema."""
    return schema.serialize().to_pybytes()


def make_stream(head: bytes, batch: pa.RecordBatch) -> bytes:
    """Returns a stream of one batch; `head` is its schema message."""
    return b"".join((head, memoryview(batch.serialize()), END_OF_STREAM.to_bytes(8, "little")))


def primitive(dtype: pa.DataType, values: np.ndarray) -> pa.Array:
    """Returns a numeric array without a validity bitmap."""
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(dtype, len(values), [None, buffer])


RECORD_HEAD = schema_message(RECORD_SCHEMA)


class Records(NamedTuple):
    """r records side by side; those of `frame_records` lack the measurements."""

    data: np.ndarray  # uint8, all records
    bounds: np.ndarray  # int64 [r + 1]: record i is data[bounds[i]:bounds[i + 1]]
    measurements_at: np.ndarray  # int64 [r], offsets of the measurements in `data`


# The columns of a record without src_addr and measurements, and the bytes of its measurements.
FIELDS = np.dtype(
    [
        *(("num_bytes", "<i8"), ("src_id", "<i8"), ("n_measurements", "<i8")),
        *(("time_span_seconds", "<f8"), ("first_timestamp", "<i8"), ("last_timestamp", "<i8")),
        ("row_index", "<i8"),
    ]
)


def frame_records(fields: np.ndarray, src_addrs: pa.StringArray) -> Records:
    """Returns records with zeros for measurements, given their FIELDS [r] and addresses [r]."""
    template = _template()
    offsets, text = string_buffers(src_addrs)
    bounds = np.zeros(len(fields) + 1, np.int64)
    np.cumsum(record_bytes(fields["num_bytes"], np.diff(offsets)), out=bounds[1:])
    words, measurements_at = np.zeros(bounds[-1] // 8, np.int64), np.empty(len(fields), np.int64)
    spans = fields["time_span_seconds"].view(np.int64)
    _frame(
        words, words.view(np.uint8), bounds, measurements_at, template.words, template.buffers_at,
        template.body_bytes_at, fields, spans, offsets, text,
    )  # fmt: skip
    return Records(words.view(np.uint8), bounds, measurements_at)


def padded(size: Any) -> Any:
    """Returns the padded size of a buffer."""
    return (size + 7) // 8 * 8


def record_bytes(measurements_bytes: Any, text_bytes: Any) -> Any:
    """Returns the size of a record from those of its measurements and src_addr."""
    fixed_buffers = 8 * 8  # one value each, or the offsets of one
    framing = len(_template().words) * 8 + fixed_buffers + 8
    return framing + padded(measurements_bytes) + padded(text_bytes)


@kernel
def _frame(
    words, data, bounds, measurements_at, template, buffers_at, body_bytes_at, fields, spans,
    offsets, text,
):  # fmt: skip
    low = (1 << 32) - 1
    for row in range(len(fields)):
        start, field = bounds[row] // 8, fields[row]
        for i in range(len(template)):
            words[start + i] = template[i]
        num_text = np.int64(offsets[row + 1]) - np.int64(offsets[row])
        place_buffers(
            words, start, buffers_at, body_bytes_at,
            (0, 8, 0, 8, field.num_bytes, 0, 4, 0, 8, 0, 8, 0, 8, 0, 8, num_text, 0, 4),
        )  # fmt: skip
        body = start + len(template)
        words[body] = field.src_id
        words[body + 1] = field.num_bytes << 32
        measurements_at[row] = (body + 2) * 8
        body += 2 + (field.num_bytes + 7) // 8
        words[body] = field.n_measurements & low
        words[body + 1] = spans[row]
        words[body + 2] = field.first_timestamp
        words[body + 3] = field.last_timestamp
        words[body + 4] = num_text << 32
        for i in range(num_text):
            data[(body + 5) * 8 + i] = text[np.int64(offsets[row]) + i]
        body += 5 + (num_text + 7) // 8
        words[body] = field.row_index & low
        words[body + 1] = END_OF_STREAM


@subkernel
def place_buffers(words, start, buffers_at, body_bytes_at, sizes):
    """Writes the places of a batch's buffers, given their sizes, into its metadata."""
    at = 0
    for number in range(len(sizes)):
        words[start + buffers_at + 2 * number] = at
        words[start + buffers_at + 2 * number + 1] = sizes[number]
        at += (sizes[number] + 7) // 8 * 8
    words[start + body_bytes_at] = at


class Template(NamedTuple):
    """The words of a one-batch stream, and the positions of those that depend on its rows."""

    words: np.ndarray  # int64: schema and metadata
    buffers_at: int  # first word of the buffers' places and sizes
    body_bytes_at: int  # word with the total buffer size
    counts_at: np.ndarray  # int64: words with the number of rows


def make_template(schema: pa.Schema, batch: pa.RecordBatch) -> Template:
    """Returns the template of streams like a batch's, whose number of rows must be unusual."""
    stream = make_stream(schema_message(schema), batch)
    buffers = [buffer for column in batch.columns for buffer in column.buffers()]
    sizes = [buffer.size if buffer else 0 for buffer in buffers]
    places = np.cumsum([0, *map(padded, sizes)])
    words = np.frombuffer(stream, np.int64)[: -(int(places[-1]) + 8) // 8].copy()
    listed = np.stack([places[:-1], sizes], axis=1).astype(np.int64).tobytes()
    (body_bytes_at,) = np.flatnonzero(words == places[-1])
    counts_at = np.flatnonzero(words == batch.num_rows)
    return Template(words, words.tobytes().index(listed) // 8, int(body_bytes_at), counts_at)


@cache
def _template() -> Template:
    row = RowColumns(0, b"measurements", 0, 0.0, 0, 0, "192.0.2.1", 0)
    columns = [_one_value(field.type, value) for field, value in zip(RECORD_SCHEMA, row)]
    return make_template(RECORD_SCHEMA, pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA))


def encode_record(row: RowColumns) -> bytes:
    size, fields = len(row.measurements), np.empty(1, FIELDS)
    fields["num_bytes"] = size
    for name in FIELDS.names[1:]:  # pyright: ignore[reportOptionalSubscript]
        fields[name] = getattr(row, name)
    framed = frame_records(fields, pa.array([row.src_addr], pa.string()))
    at = int(framed.measurements_at[0])
    framed.data[at : at + size] = np.frombuffer(row.measurements, np.uint8)
    return framed.data.tobytes()


def _one_value(dtype: pa.DataType, value: Any) -> pa.Array:
    if isinstance(value, (str, bytes)):
        content = value.encode() if isinstance(value, str) else value
        offsets = pa.py_buffer(np.array([0, len(content)], np.int32))
        return pa.Array.from_buffers(dtype, 1, [None, offsets, pa.py_buffer(content)])
    kind = "f" if isinstance(value, float) else "i"
    return primitive(dtype, np.array([value], f"{kind}{dtype.bit_width // 8}"))


def read_stream(stream: memoryview | bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the batch of an Arrow IPC stream; ValueError unless it has exactly one."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            if not reader.schema.equals(schema):
                raise ValueError(f"schema is {reader.schema}, not {schema}")
            batches = list(reader)
        if len(batches) != 1:
            raise ValueError(f"an Arrow stream of {len(batches)} batches, not of 1")
        batches[0].validate(full=True)
    except (OSError, pa.ArrowException) as error:  # Arrow raises either
        raise ValueError(f"not an Arrow stream: {error}") from error
    return batches[0]


def decode_record(record: bytes) -> RowColumns:
    """Decodes a record without copying its measurements; ValueError if it is not a record."""
    batch = read_stream(record, RECORD_SCHEMA)
    if batch.num_rows != 1 or any(column.null_count for column in batch.columns):
        raise ValueError(f"a record of {batch.num_rows} rows or with nulls, not of 1 row")
    return RowColumns(*(_plain(column[0]) for column in batch.columns))


def _plain(value: pa.Scalar) -> Any:
    if isinstance(value, pa.TimestampScalar):
        return value.value  # an int64 may be out of the range of dates
    return value.as_buffer() if value.type == pa.binary() else value.as_py()
