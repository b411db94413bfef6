"""Samples of lm-evaluation-harness: questions without examples, and answers as texts."""

from typing import Any

import pytest

from beam_pipeline.documents.lm_eval import with_texts

DOC = {"question": "What is the capital?", "choices": ["Ngerulmud", "Koror"], "subject": "of"}
EXAMPLES = "About the capital of states.\n\nQ: And of what?\nA: Rome\n\n"


def sample(prompt: str, target: Any, continuations: list[Any], doc: Any = DOC) -> dict[str, Any]:
    requests = {
        f"gen_args_{number}": {"arg_0": prompt, "arg_1": each}
        for number, each in enumerate(continuations)
    }
    return {"doc": doc, "target": target, "arguments": requests, "doc_hash": "h"}


@pytest.mark.parametrize(
    ("target", "continuations", "expected"),
    [
        (1, [" Ngerulmud", " Koror", " Palau"], "Koror"),
        (-1, [" A", " B"], None),
        (18, [{"until": ["\n"]}], 18),
        (True, [" yes", " no"], True),
    ],
)
def test_the_number_of_a_choice_is_its_text(
    target: Any, continuations: list[Any], expected: Any
) -> None:
    assert with_texts(sample("Q", target, continuations))["target"] == expected


@pytest.mark.parametrize("examples", ["", EXAMPLES, EXAMPLES * 3])
def test_a_question_is_without_examples(examples: str) -> None:
    asked = "Q: What is the capital?\n\nOne of two.\nA:"
    found = with_texts(sample(examples + asked, 0, [" A", " B"]))
    assert found["question"] == asked and found["doc_hash"] == "h"
    as_lists = {**sample("", 0, []), "arguments": [[examples + asked, " A"], ["", " B"]]}
    assert with_texts(as_lists) == {**as_lists, "question": asked, "target": "Ngerulmud"}
    unknown = with_texts(sample(examples + asked, 0, [" A"], {"other": "text"}))
    assert unknown["question"] == examples + asked


def test_what_is_no_sample_stays() -> None:
    for record in ({}, {"arguments": "x"}, {"arguments": []}, {"arguments": [[]]}):
        assert with_texts(record) == record
    assert with_texts({"arguments": [[7]], "target": 1}) == {
        "arguments": [[7]],
        "target": 1,
        "question": None,
    }
