"""What precedes a query: RTTs to its destination, and to those that the segment has shown."""

import numpy as np
import pytest

from beam_pipeline.dataset.rtt import FAILED_RTT
from training.evaluation.baselines.history import contexts_of, look_back
from training.tokens import kinds


@pytest.mark.parametrize("code", [FAILED_RTT, 700])
def test_segments_do_not_leak(code: int) -> None:
    measurements = np.zeros(4, kinds.MEASUREMENT)
    measurements["segment"] = (0, 0, 1, 1)
    measurements["dst_lo"] = 5
    measurements["code"] = (300, code, 400, 100)
    history = look_back(measurements, np.arange(4))
    assert history.is_repeat.tolist() == [False, True, False, True]
    np.testing.assert_allclose(history.last_ms, [np.nan, 0.3, np.nan, 0.4], rtol=1e-6)
    measurements["segment"] = 0
    last = 0.3 if code == FAILED_RTT else 0.7
    median = 0.3 if code == FAILED_RTT else 0.5
    history = look_back(measurements, np.array([2]))
    assert history.last_ms[0] == pytest.approx(last)
    assert history.median_ms[0] == pytest.approx(median)


def test_a_context_is_what_its_segment_has_measured_before() -> None:
    measurements = np.zeros(7, kinds.MEASUREMENT)
    measurements["segment"] = (0, 1, 1, 1, 1, 1, 2)
    measurements["code"] = (999, 300, FAILED_RTT, 100, 200, 800, 50)
    rows = np.array([4, 2, 3, -1, 0, 2, 2])
    first, middle, last, other = contexts_of(measurements, rows, np.array([1, 4, 5, 6]))
    assert first.destination == 2 and first.known.tolist() == []
    # Neither the failed ping tells anything, nor the destination that the pairs lack.
    assert (middle.destination, middle.known.tolist()) == (0, [2])
    assert middle.known_ms == pytest.approx([0.3])
    assert (last.destination, last.known.tolist()) == (2, [0, 2])
    assert last.known_ms == pytest.approx([0.2, 0.3])
    assert other.known.tolist() == []
