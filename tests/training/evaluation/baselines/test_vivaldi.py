"""Vivaldi: places in a plane, with heights, are found again by their distances."""

import numpy as np
import pytest

from training.evaluation.baselines.history import Context
from training.evaluation.baselines.pairs import Pairs
from training.evaluation.baselines.vivaldi import predict_vivaldi

NUM_DESTINATIONS, NUM_TRAIN = 30, 60


@pytest.mark.parametrize("height_ms", [0, 20])
def test_points_in_a_plane(height_ms: float) -> None:
    rng = np.random.default_rng(1)
    points = rng.uniform(0, 200, size=(NUM_DESTINATIONS + NUM_TRAIN + 20, 2))
    heights = rng.uniform(0, 2 * height_ms, len(points))
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    ms = (distance + heights[:, None] + heights)[:NUM_DESTINATIONS, NUM_DESTINATIONS:]
    pairs = Pairs(ms[:, :NUM_TRAIN].copy(), np.arange(NUM_DESTINATIONS))
    pairs.ms[rng.random(pairs.ms.shape) < 0.3] = np.nan
    known = np.arange(NUM_DESTINATIONS - 1)
    asked = NUM_DESTINATIONS - 1
    contexts = [Context(asked, known, ms[known, probe]) for probe in range(NUM_TRAIN, ms.shape[1])]
    truth = ms[asked, NUM_TRAIN:]
    predicted = predict_vivaldi(pairs, contexts, seed=0)
    error = np.abs(predicted - truth) / truth
    by_median = np.abs(np.nanmedian(pairs.ms[asked]) - truth) / truth
    assert np.median(error) < 0.06 < 0.15 < np.median(by_median)
    assert predict_vivaldi(pairs, contexts, seed=0).tolist() == predicted.tolist()
    # A source is placed by its own context alone.
    assert predict_vivaldi(pairs, contexts[3:4], seed=0)[0] == predicted[3]


def test_nothing_to_go_by() -> None:
    nothing = Context(1, np.zeros(0, int), np.zeros(0))
    unknown = Context(-1, np.array([1]), np.array([10.0]))
    pairs = Pairs(np.array([[1.0, 0.0], [np.nan, 3.0]]), np.arange(2))
    assert np.isnan(predict_vivaldi(pairs, [nothing, unknown], seed=0)).all()
    assert np.isfinite(predict_vivaldi(pairs, [Context(0, np.array([0]), np.zeros(1))], seed=0)[0])
