"""Fields within records: objects, lists, numbers."""

from typing import Any

import pytest

from beam_pipeline.overlap.documents.nested_fields import text_at, values_at

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
        ("doc.question.more", []),
        ("choices", ["a", "b", 3]),
        ("choices.0", ["a"]),
        ("choices.1.0", ["b"]),
        ("choices.9", []),
        ("answers.text", ["one", "two"]),
        ("arguments.0.0", ["prompt"]),
        ("nothing", []),
        ("", []),
    ],
)
def test_the_values_of_a_field(name: str, values: list[Any]) -> None:
    assert list(values_at(RECORD, name)) == values


def test_the_text_of_a_field() -> None:
    assert text_at(RECORD, "choices") == "a\nb\n3"
    assert text_at(RECORD, "score") == "0.5"
    assert text_at(RECORD, "doc.none") is None
    for name in ("doc", "flag", "arguments"):
        with pytest.raises(TypeError):
            text_at(RECORD, name)
