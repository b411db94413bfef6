"""Ids of records, alike in every process and for every order of the fields; names of sets."""

import datetime
import decimal
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.errors import UsageError
from beam_pipeline.overlap.documents.record_ids import (
    EvaluationSource,
    dataset_name,
    document_id,
    parse_evaluation_source,
    record_hash,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
records = st.dictionaries(st.text(max_size=5), values, max_size=5)


def shuffled(value: Any) -> Any:
    """The same value with the keys of all its objects the other way round."""
    if isinstance(value, dict):
        return {key: shuffled(inner) for key, inner in reversed(value.items())}
    return [shuffled(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("value", "expected"),
    [("q-7", "q-7"), (7, "7"), (0, "0"), ("", ""), (False, "False"), (1.0, "1.0"), ([1], "[1]")],
)
def test_an_id_is_taken_as_text(value: object, expected: str) -> None:
    assert document_id({"id": value, "text": "a"}) == expected
    assert document_id({"key": value, "id": "other"}, "key") == expected


def test_a_record_without_an_id_is_hashed_as_sorted_message_pack() -> None:
    record = {"text": "a", "answers": [1, 2.5, None, True], "id": None}
    # {"answers": [1, 2.5, nil, true], "id": nil, "text": "a"}, put together by hand.
    packed = b"\x83\xa7answers\x94\x01\xcb@\x04\0\0\0\0\0\0\xc0\xc3\xa2id\xc0\xa4text\xa1a"
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    assert document_id(record) == str(int.from_bytes(digest, "big"))
    del record["id"]
    assert document_id(record) != str(int.from_bytes(digest, "big"))


@given(records)
def test_the_order_of_the_fields_does_not_count(record: dict[str, Any]) -> None:
    assert record_hash(record) == record_hash(shuffled(record))
    assert record_hash(record) != record_hash({**record, "one more field": 1})
    assert 0 <= int(record_hash(record)) < 2**64


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**63) - 1, 10**400, "\ud800", {"\udfff": 1}, [{"deep": [2**70]}], {1: "key"}],
)
def test_what_message_pack_cannot_hold_is_hashed_as_json(value: object) -> None:
    with pytest.raises((OverflowError, UnicodeEncodeError, TypeError)):
        msgspec.msgpack.encode({"value": value}, order="deterministic")
    data = json.dumps({"a": 1, "value": value}, sort_keys=True).encode()
    digest = hashlib.blake2b(data, digest_size=8).digest()
    assert record_hash({"value": value, "a": 1}) == str(int.from_bytes(digest, "big"))


def test_integers_that_message_pack_just_holds_are_hashed_there() -> None:
    for value, packed in [
        (2**64 - 1, b"\x81\xa1v\xcf" + b"\xff" * 8),
        (-(2**63), b"\x81\xa1v\xd3\x80" + b"\0" * 7),
    ]:
        digest = hashlib.blake2b(packed, digest_size=8).digest()
        assert record_hash({"v": value}) == str(int.from_bytes(digest, "big"))


def test_values_that_only_parquet_has_tell_records_apart() -> None:
    found = {
        record_hash({"value": value})
        for value in (
            b"a",
            decimal.Decimal("1.50"),
            decimal.Decimal("1.5"),
            datetime.date(2020, 1, 1),
            datetime.datetime(2020, 1, 1),
            datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
            datetime.time(1, 2),
            datetime.timedelta(seconds=90),
            [("key", 2**70), ("bytes", b"a")],
        )
    }
    assert len(found) == 9


def test_another_process_gives_the_same_id() -> None:
    record = {"question": "Größe?", "choices": [{"b": 1, "a": "\ud800"}], "set": "x"}
    code = (
        f"from beam_pipeline.overlap.documents.record_ids import *; print(document_id({record!a}))"
    )
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert result.stdout.strip() == document_id(record), result.stderr


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("gs://bucket/evals/mmlu-dolma-1a2b3c", "mmlu"),
        ("gs://bucket/evals/mmlu-dolma-1a2b3c/", "mmlu"),
        ("gs://bucket/evals/mmlu-dolma-1a2b3c/part-0.jsonl.gz", "mmlu"),
        ("gs://bucket/evals/mmlu-dolma-1a2b3c/*.jsonl", "mmlu"),
        ("gs://bucket/evals/mmlu-dolma-1a2b3c/**/x[0-9]/*.json", "mmlu"),
        ("gs://bucket/evals/gsm8k*/main.parquet", "evals"),
        ("gs://bucket", "bucket"),
        ("/evals/gsm8k-main-abcdef", "gsm8k-main"),
        ("/evals/gsm8k-main-abcdefa", "gsm8k-main-abcdefa"),
        ("/evals/gsm8k-abcdeg", "gsm8k-abcdeg"),
        ("/evals/gsm8k-dolma-v2", "gsm8k-dolma-v2"),
        ("/evals/gsm8k-1a2b3c-4d5e6f", "gsm8k-1a2b3c"),
        ("/evals/gsm8k-1a2b3c-dolma", "gsm8k-1a2b3c"),
        ("/evals/-dolma", "-dolma"),
        ("/evals/-1a2b3c", "-1a2b3c"),
        ("/evals/gsm8k.test", "gsm8k.test"),
        ("/evals/gsm8k/test.jsonl.zst", "gsm8k"),
    ],
)
def test_a_set_is_named_by_its_folder(path: str, name: str) -> None:
    assert dataset_name(path) == name


def test_relative_paths_are_named_by_the_folder_they_lie_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "arc-dolma-0a1b2c").mkdir()
    monkeypatch.chdir(tmp_path / "arc-dolma-0a1b2c")
    assert dataset_name("test.jsonl") == dataset_name(".") == dataset_name("*.json") == "arc"
    assert dataset_name("sub/../x/") == "x"


def test_a_folder_that_exists_is_no_glob(tmp_path: Path) -> None:
    assert dataset_name(f"{tmp_path}/arc[1]") == tmp_path.name
    (tmp_path / "arc[1]-dolma").mkdir()
    assert dataset_name(f"{tmp_path}/arc[1]-dolma") == "arc[1]"


@pytest.mark.parametrize("path", ["/", "/test.jsonl", "/*.jsonl"])
def test_a_path_in_no_folder_needs_a_name(path: str) -> None:
    with pytest.raises(UsageError, match=r"no folder .*NAME=/"):
        dataset_name(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mmlu=gs://b/x", EvaluationSource("mmlu", "gs://b/x")),
        ("my set=/e/a=b.jsonl", EvaluationSource("my set", "/e/a=b.jsonl")),
        ("/e/lang=en/x.jsonl", EvaluationSource("lang=en", "/e/lang=en/x.jsonl")),
        ("gs://b/lang=en", EvaluationSource("lang=en", "gs://b/lang=en")),
        ("/e/mmlu-dolma-1a2b3c", EvaluationSource("mmlu", "/e/mmlu-dolma-1a2b3c")),
    ],
)
def test_a_name_may_be_given(text: str, expected: EvaluationSource) -> None:
    assert parse_evaluation_source(text) == expected


@pytest.mark.parametrize(("text", "problem"), [("=/e/x", "no name"), ("mmlu=", "no path")])
def test_half_a_source_is_a_usage_error(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_evaluation_source(text)
    with pytest.raises(UsageError, match="no path"):
        parse_evaluation_source("")
