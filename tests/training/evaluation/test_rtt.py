"""Predicted RTTs and their calibration, of models that know the answer or its law."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.rtt import FAILED_RTT
from tests.support.evaluation_helpers import Stored, Uniform, evaluate_stored
from tests.support.evaluation_helpers import examples as examples
from tests.support.evaluation_helpers import stored as stored
from tests.support.properties import num_examples
from training.evaluation import rtt
from training.evaluation.examples import Examples
from training.evaluation.results import conclusions
from training.tokens import kinds
from training.tokens.tokenizer import VOCABULARY_SIZE


class Oracle(Uniform):
    """Knows what comes next in these examples."""

    def __init__(self, examples: Examples):
        super().__init__(examples.inputs.shape[1])
        lines = zip(examples.inputs, examples.targets, strict=True)
        self._targets = {inputs.tobytes(): targets for inputs, targets in lines}

    def log_p(self, inputs, positions, segmentation):
        with np.errstate(divide="ignore"):
            return np.log(
                [
                    np.eye(VOCABULARY_SIZE)[self._targets[example.tobytes()]]
                    for example in np.ascontiguousarray(inputs)
                ]
            )


def test_queries_are_evenly_spread() -> None:
    measurements = np.zeros(1000, kinds.MEASUREMENT)
    measurements["is_query"][::2] = True
    assert rtt.choose_queries(measurements, 500).tolist() == list(range(0, 1000, 2))
    assert rtt.choose_queries(measurements, 4).tolist() == [0, 250, 500, 750]
    chosen = rtt.choose_queries(measurements, 333)
    assert len(set(chosen.tolist())) == 333 and measurements["is_query"][chosen].all()
    assert rtt.choose_queries(measurements, 0).tolist() == []


def test_groups_beyond_the_usual_mix(stored: Stored) -> None:
    evaluation = evaluate_stored(Uniform(), stored, num_rtt=40)
    assert evaluation.rtt and evaluation.calibration
    counts = {e.group: e.num_queries for e in evaluation.errors}
    assert counts["all"] == evaluation.calibration.num_queries == 40
    assert min(counts["first"], counts["repeat"]) == 20
    assert counts["first"] + counts["repeat"] == len(evaluation.rtt.true_ms) > 40
    # What is said of all queries is of the mix in which they come.
    more = evaluate_stored(Uniform(), stored, num_rtt=10**6)
    assert more.rtt and more.rtt.is_usual.all()
    asked = evaluation.to_json()["rtt"]
    assert asked["queries"] == 40 and asked["further_queries"] == len(evaluation.rtt.true_ms) - 40
    shares = [each.rtt.usual().is_repeat.mean() for each in (evaluation, more) if each.rtt]
    assert shares[0] == pytest.approx(shares[1], abs=0.1)


def test_oracle_model(stored: Stored, examples: Examples) -> None:
    evaluation = evaluate_stored(Oracle(examples), stored)
    losses = evaluation.losses
    assert {loss.bits for loss in (losses.overall, *losses.kinds, *losses.modes)} == {0.0}
    assert evaluation.rtt and evaluation.calibration
    assert evaluation.rtt.num_what_if == 0
    assert {e.median_relative for e in evaluation.errors if e.method == "model"} == {0.0}
    assert (evaluation.rtt.predicted_ms["model"] == evaluation.rtt.true_ms).all()
    assert (evaluation.rtt.pit == 0.5).all()
    assert set(evaluation.calibration.coverage.values()) == {1.0}
    sentences = conclusions(evaluation)
    assert not any("does not beat" in sentence for sentence in sentences)
    assert sum("beats last seen" in sentence for sentence in sentences) == 3


def random_law(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    first, second = rng.random(256) ** 4, rng.random((256, 256)) ** 4
    return first / first.sum(), second / second.sum(axis=1, keepdims=True)


@settings(max_examples=num_examples(25))
@given(st.integers(0, 2**32))
def test_medians_and_transforms_of_a_known_distribution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = random_law(rng)
    joint = (first[:, np.newaxis] * second).reshape(-1)
    cumulated = joint.cumsum()
    # Truths spread over the law as evenly as can be: a calibrated model's.
    n = 200
    wanted = (np.arange(n) + 0.5) / n
    codes = np.searchsorted(cumulated, wanted)
    firsts, seconds = np.tile(first, (n, 1)), second[codes >> 8]
    pit = rtt.integral_transforms(firsts, seconds, codes)
    assert pit == pytest.approx(cumulated[codes] - joint[codes] / 2, abs=1e-9)
    assert (np.abs(pit - wanted) <= joint[codes] / 2 + 1e-9).all()
    calibration = rtt.calibration(pit)
    assert calibration.deviation < 1e-3
    assert calibration.pit_histogram == [n // 20] * 20
    assert calibration.coverage == {"50%": 0.5, "80%": 0.8, "90%": 0.9}
    medians, num_asked = rtt.median_codes(firsts, seconds, codes, lambda _, b: second[b])
    assert set(medians.tolist()) == {int(np.searchsorted(cumulated, 0.5))}
    assert num_asked == int((codes >> 8 != medians >> 8).sum())


def test_medians_at_the_limits_of_codes() -> None:
    def median(first: np.ndarray, second: np.ndarray) -> int:
        codes, _ = rtt.median_codes(
            first[np.newaxis], second[:1], np.array([0]), lambda _, b: second[b]
        )
        return int(codes[0])

    one = np.eye(256)
    flat = np.full((256, 256), 1 / 256)
    assert median(one[0], one) == 0 and median(one[255], np.tile(one[255], (256, 1))) == 65535
    assert median((one[3] + one[9]) / 2, flat) == 3 << 8 | 255  # half is reached with the last byte
    assert median(one[7], (one[[4]] + one[[6]]) / 2 * np.ones((256, 1))) == 7 << 8 | 4
    assert rtt.code_ms(np.array([FAILED_RTT]))[0] == rtt.code_ms(np.array([FAILED_RTT - 1]))[0] > 0


def test_errors_by_group() -> None:
    predictions = rtt.RttPredictions(
        true_ms=np.array([8.0, 8, 16, 32, 10]),
        is_repeat=np.array([False, True, True, True, True]),
        is_usual=np.array([True, True, True, True, False]),
        predicted_ms={
            "model": np.array([9.0, 7, 16, 16, 10]),
            "other": np.array([7.0, 6, 17, 28, 20]),
        },
        pit=np.zeros(5),
        num_what_if=0,
    )
    found = {(e.method, e.group): e for e in rtt.summarise_errors(predictions)}
    assert found["other", "all"] == rtt.RttError("other", "all", 4, 0.125, 1.5, 2, 1)
    assert found["other", "repeat"] == rtt.RttError("other", "repeat", 4, 0.1875, 3.0, 3, 1)
    assert found["other", "first"] == rtt.RttError("other", "first", 1, 0.125, 1.0, 0, 0)
    assert found["model", "repeat"] == rtt.RttError("model", "repeat", 4, 0.0625, 0.5, 0, 0)
