"""Files are recognised by their content and cut into units; RIPE Atlas through the whole job."""

import bz2
import gzip
import json
import math
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.sources import inputs
from beam_pipeline.sources.inputs import MeasurementFile, inspect, match_files, plan_units
from beam_pipeline.sources.options import ReadOptions
from beam_pipeline.storage.matching import FileVersion
from tests.support.job_runs import history, make_dataset, read_rows

SECOND = 1_000_000
START = 1_700_000_000


def results(num_results: int, seed: int = 0) -> list[dict]:
    """RIPE Atlas ping results with three entries each, one of them a timeout."""
    rng = np.random.default_rng(seed)
    return [
        {
            "type": "ping",
            "af": 4,
            "prb_id": int(probe),
            "from": f"192.0.2.{probe}",
            "src_addr": "10.0.0.2",
            "dst_addr": "198.51.100.7",
            "timestamp": START + number,
            "result": [{"rtt": 1.5 + int(probe)}, {"x": "*"}, {"rtt": 2.5}],
        }
        for number, probe in enumerate(rng.integers(1, 5, num_results))
    ]


def expected(documents: list[dict], source: str) -> dict[str, list[tuple]]:
    probes: dict[str, list[tuple]] = {}
    for document in documents:
        for entry in document["result"]:
            measurement = (
                document["timestamp"] * SECOND,
                0xFFFF_C633_6407,
                entry.get("rtt", -1.0),
            )
            probes.setdefault(document[source], []).append(measurement)
    return {probe: sorted(measurements) for probe, measurements in probes.items()}


@pytest.mark.parametrize(
    ("compress", "source"),
    [
        pytest.param(bytes, "from", id="plain"),
        pytest.param(gzip.compress, "src_addr", id="gzip"),
        pytest.param(bz2.compress, "from", id="bzip2"),
    ],
)
def test_atlas_json_is_recognised(tmp_path: Path, compress, source: str) -> None:
    documents = results(50)
    lines = "".join(json.dumps(document) + "\n" for document in documents)
    (tmp_path / "ping-v4").write_bytes(compress(lines.encode() + b"not json\n"))
    output = make_dataset(tmp_path / "ping-v4", tmp_path / "out", f"--atlas_source={source}")
    assert history(read_rows(output)) == expected(documents, source)
    counts = open_dataset(str(output)).manifest.counts
    assert counts.rows_read == 151 and counts.dead_letters == {"json_invalid": 1}


def test_a_bigquery_export_is_recognised(tmp_path: Path) -> None:
    documents = results(50)
    ping = pa.struct([("timeout", pa.bool_()), ("error", pa.bool_()), ("rtt", pa.float64())])
    table = pa.table(
        {
            "af": pa.array([4] * 50, pa.int64()),
            "src_addr": [document["src_addr"] for document in documents],
            "synth_addr": [document["from"] for document in documents],
            "dst_addr": [document["dst_addr"] for document in documents],
            "start_time": pa.array(
                [document["timestamp"] for document in documents], pa.timestamp("s", "UTC")
            ),
            "pings": pa.array(
                [
                    [
                        {"timeout": "x" in e, "error": False, "rtt": e.get("rtt")}
                        for e in document["result"]
                    ]
                    for document in documents
                ],
                pa.list_(ping),
            ),
        }
    )
    pq.write_table(table, tmp_path / "export.parquet", row_group_size=7)
    output = make_dataset(tmp_path / "export.parquet", tmp_path / "out")
    assert history(read_rows(output)) == expected(documents, "from")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "mark"])
@pytest.mark.parametrize("form", [json.dumps, lambda all: "\n".join(map(json.dumps, all))])
def test_arrays_and_marks_are_recognised(tmp_path: Path, mark: bytes, form) -> None:
    (tmp_path / "x").write_bytes(mark + form(results(2)).encode())
    file = inspect(match_files([str(tmp_path / "x")])[0], ReadOptions())
    assert file.input_format == "atlas_json" and not file.problem


