"""The peers lose nothing and keep the comparisons' rules; measuring, results and tables work."""

import itertools
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from beam_pipeline.dataset import addresses, row_codec
from beam_pipeline.dataset.row_codec import ProbeRow, decode_record
from benchmarks import (
    check,
    grouping,
    loading,
    loading_data,
    loading_process,
    loading_table,
    markdown,
    results,
    table,
)
from benchmarks.contenders import CONTENDERS, ROOT
from benchmarks.loading_cases import Case, cases, obstacle
from benchmarks.peers import common, plan1_buckets, seed_sampler
from benchmarks.results import CaseRun, Results, Run
from training.tokens import tokenizer

NUM_MEASUREMENTS = 50_000
COLUMNS = ["src_addr", "event_time", "dst_addr", "ip_version", "rtt"]
PEERS = ("duckdb_ordered", "polars_sorted", "naive_beam")


def run_module(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", name, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


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


def read_rows(folder: Path) -> list[ProbeRow]:
    rows = []
    for path in sorted(folder.glob("*.arrayrecord")):
        reader = ArrayRecordReader(str(path))
        rows += [decode_record(record) for record in reader.read_all()]
        reader.close()
    return rows


# --- peers ----------------------------------------------------------------------------------


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
        for row in read_rows(tmp_path / split):
            assert splits.setdefault(row.src_addr, split) == split
            by_probe[row.src_addr].append(row)
    assert set(splits.values()) == {"train", "test"}

    found: Counter[tuple] = Counter()
    limit = int(max_row_size_mb * 2**20)
    for src_addr, rows in by_probe.items():
        assert [row.row_index for row in rows] == list(range(len(rows)))
        assert all(row.src_id == addresses.src_id(src_addr) for row in rows)
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
        assert common.src_id(src_addr) == addresses.src_id(src_addr)


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
    rows = read_rows(tmp_path / "train")
    found = [
        m for row in rows for m in as_tuples([row.src_addr] * row.n_measurements, row.to_arrow())
    ]
    assert found == as_tuples(ordered.column("src_addr").to_pylist(), ordered)
    assert (len({row.src_addr for row in rows}) == len(rows)) == (max_row_size_mb == 8)
    assert all(row.num_bytes <= max_row_size_mb * 2**20 for row in rows)
    keys = [(row.src_addr, row.row_index) for row in rows]
    assert keys == sorted(set(keys))


# --- measuring ------------------------------------------------------------------------------

_BURN = "import time\nwhile time.process_time() < 0.4: pass\n"


def measured(script: str) -> dict:
    done = run_module("benchmarks.measure", "--", sys.executable, "-c", script)
    usage = json.loads(done.stderr.splitlines()[-1])
    assert usage["exit_code"] == done.returncode
    return usage


def test_measure_counts_children_and_what_is_left_behind():
    child = f"subprocess.run([sys.executable, '-c', {_BURN!r}])"
    orphan = f"subprocess.Popen([sys.executable, '-c', {_BURN!r}], start_new_session=True)"
    nested = f"import subprocess, sys\n{orphan}\n"
    script = f"import subprocess, sys\n{child}\nsubprocess.run([sys.executable, '-c', {nested!r}])"
    usage = measured(script)
    assert usage["exit_code"] == 0
    assert usage["cpu_s"] >= 0.8


def test_measure_sees_peaks_and_exit_codes():
    usage = measured(
        "b = bytearray(200 << 20); b[::4096] = b'x' * len(b[::4096]); raise SystemExit(3)"
    )
    assert usage["exit_code"] == 3
    assert usage["peak_mib"] >= 200


# --- the bench --------------------------------------------------------------------------------


@pytest.mark.slow
def test_bench_writes_results_that_the_table_shows(tmp_path):
    flags = ["--sizes", "3k", "--rounds", "2", "--contenders", "duckdb", "polars"]
    flags += ["--num_probes", "50", f"--data_dir={tmp_path}/data", f"--results={tmp_path}/results"]
    done = run_module("benchmarks.grouping", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "results").iterdir()
    text = path.read_text()
    assert str(tmp_path) not in text and str(ROOT) not in text

    found = results.newest("grouping", tmp_path / "results")
    assert [(run.contender, run.round) for run in found.runs] == [
        ("duckdb", 0),
        ("polars", 0),
        ("polars", 1),
        ("duckdb", 1),
    ]
    assert all(run.error is None and run.output["measurements"] == 3000 for run in found.runs)
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- bench:grouping -->\nold\n<!-- /bench:grouping -->\nafter\n")
    assert table.main([f"--document={readme}", f"--results={tmp_path}/results"]) == 0
    lines = readme.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines
    assert sum(line.startswith("| ") for line in lines) == 4


def test_an_output_that_lacks_measurements_or_has_a_large_record_is_at_fault(tmp_path):
    good = {"measurements": 5, "largest_record": 8 << 20}
    assert grouping.fault(good, 5) is None
    assert "5 measurements, not 6" in str(grouping.fault(good, 6))
    assert "over 8 MiB" in str(grouping.fault(good | {"largest_record": (8 << 20) + 1}, 5))
    assert check.count(tmp_path)["measurements"] == 0


def test_prism_is_left_out_where_there_is_none(monkeypatch):
    monkeypatch.setenv("PRISM_BINARY", "/nowhere/prism")
    assert "PRISM_BINARY" in str(CONTENDERS["main-prism"].obstacle())


# --- results and table --------------------------------------------------------------------------


def make_run(contender: str, cpu_s: float, round: int = 0, error: str | None = None) -> Run:
    return Run(
        contender=contender,
        num_measurements=1_000_000,
        round=round,
        load_before=0.0,
        wall_s=cpu_s / 2,
        cpu_s=cpu_s,
        peak_mib=1234.5,
        error=error,
        output={"measurements": 1_000_000},
    )


def make_results(*runs: Run, date: str = "2026-11-21T10:00:00+00:00") -> Results:
    options = {
        "rounds": 3,
        "num_probes": 5000,
        "threads": 2,
        "max_row_size_mb": 8,
        "array_record_options": "group_size:1,zstd:1",
    }
    found = Results(bench="grouping", date=date, options=options, runs=list(runs))
    found.machine |= {"cores": 2, "memory_gib": 24}
    return found


def test_results_come_back_and_a_second_bench_of_a_day_gets_a_number(tmp_path):
    early = make_results(make_run("main", 1.0), date="2026-11-21T10:00:00+00:00")
    late = make_results(make_run("main", 2.0), date="2026-11-21T11:00:00+00:00")
    for found, name in zip((early, late), ("", "-2"), strict=True):
        path = results.path_for(found, tmp_path)
        assert path.name == f"grouping-2026-11-21-2cpu-24gib{name}.json"
        results.save(found, path)
        assert results.load(path) == found
    assert results.newest("grouping", tmp_path) == late
    with pytest.raises(FileNotFoundError, match=r"no overlap-\*\.json .*run the bench first"):
        results.newest("overlap", tmp_path)


def test_table_takes_medians_of_good_runs_and_tells_of_the_others():
    good = [make_run("main", cpu_s, i) for i, cpu_s in enumerate([0.5, 9.0, 0.4])]
    found = make_results(
        *good,
        make_run("main", 0.01, error="exit code 1: no"),
        make_run("duckdb", 1.0),
        make_run("polars", 2.0, error="exit code 1: no"),
    )
    found.skipped.append(
        {"contender": "main-prism", "num_measurements": 1_000_000, "reason": "no Prism"}
    )
    assert table.rows(found) == [
        ["Probeline, in-memory runner", "1 M", "2.00", "0.2", "0.5", "1,234", "2.00"],
        ["DuckDB, one ordered stream", "1 M", "1.00", "0.5", "1.0", "1,234", "1.00"],
        ["Polars, sort in memory", "1 M", "failed", "", "", "", ""],
    ]
    notes = table.notes(found)
    assert "Probeline, Prism did not run at 1 M: no Prism." in notes
    assert "Probeline, in-memory runner failed 1 of 4 runs at 1 M." in notes
    for order in itertools.permutations(found.runs[:3]):
        assert results.medians([*order])[0].figures["cpu_s"] == 0.5


@pytest.mark.parametrize(
    "readme",
    [
        "no markers",
        "<!-- bench:grouping -->",
        "<!-- /bench:grouping --> <!-- bench:grouping -->",
        "<!-- bench:grouping --> <!-- /bench:grouping --> <!-- bench:grouping -->",
    ],
)
def test_a_readme_without_its_markers_is_refused(readme):
    with pytest.raises(ValueError, match="bench:grouping"):
        markdown.insert(readme, "grouping", "table")


# --- peers of the loading bench -----------------------------------------------------------------


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
        min(-(-row.n_measurements // 30), 16) for row in read_rows(Path(rows).parent)
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


# --- the loading bench --------------------------------------------------------------------------


def test_cases_vary_workers_threads_and_the_step_on_the_first_dataset_only():
    datasets = ["arrow-256k-zstd", "arrow-8m-zstd", "arrow-8m-none", "small"]
    found = cases(datasets, ["seed", "plan1", "shards"], [0, 2], [0, 3], 100)
    assert len(found) == len(set(found)) == 4 + 3 + 4 + 3
    varied = [case for case in found if case != Case(case.dataset, case.loader)]
    first = datasets[0]
    assert varied == [
        Case(first, "shards", num_workers=2),
        Case(first, "shards", num_threads=3),
        Case(first, "shards", num_workers=2, step_ms=100),
    ]
    chunked = [case.dataset for case in found if case.loader == "plan1"]
    assert chunked == ["arrow-256k-zstd", "arrow-8m-none", "small"]


def test_what_cannot_run_is_told(monkeypatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    assert "STORAGE_EMULATOR_HOST" in str(obstacle(Case("small", "gcs")))
    assert "arrow rows only" in str(obstacle(Case("compact-8m-none", "seed")))
    assert obstacle(Case("arrow-8m-none", "seed")) is None
    found = make_loading_results()
    found.options["stored"] = {"small": {"cache": {}}, "mixed": {}}
    assert loading._has_its_cache(Case("small", "cache"), found)
    assert not loading._has_its_cache(Case("mixed", "cache"), found)
    assert found.skipped[-1]["reason"] == "its cache was not filled"


def make_batch(num_real: int) -> dict[str, np.ndarray]:
    shape = (4, loading_process.CROP_SIZE)
    batch = {name: np.zeros(shape, np.int32) for name in loading_process.NAMES}
    batch["targets_segmentation"].flat[:num_real] = 1
    return batch


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"weights": np.zeros(4)}, "a batch has"),
        ({"inputs": np.zeros((4, 1024), np.int64)}, "inputs is int64"),
        ({"targets": np.zeros((3, 1024), np.int32)}, "targets is int32"),
        ({"inputs": np.full((4, 1024), 267, np.int32)}, "vocabulary"),
        ({"targets": np.full((4, 1024), -1, np.int32)}, "vocabulary"),
        ({"targets_segmentation": np.zeros((4, 1024), np.int32)}, "no real token"),
    ],
)
def test_a_batch_of_another_form_is_at_fault(change, message):
    found = loading_process.fault(make_batch(7) | change, 4)
    assert found is None if message is None else message in str(found)


