"""ArrayRecord through Beam: what goes in comes out, in the same bytes on every attempt."""

import os
from functools import partial
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam import coders
from apache_beam.io.restriction_trackers import OffsetRange
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from beam_pipeline import array_record_io
from beam_pipeline.array_record_io import (
    DEFAULT_OPTIONS,
    ReadFromArrayRecord,
    WriteToArrayRecord,
    content_key,
)
from beam_pipeline.dataset.layout import shard_of
from beam_pipeline.errors import ProbelineError, user_message
from beam_pipeline.shards import staging
from beam_pipeline.shards import writing as sharded_write
from beam_pipeline.shards.claim_checks import ClaimReader
from beam_pipeline.shards.staging import (
    Records,
    StagedPayloads,
    StagedRecords,
    StageRecords,
    serialised,
)
from beam_pipeline.shards.writing import (
    AssignToShards,
    Finalise,
    RecordIndex,
    ShardInfo,
    ShardTarget,
    WriteShard,
    shard_path,
)
from beam_pipeline.storage.files import crc32c, remove_folder
from tests.support.helpers import NOW, Objects, eager, run_do_fn

WORDS = [f"word {number}".encode() * (1 + 13 * number % 400) for number in range(120)]
EMPTY = [b"", b"", b"\0"]


def shuffled(elements: list, seed: int) -> list:
    return [elements[i] for i in np.random.default_rng(seed).permutation(len(elements))]


def files_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_below(folder)}


def records_of(path: Path | str) -> list[bytes]:
    reader = ArrayRecordReader(str(path))
    assert reader.ok()
    records = reader.read_all() if reader.num_records() else []
    reader.close()
    return records


def write_file(path: Path, records: list[bytes], options: str = "group_size:1,zstd:1") -> Path:
    """Writes a file without Beam, for tests that read."""
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def write(elements: list, prefix: Path | str, **options) -> list[ShardInfo]:
    infos = eager(elements, WriteToArrayRecord(str(prefix), **options))
    return sorted(infos, key=lambda info: info.shard)


# --- round trip ---------------------------------------------------------------------------------


def test_every_record_comes_back_once(tmp_path):
    write(WORDS + EMPTY, tmp_path / "words", num_shards=3)
    read = eager(None, ReadFromArrayRecord(str(tmp_path / "words-*.arrayrecord")))
    assert sorted(read) == sorted(WORDS + EMPTY)


def test_the_result_tells_what_each_file_is(tmp_path):
    infos = write(WORDS, tmp_path / "words", num_shards=3)
    assert [info.shard for info in infos] == [0, 1, 2]
    assert sum(info.num_records for info in infos) == len(WORDS)
    for info in infos:
        data = Path(info.path).read_bytes()
        assert info.path == str(tmp_path / f"words-0000{info.shard}-of-00003.arrayrecord")
        assert info.num_shards == 3
        assert info.num_records == len(records_of(info.path)) > 10
        assert (info.num_bytes, info.crc32c) == (len(data), crc32c(data))


def test_other_elements_through_a_coder(tmp_path):
    texts = ["", "zażółć", "x" * 5000]
    write(texts, tmp_path / "texts", coder=coders.StrUtf8Coder(), num_shards=2)
    records = [record for path in tmp_path.iterdir() for record in records_of(path)]
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
    assert sorted(r for info in infos for r in records_of(info.path)) == sorted(
        b"%d" % number for number in range(30)
    )


@pytest.mark.parametrize("num_shards", [0, 2])
def test_no_elements_are_empty_files_that_can_be_read(tmp_path, num_shards):
    infos = write([], tmp_path / "none", num_shards=num_shards)
    assert len(infos) == max(1, num_shards)
    assert all(records_of(info.path) == [] for info in infos)
    assert eager(None, ReadFromArrayRecord(str(tmp_path / "none-*"))) == []


def test_writer_options_reach_the_file(tmp_path):
    (info,) = write([b"x"], tmp_path / "w", num_shards=1, options="group_size:16,zstd:3")
    reader = ArrayRecordReader(info.path)
    assert "group_size:16," in reader.writer_options_string()
    assert "zstd:3" in reader.writer_options_string()
    reader.close()


# --- the same bytes -----------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [0, 1, 3])
def test_bytes_do_not_depend_on_the_order_of_the_elements(tmp_path, num_shards):
    elements = WORDS + WORDS[:20] + EMPTY  # duplicates stay
    write(elements, tmp_path / "a" / "words", num_shards=num_shards)
    write(shuffled(elements, 1), tmp_path / "b" / "words", num_shards=num_shards)
    assert bytes_below(tmp_path / "a") == bytes_below(tmp_path / "b")
    assert sum(len(records_of(path)) for path in (tmp_path / "a").iterdir()) == len(elements)


