"""Factorisation: a matrix whose rank is known is completed."""

import numpy as np
import pytest

from training.evaluation.baselines.factorisation import predict_factorisation
from training.evaluation.baselines.history import Context
from training.evaluation.baselines.pairs import Pairs

NUM_TRAIN, NUM_KNOWN = 120, 30


@pytest.fixture(scope="module")
def network() -> np.ndarray:
    """RTTs whose logarithms have rank 3: [60 destinations, probes], the last 40 to ask about."""
    rng = np.random.default_rng(1)
    return np.exp(3 + rng.normal(size=(60, 3)) @ rng.normal(size=(3, NUM_TRAIN + 40)) / 2)


def test_low_rank_is_completed(network: np.ndarray) -> None:
    rng = np.random.default_rng(2)
    train = np.where(rng.random((60, NUM_TRAIN)) < 0.3, np.nan, network[:, :NUM_TRAIN])
    contexts, truth = [], []
    for probe in range(NUM_TRAIN, network.shape[1]):
        known = np.sort(rng.permutation(59)[:NUM_KNOWN])
        contexts.append(Context(59, known, network[known, probe]))
        truth.append(network[59, probe])
    pairs = Pairs(train, np.arange(60))
    predicted = predict_factorisation(pairs, contexts, seed=0)
    error = np.abs(predicted - truth) / truth
    by_median = np.abs(np.nanmedian(train[59]) - truth) / truth
    assert np.median(error) < 0.06 < 0.3 < np.median(by_median)
    assert predict_factorisation(pairs, contexts, seed=0).tolist() == predicted.tolist()


def test_nothing_to_go_by(network: np.ndarray) -> None:
    nothing = Context(3, np.zeros(0, int), np.zeros(0))
    unknown = Context(-1, np.array([1]), np.array([10.0]))
    found = predict_factorisation(Pairs(network, np.arange(60)), [nothing, unknown], seed=0)
    assert np.isnan(found).all()