def test_a_run_that_fails_says_why(tmp_path):
    output = tmp_path / "figures.json"
    flags = ["--loader=seed", "--files=/nowhere", f"--output={output}"]
    assert run_module("benchmarks.loading_process", *flags).returncode == 1
    assert json.loads(output.read_text()) == {
        "error": "ValueError: no records in /nowhere/*.arrayrecord"
    }


def test_measuring_counts_real_tokens_and_the_cpu_of_workers():
    def batches():
        while True:
            subprocess.run([sys.executable, "-c", _BURN], check=True)
            yield make_batch(1024)

    figures = loading_process.measure(batches(), seconds=0, num_workers=2)
    assert figures["num_batches"] == 1
    assert figures["padding"] == 0.75
    # The kernel counts a worker's time in ticks of 10 ms, user's and system's rounded down.
    assert figures["tokens_per_cpu_s"] <= 1024 / 0.37
    wall_s = 1024 / figures["tokens_per_s"]
    assert 0.19 <= figures["worker_cpu"] * wall_s < 0.4 * 5
    assert figures["waiting"] > 0.5
    slept = loading_process.measure(itertools.repeat(make_batch(1)), seconds=0, step_s=0.2)
    assert slept["waiting"] < 0.5


def test_measuring_takes_whole_cycles_unless_they_are_too_long():
    endless = itertools.repeat(make_batch(1))
    assert loading_process.measure(endless, seconds=0, cycle=7)["num_batches"] == 7
    assert loading_process.measure(endless, seconds=0.01, cycle=7)["num_batches"] % 7 == 0
    cut = loading_process.measure(endless, seconds=0, step_s=0.02, cycle=10**9, longest_s=0.05)
    assert 1 <= cut["num_batches"] <= 3