def test_bytes_do_not_depend_on_what_was_staged_inline_or_in_how_many_files(tmp_path, monkeypatch):
    write(WORDS, tmp_path / "a" / "words", num_shards=2)
    monkeypatch.setattr(staging, "STAGING_FILE_BYTES", 20_000)
    monkeypatch.setattr(staging, "_MAX_STAGED_IN_MEMORY", 11)
    write(WORDS, tmp_path / "b" / "words", num_shards=2)
    assert bytes_below(tmp_path / "a") == bytes_below(tmp_path / "b")


def test_a_second_run_over_the_first_leaves_the_same_files(tmp_path):
    write(WORDS, tmp_path / "words", num_shards=2)
    before = bytes_below(tmp_path)
    write(shuffled(WORDS, 2), tmp_path / "words", num_shards=2)
    assert bytes_below(tmp_path) == before


def test_the_number_of_shards_follows_from_the_bytes(tmp_path, monkeypatch):
    total = sum(map(len, WORDS))
    monkeypatch.setattr(sharded_write, "DEFAULT_SHARD_BYTES", -(-total // 4))
    assert len(write(shuffled(WORDS, 3), tmp_path / "a" / "words")) == 4
    assert len(write([*WORDS, b"x" * total], tmp_path / "b" / "words")) == 8


# --- keys ---------------------------------------------------------------------------------------


def test_a_key_orders_the_records_of_a_shard_and_picks_it(tmp_path):
    infos = write(WORDS, tmp_path / "words", num_shards=3, key=lambda word: word[::-1])
    for info in infos:
        records = records_of(info.path)
        assert records == sorted(records, key=lambda word: word[::-1])
        assert all(shard_of(word[::-1], 3) == info.shard for word in records)


def test_records_of_one_key_share_a_shard_in_a_fixed_order(tmp_path):
    for name, elements in (("a", WORDS), ("b", shuffled(WORDS, 4))):
        infos = write(elements, tmp_path / name / "w", num_shards=3, key=lambda word: b"k")
        assert sorted(info.num_records for info in infos) == [0, 0, len(WORDS)]
    assert bytes_below(tmp_path / "a") == bytes_below(tmp_path / "b")


def test_without_a_key_equal_records_are_neighbours(tmp_path):
    (info,) = write(shuffled(WORDS + WORDS, 5), tmp_path / "words", num_shards=1)
    records = records_of(info.path)
    assert records[::2] == records[1::2]
    assert [content_key(word) for word in records] == sorted(map(content_key, records))


def test_shards_are_about_even():
    counts = np.bincount([shard_of(b"%d" % number, 10) for number in range(10_000)])
    assert len(counts) == 10
    assert counts.min() > 850
    assert counts.max() < 1150


def test_the_shard_of_a_key_never_changes():
    """Another shard would move every record of every dataset."""
    keys = [b"", b"key", b"\0" * 12, b"\xff" * 12]
    assert [shard_of(key, 1000) for key in keys] == [505, 563, 317, 197]


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("-SSSSS-of-NNNNN", "p-00003-of-00012.x"),
        ("_SS_NN", "p_03_12.x"),
        (".S.N", "p.3.12.x"),
        ("-SSS", "p-003.x"),
        ("/part-SSSSS", "p/part-00003.x"),
        ("-of-NNNNN-SSSSS", "p-of-00012-00003.x"),
        ("", "p.x"),
        ("-SS-SSSS", "p-03-0003.x"),  # every run of S's is the shard's number
        ("-NN-SS-NNN", "p-12-03-012.x"),
    ],
)
def test_runs_of_s_and_n_become_numbers(template, name):
    assert shard_path("p", template, ".x", 3, 12) == name


@pytest.mark.parametrize("template", ["-SSSSS-of-NNNNN", "-SS-S", "_SHARD_SSSSS", "S"])
def test_no_two_shards_have_one_name(template):
    names = {shard_path("p", template, "", shard, 120) for shard in range(120)}
    assert len(names) == 120


def test_template_and_suffix_name_the_files(tmp_path):
    write(WORDS, tmp_path / "w", num_shards=2, shard_name_template=".SS.NN", file_name_suffix=".ar")
    assert files_below(tmp_path) == ["w.00.02.ar", "w.01.02.ar"]


