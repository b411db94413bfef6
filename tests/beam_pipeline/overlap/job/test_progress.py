"""Progress: one small file a work unit, written over, never added up."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from beam_pipeline.documents.reading import WorkUnit
from beam_pipeline.overlap.job import scanning
from beam_pipeline.overlap.job.manifest import read_summary, write_summary
from beam_pipeline.overlap.job.scanning import Heartbeat


def heartbeat(folder: Path, file_number: int = 0, number: int = 0, shard: int = 0) -> Heartbeat:
    unit = WorkUnit("corpus/a.jsonl", 100, "jsonl", 0, 100, (), 0, 0, file_number, number)
    return Heartbeat(str(folder), str(folder / "temp"), unit, shard)


def read(records: int, text_bytes: int, ngrams: int, overlaps: int) -> tuple[Any, Any]:
    batch = SimpleNamespace(num_rows=records, utf8=bytes(text_bytes))
    return batch, SimpleNamespace(num_ngrams=ngrams, num_matches=overlaps)


def lines(folder: Path) -> dict[str, dict]:
    return {
        path.name: orjson.loads(path.read_bytes()) for path in (folder / "progress").glob("*.jsonl")
    }


def test_a_heartbeat_is_written_over_while_the_work_goes_on(tmp_path: Path, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(scanning.time, "monotonic", lambda: now[0])
    beat = heartbeat(tmp_path)
    beat.count(*read(10, 1000, 900, 0))
    assert not (tmp_path / "progress").exists()  # not yet half a minute
    now[0] = 31.0
    beat.count(*read(5, 500, 400, 1))
    (line,) = lines(tmp_path).values()
    counts = [line[name] for name in ("records", "text_bytes", "ngrams", "overlaps")]
    assert counts == [15, 1500, 1300, 1]
    assert (line["train_path"], line["stage"], line["is_done"]) == ("corpus/a.jsonl", "scan", False)
    beat.finish()
    (line,) = lines(tmp_path).values()
    assert line["is_done"] and line["records"] == 15


def test_a_retry_counts_from_the_beginning(tmp_path: Path) -> None:
    for records in (7, 3):
        beat = heartbeat(tmp_path)
        beat.count(*read(records, 0, 0, 0))
        beat.finish()
    assert [line["records"] for line in lines(tmp_path).values()] == [3]


def test_every_scan_of_a_work_unit_has_a_file_of_its_own(tmp_path: Path) -> None:
    pieces = [(file, unit, shard) for file in (0, 1) for unit in (0, 1) for shard in (0, 1)]
    for piece in pieces:
        heartbeat(tmp_path, *piece).finish()
    names = set(lines(tmp_path))
    assert len(names) == len(pieces)
    assert {"progress-00001.jsonl", "progress-00002.jsonl", "progress-00001-00002.jsonl"} <= names
    assert "progress-00002-00002-pass-00002.jsonl" in names


def test_the_summary_is_that_of_the_last_stage(tmp_path: Path) -> None:
    for stage in ("index", "done"):
        write_summary(str(tmp_path), str(tmp_path / "temp"), {"stage": stage})
    assert read_summary(str(tmp_path)) == {"stage": "done"}
    with pytest.raises(FileNotFoundError):
        read_summary(str(tmp_path / "elsewhere"))
