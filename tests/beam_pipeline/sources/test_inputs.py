"""Files are recognised by their content, cut into units and read as they were planned."""

import bz2
import gzip
import io
import math
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.main import main
from beam_pipeline.sources import inputs, reading
from beam_pipeline.sources.inputs import MeasurementFile, Piece, inspect, match_files, plan_units
from beam_pipeline.sources.options import ReadOptions
from beam_pipeline.sources.reading import read_piece
from beam_pipeline.storage import parquet
from beam_pipeline.storage.matching import FileVersion
from tests.conftest import Gcs
from tests.support.atlas_results import good
from tests.support.helpers import measurements_table


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress])
@pytest.mark.parametrize("data", [b"%s\n%s", b"\xef\xbb\xbf%s", b"[%s,%s]", b"\xef\xbb\xbf[%s]"])
def test_atlas_json_is_recognised(tmp_path: Path, data: bytes, compress) -> None:
    results = (good(),) * data.count(b"%")
    (tmp_path / "x").write_bytes(compress(data % results))
    file = inspect(match_files([str(tmp_path / "x")])[0], ReadOptions())
    assert file.input_format == "atlas_json" and not file.problem


def test_compressed_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x")
    (tmp_path / "x.gz").write_bytes(gzip.compress((tmp_path / "x").read_bytes()))
    with pytest.raises(ProbelineError, match="is Parquet within a compressed file: decompress it"):
        inspect(match_files([str(tmp_path / "x.gz")])[0], ReadOptions())


