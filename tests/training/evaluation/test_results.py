"""What an evaluation claims in words, and what it leaves out."""

import pytest

from tests.support.evaluation_helpers import EXTENT, Stored, Uniform, evaluate_stored
from tests.support.evaluation_helpers import stored as stored
from training.evaluation import rtt
from training.evaluation.examples import draw_examples
from training.evaluation.results import conclusions, verdict
from training.tokens.tokenizer import ROLE_NAMES, decode


def test_no_queries(stored: Stored) -> None:
    evaluation = evaluate_stored(Uniform(), stored, num_rtt=0)
    assert evaluation.rtt is None and evaluation.calibration is None and evaluation.errors == []
    assert evaluation.num_possible_queries > 50


def test_conclusions_match_the_errors(stored: Stored) -> None:
    evaluation = evaluate_stored(Uniform(), stored)
    sentences = conclusions(evaluation)
    overall = evaluation.losses.overall
    assert overall.unigram_bits < overall.bits
    assert "beats" not in sentences[0].replace("does not beat", "")
    assert "does not beat the unigram of each token's kind on" in sentences[1]
    for group, sentence in zip(rtt.GROUPS, sentences[-3:], strict=True):
        errors = {e.method: e.median_relative for e in evaluation.errors if e.group == group}
        beaten, _, unbeaten = sentence.partition("does not beat")
        for method, error in errors.items():
            if method != "model":
                assert (f"{method} (" in beaten) == (errors["model"] < error)
                assert (f"{method} (" in unbeaten) == (errors["model"] >= error)


@pytest.mark.parametrize(
    ("nearer", "farther", "is_lower", "expected"),
    [
        (60, 40, True, "does not clearly beat"),  # as tossed coins may fall
        (61, 40, True, "beats"),
        (4, 0, True, "does not clearly beat"),
        (5, 0, True, "beats"),
        (0, 0, False, "does not beat"),  # a draw
        (90, 10, False, "does not beat"),
    ],
)
def test_verdict_needs_a_clear_margin(
    nearer: int, farther: int, is_lower: bool, expected: str, stored: Stored
) -> None:
    evaluation = evaluate_stored(Uniform(), stored, num_rtt=0)
    model = rtt.RttError("model", "all", 100, 0.2, 1.0, 0, 0)
    other = rtt.RttError("global", "all", 100, 0.3 if is_lower else 0.2, 1.0, nearer, farther)
    assert verdict(model, other) == expected
    assert conclusions(evaluation)[-3:] == [
        "RTTs: none",
        "RTTs to new destinations: none",
        "RTTs to destinations seen before: none",
    ]


def place_in_fixed_order(role: int) -> int:
    return ("SRC", "TIM", "DST", "RTT", "FAI").index(ROLE_NAMES[role][:3])


def test_order_of_fields_is_the_trained_one(stored: Stored) -> None:
    for share, are_fixed in ((1.0, True), (0.0, False)):
        examples = draw_examples(stored.split, Uniform(fixed_order_share=share), EXTENT)
        places = [
            [place_in_fixed_order(role) for role in measurement.roles]
            for inputs, segments in zip(examples.inputs, examples.segmentation, strict=True)
            for measurement in decode(inputs[segments == 1])
        ]
        assert all(each == sorted(each) for each in places) == are_fixed
