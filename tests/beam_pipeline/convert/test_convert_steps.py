"""The steps of the conversion, each without a runner: units, records, blocks, shards."""

import contextlib
import errno
import json
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from maxtext.input_pipeline.protos.example_pb2 import Example

from beam_pipeline.convert import records as record_module
from beam_pipeline.convert.options import RecordOptions
from beam_pipeline.convert.records import checker, example_of_line, examples_of_rows, read_batches
from beam_pipeline.dataset.tf_example import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    Feature,
    encode_features,
)
from beam_pipeline.documents.files import WORK_UNIT_BYTES, Format, cut_into_work_units, inspect
from beam_pipeline.documents.json import BadRecordError
from beam_pipeline.errors import ProbelineError
from beam_pipeline.shards import staging
from beam_pipeline.shards.claim_checks import ClaimReader
from beam_pipeline.shards.staging import BlockWriter, StagedBlock, plan_shards, read_part
from beam_pipeline.storage.matching import match
from tests.support.conversions import write_tfrecord
from tests.support.helpers import fail_reads


def features_of(record: bytes | None) -> dict[str, list[Any]]:
    """Returns the features of an Example as protobuf reads it."""
    assert record is not None
    example = Example.FromString(record)
    assert len(example.SerializeToString()) == len(record)  # nothing but these features
    return {
        name: list(getattr(feature, feature.WhichOneof("kind")).value)
        for name, feature in example.features.feature.items()
    }


def read_all(
    path: Path, unit_bytes: int = WORK_UNIT_BYTES, **options: Any
) -> tuple[list[bytes], list[tuple[int, str]], int]:
    """Returns the records of a file, row and reason of dead letters, and the records read."""
    (file,) = match(str(path))
    given = RecordOptions(**options)
    records: list[bytes] = []
    letters: list[tuple[int, str]] = []
    num_read = 0
    for unit in cut_into_work_units(
        inspect(file, cast(Format, given.input_format), checker(given)),
        unit_bytes,
        by_line=True,
    ):
        for batch in read_batches(unit, given):
            records += batch.records
            letters += [(letter.row, letter.reason) for letter in batch.letters]
            num_read += batch.num_read
    return records, letters, num_read


int64 = st.integers(-(2**63), 2**63 - 1)
float32 = st.floats(width=32, allow_nan=False)
any_features = st.dictionaries(
    st.text(max_size=5),
    st.one_of(
        st.tuples(st.just(BYTES_LIST), st.lists(st.binary(max_size=300))),
        st.tuples(st.just(INT64_LIST), st.lists(int64, max_size=30)),
        st.tuples(st.just(FLOAT_LIST), st.lists(float32)),
    ),
)


@pytest.mark.property
@given(any_features)
def test_protobuf_reads_any_features(features: dict[str, tuple[int, list[Any]]]) -> None:
    record = encode_features([Feature(name, *feature) for name, feature in features.items()])
    assert features_of(record) == {name: values for name, (_, values) in features.items()}


def test_json_object_as_example() -> None:
    line = '{"text": "é", "id": 7, "ok": true, "x": 1.5, "n": null, "ids": [1, 2], "m": [1, 2.5]}'
    everything = {"text": ["é".encode()], "id": [7], "ok": [1], "x": [1.5]} | {
        "ids": [1, 2],
        "m": [1.0, 2.5],
    }
    assert features_of(example_of_line(line.encode())) == everything
    assert features_of(example_of_line(line.encode(), ["id", "n"])) == {"id": [7]}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": {"b": 1}}', "field_unsuited"),
        (b'{"a": [1, "x"]}', "field_unsuited"),
        (b'{"a": [null]}', "field_unsuited"),
        (b'{"a": 1e300}', "number_out_of_range"),
        (b'{"a": ' + b"1" * 400 + b".5}", "number_out_of_range"),
        (b'{"a": "\\ud800"}', "utf8_invalid"),
        (b'{"b": 1}', "field_missing"),
        (b"[1]", "json_not_an_object"),
        (b'{"a": NaN}', "json_invalid"),
        (b'{"a": 1} {', "json_invalid"),
        (b"[" * 200_000, "json_invalid"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_line_that_an_example_cannot_hold(line: bytes, reason: str) -> None:
    with pytest.raises(BadRecordError, match=f"^{reason}$"):
        example_of_line(line, ["a"] if reason == "field_missing" else [])


def test_rows_of_every_type_as_examples(tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": pa.array(["é", None, "z", ""]),
            "word": pa.array(["a", "b", None, "a"]).dictionary_encode(),
            "small": pa.array([1, None, -3, 4], pa.int8()),
            "flag": pa.array([True, False, None, True]),
            "half": pa.array(np.array([1.5, 2, 3, 4], np.float16)),
            "double": pa.array([1.5, 1e300, math.inf, None]),
            "ids": pa.array([[1, 2], [], None, list(range(20))], pa.list_(pa.uint32())),
            "pair": pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float32(), 2)),
            "words": pa.array([["x"], None, ["", "y"], []], pa.large_list(pa.string())),
        }
    )
    (batch,) = table.to_batches()
    rows = examples_of_rows(batch)
    assert rows[1] is None  # its double is no float32
    pq.write_table(table, tmp_path / "x")
    read = read_all(tmp_path / "x", input_format="parquet", record="tf_example")
    assert read == ([rows[0], *rows[2:]], [(1, "value_unsuited")], 4)
    assert features_of(rows[0]) == {
        "text": ["é".encode()],
        "word": [b"a"],
        "small": [1],
        "flag": [1],
        "half": [1.5],
        "double": [1.5],
        "ids": [1, 2],
        "pair": [1.0, 2.0],
        "words": [b"x"],
    }
    assert features_of(rows[2]) == {
        "text": [b"z"],
        "small": [-3],
        "half": [3.0],
        "double": [math.inf],
        "pair": [1.0, 2.0],
        "words": [b"", b"y"],
    }
    assert features_of(rows[3])["ids"] == list(range(20))
    assert features_of(rows[3])["words"] == []
    assert [examples_of_rows(batch.slice(at, 1))[0] for at in range(4)] == rows
    holed = pa.record_batch({"ids": pa.array([[1], [2, None], [3], None])})
    assert [row is None for row in examples_of_rows(holed)] == [False, True, False, False]
    large = pa.record_batch({"ids": pa.array([[2**62 + 1], [None]], pa.list_(pa.int64()))})
    assert features_of(examples_of_rows(large)[0]) == {"ids": [2**62 + 1]}