def test_overlapping_patterns(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    assert len(match_files([f"{tmp_path}{end}" for end in ("/a", "/*", "//a", "/./*", "//")])) == 1


def test_path_is_not_utf_8(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).write_text("x")
    with pytest.raises(UsageError, match=r"\\udcff is not UTF-8: rename the file"):
        match_files([str(tmp_path)])


@given(
    num_files=st.integers(1, 200),
    file_rows=st.integers(0, 350),
    group_rows=st.integers(1, 50),
    is_json=st.booleans(),
)
def test_units_are_even_for_one_two_and_four_workers(num_files, file_rows, group_rows, is_json):
    """Each row group is in one, which has at most a hundred rows and half a file at either end."""
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
        found = [(int(piece.path), group) for piece in pieces for group in piece.row_groups]
        assert sorted(found) == [(n, g) for n in range(num_files) for g in range(len(groups))]
        for piece in pieces:
            assert piece.first_row == group_rows * min(piece.row_groups, default=0)
    assert [unit.index for unit in units] == list(range(len(units)))
    rows = [sum(piece.num_rows or piece.num_bytes // 10 for piece in unit.pieces) for unit in units]
    largest = file_rows if is_json else min(file_rows, 100 + group_rows)
    total = num_files * file_rows
    assert all(unit.rows_in_all == total for unit in units)
    num_units = 1 if total <= 100 else 4 * math.ceil(total / 400)
    assert max(rows) <= math.ceil(total / num_units) + largest + 1
    if largest * num_units <= total:
        assert len(units) == num_units


# --- files that change while the job runs ---------------------------------------------------------


TABLE = measurements_table(300, seed=1)
CHANGED = "in.parquet was changed while the job ran: it had"


def planned(path: Path | str) -> list[Piece]:
    files = [inspect(file, ReadOptions()) for file in match_files([str(path)])]
    return [piece for unit in plan_units(files) for piece in unit.pieces]


def num_read(piece: Piece) -> int:
    return sum(batch.num_rows for batch in read_piece(piece, ReadOptions(skip_bad_files=True)))


def fewer_rows(path: Path) -> None:
    pq.write_table(TABLE[:50], path)


def truncated(path: Path) -> None:
    os.truncate(path, 100)


def replaced_by_one_of_the_same_size(path: Path) -> None:
    data = path.read_bytes()
    path.with_name("other").write_bytes(data)
    os.utime(path.with_name("other"), ns=(0, path.stat().st_mtime_ns + 1))
    path.with_name("other").rename(path)


def removed(path: Path) -> None:
    path.unlink()


CHANGES = (fewer_rows, truncated, replaced_by_one_of_the_same_size, removed)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.parquet"
    pq.write_table(TABLE, path)
    return path


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_file_changed_before_it_is_read(source: Path, change: Callable[[Path], None]) -> None:
    """Not even --on_bad_file=dead_letter makes a changed file a dead letter."""
    (piece,) = planned(source)
    assert num_read(piece) == 300
    change(source)
    with pytest.raises(ProbelineError, match=CHANGED):
        num_read(piece)


def test_file_changed_while_it_is_read(source: Path) -> None:
    (piece,) = planned(source)
    batches = read_piece(piece, ReadOptions())
    next(batches)
    fewer_rows(source)
    with pytest.raises(ProbelineError, match=CHANGED):
        list(batches)


def test_row_count_contradicts_the_footer(source: Path) -> None:
    """Where a filesystem knows nothing but size and time, rows are still counted."""
    (piece,) = planned(source)
    with pytest.raises(ProbelineError, match=r"in.parquet has 300 rows .* its footer said 299"):
        num_read(piece._replace(num_rows=299))


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN"])
def test_addresses_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    """Arrow does not read DELTA_BYTE_ARRAY as a dictionary, which addresses are asked for."""
    path = tmp_path / "in.parquet"
    encodings = {"src_addr": encoding, "dst_addr": "PLAIN"}
    pq.write_table(TABLE, path, use_dictionary=False, column_encoding=encodings)
    (batch,) = read_piece(planned(path)[0], ReadOptions())
    assert batch.block is not None and len(batch.block) == 300


def test_run_names_the_changed_file(source: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    """Workers look at it and plan its units."""
    plan = inputs.plan_units

    def plan_and_change(files: list) -> list:
        units = plan(files)
        fewer_rows(source)
        return units

    monkeypatch.setattr("beam_pipeline.probe_rows.launch._MAX_FILES_IN_LAUNCHER", 0)
    monkeypatch.setattr("beam_pipeline.probe_rows.pipeline.plan_units", plan_and_change)
    assert main([f"--input={source}", f"--output={tmp_path}/out"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {source} was changed while the job ran: it had")
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_object_generation_changed(gcs: Gcs, source: Path) -> None:
    path = f"{gcs.make_bucket()}/in.parquet"
    gcs.upload(source, path)
    (piece,) = planned(path)
    assert piece.file.version > 0 and num_read(piece) == 300
    fewer_rows(source)
    gcs.upload(source, path)
    with pytest.raises(
        ProbelineError, match=r"in\.parquet: it was changed or removed while the job ran"
    ):
        num_read(piece)
    assert num_read(planned(path)[0]) == 50


def test_pipe_as_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for pattern in (tmp_path / "pipe", tmp_path):
        with pytest.raises(UsageError, match="pipe is not a regular file"):
            match_files([str(pattern)])


# --- row groups of any size in bounded memory -----------------------------------------------------


_PIECE_BYTES = 1 << 14


class _Recorded(io.FileIO):
    """A file that knows how much was read at a time."""

    def __init__(self, path: str, sizes: list[int]):
        super().__init__(path)
        self._sizes = sizes

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self._sizes.append(len(data))
        return data


@pytest.fixture
def piece(tmp_path: Path) -> Piece:
    """A file with one row group, whose columns of addresses are far larger than a piece."""
    table = measurements_table(60_000, seed=1, num_probes=5_000)
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=len(table), compression="none")
    (file,) = inputs.match_files([str(tmp_path / "in.parquet")])
    (unit,) = plan_units([inspect(file, ReadOptions())])
    return unit.pieces[0]


def read_remotely(piece: Piece, monkeypatch) -> tuple[int, int]:
    """Returns the rows that were read, and the most bytes at a time, as of a remote file."""
    sizes: list[int] = []
    monkeypatch.setattr(parquet, "is_local", lambda path: False)
    monkeypatch.setattr(parquet, "open_ranges", lambda path, _: _Recorded(path, sizes))
    batches = list(reading.read_piece(piece, ReadOptions()))
    return sum(batch.num_rows for batch in batches), max(sizes)


@pytest.mark.parametrize("is_large", [False, True])
def test_only_a_large_row_group_of_a_remote_file_is_read_in_pieces(
    piece: Piece, is_large: bool, monkeypatch
) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", _PIECE_BYTES)
    if is_large:
        monkeypatch.setattr(reading, "_LARGE_GROUP_BYTES", 1 << 20)
    num_rows, most_bytes = read_remotely(piece, monkeypatch)
    assert num_rows == 60_000
    # Pages of the file are larger than a piece, and come whole.
    assert (most_bytes < 1_200_000) == is_large
