"""Records that a kernel fills in are those that pyarrow writes, byte for byte."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.arrow_record import (
    FIELDS,
    RowColumns,
    decode_record,
    encode_record,
    frame_records,
)
from tests.support.helpers import arrow_record_bytes
from tests.support.properties import num_examples

_int32 = st.integers(-(2**31), 2**31 - 1)
_int64 = st.integers(-(2**63), 2**63 - 1)
_texts = st.one_of(st.sampled_from(["", "192.0.2.1", "ümlaut", "八文字" * 5]), st.text(max_size=20))
ROWS = st.builds(
    RowColumns,
    src_id=_int64,
    measurements=st.binary(max_size=40),
    n_measurements=_int32,
    time_span_seconds=st.floats(allow_nan=False),
    first_timestamp=_int64,
    last_timestamp=_int64,
    src_addr=_texts,
    row_index=_int32,
)
NOTHING = RowColumns(0, b"", 0, -0.0, 0, 0, "", 0)
LEAST = RowColumns(-(2**63), b"\xff", -(2**31), -np.inf, -(2**63), -(2**63), "é", -(2**31))
MOST = RowColumns(2**63 - 1, b"x" * 9, 2**31 - 1, np.inf, 2**63 - 1, 2**63 - 1, "x" * 9, 2**31 - 1)


@settings(max_examples=num_examples(150))
@given(ROWS)
@example(NOTHING)
@example(LEAST)
@example(MOST)
def test_record_bytes_equal_pyarrow(row: RowColumns) -> None:
    record = encode_record(row)
    assert record == arrow_record_bytes(row)
    decoded = decode_record(record)
    assert decoded._replace(measurements=bytes(decoded.measurements)) == row


@pytest.mark.parametrize("length", range(18))
def test_padding_equals_pyarrow(length: int) -> None:
    for text_length in range(18):
        row = MOST._replace(measurements=b"\xff" * length, src_addr="~" * text_length)
        assert encode_record(row) == arrow_record_bytes(row)


def framed(rows: list[RowColumns], src_addrs: pa.Array) -> list[bytes]:
    """Returns the records of `frame_records`, once their measurements are in them."""
    fields = np.empty(len(rows), FIELDS)
    fields["num_bytes"] = [len(row.measurements) for row in rows]
    for name in (FIELDS.names or ())[1:]:
        fields[name] = [getattr(row, name) for row in rows]
    data, bounds, measurements_at = frame_records(fields, src_addrs)
    for at, row in zip(measurements_at.tolist(), rows, strict=True):
        assert not data[at : at + len(row.measurements)].any()
        data[at : at + len(row.measurements)] = np.frombuffer(row.measurements, np.uint8)
    return [data[start:end].tobytes() for start, end in pairwise(bounds.tolist())]


@settings(max_examples=num_examples(100))
@given(st.lists(ROWS, min_size=1, max_size=6))
@example([LEAST, NOTHING, MOST, NOTHING])
def test_adjacent_records_equal_pyarrow(rows: list[RowColumns]) -> None:
    src_addrs = pa.array([row.src_addr for row in rows], pa.string())
    expected = list(map(arrow_record_bytes, rows))
    assert framed(rows, src_addrs) == expected
    longer = pa.concat_arrays([pa.array(["before"]), src_addrs, pa.array(["behind"])])
    assert framed(rows, longer.slice(1, len(rows))) == expected
