"""The arguments of ArrayRecord's transforms: those of Beam's for TFRecord, and what they mean."""

import inspect
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from apache_beam.io.fileio import EmptyMatchTreatment
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.tfrecordio import ReadAllFromTFRecord, ReadFromTFRecord, WriteToTFRecord
from apache_beam.options.value_provider import RuntimeValueProvider, StaticValueProvider
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import given
from hypothesis import strategies as st

from beam_pipeline import array_record_io
from beam_pipeline.array_record_io import (
    ReadAllFromArrayRecord,
    ReadFromArrayRecord,
    WriteToArrayRecord,
    content_key,
)
from beam_pipeline.errors import ProbelineError, user_message
from beam_pipeline.shards.staging import Records, StagedRecords, StageRecords
from beam_pipeline.shards.writing import AssignToShards, ShardInfo, ShardTarget, WriteShard
from beam_pipeline.storage.files import crc32c
from tests.support.engines import Gcs
from tests.support.helpers import NOW, Objects, eager, run_do_fn

WORDS = [f"word {number}".encode() * (1 + 97 * number % 400) for number in range(60)]
# What begins ours is what Beam's transforms take, so a call may be changed by its name alone.
PAIRS = [
    (WriteToTFRecord, WriteToArrayRecord),
    (ReadFromTFRecord, ReadFromArrayRecord),
    (ReadAllFromTFRecord, ReadAllFromArrayRecord),
]


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_beams_arguments_come_first_and_in_its_order(theirs: type, ours: type) -> None:
    expected = list(inspect.signature(theirs).parameters)
    found = inspect.signature(ours).parameters.values()
    assert [one.name for one in found if one.kind == one.POSITIONAL_OR_KEYWORD] == expected


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (partial(WriteToArrayRecord, shard_name_template="-W-SSSSS-of-NNNNN"), "asks for windows"),
        (partial(WriteToArrayRecord, shard_name_template="-of-NNNNN"), "names every shard alike"),
        (partial(WriteToArrayRecord, num_shards=-1), "num_shards is -1; it must be 0"),
        (partial(WriteToArrayRecord, triggering_frequency=60), "60; .* the input is bounded"),
        (partial(WriteToArrayRecord, compression_type=CompressionTypes.GZIP), "'gzip'; .* options"),
        (partial(ReadFromArrayRecord, compression_type=CompressionTypes.GZIP), "files say"),
        (partial(ReadAllFromArrayRecord, compression_type=CompressionTypes.GZIP), "files say"),
        (partial(ReadAllFromArrayRecord, empty_match_treatment="maybe"), "is 'maybe', not"),
    ],
)
def test_invalid_argument(make: Callable, reason: str) -> None:
    path = () if make.func is ReadAllFromArrayRecord else ("p",)
    with pytest.raises(ValueError, match=reason) as failure:
        make(*path)
    assert "\n" not in str(failure.value)


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [None, 0, 1, 7])
def test_an_empty_template_is_one_file(num_shards: int | None, tmp_path: Path) -> None:
    write = WriteToArrayRecord(f"{tmp_path}/w", num_shards=num_shards, shard_name_template="")
    assert (write._target.shard_name_template, write._num_shards) == ("", 1)
    if num_shards is None:
        eager(WORDS, write)
        assert file_names(tmp_path) == ["w.arrayrecord"]
        assert sorted(eager(None, ReadFromArrayRecord(f"{tmp_path}/w*"))) == sorted(WORDS)


def test_a_value_that_is_known_when_the_pipeline_is_built_is_taken(tmp_path: Path) -> None:
    prefix = StaticValueProvider(str, f"{tmp_path}/w")
    eager(WORDS, WriteToArrayRecord(prefix, None, StaticValueProvider(str, ".ar"), 1))
    assert file_names(tmp_path) == ["w-00000-of-00001.ar"]
    assert len(eager(None, ReadFromArrayRecord(StaticValueProvider(str, f"{tmp_path}/*")))) == 60