def test_one_shard_needs_no_number(tmp_path):
    write(WORDS, tmp_path / "deep" / "er" / "w", num_shards=1, shard_name_template="")
    assert files_below(tmp_path) == ["deep/er/w.arrayrecord"]


def test_a_prefix_without_a_folder_writes_where_the_process_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write([b"x"], "words", num_shards=1)
    assert files_below(tmp_path) == ["words-00000-of-00001.arrayrecord"]


# --- temporary files ----------------------------------------------------------------------------


def test_no_temporary_file_stays(tmp_path):
    write(WORDS, tmp_path / "out" / "words", num_shards=2)
    assert [path.name for path in (tmp_path / "out").iterdir()] != []
    assert [path for path in tmp_path.rglob("*") if "temp" in path.name] == []


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
    assert files_below(tmp_path) == ["out/w-00000-of-00001.arrayrecord"]


def test_two_writes_at_once_do_not_share_temporary_files(tmp_path):
    one, other = (WriteToArrayRecord(str(tmp_path / name)) for name in "ab")
    assert one._target.temp_folder != other._target.temp_folder


# --- attempts -----------------------------------------------------------------------------------

ATTRIBUTES = pa.schema([("start", pa.binary())])


def records_of_words(words: list[bytes]) -> Records:
    """Returns words as records; what is known of each is how it starts."""
    starts = pa.record_batch([pa.array([word[:4] for word in words])], schema=ATTRIBUTES)
    return Records(list(map(content_key, words)), words, serialised(starts))


def stage(
    folder: Path, words: list[bytes], inline_bytes: int = 100, num_bundles: int = 1
) -> list[StagedRecords]:
    """Stages words, a few in an element."""
    staged = []
    for number in range(num_bundles):
        own = words[number::num_bundles]
        elements = [records_of_words(own[at : at + 7]) for at in range(0, len(own), 7)]
        do_fn = StageRecords(str(folder / "staged"), inline_bytes, ATTRIBUTES)
        staged += run_do_fn(do_fn, elements, **NOW)
    return staged


def target_in(folder: Path, index: RecordIndex | None = None) -> ShardTarget:
    return ShardTarget(
        prefix=str(folder / "out" / "w"),
        suffix=".ar",
        shard_name_template="-SS-NN",
        open_writer=partial(ArrayRecordWriter, options=DEFAULT_OPTIONS),
        temp_folder=str(folder / "temp"),
        attributes=ATTRIBUTES,
        index=index,
    )


def write_shards(target: ShardTarget, staged: list[StagedRecords]) -> list:
    """Runs the writer of each of two shards once, as one attempt of the runner would."""
    assigned = run_do_fn(AssignToShards(target.attributes), staged, 2)
    written = []
    for shard in range(2):
        parts = [StagedRecords("", b""), *(part for number, part in assigned if number == shard)]
        written += run_do_fn(WriteShard(target), [(shard, parts)], 2)
    return written


def finalise(written: list, index: RecordIndex | None = None) -> list[ShardInfo]:
    folder = Path(written[0].temporary_path).parents[1]
    return run_do_fn(Finalise(target_in(folder, index)), [None], written)


def test_staged_records_are_references_to_closed_files(tmp_path):
    (staged,) = stage(tmp_path, WORDS)
    batch = staged.batch(ATTRIBUTES)
    is_stored = batch["inline"].is_null().to_pylist()
    assert is_stored == [len(word) > 100 for word in WORDS]
    assert 0 < sum(is_stored) < len(WORDS)
    assert batch["key"].to_pylist() == list(map(content_key, WORDS))
    assert batch["length"].to_pylist() == list(map(len, WORDS))
    assert batch["crc32c"].to_pylist() == list(map(crc32c, WORDS))
    assert batch["start"].to_pylist() == [word[:4] for word in WORDS]
    reader = ClaimReader()
    payloads = StagedPayloads(staged.path, batch, reader)
    assert [payloads.read(row) for row in range(len(WORDS))] == WORDS
    reader.close()


@pytest.mark.parametrize(
    ("limit", "value"), [("_MAX_STAGED_IN_MEMORY", 3), ("STAGING_FILE_BYTES", 15)]
)
def test_no_reference_leaves_before_its_file_is_closed(tmp_path, monkeypatch, limit, value):
    monkeypatch.setattr(staging, limit, value)
    do_fn = StageRecords(str(tmp_path), 0)
    do_fn.start_bundle()
    emitted = [list(do_fn.process(Records([b"k"], [b"12345"]), **NOW)) for _ in range(4)]
    assert [len(values) for values in emitted] == [0, 0, 1, 0]
    reader = ClaimReader()
    (staged,) = emitted[2]
    payloads = StagedPayloads(staged.path, staged.batch(), reader)
    assert [payloads.read(row) for row in range(staged.batch().num_rows)] == [b"12345"] * 3
    reader.close()
    (last,) = do_fn.finish_bundle()
    assert last.value.batch().num_rows == 1
    assert {staged.path, last.value.path} == {
        str(tmp_path / name) for name in files_below(tmp_path)
    }


