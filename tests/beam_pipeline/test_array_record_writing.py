"""Writing ArrayRecord through Beam: every record once, in the same bytes on every attempt."""

import inspect
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam import coders
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.tfrecordio import ReadAllFromTFRecord, ReadFromTFRecord, WriteToTFRecord
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.options.value_provider import StaticValueProvider
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beam_pipeline import array_record_io
from beam_pipeline.array_record_io import (
    ReadAllFromArrayRecord,
    ReadFromArrayRecord,
    WriteToArrayRecord,
)
from beam_pipeline.dataset.layout import shard_of
from beam_pipeline.shards import staging
from beam_pipeline.shards.staging import Record, StagedRecords, StagedShards, StageRecords
from beam_pipeline.shards.writing import (
    AssignToShards,
    ShardInfo,
    ShardTarget,
    WriteShard,
    shard_path,
)
from beam_pipeline.storage.files import crc32c
from tests.support.array_record_files import WORDS, Objects
from tests.support.engines import Gcs
from tests.support.helpers import NOW, eager, run_do_fn
from tests.support.probe_rows_on_disk import read_records
from tests.support.properties import num_examples
from tests.support.repository import files_below


def shuffled(elements: list, seed: int) -> list:
    return [elements[i] for i in np.random.default_rng(seed).permutation(len(elements))]


def write(elements: list, prefix: Path | str, **options) -> list[ShardInfo]:
    infos = eager(elements, WriteToArrayRecord(str(prefix), **options))
    return sorted(infos, key=lambda info: info.shard)


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


WRITE: Any = WriteToArrayRecord  # whose types refuse what the test gives
READ_ALL: Any = ReadAllFromArrayRecord


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (partial(WRITE, shard_name_template="-W-SSSSS-of-NNNNN"), "asks for windows"),
        (partial(WRITE, shard_name_template="-of-NNNNN"), "names every shard alike"),
        (partial(WRITE, triggering_frequency=60), "60; .* the input is bounded"),
        (partial(WRITE, compression_type=CompressionTypes.GZIP), "'gzip'; .* options"),
        (partial(READ_ALL, compression_type=CompressionTypes.GZIP), "files say"),
        (partial(READ_ALL, empty_match_treatment="maybe"), "is 'maybe', not"),
    ],
)
def test_invalid_argument(make: partial, reason: str) -> None:
    path = () if make.func is READ_ALL else ("p",)
    with pytest.raises(ValueError, match=reason) as failure:
        make(*path)
    assert "\n" not in str(failure.value)


def test_an_unbounded_input_is_refused():
    elements = beam.pvalue.PCollection(beam.Pipeline(), is_bounded=False)
    with pytest.raises(ValueError, match="bounded"):
        WriteToArrayRecord("x").expand(elements)


def test_a_value_that_is_known_when_the_pipeline_is_built_is_taken(tmp_path: Path) -> None:
    prefix = StaticValueProvider(str, f"{tmp_path}/w")
    eager(WORDS, WriteToArrayRecord(prefix, None, StaticValueProvider(str, ".ar"), 1))
    assert [*files_below(tmp_path)] == ["w-00000-of-00001.ar"]
    assert len(eager(None, ReadFromArrayRecord(StaticValueProvider(str, f"{tmp_path}/*")))) == len(
        WORDS
    )


# --- any records ----------------------------------------------------------------------------------


def key_of(record: bytes) -> bytes:
    """A key that several records may have."""
    return record[:1]


def write_shards(
    folder: Path, bundles: list[list[bytes]], num_shards: int, ordered: bool
) -> list[tuple[ShardInfo, bytes, list[bytes]]]:
    """Runs the steps of one attempt; returns for each shard what it is, its bytes and records."""
    open_writer = partial(ArrayRecordWriter, options="group_size:1,zstd:1")
    target = ShardTarget("w", "", "-S", open_writer, str(folder / "temp"))
    shard_input = StagedShards(ordered)
    elements = [[Record(key_of(one), one) for one in bundle] for bundle in bundles]
    stage = StageRecords(str(folder / "staged"), 100 if ordered else 1 << 40)
    staged = [part for bundle in elements for part in run_do_fn(stage, bundle, **NOW)]
    assigned = run_do_fn(AssignToShards(shard_input), staged, [num_shards])
    shards = []
    for shard in range(num_shards):
        parts = [StagedRecords("", b""), *(part for number, part in assigned if number == shard)]
        (written,) = run_do_fn(WriteShard([target], shard_input), [(shard, parts)], [num_shards])
        path = Path(written.temporary_path)
        file = array_record_io._File(str(path), path.stat().st_size, written.info.num_records)
        tracker = OffsetRestrictionTracker(OffsetRange(0, file.num_parts))
        records = list(array_record_io._records(file, tracker))
        tracker.check_done()
        shards.append((written.info, path.read_bytes(), records))
    return shards


