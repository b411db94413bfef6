"""Reading ArrayRecord: patterns, ranges that cover a file once, and files that cannot be read."""

from pathlib import Path

import numpy as np
import pytest
from apache_beam.io.fileio import EmptyMatchTreatment
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from array_record.python.array_record_module import ArrayRecordReader

from beam_pipeline import array_record_io
from beam_pipeline.array_record_io import ReadAllFromArrayRecord, ReadFromArrayRecord
from beam_pipeline.errors import ProbelineError, user_message
from tests.support.array_record_files import WORDS, Objects
from tests.support.helpers import eager
from tests.support.probe_rows_on_disk import write_records


def line_of_failed_read(path: Path | str) -> str:
    """Returns the line that a user sees of a read that must fail."""
    with pytest.raises(Exception) as failure:  # runners wrap what workers raise
        eager(None, ReadFromArrayRecord(str(path)))
    line = user_message(failure.value)
    assert line is not None, failure.value
    return line


def file_of(path: Path, num_records: int) -> array_record_io._File:
    return array_record_io._File(str(path), path.stat().st_size, num_records)


def test_all_files_of_patterns_are_read_with_their_names(tmp_path: Path) -> None:
    for number in range(2):
        write_records(tmp_path / f"w-{number}", WORDS[number::2])
    patterns = [f"{tmp_path}/w-0", f"{tmp_path}/?-1", f"{tmp_path}/nothing"]
    read = eager(patterns, ReadAllFromArrayRecord(with_filename=True))
    expected = [(f"{tmp_path}/w-{at % 2}", word) for at, word in enumerate(WORDS)]
    assert sorted(read) == sorted(expected)
    read = eager(None, ReadFromArrayRecord(f"{tmp_path}/*", with_filename=True))
    assert sorted(read) == sorted(expected)


@pytest.mark.parametrize(
    ("treatment", "allowed", "refused"),
    [
        (EmptyMatchTreatment.ALLOW_IF_WILDCARD, "none-[ab]", "none"),
        (EmptyMatchTreatment.DISALLOW, None, "none-*"),
    ],
)
def test_a_pattern_without_a_match(tmp_path, treatment: str, allowed: str | None, refused) -> None:
    if allowed:
        assert list(array_record_io._match(f"{tmp_path}/{allowed}", treatment)) == []
    with pytest.raises(ProbelineError, match=r"none.* matches no ArrayRecord file"):
        list(array_record_io._match(f"{tmp_path}/{refused}", treatment))


# --- ranges ---------------------------------------------------------------------------------------


def test_a_large_file_is_read_in_several_ranges_that_cover_it_once(tmp_path, monkeypatch):
    path = write_records(tmp_path / "w", WORDS)
    size = path.stat().st_size
    monkeypatch.setattr(array_record_io, "_SPLIT_BYTES", size // 6)
    provider = array_record_io._RecordRanges()
    ranges = list(provider.split(file_of(path, len(WORDS)), OffsetRange(0, len(WORDS))))
    assert len(ranges) >= 5
    assert [r.start for r in ranges] == [0, *(r.stop for r in ranges[:-1])]
    assert ranges[-1].stop == len(WORDS)
    assert sorted(eager(None, ReadFromArrayRecord(str(path)))) == sorted(WORDS)


def test_records_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    path = write_records(tmp_path / "w", WORDS)
    monkeypatch.setattr(array_record_io, "_READ_BYTES", 4 * path.stat().st_size // 10)
    sizes = []
    read = ArrayRecordReader.read

    def spy(reader, start, stop):
        sizes.append(stop - start)
        return read(reader, start, stop)

    monkeypatch.setattr(ArrayRecordReader, "read", spy)
    assert sorted(eager(None, ReadFromArrayRecord(str(path)))) == sorted(WORDS)
    assert sizes == [len(WORDS) // 10] * 10


def test_a_reader_stops_where_its_range_was_cut_meanwhile(tmp_path):
    """As a runner does that gives the rest of a slow file to another worker."""
    path = write_records(tmp_path / "w", WORDS)
    tracker = array_record_io._RecordRanges().create_tracker(OffsetRange(20, 100))
    reading = array_record_io._records(file_of(path, len(WORDS)), tracker)
    read = [next(reading) for _ in range(10)]
    split = tracker.try_split(0)
    assert split is not None
    primary, residual = split
    read += reading
    assert read == WORDS[20 : primary.stop]
    assert primary.stop == residual.start < 100
    assert residual.stop == 100


# --- files that are copied ------------------------------------------------------------------------


@pytest.fixture
def objects(monkeypatch) -> dict[str, bytes]:
    stored: dict[str, bytes] = {}
    monkeypatch.setattr(Objects, "stored", stored)
    return stored


def test_a_bucket_is_read_and_leaves_no_local_copy(tmp_path, objects, monkeypatch):
    for name in "ab":
        path = write_records(tmp_path / name, WORDS)
        objects[f"objects://bucket/words-{name}"] = path.read_bytes()
        path.unlink()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    read = eager(None, ReadFromArrayRecord("objects://bucket/words-*"))
    assert sorted(read) == sorted(WORDS + WORDS)
    objects["objects://bucket/w"] = b"\0" * 200_000
    line = line_of_failed_read("objects://bucket/w")
    assert line.startswith("objects://bucket/w is not a")
    assert list(tmp_path.iterdir()) == []


def test_a_copied_file_is_copied_once_and_not_split(tmp_path, objects, monkeypatch) -> None:
    data = write_records(tmp_path / "w", WORDS).read_bytes()
    objects["objects://b/w"] = data
    monkeypatch.setattr(array_record_io, "_SPLIT_BYTES", len(data) // 6)
    copied: list[str] = []
    copy = array_record_io.local_copy

    def spy(path: str):
        copied.append(path)
        return copy(path)

    monkeypatch.setattr(array_record_io, "local_copy", spy)
    assert sorted(eager(None, ReadFromArrayRecord("objects://b/*"))) == sorted(WORDS)
    assert copied == ["objects://b/w"]
    file = array_record_io._count_records(next(array_record_io._match("objects://b/w", "ALLOW")))
    tracker = OffsetRestrictionTracker(OffsetRange(0, file.num_parts))
    reading = array_record_io._records(file, tracker)
    read = [next(reading)]
    assert tracker.try_split(0.5) is None
    assert [*read, *reading] == WORDS  # a runner splits the file neither before nor meanwhile
    tracker.check_done()


# --- damaged files --------------------------------------------------------------------------------


RANDOM = [np.random.default_rng(number).bytes(300) for number in range(1000)]


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 200_000, 1, 70_000],
    ids=["empty", "zeros", "1 byte less", "70,000 bytes less"],
)
def test_file_that_is_not_arrayrecord_or_cut(tmp_path, data):
    path = write_records(tmp_path / "w", RANDOM)
    path.write_bytes(path.read_bytes()[:-data] if isinstance(data, int) else data)
    line = line_of_failed_read(path)
    assert line.startswith(f"{path} is not a readable ArrayRecord file")
    assert "\n" not in line


def test_a_damaged_record_is_an_error_of_one_line(tmp_path):
    path = write_records(tmp_path / "w", RANDOM)
    data = bytearray(path.read_bytes())
    data[70_000] ^= 0xFF
    path.write_bytes(data)
    line = line_of_failed_read(path)
    assert str(path) in line
    assert "\n" not in line
