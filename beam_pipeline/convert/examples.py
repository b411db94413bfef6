"""Rows of Parquet as tf.train.Examples, or the bytes of one column.

Strings and binary become a bytes_list, integers and booleans an int64_list, floats a float_list of
float32; a column of lists of these gives all values of its list. A null is no feature.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from beam_pipeline.dataset.tf_example import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    entry_encoder,
    join_entries,
)

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


def column_problem(dtype: pa.DataType, is_bytes: bool = False) -> str | None:
    """Returns why a column of some type cannot be a feature, or with `is_bytes` the records."""
    is_list = any(check(dtype) for check in _IS_LIST)
    kind = _kind_of(dtype.value_type if is_list else dtype)  # type: ignore[attr-defined]
    if kind is None or (is_bytes and (is_list or kind != BYTES_LIST)):
        return f"is of type {dtype}, which a tf.train.Example cannot hold"
    return None


def _kind_of(dtype: pa.DataType) -> int | None:
    dtype = dtype.value_type if kinds.is_dictionary(dtype) else dtype  # type: ignore[attr-defined]
    if kinds.is_uint64(dtype):
        return None
    found = (kind for kind, checks in _IS_OF_KIND.items() if any(is_of(dtype) for is_of in checks))
    return next(found, None)


def _plain(column: Any, kind: int) -> Any:
    """Returns a column without a dictionary, in the type of its kind of list."""
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return pc.cast(column, _TARGETS[kind], safe=False)


def bytes_of_rows(batch: pa.RecordBatch) -> list[bytes | None]:
    """Returns the bytes of the only column, None for a null."""
    return _plain(batch.column(0), BYTES_LIST).to_pylist()


def examples_of_rows(batch: pa.RecordBatch) -> list[bytes | None]:
    """Returns each row as a tf.train.Example, None if one of its lists holds a null or a number
    is too large for a float32."""
    is_bad = np.zeros(batch.num_rows, bool)
    columns: list[list[bytes]] = []
    for name in sorted(batch.schema.names):
        column = batch.column(name)
        is_list = any(check(column.type) for check in _IS_LIST)
        kind, values = (_values_of_lists if is_list else _values)(column, is_bad)
        encode = entry_encoder(name, kind)
        columns.append([b"" if value is None else encode(value) for value in values])
    rows = zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)
    return [None if bad else join_entries(row) for bad, row in zip(is_bad.tolist(), rows)]


def _values(column: Any, is_bad: np.ndarray) -> tuple[int, list[Sequence[Any] | None]]:
    kind = _kind_of(column.type)
    assert kind is not None
    plain = _plain(column, kind)
    is_bad |= _overflow(column, plain, kind)
    return kind, [None if value is None else (value,) for value in plain.to_pylist()]


def _values_of_lists(column: Any, is_bad: np.ndarray) -> tuple[int, list[Any]]:
    kind = _kind_of(column.type.value_type)
    assert kind is not None
    flat = column.flatten()
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = (ends - lengths).tolist()
    plain = _plain(flat, kind)
    wrong = _overflow(flat, plain, kind) | flat.is_null().to_numpy(zero_copy_only=False)
    is_bad[np.searchsorted(ends, np.flatnonzero(wrong), "right")] = True
    # With a null, NumPy would have floats.
    values = plain.to_pylist() if kind == BYTES_LIST else pc.fill_null(plain, 0).to_numpy()
    is_null = column.is_null().to_pylist()
    return kind, [
        None if null else values[start:end]
        for null, start, end in zip(is_null, starts, ends.tolist(), strict=True)
    ]


def _overflow(column: Any, plain: Any, kind: int) -> np.ndarray:
    """Returns which numbers are finite, but not as a float32."""
    if kind != FLOAT_LIST or column.type != pa.float64():
        return np.zeros(len(column), bool)
    became = pc.and_(pc.is_finite(column), pc.invert(pc.is_finite(plain)))
    return pc.fill_null(became, False).to_numpy(zero_copy_only=False)
