"""Row groups of any size are read in bounded memory."""

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from beam_pipeline.sources import inputs, reading
from beam_pipeline.sources.inputs import Piece, inspect, plan_units
from beam_pipeline.sources.options import ReadOptions
from beam_pipeline.storage import parquet
from tests.support.helpers import measurements_table

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


def test_a_local_row_group_is_read_in_pieces(piece: Piece, monkeypatch) -> None:
    opened: list[int] = []
    real = pq.ParquetFile

    def recorded(source, **options):
        opened.append(options["buffer_size"])
        return real(source, **options)

    monkeypatch.setattr(parquet.pq, "ParquetFile", recorded)
    assert sum(batch.num_rows for batch in reading.read_piece(piece, ReadOptions())) == 60_000
    assert opened and all(opened)
