"""Work units: their order, groups and rows; their progress files."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from beam_pipeline.documents.fields import Fields
from beam_pipeline.documents.files import InputFile, WorkUnit
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.overlap.job import scanning
from beam_pipeline.overlap.job.scanning import Heartbeat, Scan, number_rows
from beam_pipeline.overlap.results.match_files import ScannedUnit, ScanSummary
from beam_pipeline.storage.matching import FileVersion


def scanned(number: int, num_rows: int, first_row: int | None, num_files: int) -> ScannedUnit:
    file = InputFile(FileVersion("a.jsonl", 100, 0), "jsonl", number=4)
    unit = WorkUnit(file, number, 10, 10 * number, 10 * number + 10, first_row=first_row)
    summary = ScanSummary(num_rows, num_rows // 2, 0, 0, 2, {})
    paths = tuple(f"matches-{at}" for at in range(num_files))
    return ScannedUnit(unit._replace(number=number), paths, summary)


def test_rows_of_a_unit_follow_those_of_the_units_before() -> None:
    units = [scanned(at, size, None if at else 0, 3) for at, size in enumerate([3, 0, 5, 7])]
    shuffled = random.Random(0).sample(units, len(units))
    found = list(number_rows(shuffled))
    assert [each._replace(row_offset=0) for each in found] == units
    assert [each.row_offset for each in found] == [0, 3, 3, 8]
    assert [each.name for each in found] == [f"000004-00000{at}" for at in range(4)]


def test_a_group_is_scanned_with_one_index_shard_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each index shard is fetched and opened once, however many work units there are."""
    calls = []

    def scan(_: Scan, unit: WorkUnit, shard: int, prepared: Any) -> ScanSummary:
        calls.append((shard, unit.number))
        return ScanSummary(1, 1, 0, 0, 2, {})

    monkeypatch.setattr(Scan, "_scan", scan)
    prepared: Any = SimpleNamespace(
        num_index_shards=3, match_path=lambda unit, shard: f"{unit.number}-{shard}"
    )
    units = [scanned(number, 1, 0, 3).unit for number in (2, 0, 1)]
    scan_units = Scan(JobRun("temp"), Fields(), "default").process
    found = list(scan_units(("0", units), prepared, []))
    assert calls == [(shard, number) for shard in range(3) for number in range(3)]
    assert [unit.summary.num_matches for _, unit in found] == [6, 6, 6]
    assert found[0][1].paths == ("0-0", "0-1", "0-2")


# --- progress -----------------------------------------------------------------------------------


def heartbeat(folder: Path) -> Heartbeat:
    file = InputFile(FileVersion("corpus/a.jsonl", 100, 0), "jsonl", number=0)
    return Heartbeat(str(folder), str(folder / "temp"), WorkUnit(file, 0, 1, 0, 100), 0)


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
    heartbeat(tmp_path).finish()  # a retry counts from the beginning
    assert [line["records"] for line in lines(tmp_path).values()] == [0]
