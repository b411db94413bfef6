"""The peers of the benches lose nothing and keep the rules of the comparison."""

import itertools
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset import layout, row_codec
from beam_pipeline.dataset.row_codec import ProbeRow
from benchmarks import loading_data, loading_process
from benchmarks.peers import common, plan1_buckets, seed_sampler
from tests.support.benches import run_module
from tests.support.job_runs import read_rows
from training.tokens import tokenizer

NUM_MEASUREMENTS = 50_000
COLUMNS = ["src_addr", "event_time", "dst_addr", "ip_version", "rtt"]
PEERS = ("duckdb_ordered", "polars_sorted", "naive_beam")


def make_measurements() -> pa.Table:
    """40 probes of both families, one far larger than the others, with ties and duplicates."""
    rng = np.random.default_rng(3)
    probes = [f"192.0.2.{i}" for i in range(30)] + [f"2001:db8::{i + 1:x}" for i in range(10)]
    probe = np.minimum(rng.geometric(0.2, NUM_MEASUREMENTS), len(probes)) - 1
    destinations = np.array([f"198.51.100.{i}" for i in range(9)] + ["2001:db8:1::9"])
    destination = rng.integers(0, 10, NUM_MEASUREMENTS)
    seconds = rng.integers(0, 20_000, NUM_MEASUREMENTS)
    columns = {
        "rtt": pa.array(rng.choice([-1.0, 0.5, 2.25], NUM_MEASUREMENTS), pa.float32()),
        "event_time": pa.array(seconds * 1_000_000, pa.timestamp("us", "UTC")),
        "src_addr": pa.array(np.array(probes)[probe]),
        "dst_addr": pa.array(destinations[destination]),
        "ip_version": pa.array(np.where(destination == 9, 6, 4), pa.int8()),
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def measurements(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    folder = tmp_path_factory.mktemp("measurements")
    whole = make_measurements()
    third = NUM_MEASUREMENTS // 3 + 1
    for number, start in enumerate(range(0, NUM_MEASUREMENTS, third)):
        part = whole.slice(start, third)
        pq.write_table(part, folder / f"measurements-{number}.parquet", row_group_size=4_000)
    return folder, whole


def as_tuples(src_addr: list[str], batch: pa.RecordBatch | pa.Table) -> list[tuple]:
    columns = [batch.column(name) for name in COLUMNS[1:]]
    columns[0] = columns[0].cast(pa.int64())
    return list(zip(src_addr, *(column.to_pylist() for column in columns), strict=True))


# --- grouping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_row_size_mb", [8, 0.1])
@pytest.mark.parametrize("peer", PEERS)
def test_peer_keeps_every_measurement_in_order_and_size(
    peer, max_row_size_mb, measurements, tmp_path
):
    folder, whole = measurements
    flags = [f"--input={folder}/*.parquet", f"--output={tmp_path}"]
    flags.append(f"--max_row_size_mb={max_row_size_mb}")
    done = run_module(f"benchmarks.peers.{peer}", *flags)
    assert done.returncode == 0, done.stderr

    by_probe: dict[str, list[ProbeRow]] = defaultdict(list)
    splits = {}
    for split in ("train", "test"):
        for row in read_rows(tmp_path, split):
            assert splits.setdefault(row.src_addr, split) == split
            by_probe[row.src_addr].append(row)
    assert set(splits.values()) == {"train", "test"}

    found: Counter[tuple] = Counter()
    limit = int(max_row_size_mb * 2**20)
    for src_addr, rows in by_probe.items():
        assert [row.row_index for row in rows] == list(range(len(rows)))
        assert all(row.src_id == layout.src_id(src_addr) for row in rows)
        assert all(row.num_bytes <= limit for row in rows)
        assert all(row.num_bytes >= 0.95 * limit for row in rows[:-1])
        batches = [row.to_arrow() for row in rows]
        assert [row.n_measurements for row in rows] == [batch.num_rows for batch in batches]
        for row, batch in zip(rows, batches, strict=True):
            times = batch.column("event_time").cast(pa.int64()).to_pylist()
            assert (row.first_timestamp_us, row.last_timestamp_us) == (times[0], times[-1])
            assert row.time_span_seconds == (times[-1] - times[0]) / 1e6
        in_order = [m for batch in batches for m in as_tuples([src_addr] * batch.num_rows, batch)]
        assert in_order == sorted(in_order)
        found.update(in_order)
    assert found == Counter(as_tuples(whole.column("src_addr").to_pylist(), whole))
    if max_row_size_mb < 1:
        assert max(len(rows) for rows in by_probe.values()) > 1


def test_peers_write_the_schemas_and_identifiers_of_the_product():
    assert common.RECORD_SCHEMA.equals(row_codec.RECORD_SCHEMA)
    assert common.MEASUREMENT_SCHEMA.equals(row_codec.MEASUREMENT_SCHEMA)
    for src_addr in ("192.0.2.1", "2001:db8::1", "::"):
        assert common.src_id(src_addr) == layout.src_id(src_addr)


@pytest.mark.parametrize("max_row_size_mb", [8, 0.008])
@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
@pytest.mark.parametrize("as_dictionary", [True, False])
def test_a_probe_may_span_batches(
    as_dictionary, batch_rows, max_row_size_mb, tmp_path, monkeypatch
):
    ordered = make_measurements().slice(0, 1000).select(COLUMNS)
    ordered = ordered.sort_by([(name, "ascending") for name in COLUMNS])
    if as_dictionary:
        for index in (0, 2):
            encoded = ordered.column(index).dictionary_encode()
            ordered = ordered.set_column(index, COLUMNS[index], encoded)
    flags = ["--input=", f"--output={tmp_path}", "--train_ratio=1"]
    flags.append(f"--max_row_size_mb={max_row_size_mb}")
    monkeypatch.setattr(sys, "argv", ["peer", *flags])
    batches = ordered.combine_chunks().to_batches(max_chunksize=batch_rows)
    common.write_ordered(iter(batches), common.arguments(None))
    rows = read_rows(tmp_path)
    found = [
        m for row in rows for m in as_tuples([row.src_addr] * row.n_measurements, row.to_arrow())
    ]
    assert found == as_tuples(ordered.column("src_addr").to_pylist(), ordered)
    assert (len({row.src_addr for row in rows}) == len(rows)) == (max_row_size_mb == 8)
    assert all(row.num_bytes <= max_row_size_mb * 2**20 for row in rows)
    keys = [(row.src_addr, row.row_index) for row in rows]
    assert keys == sorted(set(keys))


# --- loading --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(measurements, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A glob of probe rows of all measurements."""
    folder = tmp_path_factory.mktemp("rows")
    flags = [f"--input={measurements[0]}/*.parquet", f"--output={folder}/rows"]
    flags += ["--train_ratio=1", "--max_row_size_mb=0.0625", "--measurement_encoding=arrow"]
    done = run_module("beam_pipeline.main", *flags)
    assert done.returncode == 0, done.stderr
    return f"{folder}/rows/train/*.arrayrecord"


def known(whole: pa.Table) -> Counter[tuple]:
    """Counts (source, destination, RTT, second) of measurements; their RTTs have exact codes."""
    seconds = [us // 1_000_000 for us in whole.column("event_time").cast(pa.int64()).to_pylist()]
    columns = [whole.column(name).to_pylist() for name in ("src_addr", "dst_addr", "rtt")]
    return Counter(zip(*columns, seconds, strict=True))


def contexts_of(batch) -> list[list[tokenizer.Measurement]]:
    """Decodes a batch of either peer, having checked its masks."""
    assert loading_process.fault(batch, len(batch["inputs"])) is None
    positions = np.arange(loading_process.CROP_SIZE)
    lengths = batch["targets_segmentation"].sum(axis=1)
    assert np.array_equal(batch["inputs"], batch["targets"])
    for side in ("inputs", "targets"):
        assert np.array_equal(batch[f"{side}_segmentation"], positions < lengths[:, None])
        assert (batch[f"{side}_position"] == positions).all()
    assert not batch["inputs"][batch["inputs_segmentation"] == 0].any()
    return [
        tokenizer.decode(tokens[:length])
        for tokens, length in zip(batch["inputs"], lengths, strict=True)
    ]


def test_seed_sampler_yields_what_its_rows_hold_in_all_three_modes(rows, measurements):
    truth = known(measurements[1])
    untimed_truth = {key[:3] for key in truth}
    num_contexts = sum(
        min(-(-row.n_measurements // 30), 16) for row in read_rows(Path(rows).parents[1])
    )
    batches = list(seed_sampler.batches(rows, 4, num_epochs=1))
    assert len(batches) == num_contexts // 4
    shares, orders = [], set()
    for context in itertools.chain.from_iterable(map(contexts_of, batches)):
        whole = [found for found in context if found.is_whole]
        for found in whole:
            key = (found.src_addr, found.dst_addr, found.rtt_ms)
            if found.event_time is None:
                assert key in untimed_truth
            else:
                assert (*key, found.event_time) in truth
            orders.add(found.roles[0])
        assert len({found.src_addr for found in whole}) == 1
        times = [found.event_time for found in whole if found.event_time is not None]
        assert times == sorted(times)
        if len(whole) > 10:
            shares.append(len(times) / len(whole))
    shares = np.array(shares)
    for is_mode, weight in ((shares == 1, 0.4), (shares == 0, 0.3)):
        assert abs(is_mode.mean() - weight) < 5 * np.sqrt(weight * (1 - weight) / len(shares))
    assert ((shares > 0) & (shares < 1)).any()
    assert len(orders) > 4  # fields change places


def test_seed_sampler_draws_other_contexts_in_each_epoch_and_joins_them_across_rows(rows):
    one = [batch["inputs"] for batch in seed_sampler.batches(rows, 1, num_epochs=1)]
    two = [batch["inputs"] for batch in seed_sampler.batches(rows, 1, num_epochs=2)]
    assert len(two) == 2 * len(one)
    assert all(np.array_equal(*pair) for pair in zip(one, two, strict=False))
    assert not np.array_equal(one, two[len(one) :])
    with pytest.raises(ValueError, match="no records"):
        next(seed_sampler.batches("/nowhere/*.arrayrecord", 1))


def test_plan1_keeps_every_measurement_in_chunks_of_one_bucket(rows, measurements, tmp_path):
    counts = plan1_buckets.convert(rows, tmp_path, "group_size:1,zstd:1", NUM_MEASUREMENTS)
    assert counts == json.loads((tmp_path / "counts.json").read_text())
    batches = list(plan1_buckets.batches(tmp_path, 1, num_epochs=1))
    assert counts["records"] == len(batches)
    assert counts["tokens"] == sum(int(batch["targets_segmentation"].sum()) for batch in batches)
    found: Counter[tuple] = Counter()
    chunks_of_bucket: Counter[tuple] = Counter()
    for context in itertools.chain.from_iterable(map(contexts_of, batches)):
        assert all(measurement.is_whole for measurement in context)
        (bucket,) = {(m.src_addr, m.event_time // 300) for m in context if m.event_time is not None}
        chunks_of_bucket[bucket] += 1
        found.update((m.src_addr, m.dst_addr, m.rtt_ms, m.event_time) for m in context)
    assert found == known(measurements[1])
    assert counts["measurements"] == NUM_MEASUREMENTS
    assert max(chunks_of_bucket.values()) > 1  # a bucket over 1,024 tokens was cut


def test_plan1_stops_at_its_limit_and_shuffles_whole_batches(rows, tmp_path):
    counts = plan1_buckets.convert(rows, tmp_path, "group_size:1,uncompressed", 1000)
    assert 1000 <= counts["measurements"] < NUM_MEASUREMENTS
    size = counts["records"] // 2 - 1
    batches = [batch["inputs"] for batch in plan1_buckets.batches(tmp_path, size, num_epochs=2)]
    assert len(batches) == 4
    assert not np.array_equal(batches[:2], batches[2:])
    assert len(np.unique(np.concatenate(batches[:2]), axis=0)) == 2 * size
    with pytest.raises(ValueError, match="do not fill a batch"):
        next(plan1_buckets.batches(tmp_path, counts["records"] + 1))


def test_small_probes_have_few_measurements_of_one_family():
    table_ = loading_data.among_small_probes(make_measurements(), np.random.default_rng(0))
    assert table_.num_rows == NUM_MEASUREMENTS
    counts = Counter(table_.column("src_addr").to_pylist())
    assert all(5 <= count <= 64 for count in counts.values())
    assert len(set(counts.values())) > 50
    families = zip(
        table_.column("src_addr").to_pylist(), table_.column("ip_version").to_pylist(), strict=True
    )
    mixed = {src_addr for src_addr, version in families if (":" in src_addr) != (version == 6)}
    assert len(mixed) <= 1  # where IPv4 ends and IPv6 begins