def test_a_value_that_is_known_too_late_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(RuntimeValueProvider, "runtime_options", None)
    late = RuntimeValueProvider("where", str, None)
    for make in (
        partial(WriteToArrayRecord, late),
        partial(WriteToArrayRecord, "p", file_name_suffix=late),
        partial(ReadFromArrayRecord, late),
    ):
        with pytest.raises(ValueError, match=r"known only when the job runs: .*Flex Template"):
            make()


# --- without order --------------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [0, 3])
def test_without_order_empty_shards_are_files_too(tmp_path: Path, num_shards: int) -> None:
    infos = eager([], WriteToArrayRecord(f"{tmp_path}/w", num_shards=num_shards, ordered=False))
    assert [info.num_records for info in infos] == [0] * max(1, num_shards)
    assert len(file_names(tmp_path)) == max(1, num_shards)


# --- any records ----------------------------------------------------------------------------------


def staged_in_bundles(
    folder: Path, bundles: list[list[bytes]], ordered: bool
) -> list[StagedRecords]:
    inline_bytes = 100 if ordered else 1 << 40
    elements = [[Records([content_key(one)], [one]) for one in bundle] for bundle in bundles]
    stage = StageRecords(str(folder / "staged"), inline_bytes)
    return [staged for bundle in elements for staged in run_do_fn(stage, bundle, **NOW)]


def write_shards(
    folder: Path, bundles: list[list[bytes]], num_shards: int, ordered: bool
) -> list[tuple[ShardInfo, bytes, list[bytes]]]:
    """Runs the steps of one attempt; returns for each shard what it is, its bytes and records."""
    open_writer = partial(ArrayRecordWriter, options="group_size:1,zstd:1")
    target = ShardTarget("w", "", "-S", open_writer, str(folder / "temp"), ordered=ordered)
    staged = staged_in_bundles(folder, bundles, ordered)
    assigned = run_do_fn(AssignToShards(target.attributes), staged, [num_shards])
    shards = []
    for shard in range(num_shards):
        parts = [StagedRecords("", b""), *(part for number, part in assigned if number == shard)]
        (written,) = run_do_fn(WriteShard([target]), [(shard, parts)], [num_shards])
        path = Path(written.temporary_path)
        file = array_record_io._File(str(path), path.stat().st_size, written.info.num_records)
        tracker = OffsetRestrictionTracker(OffsetRange(0, file.num_parts))
        records = list(array_record_io._records(file, tracker))
        tracker.check_done()
        shards.append((written.info, path.read_bytes(), records))
    return shards


ANY_RECORDS = st.lists(st.one_of(st.binary(max_size=40), st.binary(min_size=90, max_size=400)))


@given(ANY_RECORDS, st.integers(1, 5), st.integers(1, 4), st.booleans(), st.randoms())
def test_any_records_in_any_bundles_come_back(
    tmp_path_factory, records, num_shards, num_bundles, ordered, random
) -> None:
    """All of them; each shard with the same records on each run, and in order if that is asked."""
    folder = tmp_path_factory.mktemp("any")
    runs = []
    for _ in range(2):
        random.shuffle(records)
        bundles = [records[number::num_bundles] for number in range(num_bundles)]
        runs.append(write_shards(folder, bundles, num_shards, ordered))
    for info, data, found in runs[0]:
        assert (info.num_bytes, info.crc32c, info.num_records) == (
            *(len(data), crc32c(data)),
            len(found),
        )
    assert Counter(one for *_, found in runs[0] for one in found) == Counter(records)
    for (_, data, found), (_, other_data, other) in zip(*runs, strict=True):
        assert Counter(found) == Counter(other)
        if ordered:
            assert data == other_data
            assert found == sorted(found, key=content_key)


