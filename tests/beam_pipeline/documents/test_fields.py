"""Fields within records; ids of records, equal in every process and for every field order."""

import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.documents.fields import document_id, places_at, record_hash, text_at, texts_at

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
    [("q-7", "q-7"), (0, "0"), ("", ""), (False, "False"), (1.0, "1.0"), ([1], "[1]")],
)
def test_id_as_text(value: object, expected: str) -> None:
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
def test_hash_ignores_field_order(record: dict[str, Any]) -> None:
    assert record_hash(record) == record_hash(shuffled(record))
    assert record_hash(record) != record_hash({**record, "one more field": 1})
    assert 0 <= int(record_hash(record)) < 2**64


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**63) - 1, "\ud800", {"\udfff": 1}, [{"deep": [2**70]}], {1: "key"}],
)
def test_hash_of_values_beyond_message_pack(value: object) -> None:
    with pytest.raises((OverflowError, UnicodeEncodeError, TypeError)):
        msgspec.msgpack.encode({"value": value}, order="deterministic")
    data = json.dumps({"a": 1, "value": value}, sort_keys=True).encode()
    digest = hashlib.blake2b(data, digest_size=8).digest()
    assert record_hash({"value": value, "a": 1}) == str(int.from_bytes(digest, "big"))


RECORD: dict[str, Any] = {
    "text": "t",
    "doc.x": "dotted",
    "doc": {"x": "hidden", "question": "q", "none": None},
    "choices": ["a", ["b"], None, 3],
    "answers": [{"text": "one"}, {"text": ["two"]}, {"no": 1}, 7],
    "arguments": [["prompt", {"until": 1}]],
    "score": 0.5,
    "flag": True,
}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("text", ["t"]),
        ("doc.x", ["dotted"]),
        ("doc.question", ["q"]),
        ("doc.none", []),
        ("choices", ["a", "b", 3]),
        ("choices.0", ["a"]),
        ("choices.1.0", ["b"]),
        ("answers.text", ["one", "two"]),
        ("answers[].text", ["one", "two"]),
        ("answers[*].text", ["one", "two"]),
        ("answers[text=one|two].text", ["one"]),
        ("answers[text=one]", [{"text": "one"}]),
        ("choices[]", ["a", "b", 3]),
        ("", []),
    ],
)
def test_the_values_of_a_field(name: str, values: list[Any]) -> None:
    assert [value for _, value in places_at(RECORD, name)] == values


def test_the_text_of_a_field() -> None:
    assert text_at(RECORD, "choices") == "a\nb\n3"
    assert text_at(RECORD, "score") == "0.5"
    assert text_at(RECORD, "flag") == "true"
    assert text_at(RECORD, "doc.none") is None
    assert text_at(RECORD, "text,nothing,doc.question") == "t\nq"
    assert [path for path, _ in texts_at(RECORD, "answers.text,doc.x")] == [
        *(("answers", 0, "text"), ("answers", 1, "text", 0), ("doc.x",))
    ]
    for name in ("doc", "arguments"):
        with pytest.raises(TypeError):
            text_at(RECORD, name)
