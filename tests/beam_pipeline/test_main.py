"""The whole job through `main`: what went in comes out, in the same bytes, on both runners."""

import json
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.dataset.rtt import decode_rtt, encode_rtt
from beam_pipeline.main import main
from beam_pipeline.probe_rows import bucket, grouping, row_splitting
from beam_pipeline.sources import inputs
from tests.support.helpers import measurements_table, quick_and_slow, reference_rows
from tests.support.job_runs import files_of, history, make_dataset, read_rows, write_input
from tests.support.properties import num_examples


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return measurements_table(3000, seed=1, num_probes=12)


@pytest.fixture(scope="module")
def dataset(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    return make_dataset(write_input(folder / "in", table), folder / "out")


def test_every_measurement_comes_out_once_in_order(table: pa.Table, dataset: Path) -> None:
    assert history(read_rows(dataset)) == reference_rows(table)


def test_a_busy_probe_is_cut_into_full_rows(dataset: Path) -> None:
    rows = read_rows(dataset)
    of_probe = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.row_index):
        of_probe[row.src_addr].append(row)
    busiest = max(of_probe.values(), key=len)
    limit = int(0.01 * 2**20)
    assert len(busiest) > 3
    assert [row.row_index for row in busiest] == list(range(len(busiest)))
    assert all(0.98 * limit <= row.num_bytes <= limit for row in busiest[:-1])


