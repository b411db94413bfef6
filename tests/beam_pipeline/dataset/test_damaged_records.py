"""Records with damage are read or refused, in one kind of error."""

import contextlib

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset import arrow_record, row_codec
from beam_pipeline.dataset.layout import ENCODINGS
from beam_pipeline.dataset.row_codec import (
    MEASUREMENT_SCHEMA,
    RECORD_SCHEMA,
    decode_record,
)
from beam_pipeline.dataset.row_encoder import encode_row
from tests.support.codec_rows import (
    IPV4,
    KEY,
    golden_run,
)
from tests.support.helpers import (
    ipc_stream,
    make_run,
    run_of_tuples,
)
from tests.support.properties import num_examples


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


@pytest.mark.parametrize("record", RECORDS, ids=["arrow", "arrow-wide", "compact", "compact-wide"])
def test_truncated_record(record):
    end_of_stream = 8
    for length in range(0, len(record) - end_of_stream, 5):
        with pytest.raises(ValueError):
            decode_record(record[:length])


@settings(max_examples=num_examples(100))
@given(st.binary(max_size=300))
@example(b"")
@example(b"PLc1")
@example(b"\xff\xff\xff\xff\x00\x00\x00\x00")
@example(b"\xff\xff\xff\xff\xff\xff\xff\x7f")
def test_random_bytes_are_not_a_record(data):
    with pytest.raises(ValueError):
        decode_record(data)


def record_around(measurements: bytes, n: int = 1) -> bytes:
    run = run_of_tuples([(0, IPV4, 1.0)] * n)
    return arrow_record.encode_record(row_codec.columns_of(measurements, run, KEY))


COMPACT = bytes(decode_record(encode_row(golden_run(), KEY, "compact")).measurements)


@pytest.mark.parametrize(
    "measurements",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"PLc", id="half a magic"),
        pytest.param(b"PLc1", id="magic alone"),
        pytest.param(COMPACT[:19], id="half a header"),
        pytest.param(COMPACT[:-1], id="cut"),
        pytest.param(COMPACT + b"\0", id="too long"),
        pytest.param(COMPACT[:4] + b"\xff" * 4 + COMPACT[8:], id="n"),
        pytest.param(COMPACT[:8] + b"\xff" * 4 + COMPACT[12:], id="number of IPv6 destinations"),
        pytest.param(COMPACT[:12] + b"\xff" * 8 + COMPACT[20:], id="past the end of time"),
        pytest.param(COMPACT[:44] + b"\x07" + COMPACT[45:], id="three bits for two IPv6"),
        pytest.param(b"not measurements at all", id="text"),
        pytest.param(ipc_stream(pa.RecordBatch.from_pydict({"rtt": [1.0]})), id="other columns"),
    ],
)
def test_invalid_measurement_bytes(measurements):
    row = decode_record(record_around(measurements))
    with pytest.raises(ValueError):
        _ = row.run


def test_invalid_destination():
    batch = pa.RecordBatch.from_pydict(
        {"event_time": [0], "dst_addr": ["nowhere"], "ip_version": [4], "rtt": [1.0]},
        schema=MEASUREMENT_SCHEMA,
    )
    row = decode_record(record_around(ipc_stream(batch)))
    with pytest.raises(ValueError, match="not an IP address"):
        _ = row.run


@pytest.mark.parametrize("column", ["event_time", "dst_addr", "rtt"])
def test_null_measurement(column):
    values = {"event_time": 0, "dst_addr": "1.1.1.1", "ip_version": 4, "rtt": 1.0}
    batch = pa.RecordBatch.from_pylist([{**values, column: None}], schema=MEASUREMENT_SCHEMA)
    row = decode_record(record_around(ipc_stream(batch)))
    with pytest.raises(ValueError):
        _ = row.run


@pytest.mark.parametrize("num_rows", [0, 2])
def test_record_with_several_rows(num_rows):
    with pa.ipc.open_stream(RECORDS[0]) as reader:
        batch = reader.read_next_batch()
    several = pa.RecordBatch.from_pylist(batch.to_pylist() * num_rows, schema=RECORD_SCHEMA)
    with pytest.raises(ValueError, match=f"{num_rows} rows"):
        decode_record(ipc_stream(several))


def test_record_without_source():
    with pa.ipc.open_stream(RECORDS[0]) as reader:
        values = reader.read_next_batch().to_pylist()
    values[0]["src_addr"] = None
    with pytest.raises(ValueError, match="nulls"):
        decode_record(ipc_stream(pa.RecordBatch.from_pylist(values, schema=RECORD_SCHEMA)))


def test_wrong_schema_and_several_batches():
    with pa.ipc.open_stream(RECORDS[0]) as reader:
        batch = reader.read_next_batch()
    with pytest.raises(ValueError, match="schema is"):
        decode_record(ipc_stream(batch.select(["src_id", "measurements"])))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    with pytest.raises(ValueError, match="2 batches"):
        decode_record(sink.getvalue().to_pybytes())
