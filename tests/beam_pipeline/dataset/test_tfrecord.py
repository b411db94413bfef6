"""TFRecord files and tf.train.Example: every byte beside Beam's, Grain's and protobuf's own."""

import io
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from apache_beam.io.tfrecordio import _TFRecordUtil
from grain.experimental import TFRecordIterDataset
from hypothesis import given, settings
from hypothesis import strategies as st
from maxtext.input_pipeline.protos.example_pb2 import Example

from beam_pipeline.dataset.arrow_record import RowColumns
from beam_pipeline.dataset.layout import RECORD_ENCODINGS, RowFormat
from beam_pipeline.dataset.row_codec import RowKey, decode_record, fit
from beam_pipeline.dataset.row_encoder import encode_row
from beam_pipeline.dataset.tf_example import decode_example, encode_example, example_bytes
from beam_pipeline.dataset.tfrecord import DamagedRecordError, TFRecordWriter, read_tfrecord
from beam_pipeline.errors import ProbelineError
from tests.support.batches import is_same
from tests.support.codec_rows import both_encodings
from tests.support.helpers import make_run, measurements_table, runs_strategy
from tests.support.job_runs import make_dataset
from tests.support.loader_helpers import batches_of, config_of, refusal_of
from tests.support.probe_rows_on_disk import read_records
from tests.support.properties import num_examples
from training.dataset import build_dataset
from training.rows.row_source import ProbeRowDataSource


def write_file(path: Path, records: Iterable[bytes]) -> Path:
    writer = TFRecordWriter(str(path))
    for record in records:
        writer.write(record)
    writer.close()
    return path


def beams_bytes(records: Iterable[bytes]) -> bytes:
    file = io.BytesIO()
    for record in records:
        _TFRecordUtil.write_record(file, record)
    return file.getvalue()


# --- the framing --------------------------------------------------------------------------------


@settings(max_examples=num_examples(60))
@given(records=st.lists(st.binary(max_size=300), max_size=6))
def test_file_bytes_equal_beam(records: list[bytes], tmp_path_factory) -> None:
    path = write_file(tmp_path_factory.mktemp("file") / "f.tfrecord", records)
    assert path.read_bytes() == beams_bytes(records)
    assert list(read_tfrecord(str(path))) == records


def test_golden_record_bytes(tmp_path: Path) -> None:
    """The bytes stand here, so that no change of code can change them."""
    path = write_file(tmp_path / "f", [b"ping"])
    assert path.read_bytes().hex() == "04000000000000004245520470696e67cc3a4ef0"


SOME = [b"alpha", b"", b"gamma!"]


def read_up_to_the_damage(path: Path) -> tuple[list[bytes | DamagedRecordError], bool]:
    """Returns what was yielded, and whether the file could be read to its end."""
    found: list[bytes | DamagedRecordError] = []
    try:
        for record in read_tfrecord(str(path)):
            found.append(record)
    except DamagedRecordError:
        return found, False
    return found, True