def test_compact_keeps_seconds_and_the_codes_of_rtt(table: pa.Table, tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", table)
    compact = make_dataset(source, tmp_path / "out", "--measurement-encoding=compact")
    got = history(read_rows(compact))
    for probe, exact in reference_rows(table).items():
        times, destinations, rtts = zip(*exact, strict=True)
        whole_seconds = [time // 1_000_000 * 1_000_000 for time in times]
        coarse = decode_rtt(encode_rtt(np.array(rtts, np.float32))).tolist()
        assert got[probe] == list(zip(whole_seconds, destinations, coarse, strict=True))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, dict[str, bytes]]:
    """A table and the files of its dataset."""
    folder = tmp_path_factory.mktemp("small")
    table = measurements_table(400, seed=7, num_probes=6)
    return table, files_of(make_dataset(write_input(folder / "in", table), folder / "out"))


@pytest.mark.slow
@settings(max_examples=num_examples(8, quick=1))
@given(
    seed=st.integers(0, 2**32 - 1),
    num_files=st.integers(1, 4),
    row_group_size=st.sampled_from([1, 37, 1000]),
    unit_rows=st.sampled_from([1, 100, 10_000]),
    inline_bytes=st.sampled_from([0, 256, 1 << 20]),
    sort_memory=st.sampled_from([512, 1 << 20]),
    segment_bytes=st.sampled_from([64, 2048, 1 << 20]),
    bucket_rows=st.sampled_from([1, 100, 1 << 20]),
    large_run_records=st.sampled_from([5, 1 << 20]),
)
def test_the_bytes_follow_from_the_measurements_alone(
    tmp_path_factory: pytest.TempPathFactory,
    small: tuple[pa.Table, dict[str, bytes]],
    seed: int,
    num_files: int,
    row_group_size: int,
    unit_rows: int,
    inline_bytes: int,
    sort_memory: int,
    segment_bytes: int,
    bucket_rows: int,
    large_run_records: int,
) -> None:
    """Other order, other files, other bundles, other buckets, other memory: the same shards."""
    folder = tmp_path_factory.mktemp("recut")
    table, expected = small
    shuffled = table.take(np.random.default_rng(seed).permutation(table.num_rows))
    step = -(-table.num_rows // num_files)
    parts = [shuffled.slice(at, step) for at in range(0, table.num_rows, step)]
    source = write_input(folder / "b", *parts, row_group_size=row_group_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "UNIT_ROWS", unit_rows)
        patch.setattr(inputs, "UNIT_ROWS", unit_rows)
        patch.setattr(grouping, "SORT_MEMORY_BYTES", sort_memory)
        patch.setattr(grouping, "SEGMENT_BYTES", segment_bytes)
        patch.setattr(bucket, "BUCKET_ROWS", bucket_rows)
        patch.setattr("beam_pipeline.probe_rows.chunks.LARGE_RUN_RECORDS", large_run_records)
        output = make_dataset(source, folder / "again", f"--inline_bytes={inline_bytes}")
    assert files_of(output) == expected


@pytest.mark.parametrize(
    "mode", quick_and_slow(["multi_threading", "multi_processing"], ["multi_threading"])
)
def test_several_workers_write_the_same_bytes(
    table: pa.Table, dataset: Path, tmp_path: Path, mode: str
) -> None:
    source = write_input(tmp_path / "in", table.slice(0, 1700), table.slice(1700))
    flags = ["--direct_num_workers=2", f"--direct_running_mode={mode}"]
    output = make_dataset(source, tmp_path / "out", *flags)
    assert files_of(output) == files_of(dataset)


@pytest.mark.prism
@pytest.mark.parametrize("encoding", ["arrow", "compact"])
def test_prism_writes_the_same_bytes(
    table: pa.Table, tmp_path: Path, prism: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_input(tmp_path / "in", table.slice(0, 900)).parent
    pa_csv.write_csv(table.slice(900), source / "rest.csv")
    monkeypatch.setattr(grouping, "SORT_MEMORY_BYTES", 4000)  # some go to the stateful cut
    flag = f"--measurement_encoding={encoding}"
    in_memory = make_dataset(source, tmp_path / "memory", flag)
    runner = ["--runner=PrismRunner", f"--prism_location={prism}"]
    on_prism = make_dataset(source, tmp_path / "prism", flag, *runner)
    assert files_of(on_prism) == files_of(in_memory)
    told = [open_dataset(str(output)).manifest for output in (on_prism, in_memory)]
    assert told[0] == told[1]


@pytest.mark.slow
@pytest.mark.prism
def test_a_slow_cut_on_prism_keeps_its_state(
    tmp_path: Path, prism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prism would split a slow bundle between two segments of one probe, and lose its state."""
    source = write_input(tmp_path / "in", measurements_table(4000, seed=3, num_probes=2))
    in_memory = make_dataset(source, tmp_path / "memory")
    monkeypatch.setattr(grouping, "SORT_MEMORY_BYTES", 4000)
    monkeypatch.setattr(grouping, "SEGMENT_BYTES", 4000)
    append = row_splitting.OpenRows.append

    def slow_append(*args):
        time.sleep(0.3)
        yield from append(*args)

    monkeypatch.setattr(row_splitting.OpenRows, "append", slow_append)
    runner = ["--runner=PrismRunner", f"--prism_location={prism}"]
    assert files_of(make_dataset(source, tmp_path / "prism", *runner)) == files_of(in_memory)


def test_all_in_train_leaves_empty_shards_in_test(table: pa.Table, tmp_path: Path) -> None:
    source, output = write_input(tmp_path / "in", table), tmp_path / "out"
    assert (
        main([f"--input={source}", f"--output={output}", "--train_ratio=1", "--num-shards=7"]) == 0
    )
    shards = open_dataset(str(output)).manifest.splits["test"].shards
    assert not any(shard.num_records for shard in shards)
    names = sorted(path.name for path in (output / "train").glob("*.arrayrecord"))
    assert names == [f"train_shard_{i:05d}-of-00007.arrayrecord" for i in range(7)]


def test_bad_rows_are_dead_letters_and_the_rest_goes_on(table: pa.Table, tmp_path: Path) -> None:
    bad = pa.table(
        {
            "event_time": pa.array([1, -1, 5], pa.timestamp("us")),
            "src_addr": ["fe80::1%eth0", "1.2.3.4", "1.2.3.4"],
            "dst_addr": ["::1", "1.1.1.1", "1.1.1.1"],
            "ip_version": pa.array([6, 4, 4], pa.int8()),
            "rtt": pa.array([1, 1, float("nan")], pa.float64()),
        }
    )
    source = write_input(tmp_path / "in", table, bad)
    output = make_dataset(source, tmp_path / "out")
    letters = pq.read_table(sorted((output / "dead_letter").iterdir())).to_pylist()
    found = {(Path(letter["file"]).name, letter["row"], letter["reason"]) for letter in letters}
    assert found == {
        ("part-1.parquet", 0, "src_addr_zone_id"),
        ("part-1.parquet", 1, "event_time_before_1970"),
        ("part-1.parquet", 2, "rtt_not_finite"),
    }
    assert json.loads(letters[0]["value"])["src_addr"] == "fe80::1%eth0"
    assert history(read_rows(output)) == reference_rows(table)


def test_many_files_are_looked_at_by_workers(
    table: pa.Table, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("beam_pipeline.probe_rows.launch._MAX_FILES_IN_LAUNCHER", 2)
    source = write_input(tmp_path / "in", *(table.slice(at, 1000) for at in (0, 1000, 2000)))
    output = make_dataset(source, tmp_path / "out")
    assert files_of(output) == files_of(dataset)
