"""Reading ArrayRecord: ranges that cover a file once, and files that cannot be read."""

import os
from pathlib import Path

import numpy as np
import pytest
from apache_beam.io.restriction_trackers import OffsetRange
from array_record.python.array_record_module import ArrayRecordReader

from beam_pipeline import array_record_io
from beam_pipeline.array_record_io import (
    ReadFromArrayRecord,
)
from tests.support.array_record_files import (
    WORDS,
    line_of_failed_read,
    write_file,
)
from tests.support.helpers import eager


def file_of(path: Path, num_records: int) -> array_record_io._File:
    return array_record_io._File(str(path), path.stat().st_size, num_records)


def test_a_large_file_is_read_in_several_ranges_that_cover_it_once(tmp_path, monkeypatch):
    path = write_file(tmp_path / "w", WORDS)
    size = path.stat().st_size
    monkeypatch.setattr(array_record_io, "_SPLIT_BYTES", size // 6)
    provider = array_record_io._RecordRanges()
    ranges = list(provider.split(file_of(path, len(WORDS)), OffsetRange(0, len(WORDS))))
    assert len(ranges) >= 5
    assert [r.start for r in ranges] == [0, *(r.stop for r in ranges[:-1])]
    assert ranges[-1].stop == len(WORDS)
    assert sorted(eager(None, ReadFromArrayRecord(str(path)))) == sorted(WORDS)


def test_records_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    path = write_file(tmp_path / "w", WORDS)
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
    path = write_file(tmp_path / "w", WORDS)
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


RANDOM = [np.random.default_rng(number).bytes(300) for number in range(1000)]


@pytest.mark.parametrize("missing", [1, 5_000, 70_000])
def test_a_truncated_file_is_an_error_of_one_line_never_an_empty_file(tmp_path, missing):
    path = write_file(tmp_path / "w", RANDOM)
    os.truncate(path, path.stat().st_size - missing)
    line = line_of_failed_read(path)
    assert line.startswith(f"{path} is not a readable ArrayRecord file")
    assert "\n" not in line


@pytest.mark.parametrize("data", [b"", b"something else", b"\0" * 200_000], ids=len)
def test_what_is_no_arrayrecord_file_is_an_error_of_one_line(tmp_path, data):
    path = tmp_path / "w.arrayrecord"
    path.write_bytes(data)
    line = line_of_failed_read(path)
    assert line.startswith(f"{path} is not a readable ArrayRecord file")
    assert "\n" not in line


def test_a_damaged_record_is_an_error_of_one_line(tmp_path):
    path = write_file(tmp_path / "w", RANDOM)
    data = bytearray(path.read_bytes())
    data[70_000] ^= 0xFF
    path.write_bytes(data)
    line = line_of_failed_read(path)
    assert str(path) in line
    assert "\n" not in line


def test_files_that_others_wrote_are_read(tmp_path):
    """Grouped records, as tools of the ecosystem may write them."""
    path = write_file(tmp_path / "w", WORDS, "group_size:64")
    assert sorted(eager(None, ReadFromArrayRecord(str(path)))) == sorted(WORDS)