def test_a_bundle_of_nothing_stages_nothing(tmp_path):
    assert stage(tmp_path, []) == []
    assert files_below(tmp_path) == []


def test_shards_have_no_final_name_before_the_finaliser(tmp_path):
    written = write_shards(target_in(tmp_path), stage(tmp_path, WORDS))
    assert not (tmp_path / "out").exists()
    assert all(Path(shard.temporary_path).exists() for shard in written)


def test_two_attempts_at_a_shard_write_different_files_of_the_same_bytes(tmp_path):
    words = WORDS + WORDS[:20]
    target, staged = target_in(tmp_path), stage(tmp_path, words, num_bundles=5)
    one, other = write_shards(target, staged), write_shards(target, shuffled(staged, 6))
    for first, second in zip(one, other, strict=True):
        assert first.temporary_path != second.temporary_path
        assert first.info == second.info
        assert Path(first.temporary_path).read_bytes() == Path(second.temporary_path).read_bytes()


def test_finalising_twice_is_finalising_once(tmp_path):
    written = write_shards(target_in(tmp_path), stage(tmp_path, WORDS))
    infos = finalise(written)
    before = bytes_below(tmp_path / "out")
    assert list(before) == ["w-00-02.ar", "w-01-02.ar"]
    assert finalise(written) == infos == [shard.info for shard in written]
    assert bytes_below(tmp_path / "out") == before


def test_the_shards_may_come_in_any_order(tmp_path):
    written = write_shards(target_in(tmp_path), stage(tmp_path, WORDS))
    infos = finalise(written[::-1])
    assert [info.shard for info in infos] == [0, 1]


def test_a_finaliser_that_died_half_way_is_repeated(tmp_path):
    written = write_shards(target_in(tmp_path), stage(tmp_path, WORDS))
    finalise(written[:1])
    assert finalise(written) == [shard.info for shard in written]
    assert files_below(tmp_path / "out") == ["w-00-02.ar", "w-01-02.ar"]


def test_the_parts_of_another_attempt_replace_what_is_there(tmp_path):
    target, staged = target_in(tmp_path), stage(tmp_path, WORDS)
    one, other = write_shards(target, staged), write_shards(target, staged)
    finalise(one)
    before = bytes_below(tmp_path / "out")
    finalise(other)
    assert bytes_below(tmp_path / "out") == before
    remove_folder(str(tmp_path / "temp"))
    assert not (tmp_path / "temp").exists()


@pytest.mark.parametrize("damage", ["gone", "longer", "other bytes"])
def test_a_part_that_is_gone_without_having_become_its_target_ends_the_run(tmp_path, damage):
    written = write_shards(target_in(tmp_path), stage(tmp_path, WORDS))
    finalise(written)
    path = Path(written[1].info.path)
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data + b"\0" if damage == "longer" else data[:-1] + b"\1")
    with pytest.raises(ProbelineError, match=r"is gone and .*w-01-02\.ar is not what it held"):
        finalise(written)


def test_a_staged_file_that_changed_ends_the_run(tmp_path):
    staged = stage(tmp_path, WORDS)
    (path,) = (tmp_path / "staged").iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ProbelineError, match="changed after it was written"):
        write_shards(target_in(tmp_path), staged)


def test_the_index_lists_every_record_and_survives_a_second_finaliser(tmp_path):
    path = str(tmp_path / "out" / "index.parquet")
    index = RecordIndex(path, ATTRIBUTES, lambda attributes: attributes)
    target = target_in(tmp_path, index)
    written = write_shards(target, stage(tmp_path, WORDS))
    finalise(written, index)
    before = bytes_below(tmp_path / "out")
    finalise(written, index)
    assert bytes_below(tmp_path / "out") == before
    table = pq.read_table(index.path)
    assert table.schema.names == ["shard", "position", "num_bytes", "start"]
    for shard, name in enumerate(["w-00-02.ar", "w-01-02.ar"]):
        records = records_of(tmp_path / "out" / name)
        lines = [line for line in table.to_pylist() if line["shard"] == shard]
        assert lines == [
            {"shard": shard, "position": at, "num_bytes": len(word), "start": word[:4]}
            for at, word in enumerate(records)
        ]


