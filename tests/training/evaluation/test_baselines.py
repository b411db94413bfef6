"""Baselines: medians as plain Python counts them, no look-ahead, bounded samples, bad rows."""

import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.rtt import FAILED_RTT
from tests.support.evaluation_helpers import (
    EXTENT,
    Stored,
    all_segments,
    plain_queries,
    training_rtts,
)
from tests.support.evaluation_helpers import examples as examples
from tests.support.evaluation_helpers import stored as stored
from tests.support.loader_helpers import refusal_of
from tests.support.probe_rows_on_disk import (
    Mixed,
    damage_record,
    mixed_rows,
    read_records,
    shard_paths,
    write_dataset,
)
from training.evaluation import baselines, rtt
from training.evaluation.baselines import draw_sample, look_back, predict_baselines
from training.evaluation.examples import Examples, open_splits
from training.extent import EvaluationExtent
from training.tokens import kinds
from training.tokens.kinds import parse


@pytest.mark.slow
def test_baselines_are_plain_medians(stored: Stored, examples: Examples) -> None:
    by_destination: dict[str, list[float]] = {}
    for _, destination, ms in training_rtts(stored):
        by_destination.setdefault(destination, []).append(ms)
    everything = statistics.median(ms for values in by_destination.values() for ms in values)
    expected: dict[str, list[float]] = {
        name: [] for name in ("last seen", "context median", "destination")
    }
    repeats = []
    for tokens in all_segments(examples):
        for query in plain_queries(tokens):
            known = by_destination.get(query.dst)
            fallback = statistics.median(known) if known else everything
            before = [ms for address, ms in query.earlier if address == query.dst and ms >= 0]
            repeats.append(any(address == query.dst for address, _ in query.earlier))
            expected["last seen"].append(before[-1] if before else fallback)
            expected["context median"].append(statistics.median(before) if before else fallback)
            expected["destination"].append(fallback)
    measurements = parse(examples.targets, examples.segmentation).measurements
    numbers = rtt.choose_queries(measurements, 10**6)
    found = predict_baselines(measurements, numbers, stored.train, EXTENT)
    assert found.num_rows == 30 and len(numbers) > 50
    assert list(found.predicted_ms) == list(expected)
    for name, values in expected.items():
        assert found.predicted_ms[name] == pytest.approx(values), name
    assert found.is_repeat.tolist() == repeats
    assert 0.1 < np.mean(repeats) < 0.9


@pytest.mark.property
@given(st.integers(0, 2**32 - 1))
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_look_ahead(stored: Stored, examples: Examples, seed: int) -> None:
    """Other outcomes and destinations from the query on change no prediction."""
    measurements = parse(examples.targets, examples.segmentation).measurements
    numbers = rtt.choose_queries(measurements, 40)
    rng = np.random.default_rng(seed)
    query = int(rng.integers(len(numbers)))
    changed = measurements.copy()
    later = changed[numbers[query] + 1 :]
    later["code"] = rng.integers(1, FAILED_RTT + 1, len(later))
    later[["dst_hi", "dst_lo"]] = rng.permutation(measurements[["dst_hi", "dst_lo"]])[: len(later)]
    changed["code"][numbers[query]] = rng.integers(1, FAILED_RTT)
    before = predict_baselines(measurements, numbers, stored.train, EXTENT)
    after = predict_baselines(changed, numbers, stored.train, EXTENT)
    for name, values in before.predicted_ms.items():
        upto = slice(query + 1)
        assert values[upto].tolist() == after.predicted_ms[name][upto].tolist(), name


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
    history = look_back(measurements, np.array([2]))
    assert history.last_ms[0] == pytest.approx(0.3 if code == FAILED_RTT else 0.7)
    assert history.median_ms[0] == pytest.approx(0.3 if code == FAILED_RTT else 0.5)


def test_sample_of_the_training_split(mixed: Mixed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample is bounded in measurements per row, rows and bytes, for both encodings."""
    monkeypatch.setattr(baselines, "_MAX_MEASUREMENTS", 20)
    found = []
    for folder in mixed.values():
        _, train = open_splits(str(folder))
        for rows, max_bytes in ((10**6, 1 << 30), (9, 1 << 30), (10**6, 60_000), (10**6, 1)):
            monkeypatch.setattr(baselines, "_MAX_BYTES", max_bytes)
            drawn = draw_sample(train, EvaluationExtent(num_train_rows=rows))
            found.append((drawn.num_rows, len(drawn.rtt_ms), drawn.rtt_ms.tolist()))
            if max_bytes == 1:
                assert drawn.num_rows == 1
    arrow, compact = found[:4], found[4:]
    assert arrow[:2] == compact[:2] and arrow[0][0] == 55 and arrow[1][0] == 9
    assert 1 < arrow[2][0] < compact[2][0]  # compact rows are smaller
    n = [min(20, len(row.run)) for row in mixed_rows()]
    assert 0.8 * sum(n) < arrow[0][1] < sum(n)


def test_damaged_row(stored: Stored, tmp_path: Path) -> None:
    rows = stored.train_rows
    folder = write_dataset(tmp_path / "rows", rows, "arrow", test_rows=rows[:2])
    record = read_records(shard_paths(folder)[0])[0]
    damage_record(folder, 0, 0, record.index(b"8.8.8."), b"8.x.8.")
    _, train = open_splits(str(folder))
    refusal_of(lambda: draw_sample(train, EXTENT), "train_shard_00000", "record 0")
