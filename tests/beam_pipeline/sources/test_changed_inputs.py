"""An input file is read as it was planned, or the run ends with its name."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.main import main
from beam_pipeline.sources import inputs
from beam_pipeline.sources.inputs import Piece, inspect, match_files, plan_units
from beam_pipeline.sources.options import ReadOptions
from beam_pipeline.sources.reading import read_piece
from beam_pipeline.storage.matching import FileVersion
from tests.conftest import Gcs
from tests.support.helpers import measurements_table

TABLE = measurements_table(300, seed=1)
CHANGED = "in.parquet was changed while the job ran: it had"


def planned(path: Path | str) -> list[Piece]:
    files = [inspect(file, ReadOptions()) for file in match_files([str(path)])]
    return [piece for unit in plan_units(files) for piece in unit.pieces]


def num_read(piece: Piece) -> int:
    return sum(batch.num_rows for batch in read_piece(piece, ReadOptions(skip_bad_files=True)))


def fewer_rows(path: Path) -> None:
    pq.write_table(TABLE[:50], path)


def more_rows(path: Path) -> None:
    pq.write_table(pa.concat_tables([TABLE, TABLE]), path, row_group_size=300)


def integer_rtt(path: Path) -> None:
    at = TABLE.schema.get_field_index("rtt")
    pq.write_table(TABLE.set_column(at, "rtt", pa.array([1] * len(TABLE))), path)


def truncated(path: Path) -> None:
    os.truncate(path, 100)


def replaced_by_one_of_the_same_size(path: Path) -> None:
    data = path.read_bytes()
    path.with_name("other").write_bytes(data)
    os.utime(path.with_name("other"), ns=(0, path.stat().st_mtime_ns + 1))
    path.with_name("other").rename(path)


def removed(path: Path) -> None:
    path.unlink()


CHANGES = (
    fewer_rows,
    more_rows,
    integer_rtt,
    truncated,
    replaced_by_one_of_the_same_size,
    removed,
)


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


@pytest.mark.parametrize("change", [truncated, fewer_rows, removed], ids=lambda each: each.__name__)
def test_file_changed_while_it_is_read(source: Path, change: Callable[[Path], None]) -> None:
    (piece,) = planned(source)
    batches = read_piece(piece, ReadOptions())
    next(batches)
    change(source)
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


@pytest.mark.parametrize("max_files", [1000, 0], ids=["the launcher looks", "workers look"])
def test_run_names_the_changed_file(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    max_files: int,
) -> None:
    plan = inputs.plan_units

    def plan_and_change(files: list) -> list:
        units = plan(files)
        fewer_rows(source)
        return units

    monkeypatch.setattr("beam_pipeline.probe_rows.launch._MAX_FILES_IN_LAUNCHER", max_files)
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
    assert FileVersion("a", 10, 1_700_000_000_000_000_000).__str__() == (
        "10 bytes of 2023-11-14 22:13:20.000000"
    )
