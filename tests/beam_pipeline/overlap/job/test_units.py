"""Units: their order, their keys, and the rows of those that could not know theirs."""

import random
from pathlib import Path

import pytest

from beam_pipeline.overlap.documents.reading import DocumentFile, DocumentUnit
from beam_pipeline.overlap.job.units import (
    ScannedUnit,
    Work,
    count_buckets,
    number_units,
    works_of,
)
from beam_pipeline.overlap.results.match_files import PartSummary


def summary(num_rows: int) -> PartSummary:
    return PartSummary(num_rows, num_rows, 0, 0, {"json_invalid": 1} if num_rows == 3 else {}, 2, 1)


def unit(start: int, first_row: int | None) -> DocumentUnit:
    return DocumentUnit("a.jsonl", 100, "jsonl", start, start + 10, (), first_row)


@pytest.mark.parametrize("num_parts", [1, 3])
def test_rows_of_a_unit_follow_those_of_the_units_before(num_parts: int) -> None:
    sizes = [3, 0, 5, 7]
    scanned = [
        ScannedUnit(Work(4, at, unit(10 * at, None if at else 0), part), summary(size))
        for at, size in enumerate(sizes)
        for part in range(num_parts)
    ]
    random.Random(0).shuffle(scanned)
    units = list(number_units(scanned, "work", num_parts))
    assert [each.first_row for each in units] == [0, 3, 3, 8]
    assert [each.row_offset for each in units] == [0, 3, 3, 8]
    assert [each.num_letters for each in units] == [1, 0, 0, 0]
    assert all(each.num_matches == 2 * num_parts for each in units)
    assert [each.name for each in units] == [f"000004-00000{at}" for at in range(4)]
    parts = [part for each in units for part in each.parts]
    assert len(set(parts)) == 4 * num_parts and all(part.startswith("work/") for part in parts)


def test_rows_that_are_known_are_not_moved() -> None:
    scanned = [ScannedUnit(Work(0, at, unit(10 * at, 5 * at), 0), summary(5)) for at in range(3)]
    units = list(number_units(scanned, "work", 1))
    assert [each.first_row for each in units] == [0, 5, 10]
    assert [each.row_offset for each in units] == [0, 0, 0]


def test_work_is_keyed_by_who_does_it(tmp_path: Path) -> None:
    file = (3, DocumentFile(str(tmp_path / "x.jsonl"), 200 << 20, "jsonl", False))
    alone = list(works_of(file, "text", 1, 0))
    assert len({key for key, _ in alone}) == len(alone) == 4
    assert [work.unit_number for _, work in alone] == [0, 1, 2, 3]
    passes = list(works_of(file, "text", 5, 2))
    assert {key for key, _ in passes} <= {"0", "1"} and len(passes) == 20
    for unit_number in range(4):  # all passes of a unit have one key
        assert len({key for key, work in passes if work.unit_number == unit_number}) == 1


def test_units_are_gathered_only_for_several_passes() -> None:
    assert count_buckets(1 << 40, 1) == 0
    assert count_buckets(1, 2) == 1
    assert count_buckets(1 << 40, 2) == 1024