@pytest.mark.property
@given(
    lines=st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=60),
    unit_bytes=st.integers(1, 200),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    end=st.sampled_from([b"", b"\n"]),
)
def test_every_line_is_read_once(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[bytes],
    unit_bytes: int,
    mark: bytes,
    end: bytes,
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x"
    text = b"\n".join(lines) + end
    if text.startswith((b"\xef\xbb\xbf", b"\x1f\x8b", b"BZh", b"\x28\xb5")):
        return
    path.write_bytes(mark + text)
    records, letters, num_read = read_all(path, unit_bytes, input_format="jsonl")
    expected = [line for line in text.split(b"\n") if line.strip()]
    assert (records, letters, num_read) == (expected, [], len(expected))


@pytest.mark.parametrize("kind", ["jsonl", "tfrecord", "parquet"])
def test_records_over_the_limit_are_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(record_module, "MAX_RECORD_BYTES", 10)
    values, path = [b"a" * 10, b"b" * 11, b"c"], tmp_path / "x"
    if kind == "parquet":
        pq.write_table(pa.table({"v": pa.array(values, pa.binary())}), path)
    elif kind == "tfrecord":
        write_tfrecord(path, values)
    else:
        path.write_bytes(b"\n".join(values))
    records, letters, num_read = read_all(path, input_format=kind, record="bytes")
    reason = "record_damaged" if kind == "tfrecord" else "record_too_long"
    assert (records, letters, num_read) == ([values[0], values[2]], [(1, reason)], 3)


@pytest.mark.property
@given(
    st.lists(st.lists(st.binary(max_size=30), max_size=20), max_size=8),
    st.integers(0, 12),
    st.integers(1, 100),
)
@settings(max_examples=25)
def test_shards_hold_every_record_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[bytes]],
    num_shards: int,
    shard_bytes: int,
) -> None:
    folder = str(tmp_path_factory.mktemp("blocks"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "BLOCK_BYTES", 100)
        patch.setattr(staging, "MAX_BLOCK_RECORDS", 15)
        patch.setattr(staging, "_BATCH_BYTES", 40)
        patch.setattr(staging, "_FRAMING_BYTES", 1)
        staged: list[StagedBlock] = []
        for half in (batches[:4], batches[4:]):
            writer = BlockWriter(folder, "unit")
            for batch in half:
                writer.write(batch)
            writer.close()
            staged += writer.blocks
        plans = plan_shards(staged, num_shards, shard_bytes)
        with contextlib.closing(ClaimReader()) as reader:
            shards = [
                [each for part in plan.parts for batch in read_part(part, reader) for each in batch]
                for plan in plans
            ]
    records = [record for batch in batches for record in batch]
    assert [record for shard in shards for record in shard] == records
    sizes = list(map(len, shards))
    assert sizes == [plan.num_records for plan in plans]
    assert max(sizes) - min(sizes) <= 1
    assert [plan.first_record for plan in plans] == np.cumsum([0, *sizes[:-1]]).tolist()
    num_bytes = sum(map(len, records))
    assert len(plans) == (num_shards or max(1, math.ceil(num_bytes / shard_bytes)))


def test_json_beyond_orjson(tmp_path: Path) -> None:
    lines = [b'{"a": "\\ud800"}', b"1" * 40, json.dumps("x").encode(), b"{", b"Infinity"]
    (tmp_path / "x").write_bytes(b"\n".join(lines))
    records, letters, _ = read_all(tmp_path / "x", input_format="jsonl", record="json")
    assert records == lines[:3]
    assert letters == [(3, "json_invalid"), (4, "json_invalid")]


@pytest.mark.parametrize("suffix", ["jsonl", "tfrecord"])
def test_failed_storage_is_not_a_bad_file(suffix: str, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / f"in.{suffix}"
    if suffix == "tfrecord":
        write_tfrecord(path, [b"record"] * 200)
    else:
        path.write_bytes(b'{"text": "a"}\n' * 200)
    for num_reads in range(3):
        with monkeypatch.context() as patch:
            fail_reads(patch, errno.ESTALE, [num_reads])
            with pytest.raises(ProbelineError, match=r"^cannot read .*in\..*Stale"):
                read_all(path, on_bad_file="dead_letter")