ANY_RECORDS = st.lists(st.one_of(st.binary(max_size=40), st.binary(min_size=90, max_size=400)))


@settings(
    max_examples=num_examples(200, quick=20),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    records=ANY_RECORDS,
    num_shards=st.integers(1, 5),
    num_bundles=st.integers(1, 4),
    ordered=st.booleans(),
    batch_bytes=st.sampled_from([0, 100, 1000, 1 << 20]),
    random=st.randoms(use_true_random=False),
)
def test_any_records_in_any_bundles_come_back(
    tmp_path_factory, monkeypatch, records, num_shards, num_bundles, ordered, batch_bytes, random
) -> None:
    """All of them; each shard with the same records on each run, and in order if that is asked.

    The order is that of keys, then lengths, then checksums.
    """
    monkeypatch.setattr(staging, "_BATCH_BYTES", batch_bytes)
    folder = tmp_path_factory.mktemp("any")
    runs = []
    for _ in range(2):
        random.shuffle(records)
        bundles = [records[number::num_bundles] for number in range(num_bundles)]
        runs.append(write_shards(folder, bundles, num_shards, ordered))
    for info, data, found in runs[0]:
        assert (info.num_bytes, info.crc32c) == (len(data), crc32c(data))
        assert info.num_records == len(found)
    assert Counter(one for *_, found in runs[0] for one in found) == Counter(records)
    for (info, data, found), (_, other_data, other) in zip(*runs, strict=True):
        assert Counter(found) == Counter(other)
        assert {shard_of(key_of(one), num_shards) for one in found} <= {info.shard}
        if ordered:
            assert data == other_data
            assert found == sorted(found, key=lambda one: (key_of(one), len(one), crc32c(one)))


def test_other_elements_through_a_coder(tmp_path):
    texts = ["", "zażółć", "x" * 5000]
    write(texts, tmp_path / "texts", coder=coders.StrUtf8Coder(), num_shards=2)
    records = [record for path in tmp_path.iterdir() for record in read_records(path)]
    assert sorted(records) == sorted(text.encode() for text in texts)
    read = eager(None, ReadFromArrayRecord(str(tmp_path / "texts-*"), coder=coders.StrUtf8Coder()))
    assert sorted(read) == sorted(texts)


def test_elements_of_many_windows_are_one_set_of_files(tmp_path):
    stamped = beam.Map(lambda number: TimestampedValue(b"%d" % number, number))

    class InWindows(beam.PTransform):
        def expand(self, numbers):
            windowed = numbers | stamped | beam.WindowInto(FixedWindows(10))
            return windowed | WriteToArrayRecord(str(tmp_path / "all"), num_shards=2)

    infos = eager(range(30), InWindows())
    assert sorted(info.shard for info in infos) == [0, 1]
    assert sorted(r for info in infos for r in read_records(info.path)) == sorted(
        b"%d" % number for number in range(30)
    )


@pytest.mark.parametrize(("num_shards", "ordered"), [(0, True), (2, False)])
def test_no_elements_are_empty_files_that_can_be_read(tmp_path, num_shards, ordered):
    infos = write([], tmp_path / "none", num_shards=num_shards, ordered=ordered)
    assert len(infos) == len(files_below(tmp_path)) == max(1, num_shards)
    assert all(read_records(info.path) == [] for info in infos)
    assert eager(None, ReadFromArrayRecord(str(tmp_path / "none-*"))) == []


# --- the same bytes -------------------------------------------------------------------------------


