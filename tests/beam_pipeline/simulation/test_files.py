"""The files of simulated measurements: their columns, number of rows, order and bytes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from beam_pipeline.simulation import measurements as simulated_measurements
from tests.support.generated import bytes_of, files_of, rows_of, run


def test_columns_read_back_as_plain_types(rows: pa.Table) -> None:
    assert rows.schema.remove_metadata() == pa.schema(
        [
            ("event_time", pa.timestamp("us", tz="UTC")),
            ("src_addr", pa.string()),
            ("dst_addr", pa.string()),
            ("ip_version", pa.int8()),
            ("rtt", pa.float32()),
        ]
    )
    assert all(column.null_count == 0 for column in rows.columns)


def test_glob_takes_measurements_only(folder: Path) -> None:
    names = [f"measurements-{i:05d}-of-00004.parquet" for i in range(4)]
    assert [path.name for path in files_of(folder)] == names
    assert sorted(path.name for path in (folder / "truth").iterdir()) == [
        "anchors.parquet",
        "probes.parquet",
    ]
    assert not list(folder.rglob("*.tmp"))


def test_row_groups_are_full_but_for_the_last(tmp_path: Path) -> None:
    assert run(tmp_path, "--num_files=1", num_measurements=300_000) == 0
    metadata = pq.ParquetFile(files_of(tmp_path)[0]).metadata
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert sizes == [131_072, 131_072, 37_856]
    assert metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize(
    ("num_measurements", "num_probes", "flags"),
    [
        (1, 1, []),
        (1, 50, []),
        (7, 300, ["--num_files=3"]),
        (999, 1, []),
        (12_345, 7, ["--hot_share=1"]),
        (20_000, 5000, []),
        (50_000, 30, ["--interval_seconds=0.01", "--num_anchors=3"]),
        (50_000, 30, ["--interval_seconds=1e6", "--ipv6_share=1"]),
    ],
)
def test_number_of_rows(
    tmp_path: Path, num_measurements: int, num_probes: int, flags: list[str]
) -> None:
    assert run(tmp_path, *flags, num_measurements=num_measurements, num_probes=num_probes) == 0
    table = rows_of(tmp_path)
    assert table.num_rows == num_measurements
    assert pq.read_table(tmp_path / "truth/probes.parquet").num_rows == num_probes
    assert pc.count_distinct(table["src_addr"]).as_py() <= num_probes
    assert np.all(np.diff(table["event_time"].to_numpy().astype("i8")) >= 0)


def test_seeds_are_reproducible(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert run(tmp_path / name, f"--seed={seed}", num_measurements=20_000) == 0
    a, b, c = (bytes_of(tmp_path / name) for name in "abc")
    assert a == b
    assert a.keys() == c.keys()
    assert all(a[path] != c[path] for path in a)


def test_result_is_independent_of_slicing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without delays the times are the regular ticks, which no slicing may change.
    monkeypatch.setattr(simulated_measurements, "_MAX_DELAY_S", 0.0)
    assert run(tmp_path / "day", num_measurements=30_000) == 0
    monkeypatch.setattr(simulated_measurements, "_SLICE_ROWS", 500)
    assert run(tmp_path / "hour", num_measurements=30_000) == 0
    columns = ["event_time", "src_addr", "dst_addr"]
    order = [(name, "ascending") for name in columns]
    day, hour = (rows_of(tmp_path / name).select(columns) for name in ("day", "hour"))
    assert day.sort_by(order).equals(hour.sort_by(order))


def test_time_order_within_and_across_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated_measurements, "_SLICE_ROWS", 1000)  # many seams
    assert run(tmp_path, num_measurements=40_000) == 0
    times = [pq.read_table(path)["event_time"].to_numpy() for path in files_of(tmp_path)]
    assert len(times) == 4
    assert np.all(np.diff(np.concatenate(times).astype("i8")) >= 0)
