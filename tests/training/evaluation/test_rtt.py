"""Predicted RTTs and their calibration, of models that know the answer or its law."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt
from tests.support.evaluation_helpers import Stored, Uniform, evaluate_stored, pings
from tests.support.evaluation_helpers import examples as examples
from tests.support.evaluation_helpers import stored as stored
from tests.support.probe_rows_on_disk import CROP, RowSpec, write_dataset
from tests.support.properties import num_examples
from training.evaluation import rtt
from training.evaluation.examples import Examples, open_splits
from training.evaluation.results import conclusions
from training.tokens import kinds
from training.tokens.tokenizer import FIRST_BYTE, RTT_START, VOCABULARY_SIZE


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


class Bytes(Uniform):
    """Draws codes of RTTs from one law: p(first), p(second | first); knows nothing else."""

    def __init__(self, first: np.ndarray, second: np.ndarray, crop_size: int = CROP):
        super().__init__(crop_size)
        self.first, self.second = first, second

    def log_p(self, inputs, positions, segmentation):
        log_p = super().log_p(inputs, positions, segmentation)
        is_first = inputs == RTT_START
        is_second = np.roll(is_first, 1, axis=1) & (positions > 0)
        with np.errstate(divide="ignore"):
            log_p[is_first, FIRST_BYTE:] = np.log(self.first)
            log_p[is_second, FIRST_BYTE:] = np.log(self.second[inputs[is_second] - FIRST_BYTE])
        log_p[is_first | is_second, :FIRST_BYTE] = -np.inf
        return log_p


def test_queries_are_evenly_spread() -> None:
    measurements = np.zeros(1000, kinds.MEASUREMENT)
    measurements["is_query"][::2] = True
    assert rtt.choose_queries(measurements, 500).tolist() == list(range(0, 1000, 2))
    assert rtt.choose_queries(measurements, 4).tolist() == [0, 250, 500, 750]
    chosen = rtt.choose_queries(measurements, 333)
    assert len(set(chosen.tolist())) == 333 and measurements["is_query"][chosen].all()
    assert rtt.choose_queries(measurements, 0).tolist() == []


def test_rarer_group_is_filled_up() -> None:
    queries = np.arange(0, 2000, 2)
    is_repeat = np.arange(1000) % 50 == 0  # 20 of 1,000
    usual = queries[::7]
    for limit, num_repeats in ((0, 3), (16, 8), (1000, 20)):
        found = rtt.fill_up_groups(usual, queries, is_repeat, limit)
        assert np.isin(usual, found).all() and (np.diff(found) > 0).all()
        assert np.isin(found, queries[is_repeat]).sum() == num_repeats
        # Of the others there were enough, up to half of 1,000.
        assert np.isin(found, queries[~is_repeat]).sum() == max(len(usual) - 3, limit // 2)


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


def test_deviation_by_chance() -> None:
    rng = np.random.default_rng(0)
    found = [rtt.calibration(rng.random(400)) for _ in range(300)]
    mean = np.mean([each.deviation for each in found])
    assert mean == pytest.approx(found[0].deviation_by_chance, rel=0.05)
    assert rtt.calibration(np.full(50, 0.99)).deviation == pytest.approx(0.49, abs=0.001)


def test_calibrated_model(tmp_path: Path) -> None:
    """RTTs of a dataset are drawn from a law, which the model knows: all figures follow."""
    rng = np.random.default_rng(1)
    codes = 11 * 2048 + np.arange(1024, 2048, 8)  # 128 of them, of the four first bytes 92 to 95
    law = np.zeros((256, 256))
    law[codes >> 8, codes & 255] = 1 / len(codes)
    rows = [
        RowSpec(f"10.1.{i}.1", pings(150, i, 0, decode_rtt(rng.choice(codes, 150))))
        for i in range(12)
    ]
    folder = write_dataset(tmp_path / "rows", rows, test_rows=rows)
    stored = Stored(folder, rows, *open_splits(str(folder)))
    first = law.sum(axis=1)
    second = law / np.maximum(first, 1e-12)[:, np.newaxis]
    second[first == 0] = 1 / 256
    evaluation = evaluate_stored(Bytes(first, second), stored, num_contexts=60, num_rtt=1000)
    bits = {loss.name: loss.bits for loss in evaluation.losses.kinds}
    assert bits["RTT, first byte"] == pytest.approx(2) and bits[
        "RTT, second byte"
    ] == pytest.approx(5)
    assert bits["role"] == pytest.approx(math.log2(267))
    predictions, calibration = evaluation.rtt, evaluation.calibration
    assert predictions and calibration and calibration.num_queries > 200
    assert set(predictions.predicted_ms["model"]) == {rtt.code_ms(codes[[63]])[0]}
    assert calibration.deviation < 4 * calibration.deviation_by_chance
    for name, share in (("50%", 0.5), ("80%", 0.8), ("90%", 0.9)):
        assert calibration.coverage[name] == pytest.approx(share, abs=0.1)
    # Every code has its place in the distribution, (i + 1/2) / 128.
    order = np.searchsorted(rtt.code_ms(codes), predictions.true_ms)
    assert predictions.pit == pytest.approx((order + 0.5) / 128, abs=1e-6)


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
