"""The columns of a record, and a record as one Arrow IPC stream with one row.

`tf_example` is the other form of a record. Streams are built from compact buffers, without validity
bitmaps or slice offsets, so that their bytes follow from their values alone.
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

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
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


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
    """Returns the bytes that every stream of a schema begins with."""
    return schema.serialize().to_pybytes()


def make_stream(head: bytes, batch: pa.RecordBatch) -> bytes:
    """Returns a stream of one batch; `head` is the message of its schema."""
    return b"".join((head, memoryview(batch.serialize()), _END_OF_STREAM))


def primitive(dtype: pa.DataType, values: np.ndarray) -> pa.Array:
    """Returns an array of numbers without a validity bitmap."""
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(dtype, len(values), [None, buffer])


RECORD_HEAD = schema_message(RECORD_SCHEMA)


def encode_record(row: RowColumns) -> bytes:
    """Returns the record of a row."""
    columns = [_one_value(field.type, value) for field, value in zip(RECORD_SCHEMA, row)]
    return make_stream(RECORD_HEAD, pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA))


def _one_value(dtype: pa.DataType, value: Any) -> pa.Array:
    if isinstance(value, (str, bytes)):
        content = value.encode() if isinstance(value, str) else value
        offsets = pa.py_buffer(np.array([0, len(content)], np.int32))
        return pa.Array.from_buffers(dtype, 1, [None, offsets, pa.py_buffer(content)])
    kind = "f" if isinstance(value, float) else "i"
    return primitive(dtype, np.array([value], f"{kind}{dtype.bit_width // 8}"))


def read_stream(stream: memoryview | bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the one batch of an Arrow IPC stream; ValueError if it is not exactly that."""
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
    """Reads a record without a copy of its measurements; ValueError if it is not a record."""
    batch = read_stream(record, RECORD_SCHEMA)
    if batch.num_rows != 1 or any(column.null_count for column in batch.columns):
        raise ValueError(f"a record of {batch.num_rows} rows or with nulls, not of 1 row")
    return RowColumns(*(_plain(column[0]) for column in batch.columns))


def _plain(value: pa.Scalar) -> Any:
    if isinstance(value, pa.TimestampScalar):
        return value.value  # not every int64 is a date
    return value.as_buffer() if value.type == pa.binary() else value.as_py()