def test_small_probes_have_few_measurements_of_one_family():
    table_ = loading_data._among_small_probes(make_measurements(), np.random.default_rng(0))
    assert table_.num_rows == NUM_MEASUREMENTS
    counts = Counter(table_.column("src_addr").to_pylist())
    assert all(5 <= count <= 64 for count in counts.values())
    assert len(set(counts.values())) > 50
    families = zip(
        table_.column("src_addr").to_pylist(), table_.column("ip_version").to_pylist(), strict=True
    )
    mixed = {src_addr for src_addr, version in families if (":" in src_addr) != (version == 6)}
    assert len(mixed) <= 1  # where IPv4 ends and IPv6 begins


@pytest.mark.slow
def test_loading_bench_writes_results_that_the_table_shows(tmp_path):
    flags = ["--datasets", "arrow-64k-zstd", "small", "--loaders", "seed", "plan1"]
    flags += ["shards", "cache"]
    flags += ["--num_workers", "0", "1", "--num_threads", "0", "--step_ms", "1", "--rounds", "1"]
    flags += ["--seconds", "0.1", "--batch_size", "8", "--num_measurements", "20000"]
    flags += [f"--data_dir={tmp_path}/data", f"--results={tmp_path}/results"]
    done = run_module("benchmarks.loading", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "results").iterdir()
    text = path.read_text()
    assert str(tmp_path) not in text and str(ROOT) not in text

    found = results.newest("loading", tmp_path / "results")
    first = "arrow-64k-zstd"
    loaders = ("seed", "plan1", "shards", "cache")
    expected = {Case(dataset, loader) for dataset in (first, "small") for loader in loaders}
    expected |= {Case(first, "shards", 1), Case(first, "shards", 1, step_ms=1)}
    expected.add(Case(first, "cache", 1))
    assert {Case(**run.case) for run in found.runs} == expected
    assert len(found.runs) == len(expected) and not found.skipped
    assert found.options["stored"][first]["measurements"] == 20_000
    assert found.options["stored"][first]["cache"]["file_bytes"] > 10 * 20_000
    padding = {Case(**line.case): line.figures["padding"] for line in results.medians(found.runs)}
    for dataset in (first, "small"):
        of = [padding[Case(dataset, loader)] for loader in ("shards", "seed", "plan1")]
        assert 0 <= of[0] < of[1] < of[2] < 1
    for run in found.runs:
        assert run.figures["first_batch_s"] > run.figures["first_batch_of_build_s"] > 0
        assert run.figures["tokens_per_s"] > 0 and run.figures["peak_mib"] > 20

    document = tmp_path / "training.md"
    document.write_text("before\n<!-- bench:loading -->\nold\n<!-- /bench:loading -->\nafter\n")
    flags = ["--bench=loading", f"--document={document}", f"--results={tmp_path}/results"]
    assert table.main(flags) == 0
    lines = document.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "old" not in lines
    assert loading_table.markdown(found) in document.read_text()