def test_the_number_of_shards_follows_from_the_bytes(tmp_path, monkeypatch):
    total = sum(map(len, WORDS))
    monkeypatch.setattr(array_record_io, "_DEFAULT_SHARD_BYTES", -(-total // 4))
    assert len(write(shuffled(WORDS, 3), tmp_path / "a" / "words")) == 4
    assert len(write([*WORDS, b"x" * total], tmp_path / "b" / "words")) == 8


def test_the_shard_of_a_key_never_changes():
    """Another shard would move every record of every dataset."""
    keys = [b"", b"key", b"\0" * 12, b"\xff" * 12]
    assert [shard_of(key, 1000) for key in keys] == [505, 563, 317, 197]


# --- names and temporary files --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("-SSSSS-of-NNNNN", "p-00003-of-00012.x"),
        ("/part-SSSSS", "p/part-00003.x"),
        ("-SS-SSSS", "p-03-0003.x"),  # every run of S's is the shard's number
        ("-NN-SS-NNN", "p-12-03-012.x"),
    ],
)
def test_runs_of_s_and_n_become_numbers(template, name):
    assert shard_path("p", template, ".x", 3, 12) == name


def test_an_empty_template_is_one_file(tmp_path: Path) -> None:
    (info,) = write(WORDS, tmp_path / "w", num_shards=7, shard_name_template="")
    assert [*files_below(tmp_path)] == ["w.arrayrecord"]
    assert sorted(read_records(info.path)) == sorted(WORDS)


def test_temporary_files_go_to_the_place_asked_for_and_leave_it(tmp_path):
    """With them goes what an attempt that died left there."""
    transform = WriteToArrayRecord(
        str(tmp_path / "out" / "w"), num_shards=1, temp_location=str(tmp_path / "elsewhere")
    )
    folder = Path(transform._target.temp_folder)
    assert folder.parent == tmp_path / "elsewhere"
    folder.mkdir(parents=True)
    (folder / "left-by-a-dead-attempt").write_bytes(b"x")
    eager(WORDS, transform)
    assert [*files_below(tmp_path)] == ["out/w-00000-of-00001.arrayrecord"]


# --- other filesystems and runners ----------------------------------------------------------------


def test_records_go_to_gs_and_come_back(gcs: Gcs) -> None:
    bucket = gcs.make_bucket()
    for ordered in (True, False):
        prefix = f"{bucket}/{ordered}/w"
        infos = eager(WORDS, WriteToArrayRecord(prefix, num_shards=2, ordered=ordered))
        assert {info.path for info in infos} == {
            f"{prefix}-0000{shard}-of-00002.arrayrecord" for shard in range(2)
        }
        assert sorted(eager([f"{prefix}*"], ReadAllFromArrayRecord())) == sorted(WORDS)


def test_records_go_to_any_filesystem_of_beam(monkeypatch: pytest.MonkeyPatch) -> None:
    stored: dict[str, bytes] = {}
    monkeypatch.setattr(Objects, "stored", stored)
    eager(WORDS, WriteToArrayRecord("objects://b/w", num_shards=2))
    assert sorted(stored) == [f"objects://b/w-0000{shard}-of-00002.arrayrecord" for shard in (0, 1)]
    assert sorted(eager(None, ReadFromArrayRecord("objects://b/*"))) == sorted(WORDS)


def check_writing_and_reading(folder: Path, flags: list[str]) -> None:
    """Written by one pipeline, read by another into text, all on another runner."""
    write(WORDS, folder / "memory" / "w", num_shards=3)
    with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
        words = pipeline | beam.Create(WORDS)
        _ = words | WriteToArrayRecord(f"{folder}/there/w", num_shards=3)
        unordered = WriteToArrayRecord(f"{folder}/any/w", num_shards=3, ordered=False)
        _ = words | "Without order" >> unordered
    assert files_below(folder / "there") == files_below(folder / "memory")
    for name in files_below(folder / "memory"):
        records = [sorted(read_records(folder / kind / name)) for kind in ("any", "memory")]
        assert records[0] == records[1]
    with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
        _ = (
            pipeline
            | ReadFromArrayRecord(f"{folder}/there/w-*")
            | beam.Map(bytes.hex)
            | beam.io.WriteToText(f"{folder}/read", num_shards=1, shard_name_template="")
        )
    assert sorted((folder / "read").read_text().split()) == sorted(word.hex() for word in WORDS)


def test_prism_writes_the_same_bytes_and_reads_them(tmp_path, prism):
    check_writing_and_reading(tmp_path, ["--runner=PrismRunner", f"--prism_location={prism}"])


def test_flink_writes_the_same_bytes_and_reads_them(tmp_path, flink):
    check_writing_and_reading(tmp_path, flink.flags())
