"""ArrayRecord through Beam: what goes in comes out, in the same bytes on every attempt."""

from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam import coders
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from array_record.python.array_record_module import ArrayRecordReader

from beam_pipeline.array_record_io import (
    ReadFromArrayRecord,
    WriteToArrayRecord,
)
from beam_pipeline.dataset.layout import shard_of
from beam_pipeline.shards import writing as sharded_write
from beam_pipeline.shards.writing import (
    shard_path,
)
from tests.support.array_record_files import (
    EMPTY,
    WORDS,
    bytes_below,
    files_below,
    line_of_failed_read,
    records_of,
    shuffled,
    write,
    write_file,
)
from tests.support.helpers import Objects, eager

# --- round trip ---------------------------------------------------------------------------------


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
        ("/part-SSSSS", "p/part-00003.x"),
        ("-of-NNNNN-SSSSS", "p-of-00012-00003.x"),
        ("", "p.x"),
        ("-SS-SSSS", "p-03-0003.x"),  # every run of S's is the shard's number
        ("-NN-SS-NNN", "p-12-03-012.x"),
    ],
)
def test_runs_of_s_and_n_become_numbers(template, name):
    assert shard_path("p", template, ".x", 3, 12) == name


def test_a_prefix_without_a_folder_writes_where_the_process_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write([b"x"], "words", num_shards=1)
    assert files_below(tmp_path) == ["words-00000-of-00001.arrayrecord"]


# --- temporary files ----------------------------------------------------------------------------


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


# --- arguments ----------------------------------------------------------------------------------


def test_an_unbounded_input_is_refused():
    elements = beam.pvalue.PCollection(beam.Pipeline(), is_bounded=False)
    with pytest.raises(ValueError, match="bounded"):
        WriteToArrayRecord("x").expand(elements)


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
    assert {info.path: objects[info.path] for info in infos} == objects == local


def test_a_bucket_is_read_and_leaves_no_local_copy(tmp_path, objects, monkeypatch):
    for name in "ab":
        path = write_file(tmp_path / name, WORDS)
        objects[f"objects://bucket/words-{name}"] = path.read_bytes()
        path.unlink()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    read = eager(None, ReadFromArrayRecord("objects://bucket/words-*"))
    assert sorted(read) == sorted(WORDS + WORDS)
    objects["objects://bucket/w"] = b"\0" * 200_000
    line = line_of_failed_read("objects://bucket/w")
    assert line.startswith("objects://bucket/w is not a")
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