def make_loading_results(*runs: CaseRun) -> Results:
    options = {"rounds": 1, "seconds": 2, "batch_size": 256, "small_batch_size": 32, "stored": {}}
    return Results("loading", "2026-11-21T10:00:00+00:00", options, runs=list(runs))


def make_loading_run(case: Case, tokens_per_cpu_s: float, error: str | None = None) -> CaseRun:
    figures = {
        "first_batch_of_build_s": 0.25,
        "first_batch_s": 1.5,
        "tokens_per_s": 2 * tokens_per_cpu_s,
        "tokens_per_cpu_s": tokens_per_cpu_s,
        "padding": 0.5,
        "num_batches": 20,
        "waiting": 0.01,
        "main_cpu": 0.02,
        "worker_cpu": 0.034,
        "peak_mib": 1234.5,
    }
    return CaseRun(vars(case), 0, 0.0, {} if error else figures, error)


def test_loading_tables_show_ratios_failures_and_storage(tmp_path):
    found = make_loading_results(
        make_loading_run(Case("small", "seed"), 1e6),
        make_loading_run(Case("small", "shards"), 25e6),
        make_loading_run(Case("small", "shards", 2, step_ms=100), 25e6),
        make_loading_run(Case("mixed", "shards", num_threads=1), 0.5e6),
        make_loading_run(Case("mixed", "plan1"), 0, error="exit code 1: no"),
    )
    found.options["stored"]["small"] = {
        "measurements": 1000,
        "records": 10,
        "file_bytes": 30_000,
        "cache": {"fill_s": 1.5, "file_bytes": 10_000},
        "plan1": {"measurements": 100, "records": 20, "file_bytes": 40_960, "tokens": 1},
    }
    found.skipped.append(vars(Case("mixed", "gcs")) | {"reason": "no GCS emulator"})
    first_batch = ["1.5", "0.2", "1,234"]
    assert loading_table.speed_rows(found) == [
        ["small", "Probeline, shards", "50.0", "25.0", "25", *first_batch],
        ["small", "sampler in plain Python", "2.00", "1.00", "1.0", *first_batch],
        ["mixed", "Probeline, shards, 1 thread", "1.00", "0.50", "", *first_batch],
        ["mixed", "padded buckets", "failed", "", "", "", "", ""],
    ]
    assert loading_table.step_rows(found) == [
        ["small", "Probeline, shards, 2 workers", "100", "20", "3.4%", "2.0%", "1.0%"]
    ]
    assert loading_table.storage_rows(found) == [
        ["small", "probe rows", "1,000", "10", "30.0"],
        ["small", "column cache", "1,000", "10", "10.0"],
        ["small", "padded buckets", "100", "20", "409.6"],
    ]
    assert [row[:2] for row in loading_table.padding_rows(found)] == [
        ["small", "sampler in plain Python"],
        ["small", "Probeline, shards"],
    ]
    notes = loading_table.notes(found)
    assert "Probeline, gs:// emulator, did not run on mixed: no GCS emulator." in notes
    assert "padded buckets, failed 1 of 1 runs on mixed." in notes
    assert "Filling the cache, first batch included: small 1.5 s." in notes
    path = results.path_for(found, tmp_path)
    results.save(found, path)
    assert results.load(path) == found
