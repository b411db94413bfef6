"""Texts that are cut out of many records at once, beside Python's own `json`."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.documents import json as document_json
from beam_pipeline.documents.fields import Fields
from beam_pipeline.documents.json import read_batch
from beam_pipeline.documents.json_records import Records, split_records
from tests.support.properties import num_examples

PIECES = [*'a"\\/\b\f\n\r\t\x00\x1f\x7f\x85é\u2028\uffff日\U0001f600', "plain words " * 9, "x" * 63]
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.text()), max_size=12).map("".join)
texts = texts.filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))
fields = st.dictionaries(texts.map(lambda name: f"{name}-"), st.one_of(texts, st.integers(0, 9)))


def join_records(records: list[bytes]) -> Records:
    """Returns records, which are not blank, in one buffer."""
    (joined,) = split_records([b"\n".join([*records, b"\n"])], False, 1 << 20)
    return joined


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    text = {"text": draw(texts)} if draw(st.integers(0, 4)) else draw(st.sampled_from([{}, NULL]))
    return {**draw(fields), **text, **draw(fields)}


NULL = {"text": None}


@given(st.lists(documents(), max_size=8), st.booleans(), st.sampled_from([":", ": ", ":   "]))
@settings(max_examples=num_examples(300))
def test_plain_records_are_read_together(
    found: list[dict[str, Any]], ensure_ascii: bool, colon: str
) -> None:
    lines = [
        json.dumps(each, ensure_ascii=ensure_ascii, separators=(", ", colon)) for each in found
    ]
    records = join_records([line.encode() for line in lines])
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(document_json, "_read_one_by_one")
        batch = read_batch("x", records, 5, Fields())
    rows = [row for row, each in enumerate(found, 5) if each.get("text") is not None]
    assert batch.rows.tolist() == rows
    got = [batch.text_bytes(at).decode() for at in range(len(rows))]
    assert got == [found[row - 5]["text"] for row in rows]
    assert (batch.num_rows, batch.num_without_text) == (len(found), len(found) - len(rows))


GOOD = b'{"text": "good", "id": 1}'


@pytest.mark.parametrize(
    "wrong",
    [
        [b'{"text": "a"}, {"text": "b"}'],
        [b'{"text": "a", "x": [1', b'2], "text": "b"}'],
        [b'{"text": "a", "x": "', b'", "text": "b"}'],
        [b"]", b"["],
        [b'{"text": "a\\'],
        [b'{"text": "\\ud83d'],
        [b'{"text": "', b'"}'],
        [b'{"text":', b'"a"}'],
    ],
)
def test_records_that_are_json_only_together_are_dead_letters(wrong: list[bytes]) -> None:
    batch = read_batch("x", join_records([GOOD, *wrong, GOOD]), 0, Fields())
    assert batch.rows.tolist() == [0, 1 + len(wrong)]
    assert batch.utf8.tobytes() == b"goodgood"
    assert [letter.row for letter in batch.letters] == list(range(1, 1 + len(wrong)))
    assert {letter.reason for letter in batch.letters} == {"json_invalid"}


def test_a_field_may_have_any_name() -> None:
    for name in ['a"b\\c', "é", "x" * 200, "\ud800"]:
        record = json.dumps({"text": "no", name: "yes"}, ensure_ascii=name == "\ud800").encode()
        batch = read_batch("x", join_records([record]), 0, Fields(text=name))
        assert batch.utf8.tobytes() == b"yes"
