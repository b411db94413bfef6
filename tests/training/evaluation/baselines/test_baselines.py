"""All baselines together: medians as plain Python counts them, no look-ahead, samples, bad rows."""

import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import Encoding, packed
from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt, encode_rtt
from tests.support.evaluation_helpers import EXTENT, Stored, all_segments, plain_queries
from tests.support.evaluation_helpers import examples as examples
from tests.support.evaluation_helpers import stored as stored
from tests.support.helpers import MAPPED_IPV4, canonical, records_as_tuples
from tests.support.loader_helpers import refusal_of
from tests.support.probe_rows_on_disk import (
    damage_record,
    mixed_rows,
    read_records,
    shard_paths,
    write_dataset,
)
from training.evaluation import rtt
from training.evaluation.baselines import Baselines, predict_baselines, sample
from training.evaluation.baselines.sample import draw_sample
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
    found = predict_baselines(measurements, numbers, stored.train, EXTENT)
    predicted = found.predicted_ms
    assert found.num_rows == 30 and len(numbers) > 50
    assert list(predicted) == [*expected, "Vivaldi", "factorisation", "five nearest"]
    for name, values in expected.items():
        assert predicted[name] == pytest.approx(values), name
    assert found.is_repeat.tolist() == repeats
    assert 0.1 < np.mean(repeats) < 0.9
    # Prefixes of the test split are seen in training, some with other destinations only.
    assert (predicted["prefix × destination"] != predicted["destination"]).any()


def everything_of(measurements: np.ndarray, queries: np.ndarray, stored: Stored) -> Baselines:
    return predict_baselines(measurements, queries, stored.train, EXTENT)


def test_a_destination_that_training_has_not_seen(stored: Stored) -> None:
    measurements = np.zeros(2, kinds.MEASUREMENT)
    measurements["segment"] = (0, 1)  # the same one in another segment tells nothing
    measurements["dst_lo"], measurements["code"] = 77, 500
    found = everything_of(measurements, np.arange(2), stored)
    assert not found.is_repeat.any()
    for name, values in found.predicted_ms.items():
        assert (values == found.predicted_ms["global"]).all(), name


@pytest.mark.property
@given(st.integers(0, 2**32 - 1))
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_look_ahead(stored: Stored, examples: Examples, seed: int) -> None:
    """Other answers and destinations after a query, its own RTT too, change no prediction."""
    measurements = parse(examples.targets, examples.segmentation).measurements
    numbers = rtt.choose_queries(measurements, 40)
    rng = np.random.default_rng(seed)
    query = int(rng.integers(len(numbers)))
    changed = measurements.copy()
    later = changed[numbers[query] + 1 :]
    later["code"] = rng.integers(1, FAILED_RTT + 1, len(later))
    later[["dst_hi", "dst_lo"]] = rng.permutation(measurements[["dst_hi", "dst_lo"]])[: len(later)]
    changed["code"][numbers[query]] = rng.integers(1, FAILED_RTT)
    before = everything_of(measurements, numbers, stored)
    after = everything_of(changed, numbers, stored)
    for name, values in before.predicted_ms.items():
        upto = slice(query + 1)
        assert values[upto].tolist() == after.predicted_ms[name][upto].tolist(), name
    if query < 30:
        assert (before.predicted_ms["five nearest"] != after.predicted_ms["five nearest"]).any()


def test_a_sample_of_the_training_split(
    mixed: dict[Encoding, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of long rows some measurements, one of each stretch; of many rows some; of both encodings."""
    monkeypatch.setattr(sample, "_MAX_MEASUREMENTS", 20)
    found = []
    for folder in mixed.values():
        _, train = open_splits(str(folder))
        for rows, max_bytes in ((10**6, 1 << 30), (9, 1 << 30), (10**6, 60_000), (10**6, 1)):
            monkeypatch.setattr(sample, "_MAX_BYTES", max_bytes)
            drawn = draw_sample(train, Extent(num_train_rows=rows))
            found.append((drawn.num_rows, len(drawn.rtt_ms), drawn.rtt_ms.tolist()))
            if max_bytes == 1:
                assert drawn.num_rows == 1
    arrow, compact = found[:4], found[4:]
    assert arrow[:2] == compact[:2] and arrow[0][0] == 55 and arrow[1][0] == 9
    assert 1 < arrow[2][0] < compact[2][0]  # compact rows are smaller
    n = [min(20, len(row.run)) for row in mixed_rows()]
    assert 0.8 * sum(n) < arrow[0][1] < sum(n)


def test_a_training_split_of_ipv4_probes_alone(stored: Stored, tmp_path: Path) -> None:
    rows = [row for row in stored.train_rows if ":" not in row.src_addr]
    _, train = open_splits(str(write_dataset(tmp_path / "rows", rows, "compact", test_rows=rows)))
    drawn = draw_sample(train, EXTENT)
    assert not drawn.probe_hi.any()
    assert sorted(drawn.probe_lo.tolist()) == sorted(
        MAPPED_IPV4 | int.from_bytes(packed(row.src_addr)) for row in rows
    )


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
    refusal_of(lambda: draw_sample(train, EXTENT), "train_shard_00000", "record 0")
