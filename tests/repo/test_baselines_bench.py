"""The baselines of the benches: networks whose answers are known, no look-ahead, fall-backs."""

from functools import partial

import numpy as np
import pytest

from beam_pipeline.dataset.layout import packed
from benchmarks import baselines
from benchmarks.baselines import Context, Pairs
from tests.support.evaluation_helpers import (
    EXTENT,
    Stored,
    all_segments,
    plain_queries,
    training_rtts,
)
from tests.support.evaluation_helpers import examples as examples
from tests.support.evaluation_helpers import stored as stored
from training.evaluation import rtt
from training.evaluation.baselines import predict_baselines
from training.evaluation.examples import Examples
from training.tokens.kinds import parse

NUM_DESTINATIONS, NUM_TRAIN = 60, 120
METHODS = (
    partial(baselines.predict_factorisation, seed=0),
    baselines.predict_nearest,
)


def low_rank() -> np.ndarray:
    """RTTs whose logarithms have rank 3."""
    rng = np.random.default_rng(1)
    return np.exp(3 + rng.normal(size=(60, 3)) @ rng.normal(size=(3, NUM_TRAIN + 40)) / 2)


def test_known_network() -> None:
    network, method = low_rank(), METHODS[0]
    """The model that made a network is found again, from 70 % of its RTTs."""
    rng = np.random.default_rng(2)
    train = np.where(
        rng.random((NUM_DESTINATIONS, NUM_TRAIN)) < 0.3, np.nan, network[:, :NUM_TRAIN]
    )
    pairs = Pairs(train, np.arange(NUM_DESTINATIONS))
    contexts = []
    for probe in range(NUM_TRAIN, network.shape[1]):
        known = np.sort(rng.permutation(59)[:30])
        contexts.append(Context(59, known, network[known, probe]))
    truth = network[59, NUM_TRAIN:]
    predicted = method(pairs, contexts)
    error = np.abs(predicted - truth) / truth
    by_median = np.abs(np.nanmedian(train[59]) - truth) / truth
    assert np.median(error) < 0.06 < 0.15 < np.median(by_median)
    assert method(pairs, contexts).tolist() == predicted.tolist()
    assert method(pairs, contexts[3:4])[0] == predicted[3]  # a source's own context alone counts


# Three destinations; five probes near the source, four far from it.
NEAR_AND_FAR = np.array(
    [
        [10, 11, 9, 10.5, 9.5, 90, 95, 100, 99],
        [50, 52, 48, 51, 49, 5, 6, 7, 5],
        [20, 21, 22, 23, 24, 300, 310, 320, 330],
    ]
)


def nearest(ms: np.ndarray, known: list[int], known_ms: list[float]) -> float:
    context = Context(2, np.array(known, int), np.array(known_ms))
    return baselines.predict_nearest(Pairs(ms, np.arange(3)), [context])[0]


def test_five_nearest() -> None:
    assert nearest(NEAR_AND_FAR, [0, 1], [10.0, 50.0]) == 22
    assert nearest(NEAR_AND_FAR, [1], [50.0]) == 22
    # Far: 300, 310, 320 and 330, and the first of the near ones.
    assert nearest(NEAR_AND_FAR, [0, 1], [95.0, 6.0]) == 310
    unmeasured = NEAR_AND_FAR.copy()
    unmeasured[2, :4] = np.nan
    assert nearest(unmeasured, [0, 1], [10.0, 50.0]) == 310
    # A probe that agrees exactly on one destination is behind those that nearly agree on both.
    exact = np.column_stack([NEAR_AND_FAR, [np.nan, 50, 999]])
    assert nearest(exact, [0, 1], [10.0, 50.0]) == 22


def prefix_of(address: str) -> bytes:
    number = packed(address)
    return number[:2] if len(number) == 4 else number[:4]


def test_in_an_evaluation(stored: Stored, examples: Examples) -> None:
    """Prefixes are plain medians, and no method sees what comes after a query."""
    measurements = parse(examples.targets, examples.segmentation).measurements
    numbers = rtt.choose_queries(measurements, 10**6)
    found = predict_baselines(measurements, numbers, stored.train, EXTENT, baselines.predict)
    usual = ["last seen", "context median", "destination"]
    further = ["moving average", "random forest", "prefix × destination", "factorisation"]
    further += ["five nearest"]
    assert list(found.predicted_ms) == usual + further
    expected = [
        np.median(
            [ms for src, dst, ms in training_rtts(stored) if dst == query.dst
             and prefix_of(src) == prefix_of(query.src)] or [fallback]
        )
        for query, fallback in zip(
            (query for tokens in all_segments(examples) for query in plain_queries(tokens)),
            found.predicted_ms["destination"],
            strict=True,
        )
    ]  # fmt: skip
    assert found.predicted_ms["prefix × destination"] == pytest.approx(expected)
    assert (found.predicted_ms["prefix × destination"] != found.predicted_ms["destination"]).any()
    changed = measurements.copy()
    changed["code"][numbers[20] :] = 700
    after = predict_baselines(changed, numbers, stored.train, EXTENT, baselines.predict)
    for name, values in found.predicted_ms.items():
        assert values[:21].tolist() == after.predicted_ms[name][:21].tolist(), name
        if name in further and name != "prefix × destination":
            assert (values != after.predicted_ms[name]).any()
