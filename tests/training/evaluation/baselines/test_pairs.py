"""The matrix of pairs: medians, and the destinations that it keeps."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from training.evaluation.baselines import pairs
from training.evaluation.baselines.medians import training_medians
from training.evaluation.baselines.sample import Sample
from training.tokens import kinds


def sample_of(probe: Any, destination: Any, rtt_ms: Any) -> Sample:
    probe, destination = np.array(probe), np.array(destination)
    n = int(probe.max()) + 1
    addresses = pa.array([b"%16d" % number for number in range(destination.max() + 1)])
    zeros = np.zeros(n, np.uint64)
    return Sample(probe, destination, np.array(rtt_ms, float), addresses, zeros, zeros, 1)


SAMPLE = sample_of([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 1, 2], [5, 1, 3, 7, 2, 9])


def test_pairs_are_medians() -> None:
    found = pairs.make_pairs(SAMPLE)
    assert found.rows_of(np.array([1, 0, 2, -1])).tolist() == [0, 1, 2, -1]
    np.testing.assert_array_equal(found.ms, [[3, 2], [np.nan, 7], [np.nan, 9]])


def test_the_most_measured_destinations_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_MAX_CELLS", 4)
    found = pairs.make_pairs(SAMPLE)
    assert found.row_of.tolist() == [1, 0, -1]
    np.testing.assert_array_equal(found.ms, [[3, 2], [np.nan, 7]])


def test_medians_of_destinations_without_a_number_are_unknown() -> None:
    queries = np.zeros(2, kinds.MEASUREMENT)
    found = training_medians(SAMPLE, queries, np.array([1, -1]))
    np.testing.assert_array_equal(found.destination_ms, [2.5, np.nan])
    np.testing.assert_array_equal(found.prefix_ms, [2.5, np.nan])
    assert found.global_ms == 4


def test_an_rtt_of_0_has_a_logarithm() -> None:
    assert np.isfinite(pairs.log_ms(np.array([0.0, 1.0]))).all()
