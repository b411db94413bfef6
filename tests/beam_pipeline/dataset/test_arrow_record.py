"""Records that a kernel fills in are pyarrow's, byte for byte; damaged ones are refused."""

import contextlib
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset import arrow_record, row_codec
from beam_pipeline.dataset.arrow_record import FIELDS, RowColumns, encode_record, frame_records
from beam_pipeline.dataset.layout import ENCODINGS
from beam_pipeline.dataset.row_codec import MEASUREMENT_SCHEMA, RECORD_SCHEMA, decode_record
from beam_pipeline.dataset.row_encoder import encode_row
from tests.support.codec_rows import IPV4, KEY, golden_run
from tests.support.helpers import arrow_record_bytes, ipc_stream, make_run, run_of_tuples
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
    decoded = arrow_record.decode_record(record)
    assert decoded._replace(measurements=bytes(decoded.measurements)) == row


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


# --- damaged records ------------------------------------------------------------------------------


def read_all(record: bytes) -> None:
    row = decode_record(record)
    assert len(row.run) == row.to_arrow().num_rows


RECORDS = [
    encode_row(make_run(12, seed=11, wide=wide), KEY, encoding)
    for encoding in ENCODINGS
    for wide in (False, True)
]


@settings(max_examples=num_examples(200))
@given(st.sampled_from(RECORDS), st.data())
def test_flipped_bytes_raise_only_value_errors(record, data):
    at = data.draw(st.integers(0, len(record) - 1))
    damaged = bytearray(record)
    damaged[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ValueError):  # pa.ArrowInvalid is one too
        read_all(bytes(damaged))


def record_around(measurements: bytes, n: int = 1) -> bytes:
    run = run_of_tuples([(0, IPV4, 1.0)] * n)
    return arrow_record.encode_record(row_codec.columns_of(measurements, run, KEY))


def test_a_record_with_a_null():
    with pa.ipc.open_stream(RECORDS[0]) as reader:
        (values,) = reader.read_next_batch().to_pylist()
    batch = pa.RecordBatch.from_pylist([{**values, "src_addr": None}], schema=RECORD_SCHEMA)
    with pytest.raises(ValueError, match="nulls"):
        decode_record(ipc_stream(batch))


NOWHERE = {"event_time": 0, "dst_addr": "nowhere", "ip_version": 4, "rtt": 1.0}
COMPACT = bytes(decode_record(encode_row(golden_run(), KEY, "compact")).measurements)


@pytest.mark.parametrize(
    "measurements",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(COMPACT[:19], id="half a header"),
        pytest.param(COMPACT + b"\0", id="too long"),
        pytest.param(COMPACT[:12] + b"\xff" * 8 + COMPACT[20:], id="past the end of time"),
        pytest.param(b"not measurements at all", id="text"),
        pytest.param(ipc_stream(pa.RecordBatch.from_pydict({"rtt": [1.0]})), id="other columns"),
        pytest.param(
            ipc_stream(pa.RecordBatch.from_pylist([NOWHERE], schema=MEASUREMENT_SCHEMA)),
            id="no address",
        ),
    ],
)
def test_invalid_measurement_bytes(measurements):
    row = decode_record(record_around(measurements))
    with pytest.raises(ValueError):
        _ = row.run
