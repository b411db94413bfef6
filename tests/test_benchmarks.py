"""The peers lose nothing and keep the comparison's rules; measuring, results and table work."""

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

from beam_pipeline import addresses, row_codec
from beam_pipeline.row_codec import ProbeRow, decode_record
from benchmarks import check, grouping, results, table
from benchmarks.contenders import CONTENDERS, ROOT
from benchmarks.peers import common
from benchmarks.results import Results, Run

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
    assert table.main([f"--readme={readme}", f"--results={tmp_path}/results"]) == 0
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
    with pytest.raises(FileNotFoundError, match=r"benchmarks\.overlap"):
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
        assert results.medians([*order])[0].cpu_s == 0.5


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
        table.insert(readme, "table")
