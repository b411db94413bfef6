"""Five nearest: probes whose places, and so whose answers, are known."""

import numpy as np
import pytest

from training.evaluation.baselines.history import Context
from training.evaluation.baselines.nearest import predict_nearest
from training.evaluation.baselines.pairs import Pairs

# Three destinations; five probes near the source, four far from it.
MS = np.array(
    [
        [10, 11, 9, 10.5, 9.5, 90, 95, 100, 99],
        [50, 52, 48, 51, 49, 5, 6, 7, 5],
        [20, 21, 22, 23, 24, 300, 310, 320, 330],
    ]
)
PAIRS = Pairs(MS, np.arange(3))


def predict(pairs: Pairs, *contexts: tuple[int, list[int], list[float]]) -> np.ndarray:
    return predict_nearest(
        pairs, [Context(a, np.array(b, int), np.array(c)) for a, b, c in contexts]
    )


def test_the_median_of_the_five_nearest() -> None:
    near, one_known = (2, [0, 1], [10.0, 50.0]), (2, [1], [50.0])
    assert predict(PAIRS, near, one_known).tolist() == [22, 22]
    # Far: 300, 310, 320 and 330, and of the near ones the first.
    assert predict(PAIRS, (2, [0, 1], [95.0, 6.0]))[0] == 310


def test_probes_that_have_not_measured_the_destination_tell_nothing() -> None:
    ms = MS.copy()
    ms[2, :4] = np.nan
    assert predict(Pairs(ms, np.arange(3)), (2, [0, 1], [10.0, 50.0]))[0] == 310


def test_few_shared_destinations_are_not_near_by_chance() -> None:
    """One that agrees exactly on one destination is behind those that agree on both nearly."""
    ms = np.column_stack([MS, [np.nan, 50, 999]])
    assert predict(Pairs(ms, np.arange(3)), (2, [0, 1], [10.0, 50.0]))[0] == 22


@pytest.mark.parametrize("context", [(-1, [0], [10.0]), (2, [], [])])
def test_nothing_to_go_by(context: tuple[int, list[int], list[float]]) -> None:
    assert np.isnan(predict(PAIRS, context)[0])
    unmeasured = Pairs(np.where(np.arange(3)[:, None] == 2, np.nan, MS), np.arange(3))
    assert np.isnan(predict(unmeasured, (2, [0], [10.0]))[0])
