"""Progress is read off a run's folder, and twice the same file counts once."""

import io
import time
from functools import partial
from pathlib import Path

import pytest

from beam_pipeline.jobs import monitoring
from beam_pipeline.jobs.monitoring import watched
from beam_pipeline.probe_rows.progress import look
from beam_pipeline.sources.inputs import MeasurementUnit, Piece
from beam_pipeline.storage.matching import FileVersion


def unit(index: int, rows: int, path: str) -> MeasurementUnit:
    file = FileVersion(path, rows * 20, 1)
    return MeasurementUnit(index, (Piece(file, "parquet", (0,), 0, rows, rows * 20),))


UNITS = [unit(0, 1_000_000, "a"), unit(1, 2_000_000, "a"), unit(2, 1_000_000, "b")]


def touch(folder: Path, name: str, size: int = 1) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ("reading", 0, 4_000_000)),
        (["chunks/unit-000001-a", "chunks/unit-000001-b"], ("reading", 2_000_000, 4_000_000)),
        (["chunks/unit-000000-a", "chunks/unit-000001-a", "packets/packets-a"], ("sorting", 1, 2)),
        (
            [
                *(f"train/train_shard_00001-of-00003.arrayrecord-{attempt}" for attempt in "ab"),
                "test/test_shard_00000-of-00001.arrayrecord-a",
            ],
            ("writing", 2, 4),
        ),
    ],
    ids=["nothing", "reading", "sorting", "writing"],
)
def test_progress_of_files(
    tmp_path: Path, names: list[str], expected: tuple[str, int, int]
) -> None:
    for name in names:
        touch(tmp_path, name)
    seen = look(str(tmp_path), UNITS)
    assert (seen.phase, seen.done, seen.total) == expected


def test_json_is_measured_in_bytes(tmp_path: Path) -> None:
    piece = Piece(FileVersion("a.json", 300, 1), "atlas_json", (), 0, 0, 300)
    units = [MeasurementUnit(0, (piece,)), MeasurementUnit(1, ())]
    touch(tmp_path, "chunks/unit-000000-a")
    seen = look(str(tmp_path), units)
    assert (seen.done, seen.total) == (300, 300)


def test_without_a_terminal_plain_lines_come(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(monitoring, "_LINE_SECONDS", 0.05)
    touch(tmp_path, "chunks/unit-000001-a")
    stream = io.StringIO()
    with watched(partial(look, str(tmp_path), UNITS), stream):
        time.sleep(0.3)
    lines = stream.getvalue().splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("reading: 1 of 2 files, 2.0 of 4.0 M") for line in lines)