# --- arguments ----------------------------------------------------------------------------------


def test_a_negative_number_of_shards_is_refused():
    with pytest.raises(ValueError, match="num_shards is -1; it must be 0"):
        WriteToArrayRecord("x", num_shards=-1)


@pytest.mark.parametrize("num_shards", [0, 2])
def test_a_template_that_names_all_shards_alike_is_refused(num_shards):
    with pytest.raises(ValueError, match="names every shard alike"):
        WriteToArrayRecord("x", num_shards=num_shards, shard_name_template="-of-NNNNN")


def test_an_unbounded_input_is_refused():
    elements = beam.pvalue.PCollection(beam.Pipeline(), is_bounded=False)
    with pytest.raises(ValueError, match="bounded"):
        WriteToArrayRecord("x").expand(elements)


# --- reading ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("split_bytes", [1, 10**9])
@pytest.mark.parametrize("num_records", [0, 1, 5])
def test_more_ranges_than_records_and_one_range_alone(
    tmp_path, monkeypatch, num_records, split_bytes
):
    path = write_file(tmp_path / "w", WORDS[:num_records])
    monkeypatch.setattr(array_record_io, "_SPLIT_BYTES", split_bytes)
    assert sorted(eager(None, ReadFromArrayRecord(str(path)))) == sorted(WORDS[:num_records])


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


def test_a_pattern_that_matches_nothing_is_an_error_unless_told(tmp_path):
    pattern = str(tmp_path / "none-*")
    with pytest.raises(ProbelineError, match=r"none-\* matches no ArrayRecord file"):
        ReadFromArrayRecord(pattern)
    assert eager(None, ReadFromArrayRecord(pattern, validate=False)) == []


def line_of_failed_read(path: Path | str) -> str:
    """Returns the line that a user sees of a read that must fail."""
    with pytest.raises(Exception) as failure:  # runners wrap what workers raise
        eager(None, ReadFromArrayRecord(str(path)))
    line = user_message(failure.value)
    assert line is not None, failure.value
    return line


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


# --- a filesystem without folders ---------------------------------------------------------------


@pytest.fixture
def objects(monkeypatch) -> dict[str, bytes]:
    stored: dict[str, bytes] = {}
    monkeypatch.setattr(Objects, "stored", stored)
    return stored


def test_a_bucket_gets_the_bytes_that_a_disk_gets(tmp_path, objects):
    infos = write(WORDS, "objects://bucket/deep/words", num_shards=3)
    write(WORDS, tmp_path / "words", num_shards=3)
    local = {f"objects://bucket/deep/{name}": data for name, data in bytes_below(tmp_path).items()}
    assert {info.path: objects[info.path] for info in infos} == local


def test_no_temporary_object_stays_in_a_bucket(objects):
    write(WORDS, "objects://bucket/deep/words", num_shards=1)
    assert list(objects) == ["objects://bucket/deep/words-00000-of-00001.arrayrecord"]


def test_a_bucket_is_read_and_leaves_no_local_copy(tmp_path, objects, monkeypatch):
    for name in "ab":
        path = write_file(tmp_path / name, WORDS)
        objects[f"objects://bucket/words-{name}"] = path.read_bytes()
        path.unlink()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    read = eager(None, ReadFromArrayRecord("objects://bucket/words-*"))
    assert sorted(read) == sorted(WORDS + WORDS)
    assert files_below(tmp_path) == []


def test_a_file_of_a_bucket_that_cannot_be_read_leaves_no_local_copy(
    tmp_path, objects, monkeypatch
):
    objects["objects://bucket/w"] = b"\0" * 200_000
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert line_of_failed_read("objects://bucket/w").startswith("objects://bucket/w is not a")
    assert files_below(tmp_path) == []


# --- other runners --------------------------------------------------------------------------------


def check_writing_and_reading(folder: Path, flags: list[str]) -> None:
    """Written by one pipeline, read by another into text, all on another runner."""
    write(WORDS, folder / "memory" / "w", num_shards=3)
    with beam.Pipeline(options=PipelineOptions(flags)) as pipeline:
        words = pipeline | beam.Create(WORDS)
        _ = words | WriteToArrayRecord(f"{folder}/there/w", num_shards=3)
        unordered = WriteToArrayRecord(f"{folder}/any/w", num_shards=3, ordered=False)
        _ = words | "Without order" >> unordered
    assert bytes_below(folder / "there") == bytes_below(folder / "memory")
    for name in files_below(folder / "memory"):
        records = [sorted(records_of(folder / kind / name)) for kind in ("any", "memory")]
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
