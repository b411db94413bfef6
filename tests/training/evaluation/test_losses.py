"""Losses by kind and mode, the passes behind them, and what an evaluation claims in words."""

import math

import numpy as np
import pytest

from beam_pipeline.dataset.rtt import decode_rtt
from tests.support.evaluation_helpers import (
    EXTENT,
    Network,
    Stored,
    Uniform,
    all_segments,
    evaluate_stored,
    plain_kinds,
)
from tests.support.evaluation_helpers import examples as examples
from tests.support.evaluation_helpers import stored as stored
from tests.support.probe_rows_on_disk import CROP
from training.evaluation import rtt
from training.evaluation.examples import Examples, draw_examples
from training.evaluation.losses import count_unigrams
from training.evaluation.predictions import byte_probabilities
from training.evaluation.results import conclusions, verdict
from training.tokens.kinds import KIND_NAMES, MODE_CLASSES, parse
from training.tokens.tokenizer import FIRST_BYTE, ROLE_NAMES, RTT_START, VOCABULARY_SIZE, decode


def test_uniform_model(stored: Stored) -> None:
    predictor = Uniform()
    losses = evaluate_stored(predictor, stored).losses
    assert [loss.name for loss in losses.kinds] == list(KIND_NAMES)
    assert {loss.name for loss in losses.modes} == set(MODE_CLASSES)
    for loss in (losses.overall, *losses.kinds, *losses.modes):
        assert loss.bits == pytest.approx(math.log2(267))
    for classes in (losses.kinds, losses.modes):
        assert sum(loss.num_tokens for loss in classes) == losses.overall.num_tokens
        for name in ("kind_unigram_bits", "unigram_bits"):
            total = sum(getattr(loss, name) * loss.num_tokens for loss in classes)
            assert total / losses.overall.num_tokens == pytest.approx(getattr(losses.overall, name))
    start = losses.kinds[0]
    assert start.kind_unigram_bits < 0.01 < start.unigram_bits
    assert predictor.shapes == {(EXTENT.batch_size, CROP)}


def test_surplus_examples_do_not_count(stored: Stored, examples: Examples) -> None:
    assert len(examples.targets) == 24
    losses = evaluate_stored(Uniform(), stored, num_contexts=22).losses
    assert losses.overall.num_tokens == int((examples.segmentation[:22] > 0).sum())


def test_unigrams(examples: Examples) -> None:
    """A model that is a unigram has its bits; so has the unigram, if counted on the same tokens."""
    is_token = examples.segmentation > 0
    targets = examples.targets[is_token]
    names = [name for tokens in all_segments(examples) for name in plain_kinds(tokens)]
    counted = count_unigrams(
        [{"targets": examples.targets, "targets_segmentation": examples.segmentation}]
    )
    assert counted.num_tokens == len(targets)
    for i, kind in enumerate(KIND_NAMES):
        of_kind = targets[np.array(names) == kind].tolist()
        for token in {0, 8, 11, 200, *of_kind[:20]}:
            p = (of_kind.count(token) + 0.01) / (len(of_kind) + 2.67)
            assert counted.of_kind[i, token] == pytest.approx(-math.log2(p))
    p = (np.bincount(targets, minlength=267) + 0.01) / (len(targets) + 2.67)
    assert counted.of_all == pytest.approx(-np.log2(p))
    empty = count_unigrams([])
    assert empty.of_all == pytest.approx(np.full(267, math.log2(267)))


@pytest.mark.slow
def test_predictions_equal_brute_force(stored: Stored, examples: Examples) -> None:
    predictor = Network()
    evaluation = evaluate_stored(predictor, stored, num_rtt=9)
    assert predictor.shapes == {(EXTENT.batch_size, CROP)}
    assert evaluation.rtt and evaluation.rtt.num_what_if >= 5
    predictions = evaluation.rtt.usual()
    measurements = parse(examples.targets, examples.segmentation).measurements
    queries = measurements[rtt.choose_queries(measurements, 9)]
    for number, query in enumerate(queries):
        p = brute_force(predictor, examples, int(query["example"]), int(query["place"]))
        cumulated = p.cumsum()
        median = int((cumulated >= 0.5).argmax())
        assert predictions.predicted_ms["model"][number] == float(decode_rtt(np.array(median)))
        code = int(query["code"])
        assert predictions.true_ms[number] == float(decode_rtt(np.array(code)))
        expected = cumulated[code] - p[code] / 2
        assert predictions.pit[number] == pytest.approx(expected, abs=1e-6)


def brute_force(predictor: Uniform, examples: Examples, number: int, place: int) -> np.ndarray:
    """Returns the probabilities of all 65,536 codes, of the segment up to RTT_START alone."""
    segment = examples.segmentation[number, place]
    begin = int((examples.segmentation[number] == segment).argmax())
    context = examples.inputs[number, begin : place + 1]
    assert context[-1] == RTT_START
    length = len(context) + 1
    inputs = np.zeros((256, length), np.int32)
    inputs[:, :-1], inputs[:, -1] = context, FIRST_BYTE + np.arange(256)
    positions = np.tile(np.arange(length, dtype=np.int32), (256, 1))
    p = np.exp(predictor.log_p(inputs, positions, np.ones_like(inputs)))[..., FIRST_BYTE:]
    first, second = p[0, -2], p[:, -1]
    joint = (first / first.sum())[:, np.newaxis] * second / second.sum(axis=1, keepdims=True)
    return joint.reshape(-1)


def test_probabilities_of_bytes() -> None:
    log_p = np.full((2, VOCABULARY_SIZE), -np.inf, np.float32)
    log_p[:, 3] = 0
    log_p[0, FIRST_BYTE + 5], log_p[0, FIRST_BYTE + 6] = -300, -300 - math.log(3)  # float32
    p = byte_probabilities(log_p)
    assert p[0, [4, 5, 6]] == pytest.approx([0, 0.75, 0.25], abs=1e-5)
    assert (p[1] == 1 / 256).all()  # impossible, all of them


def test_verdict(stored: Stored) -> None:
    for nearer, farther, is_lower, expected in (
        (60, 40, True, "does not clearly beat"),  # as tossed coins may fall
        (61, 40, True, "beats"),
        (4, 0, True, "does not clearly beat"),
        (5, 0, True, "beats"),
        (0, 0, False, "does not beat"),  # a draw
        (90, 10, False, "does not beat"),
    ):
        model = rtt.RttError("model", "all", 100, 0.2, 1.0, 0, 0)
        ms = 0.3 if is_lower else 0.2
        assert verdict(model, rtt.RttError("global", "all", 100, ms, 1.0, nearer, farther)) == (
            expected
        )
    evaluation = evaluate_stored(Uniform(), stored, num_rtt=0)
    assert evaluation.rtt is None and evaluation.calibration is None and evaluation.errors == []
    assert evaluation.num_possible_queries > 50
    assert all(sentence.endswith(": none") for sentence in conclusions(evaluation)[-3:])


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