# --- reading --------------------------------------------------------------------------------------


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A folder with two files of words."""
    for number in range(2):
        writer = ArrayRecordWriter(str(tmp_path / f"w-{number}"), "group_size:1")
        for word in WORDS[number::2]:
            writer.write(word)
        writer.close()
    return tmp_path


def test_all_files_of_patterns_are_read_with_their_names(words: Path) -> None:
    patterns = [f"{words}/w-0", f"{words}/?-1", f"{words}/nothing"]
    read = eager(patterns, ReadAllFromArrayRecord(with_filename=True))
    expected = [(f"{words}/w-{at % 2}", word) for at, word in enumerate(WORDS)]
    assert sorted(read) == sorted(expected)
    read = eager(None, ReadFromArrayRecord(f"{words}/*", with_filename=True))
    assert sorted(read) == sorted(expected)


@pytest.mark.parametrize(
    ("treatment", "pattern", "is_error"),
    [
        (EmptyMatchTreatment.ALLOW, "none", False),
        (EmptyMatchTreatment.ALLOW_IF_WILDCARD, "none-*", False),
        (EmptyMatchTreatment.ALLOW_IF_WILDCARD, "none-[ab]", False),
        (EmptyMatchTreatment.ALLOW_IF_WILDCARD, "none", True),
        (EmptyMatchTreatment.DISALLOW, "none-*", True),
    ],
)
def test_a_pattern_without_a_match(tmp_path, treatment: str, pattern: str, is_error: bool) -> None:
    found = array_record_io._match(f"{tmp_path}/{pattern}", treatment)
    if is_error:
        with pytest.raises(
            ProbelineError, match=f"{pattern} matches no ArrayRecord file".replace("*", ".")
        ):
            list(found)
    else:
        assert list(found) == []


def test_a_file_that_is_missing_when_the_pipeline_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Exception) as failure:
        eager(None, ReadFromArrayRecord(f"{tmp_path}/none", validate=False))
    assert user_message(failure.value) == (
        f"{tmp_path}/none matches no ArrayRecord file: check the pattern"
    )


def test_a_file_that_must_be_copied_is_copied_once_and_not_split(words: Path, monkeypatch) -> None:
    data = (words / "w-0").read_bytes()
    monkeypatch.setattr(Objects, "stored", {"objects://b/w": data})
    monkeypatch.setattr(array_record_io, "_SPLIT_BYTES", len(data) // 6)
    copied: list[str] = []
    copy = array_record_io.local_copy

    def spy(path: str):
        copied.append(path)
        return copy(path)

    monkeypatch.setattr(array_record_io, "local_copy", spy)
    assert sorted(eager(None, ReadFromArrayRecord("objects://b/*"))) == sorted(WORDS[::2])
    assert copied == ["objects://b/w"]


def test_a_runner_cannot_split_a_file_that_is_being_copied(words: Path, monkeypatch) -> None:
    monkeypatch.setattr(Objects, "stored", {"objects://b/w": (words / "w-0").read_bytes()})
    file = array_record_io._count_records(next(array_record_io._match("objects://b/w", "ALLOW")))
    tracker = OffsetRestrictionTracker(OffsetRange(0, file.num_parts))
    reading = array_record_io._records(file, tracker)
    read = [next(reading)]
    assert tracker.try_split(0.5) is None
    assert [*read, *reading] == WORDS[::2]
    tracker.check_done()


def test_records_go_to_gs_and_come_back(gcs: Gcs) -> None:
    bucket = gcs.make_bucket()
    for ordered in (True, False):
        prefix = f"{bucket}/{ordered}/w"
        infos = eager(WORDS, WriteToArrayRecord(prefix, num_shards=2, ordered=ordered))
        assert {info.path for info in infos} == {
            f"{prefix}-0000{shard}-of-00002.arrayrecord" for shard in range(2)
        }
        assert sorted(eager([f"{prefix}*"], ReadAllFromArrayRecord())) == sorted(WORDS)
