"""Baselines of RTTs: the context's earlier ones and medians of the training split."""

import statistics
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.dataset.addresses import packed
from beam_pipeline.dataset.options import Encoding
from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt, encode_rtt
from tests.support.evaluation_helpers import EXTENT, Stored, all_segments, plain_queries
from tests.support.evaluation_helpers import examples as examples
from tests.support.evaluation_helpers import stored as stored
from tests.support.helpers import canonical, records_as_tuples
from tests.support.loader_helpers import refusal_of
from tests.support.probe_rows_on_disk import (
    damage_record,
    mixed_rows,
    read_records,
    shard_paths,
    write_dataset,
)
from training.evaluation import baselines, rtt
from training.evaluation.baselines import look_back, predict, training_medians
from training.evaluation.examples import Examples, open_splits
from training.evaluation.extent import Extent
from training.tokens import kinds
from training.tokens.kinds import parse


def prefix_of(address: str) -> bytes:
    number = packed(address)
    return number[:2] if len(number) == 4 else number[:4]


def test_baselines_are_plain_medians(stored: Stored, examples: Examples) -> None:
    by_destination: dict[str, list[float]] = {}
    by_prefix: dict[tuple[bytes, str], list[float]] = {}
    for row in stored.train_rows:
        for _, destination, rtt_ms in records_as_tuples(row.run):
            code = encode_rtt(np.array([rtt_ms], np.float32))
            if code[0] != FAILED_RTT:
                address, ms = canonical(destination), float(decode_rtt(code)[0])
                by_destination.setdefault(address, []).append(ms)
                by_prefix.setdefault((prefix_of(row.src_addr), address), []).append(ms)
    everything = statistics.median(ms for values in by_destination.values() for ms in values)

    expected: dict[str, list[float]] = {name: [] for name in ("last seen", "context median")}
    expected |= {name: [] for name in ("prefix × destination", "destination", "global")}
    repeats = []
    for tokens in all_segments(examples):
        for query in plain_queries(tokens):
            dst = query.dst
            of_dst = by_destination.get(dst)
            fallback = statistics.median(of_dst) if of_dst else everything
            before = [ms for address, ms in query.earlier if address == dst and ms >= 0]
            repeats.append(any(address == dst for address, _ in query.earlier))
            expected["last seen"].append(before[-1] if before else fallback)
            expected["context median"].append(statistics.median(before) if before else fallback)
            of_prefix = by_prefix.get((prefix_of(query.src), dst))
            expected["prefix × destination"].append(
                statistics.median(of_prefix) if of_prefix else fallback
            )
            expected["destination"].append(fallback)
            expected["global"].append(everything)

    measurements = parse(examples.targets, examples.segmentation).measurements
    numbers = rtt.choose_queries(measurements, 10**6)
    history = look_back(measurements, numbers)
    medians = training_medians(stored.train, measurements[numbers], EXTENT)
    assert medians and medians.num_rows == 30
    found = predict(history, medians)
    assert list(found) == list(expected) and len(numbers) > 50
    for name, values in expected.items():
        assert found[name] == pytest.approx(values), name
    assert history.is_repeat.tolist() == repeats
    assert 0.1 < np.mean(repeats) < 0.9
    # Prefixes of the test split are seen in training, some with other destinations only.
    assert (found["prefix × destination"] != found["destination"]).any()


def test_a_destination_that_training_has_not_seen(stored: Stored) -> None:
    measurements = np.zeros(2, kinds.MEASUREMENT)
    measurements["segment"] = (0, 1)  # the same one in another segment tells nothing
    measurements["dst_lo"], measurements["code"] = 77, 500
    history = look_back(measurements, np.arange(2))
    assert np.isnan(history.last_ms).all() and not history.is_repeat.any()
    medians = training_medians(stored.train, measurements, EXTENT)
    assert medians
    for name, values in predict(history, medians).items():
        assert (values == medians.global_ms).all(), name


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


def test_training_medians_of_a_sample(
    mixed: dict[Encoding, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of long rows some measurements, one of each stretch; of many rows some; of both encodings."""
    queries = np.zeros(1, kinds.MEASUREMENT)
    monkeypatch.setattr(baselines, "_MAX_MEASUREMENTS", 20)
    found = []
    for folder in mixed.values():
        _, train = open_splits(str(folder))
        for rows, max_bytes in ((10**6, 1 << 30), (9, 1 << 30), (10**6, 60_000), (10**6, 1)):
            monkeypatch.setattr(baselines, "_MAX_BYTES", max_bytes)
            medians = training_medians(train, queries, Extent(num_train_rows=rows))
            assert medians
            found.append((medians.num_rows, medians.num_rtts, medians.global_ms))
            if max_bytes == 1:
                assert medians.num_rows == 1
    arrow, compact = found[:4], found[4:]
    assert arrow[:2] == compact[:2] and arrow[0][0] == 55 and arrow[1][0] == 9
    assert 1 < arrow[2][0] < compact[2][0]  # compact rows are smaller
    n = [min(20, len(row.run)) for row in mixed_rows()]
    assert 0.8 * sum(n) < arrow[0][1] < sum(n)


@pytest.mark.parametrize(
    ("encoding", "old", "new"),
    [("compact", b"", b"no row at all"), ("arrow", b"8.8.8.", b"8.x.8.")],
)
def test_a_training_row_that_cannot_be_read(
    encoding: Encoding, old: bytes, new: bytes, stored: Stored, tmp_path: Path
) -> None:
    rows = stored.train_rows
    folder = write_dataset(tmp_path / "rows", rows, encoding, test_rows=rows[:2])
    record = read_records(shard_paths(folder)[0])[0]
    damage_record(folder, 0, 0, record.index(old), new)
    _, train = open_splits(str(folder))
    queries = np.zeros(1, kinds.MEASUREMENT)
    refusal_of(lambda: training_medians(train, queries, EXTENT), "train_shard_00000", "record 0")
