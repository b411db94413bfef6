"""What a model is asked: the causal pass and the what-if passes, against brute force."""

import math

import numpy as np
import pytest

from beam_pipeline.dataset.rtt import decode_rtt
from tests.support.evaluation_helpers import EXTENT, Network, Stored, Uniform, evaluate_stored
from tests.support.evaluation_helpers import examples as examples
from tests.support.evaluation_helpers import stored as stored
from tests.support.probe_rows_on_disk import CROP
from training.evaluation import rtt
from training.evaluation.examples import Examples
from training.evaluation.predictions import byte_probabilities, causal_pass, second_bytes_after
from training.tokens.kinds import parse
from training.tokens.tokenizer import FIRST_BYTE, RTT_START, VOCABULARY_SIZE


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


def test_what_if_passes_hide_the_rest(examples: Examples) -> None:
    measurements = parse(examples.targets, examples.segmentation).measurements
    queries = measurements[rtt.choose_queries(measurements, 6)]
    seen = []

    class Watched(Uniform):
        def log_p(self, inputs, positions, segmentation):
            seen.append((inputs, positions, segmentation))
            return super().log_p(inputs, positions, segmentation)

    wanted = np.arange(6) * 40
    second = second_bytes_after(Watched(), examples, queries, wanted, lambda _: None)
    assert second == pytest.approx(np.full((6, 256), 1 / 256))
    inputs, positions, segmentation = (np.concatenate(each) for each in zip(*seen, strict=True))
    assert len(inputs) == 8  # two batches, the second one filled up
    for number, query in enumerate(queries):
        example, place = int(query["example"]), int(query["place"])
        assert inputs[number, place + 1] == FIRST_BYTE + wanted[number]
        for given_, original in (
            (inputs, examples.inputs),
            (positions, examples.positions),
            (segmentation, examples.segmentation),
        ):
            assert (given_[number, : place + 1] == original[example, : place + 1]).all()
            assert not given_[number, place + 2 :].any()


def test_probabilities_of_bytes() -> None:
    log_p = np.full((2, VOCABULARY_SIZE), -np.inf, np.float32)
    log_p[:, 3] = 0
    log_p[0, FIRST_BYTE + 5], log_p[0, FIRST_BYTE + 6] = -300, -300 - math.log(3)  # float32
    p = byte_probabilities(log_p)
    assert p[0, [4, 5, 6]] == pytest.approx([0, 0.75, 0.25], abs=1e-5)
    assert (p[1] == 1 / 256).all()  # impossible, all of them


def test_progress(stored: Stored, examples: Examples) -> None:
    done: list[float] = []
    measurements = parse(examples.targets, examples.segmentation).measurements
    queries = measurements[rtt.choose_queries(measurements, 6)]
    causal_pass(Uniform(), examples, queries, done.append)
    assert done == pytest.approx([1 / 6] * 6)
    done.clear()
    second_bytes_after(Uniform(), examples, queries, np.zeros(6, np.int64), done.append)
    assert done == pytest.approx([4 / 6, 2 / 6])
