"""How a mixture is given: weights of paths, as a dict or as text, and what is refused of them."""

import json
from typing import Any

import pytest

from beam_pipeline.errors import UsageError
from tests.support.loader_helpers import refusal_of
from training.batches.mixture import checked_weights, parse_files
from training.dataset import DataConfig

# --- weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "1", None, True])
def test_a_weight_must_be_a_number_above_0(weight: Any) -> None:
    refusal_of(
        lambda: DataConfig({"rows/a": 1, "rows/b": weight}, 8),
        "rows/b has weight",
        repr(weight),
        "a number above 0",
        kind=UsageError,
    )


def test_what_no_mixture_can_have() -> None:
    refusal_of(lambda: checked_weights({}), "empty mixture", kind=UsageError)
    refusal_of(lambda: checked_weights({3: 1}), "has 3", "a path or a glob", kind=UsageError)
    files = {"rows/a": 1, "rows/b": 2}
    refusal_of(lambda: DataConfig(files, 8, num_epochs=1), "num_epochs is 1", "use None")
    refusal_of(
        lambda: DataConfig(files, 8, sampler="windows", weights=[1.0]), "weights are numbers"
    )


# --- as text --------------------------------------------------------------------------------------


def test_a_mixture_is_read_as_maxtext_writes_it_and_as_json() -> None:
    expected = {"gs://a/rows,1": 0.7, "rows/b/*": 0.3}
    for text in (
        "gs://a/rows,1,0.7;rows/b/*,0.3",
        " gs://a/rows,1 , 0.7; rows/b/*,0.3;",
        json.dumps(expected),
    ):
        assert parse_files(text) == expected
    for text in ("rows/a", "rows/a,0.3", "gs://a/{b,c}/*", ""):
        assert parse_files(text) == text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("rows/a;rows/b", ["not a mixture", "rows/a,0.7;rows/b,0.3"]),
        ("rows/a,1;rows/b,much", ["not a mixture"]),
        ('{"rows/a": 0.7', ["not a mixture", '{"rows/a": 0.7, "rows/b": 0.3}']),
        ('{"rows/a": "much"}', ["rows/a", "'much'", "above 0"]),
        ("rows/a,1;rows/b,0", ["rows/b", "0.0", "above 0"]),
        ("rows/a,1;rows/a,2", ["rows/a is twice", "the sum"]),
        ('{"rows/a": 1, "rows/a": 2}', ["rows/a is twice"]),
        ("{}", ["empty mixture"]),
    ],
)
def test_a_text_that_is_no_mixture(text: str, parts: list[str]) -> None:
    refusal_of(lambda: parse_files(text), *parts, kind=UsageError)


def test_programs_that_take_one_dataset_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    from training import analyze_padding

    assert analyze_padding.main(["rows/a,1;rows/b,1"]) == 2
    assert "training.analyze_padding takes one dataset" in capsys.readouterr().err
