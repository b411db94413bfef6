"""A row as a tf.train.Example: every byte beside protobuf's own, and rows cut to the last byte."""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.arrow_record import RowColumns
from beam_pipeline.dataset.layout import RECORD_ENCODINGS, RowFormat
from beam_pipeline.dataset.row_codec import RowKey, decode_record, fit
from beam_pipeline.dataset.row_encoder import encode_row
from beam_pipeline.dataset.tf_example import decode_example, encode_example, example_bytes
from tests.support.codec_rows import both_encodings
from tests.support.helpers import make_run, records_as_tuples, runs_strategy
from tests.support.properties import num_examples

# --- the Example --------------------------------------------------------------------------------


def example_class() -> Any:
    """Returns protobuf's own class of tf.train.Example, made of its published schema."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", package="tensorflow", syntax="proto3")
    for name, kind in (("Bytes", field.TYPE_BYTES), ("Float", field.TYPE_FLOAT),
                       ("Int64", field.TYPE_INT64)):  # fmt: skip
        message = file.message_type.add(name=f"{name}List")
        value = message.field.add(name="value", number=1, label=field.LABEL_REPEATED, type=kind)
        value.options.packed = name != "Bytes"
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("Bytes", "Float", "Int64"), 1):
        feature.field.add(
            name=f"{name.lower()}_list", number=number, label=field.LABEL_OPTIONAL, oneof_index=0,
            type=field.TYPE_MESSAGE, type_name=f".tensorflow.{name}List",
        )  # fmt: skip
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
    entry.field.add(
        name="value", number=2, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE,
        type_name=".tensorflow.Feature",
    )  # fmt: skip
    features.field.add(
        name="feature", number=1, label=field.LABEL_REPEATED, type=field.TYPE_MESSAGE,
        type_name=".tensorflow.Features.FeatureEntry",
    )  # fmt: skip
    example = file.message_type.add(name="Example")
    example.field.add(
        name="features", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE,
        type_name=".tensorflow.Features",
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


Example = example_class()


def to_protobuf(row: RowColumns) -> Any:
    example = Example()
    for name, value in row._asdict().items():
        feature = example.features.feature[name]
        if isinstance(value, float):
            feature.float_list.value.append(value)
        elif isinstance(value, int):
            feature.int64_list.value.append(value)
        else:
            feature.bytes_list.value.append(value.encode() if isinstance(value, str) else value)
    return example


_int32, _int64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_floats = st.floats(width=32, allow_nan=False)
_contents = st.one_of(
    st.binary(max_size=300), st.sampled_from([127, 128, 16_383, 16_384]).map(bytes)
)
any_row = st.builds(
    RowColumns, _int64, _contents, _int32, _floats, _int64, _int64, st.text(max_size=50), _int32
)
ROW = RowColumns(77, b"PLc1...", 3, 1.5, 10**15, 10**15 + 1_500_000, "192.0.2.1", 2)


@settings(max_examples=num_examples(300))
@given(row=any_row)
def test_example_bytes_equal_protobuf(row: RowColumns) -> None:
    record = encode_example(row)
    assert record == to_protobuf(row).SerializeToString(deterministic=True)
    assert Example.FromString(record) == to_protobuf(row)
    assert decode_example(record) == row
    assert example_bytes(row, len(row.measurements)) == len(record)


def entries_of(record: bytes) -> list[bytes]:
    """Returns each feature as it stands in the record; all are shorter than 128 bytes."""
    features = record[3 if record[1] > 127 else 2 :]
    entries = []
    while features:
        size = 2 + features[1]
        entries.append(features[:size])
        features = features[size:]
    return entries


def joined(entries: Iterable[bytes]) -> bytes:
    features = b"".join(entries)
    assert 127 < len(features) < 2**14
    return bytes([0x0A, len(features) & 127 | 128, len(features) >> 7]) + features


def test_features_in_any_order() -> None:
    entries = entries_of(encode_example(ROW))
    assert len(entries) == 8 and joined(entries) == encode_example(ROW)
    for order in itertools.islice(itertools.permutations(entries), 0, 40_320, 997):
        assert decode_example(joined(order)) == ROW


def changed(name: str, change: Any) -> bytes:
    """Returns ROW as protobuf writes it once a feature was changed."""
    example = to_protobuf(ROW)
    change(example.features.feature[name])
    return example.SerializeToString(deterministic=True)


ENTRIES = entries_of(encode_example(ROW))
BAD_EXAMPLES = {
    "nothing": (b"\x0a\x00", "without first_timestamp, last_timestamp, measurements"),
    "one missing": (joined(ENTRIES[1:]), "without first_timestamp"),
    "one twice": (joined([*ENTRIES, ENTRIES[0]]), "repeated feature 'first_timestamp'"),
    "one more": (changed("rtt", lambda f: f.float_list.value.append(1)), "repeated feature 'rtt'"),
    "two numbers": (changed("row_index", lambda f: f.int64_list.value.append(1)), "more than one"),
    "two floats": (
        changed("time_span_seconds", lambda f: f.float_list.value.append(1)),
        "takes 8 bytes",
    ),
    "another kind": (changed("src_id", lambda f: f.float_list.value.append(1)), "[2] where 3"),
    "no kind": (changed("src_addr", lambda f: f.Clear()), "where 1 belongs"),
    "no text": (encode_example(ROW).replace(b"192.0.2.1", b"\xff92.0.2.1"), "is not UTF-8"),
    "a large index": (encode_example(ROW._replace(row_index=2**31)), "over 32 bits"),
    "a name of no text": (encode_example(ROW).replace(b"src_id", b"\xff\xff\xff_id"), "unknown or"),
    "bytes behind it": (encode_example(ROW) + b"\x0a\x00", "[1, 1] where 1 belongs"),
    "a long varint": (b"\x0a" + b"\xff" * 11, "damaged at a number"),
    "a varint over 64 bits": (b"\x0a" + b"\xff" * 9 + b"\x02", "damaged at a number"),
}


@pytest.mark.parametrize("name", BAD_EXAMPLES)
def test_invalid_example(name: str) -> None:
    record, complaint = BAD_EXAMPLES[name]
    with pytest.raises(ValueError) as refusal:
        decode_record(record)
    assert complaint in str(refusal.value)


def test_truncated_example() -> None:
    record = encode_example(ROW)
    for length in range(1, len(record)):
        with pytest.raises(ValueError):
            decode_record(record[:length])


def test_damaged_examples_raise_only_value_errors() -> None:
    record = encode_example(ROW)
    num_refused = 0
    for at, value in itertools.product(range(len(record)), (0, 1, 0x0A, 0x7F, 0x80, 0xFF)):
        damaged = record[:at] + bytes([value]) + record[at + 1 :]
        try:
            found = decode_example(damaged)
        except ValueError:
            num_refused += 1
        else:
            assert (found == ROW) == (damaged == record)
    assert num_refused > len(record)


# --- rows as Examples ---------------------------------------------------------------------------


def make_example(run: np.ndarray, key: RowKey, encoding: Any) -> bytes:
    return encode_row(run, key, encoding, "tf_example")


@both_encodings
@pytest.mark.parametrize("wide", [False, True])
def test_record_encodings_hold_the_same_row(encoding: Any, wide: bool) -> None:
    run, key = make_run(40, seed=1, wide=wide), RowKey("2001:db8::7", 300)
    of_kind = {
        kind: decode_record(encode_row(run, key, encoding, kind)) for kind in RECORD_ENCODINGS
    }
    arrow, example = of_kind["arrow_ipc"], of_kind["tf_example"]
    assert [row.record_encoding for row in of_kind.values()] == list(RECORD_ENCODINGS)
    assert bytes(example.measurements) == bytes(arrow.measurements)
    assert example.encoding == encoding and example.to_arrow().equals(arrow.to_arrow())
    assert records_as_tuples(example.run) == records_as_tuples(arrow.run)
    for name in ("src_id", "src_addr", "row_index", "n_measurements", "first_timestamp_us",
                 "last_timestamp_us"):  # fmt: skip
        assert getattr(example, name) == getattr(arrow, name), name
    # The one loss, which the timestamps make good.
    assert example.time_span_seconds == np.float32(arrow.time_span_seconds)
    span_us = example.last_timestamp_us - example.first_timestamp_us
    assert span_us / 1e6 == arrow.time_span_seconds


@both_encodings
@settings(max_examples=num_examples(80))
@given(
    run=runs_strategy(max_size=60),
    share=st.floats(0, 1),
    row_index=st.sampled_from([0, 127, 128, 2**31 - 1]),
)
def test_fit_is_exact_for_examples(
    encoding: Any, run: np.ndarray, share: float, row_index: int
) -> None:
    run = run.copy()
    run["event_time"] %= 2**31  # or compact rows would end by their span
    run.sort(order=list(run.dtype.names or ()))
    key = RowKey("192.0.2.1", row_index)
    sizes = [len(make_example(run[: n + 1], key, encoding)) for n in range(len(run))]
    limit = int(sizes[0] + share * (sizes[-1] - sizes[0]))
    count, is_full = fit(run, key, RowFormat(encoding, limit, "tf_example"))
    assert sizes[count - 1] <= limit
    assert is_full == (count < len(run))
    if is_full:
        assert sizes[count] > limit