def test_compressed_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x")
    (tmp_path / "x.gz").write_bytes(gzip.compress((tmp_path / "x").read_bytes()))
    file = inspect(match_files([str(tmp_path / "x.gz")])[0], ReadOptions())
    assert file.problem == "Parquet within a compressed file; decompress it"


def test_explicit_input_format(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x")
    with pytest.raises(ProbelineError, match="'start_time'"):
        inspect(match_files([str(tmp_path / "x")])[0], ReadOptions(input_format="atlas_bigquery"))


def test_folder_without_marker_files(tmp_path: Path) -> None:
    for name in ("b", "a", "_SUCCESS", ".a.crc"):
        (tmp_path / name).write_text("x")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "c").write_text("x")
    assert [Path(file.path).name for file in match_files([str(tmp_path)])] == ["a", "b"]


def test_overlapping_patterns(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    spellings = [
        f"{tmp_path}/a",
        f"{tmp_path}/*",
        f"{tmp_path}//a",
        f"{tmp_path}/./*",
        f"{tmp_path}//",
    ]
    assert len(match_files(spellings)) == 1


def test_path_is_not_utf_8(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).write_text("x")
    with pytest.raises(UsageError, match=r"\\udcff is not UTF-8: rename the file"):
        match_files([str(tmp_path)])


def test_units_hold_every_row_group_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "UNIT_ROWS", 100)
    files = [
        MeasurementFile(FileVersion("a", 10, 1), "parquet", (30, 30, 30, 30)),
        MeasurementFile(FileVersion("b", 10, 1), "parquet", (5,)),
        MeasurementFile(FileVersion("c", 10, 1), "parquet", (500, 1)),
        MeasurementFile(FileVersion("d", 10, 1), "atlas_json", ()),
        MeasurementFile(FileVersion("e", 10, 1), "parquet", (), problem="cut off"),
    ]
    units = plan_units(files)
    assert {unit.rows_in_all for unit in units} == {626}
    pieces = [piece for unit in units for piece in unit.pieces]
    groups = [
        (piece.path, group)
        for piece in pieces
        if piece.input_format == "parquet"
        for group in piece.row_groups
    ]
    assert sorted(groups) == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0), ("c", 0), ("c", 1)]
    assert [unit.index for unit in units] == list(range(len(units)))
    assert all(
        sum(piece.num_rows for piece in unit.pieces) <= 100 or len(unit.pieces) == 1
        for unit in units
    )
    assert {piece.path for piece in pieces} == {"a", "b", "c", "d", "e"}
    firsts = {(piece.path, piece.first_row) for piece in pieces}
    assert {("a", 0), ("a", 60), ("c", 0), ("c", 500)} <= firsts


@given(
    num_files=st.integers(1, 200),
    file_rows=st.integers(0, 350),
    group_rows=st.integers(1, 50),
    is_json=st.booleans(),
)
def test_units_are_even_for_one_two_and_four_workers(num_files, file_rows, group_rows, is_json):
    """Each has at most a hundred rows and half a file or row group at either end."""
    groups = tuple(min(group_rows, file_rows - first) for first in range(0, file_rows, group_rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "UNIT_ROWS", 100)
        patch.setattr(inputs, "UNIT_JSON_BYTES", 1000)
        file = FileVersion("a", 10 * file_rows, 1)
        one = (
            MeasurementFile(file, "atlas_json", ())
            if is_json
            else MeasurementFile(file, "parquet", groups)
        )
        units = plan_units(
            [one._replace(file=file._replace(path=f"{n}")) for n in range(num_files)]
        )
    pieces = [piece for unit in units for piece in unit.pieces]
    if not is_json:
        assert sum(piece.num_rows for piece in pieces) == num_files * file_rows
    rows = [sum(piece.num_rows or piece.num_bytes // 10 for piece in unit.pieces) for unit in units]
    largest = file_rows if is_json else min(file_rows, 100 + group_rows)
    total = num_files * file_rows
    assert all(unit.rows_in_all == total for unit in units)
    num_units = 1 if total <= 100 else 4 * math.ceil(total / 400)
    assert max(rows) <= math.ceil(total / num_units) + largest + 1
    if largest * num_units <= total:
        assert len(units) == num_units