def test_flipped_bits_are_detected(tmp_path: Path) -> None:
    whole = beams_bytes(SOME)
    path = tmp_path / "f"
    ends = list(itertools.accumulate(16 + len(record) for record in SOME))
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        number = next(i for i, end in enumerate(ends) if bit // 8 < end)
        at = bit // 8 - (ends[number] - 16 - len(SOME[number]))
        found, is_to_end = read_up_to_the_damage(path)
        assert found[:number] == SOME[:number], bit
        if at < 12:  # the length or its checksum
            assert (len(found), is_to_end) == (number, False), bit
        else:  # the record or its checksum: those behind it can be read
            assert isinstance(found[number], DamagedRecordError), bit
            assert (found[number + 1 :], is_to_end) == (SOME[number + 1 :], True), bit


def test_truncated_files_are_detected(tmp_path: Path) -> None:
    whole = beams_bytes(SOME)
    ends = [0, *itertools.accumulate(16 + len(record) for record in SOME)]
    path = tmp_path / "f"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found, is_to_end = read_up_to_the_damage(path)
        num_whole = sum(end <= length for end in ends[1:])
        assert found == SOME[:num_whole], length
        assert is_to_end == (length in ends), length


def test_disk_full() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    writer = TFRecordWriter("/dev/full")
    with pytest.raises(
        ProbelineError, match=r"cannot write /dev/full: No space.*; free some space"
    ):
        writer.write(b"x" * (2 << 20))


# --- datasets -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = measurements_table(5000, seed=1, num_probes=12)
    pq.write_table(table, path := tmp_path_factory.mktemp("source") / "in.parquet")
    return path


@pytest.fixture(scope="module")
def tfrecord_dataset(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ("--train_ratio=0.6", "--output_format=tfrecord")
    return make_dataset(source, tmp_path_factory.mktemp("tfrecord") / "rows", *flags)


@pytest.fixture(scope="module")
def uncut(source: Path, folder: Path) -> dict[str, Path]:
    """A dataset of one row a probe, by kind of record: cut rows would end a little elsewhere."""
    flags = ("--measurement_encoding=compact", "--max_row_size_mb=1", "--train_ratio=0.6")
    return {
        kind: make_dataset(source, folder / kind, *flags, f"--record_encoding={kind}")
        for kind in RECORD_ENCODINGS
    }


def shards_of(dataset: Path) -> dict[str, list[bytes]]:
    """Returns the records of each shard as the format's own readers give them."""
    shards = {}
    for path in sorted(dataset.glob("*/*_shard_*")):
        name = path.relative_to(dataset).with_suffix("").as_posix()
        is_tfrecord = path.suffix == ".tfrecord"
        shards[name] = [*TFRecordIterDataset(str(path))] if is_tfrecord else read_records(path)
    return shards


@pytest.mark.slow
def test_formats_have_equal_records_and_shards(
    source: Path, tfrecord_dataset: Path, tmp_path: Path
) -> None:
    array, tf = make_dataset(source, tmp_path / "rows", "--train_ratio=0.6"), tfrecord_dataset
    assert shards_of(tf) == shards_of(array)
    assert len(shards_of(tf)) > 3
    assert {path.suffix for path in tf.glob("*/*_shard_*")} == {".tfrecord"}
    for split in ("train", "test"):
        index = pq.read_table(tf / split / "rows.parquet")
        assert index.equals(pq.read_table(array / split / "rows.parquet"))


# --- training -----------------------------------------------------------------------------------


def test_training_rejects_tfrecord(tfrecord_dataset: Path) -> None:
    cure = ("training reads arrayrecord", "rebuild the dataset with --output_format=arrayrecord")
    for files in (tfrecord_dataset, tfrecord_dataset / "train/*.tfrecord"):
        refusal_of(lambda: ProbeRowDataSource(str(files)), *cure)  # noqa: B023
    refusal_of(lambda: build_dataset(config_of(tfrecord_dataset)), *cure)


def test_training_batches_equal_for_tf_example(uncut: dict[str, Path], tmp_path: Path) -> None:
    arrow, example = uncut["arrow_ipc"], uncut["tf_example"]
    expected = batches_of(arrow, 6)
    assert is_same(batches_of(example, 6), expected)
    assert is_same(batches_of(example, 6, cache_dir=str(tmp_path)), expected)


# --- the Example --------------------------------------------------------------------------------


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


def changed(name: str, change: Any) -> bytes:
    """Returns ROW as protobuf writes it once a feature was changed."""
    example = to_protobuf(ROW)
    change(example.features.feature[name])
    return example.SerializeToString(deterministic=True)


ENTRIES = entries_of(encode_example(ROW))
BAD_EXAMPLES = {
    "nothing": (b"\x0a\x00", "without first_timestamp, last_timestamp, measurements"),
    "one twice": (joined([*ENTRIES, ENTRIES[0]]), "repeated feature 'first_timestamp'"),
    "one more": (changed("rtt", lambda f: f.float_list.value.append(1)), "repeated feature 'rtt'"),
    "two numbers": (changed("row_index", lambda f: f.int64_list.value.append(1)), "more than one"),
    "two floats": (
        changed("time_span_seconds", lambda f: f.float_list.value.append(1)),
        "takes 8 bytes",
    ),
    "a long varint": (b"\x0a" + b"\xff" * 11, "damaged at a number"),
    "another kind": (changed("src_id", lambda f: f.float_list.value.append(1)), "[2] where 3"),
    "no text": (encode_example(ROW).replace(b"192.0.2.1", b"\xff92.0.2.1"), "is not UTF-8"),
    "a large index": (encode_example(ROW._replace(row_index=2**31)), "over 32 bits"),
    "a varint over 64 bits": (b"\x0a" + b"\xff" * 9 + b"\x02", "damaged at a number"),
}


@pytest.mark.parametrize("name", BAD_EXAMPLES)
def test_invalid_example(name: str) -> None:
    record, complaint = BAD_EXAMPLES[name]
    with pytest.raises(ValueError) as refusal:
        decode_record(record)
    assert complaint in str(refusal.value)


def test_damaged_examples_raise_only_value_errors() -> None:
    record = encode_example(ROW)
    for length in range(1, len(record)):
        with pytest.raises(ValueError):
            decode_record(record[:length])
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


@both_encodings
def test_record_encodings_hold_the_same_row(encoding: Any) -> None:
    run, key = make_run(40, seed=1, wide=True), RowKey("2001:db8::7", 300)
    arrow, example = (
        decode_record(encode_row(run, key, encoding, kind)) for kind in RECORD_ENCODINGS
    )
    assert (arrow.record_encoding, example.record_encoding) == RECORD_ENCODINGS
    assert bytes(example.measurements) == bytes(arrow.measurements)
    assert example.encoding == encoding and example.to_arrow().equals(arrow.to_arrow())
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
    sizes = [len(encode_row(run[: n + 1], key, encoding, "tf_example")) for n in range(len(run))]
    limit = int(sizes[0] + share * (sizes[-1] - sizes[0]))
    count, is_full = fit(run, key, RowFormat(encoding, limit, "tf_example"))
    assert sizes[count - 1] <= limit
    assert is_full == (count < len(run))
    if is_full:
        assert sizes[count] > limit
