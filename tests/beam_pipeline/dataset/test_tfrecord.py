"""TFRecord files and tf.train.Example: every byte beside Beam's, Grain's and protobuf's own."""

import io
import itertools
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grain
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.io.tfrecordio import ReadFromTFRecord, _TFRecordUtil
from array_record.python.array_record_module import ArrayRecordReader
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.array_record_io import WriteToArrayRecord
from beam_pipeline.dataset import tfrecord
from beam_pipeline.dataset.layout import ENCODINGS, RECORD_ENCODINGS
from beam_pipeline.dataset.tfrecord import (
    DamagedRecordError,
    TFRecordWriter,
    read_tfrecord,
)
from beam_pipeline.errors import ProbelineError
from beam_pipeline.main import main
from beam_pipeline.verify import __main__ as verify
from tests.support.helpers import (
    eager,
    measurements_table,
)
from tests.support.loader_helpers import config_of, refusal_of
from tests.support.properties import num_examples
from training.dataset import build_dataset
from training.rows.row_source import ProbeRowDataSource

MAX_ROW_MB = 0.01


def write_file(path: Path, records: Iterable[bytes]) -> Path:
    writer = TFRecordWriter(str(path))
    for record in records:
        writer.write(record)
    writer.close()
    return path


def beams_bytes(records: Iterable[bytes]) -> bytes:
    file = io.BytesIO()
    for record in records:
        _TFRecordUtil.write_record(file, record)
    return file.getvalue()


# --- the framing --------------------------------------------------------------------------------


@settings(max_examples=num_examples(60))
@given(records=st.lists(st.binary(max_size=300), max_size=6))
def test_file_bytes_equal_beam(records: list[bytes], tmp_path_factory) -> None:
    path = write_file(tmp_path_factory.mktemp("file") / "f.tfrecord", records)
    assert path.read_bytes() == beams_bytes(records)
    assert list(read_tfrecord(str(path))) == records


def test_golden_record_bytes(tmp_path: Path) -> None:
    """The bytes stand here, so that no change of code can change them."""
    path = write_file(tmp_path / "f", [b"ping"])
    assert path.read_bytes().hex() == "04000000000000004245520470696e67cc3a4ef0"


def test_record_larger_than_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [bytes(range(256)) * 4, b"", b"short"]
    path = write_file(tmp_path / "f", records)
    monkeypatch.setattr(tfrecord, "_READ_BYTES", 100)
    assert list(read_tfrecord(str(path))) == records


SOME = [b"alpha", b"", b"gamma!"]


def read_up_to_the_damage(path: Path) -> tuple[list[bytes | DamagedRecordError], bool]:
    """Returns what was yielded, and whether the file could be read to its end."""
    found: list[bytes | DamagedRecordError] = []
    try:
        for record in read_tfrecord(str(path)):
            found.append(record)
    except DamagedRecordError:
        return found, False
    return found, True


def test_flipped_bits_are_detected(tmp_path: Path) -> None:
    whole = beams_bytes(SOME)
    path = tmp_path / "f"
    ends = list(itertools.accumulate(16 + len(record) for record in SOME))
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        number = next(i for i, end in enumerate(ends) if bit // 8 < end)
        at = bit // 8 - (ends[number] - 16 - len(SOME[number]))
        found, is_to_end = read_up_to_the_damage(path)
        assert found[:number] == SOME[:number], bit
        if at < 12:  # the length or its checksum
            assert (len(found), is_to_end) == (number, False), bit
        else:  # the record or its checksum: those behind it can be read
            assert isinstance(found[number], DamagedRecordError), bit
            assert (found[number + 1 :], is_to_end) == (SOME[number + 1 :], True), bit


def test_truncated_files_are_detected(tmp_path: Path) -> None:
    whole = beams_bytes(SOME)
    ends = [0, *itertools.accumulate(16 + len(record) for record in SOME)]
    path = tmp_path / "f"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found, is_to_end = read_up_to_the_damage(path)
        num_whole = sum(end <= length for end in ends[1:])
        assert found == SOME[:num_whole], length
        assert is_to_end == (length in ends), length


def test_disk_full() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    writer = TFRecordWriter("/dev/full")
    with pytest.raises(
        ProbelineError, match=r"cannot write /dev/full: No space.*; free some space"
    ):
        writer.write(b"x" * (2 << 20))


def test_write_tfrecord_from_beam(tmp_path: Path) -> None:
    words = [f"word {number}".encode() * (number % 7) for number in range(60)]
    options: dict[str, Any] = {
        "open_writer": TFRecordWriter, "file_name_suffix": ".tfrecord", "num_shards": 3
    }  # fmt: skip
    eager(words, WriteToArrayRecord(str(tmp_path / "a/words"), **options))
    eager(words[::-1], WriteToArrayRecord(str(tmp_path / "b/words"), **options))
    names = [f"words-0000{shard}-of-00003.tfrecord" for shard in range(3)]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    read = eager(None, ReadFromTFRecord(str(tmp_path / "a/words-*")))
    assert sorted(read) == sorted(words)


# --- datasets -----------------------------------------------------------------------------------

KINDS = [(form, record) for form in ("arrayrecord", "tfrecord") for record in RECORD_ENCODINGS]


def make_dataset_with_tied_probe(
    source: Path | str, output: Path, form: str, record: str, *flags: str
) -> Path:
    flags = (
        f"--max_row_size_mb={MAX_ROW_MB}", "--probes_per_shard=3", "--train_ratio=0.6",
        f"--output_format={form}", f"--record_encoding={record}", *flags,
    )  # fmt: skip
    assert main([f"--input={source}", f"--output={output}", *flags]) == 0
    assert verify.main([str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return measurements_table(5000, seed=1, num_probes=12)


@pytest.fixture(scope="module")
def datasets(table: pa.Table, tmp_path_factory) -> dict[tuple[str, str], Path]:
    folder = tmp_path_factory.mktemp("datasets")
    pq.write_table(table, folder / "in.parquet")
    return {
        kind: make_dataset_with_tied_probe(
            folder / "in.parquet", folder / "-".join(kind), *kind, "--measurement_encoding=arrow"
        )
        for kind in KINDS
    }


def records_of(path: Path) -> list[bytes]:
    """Returns the records of a shard as the format's own readers give them."""
    if path.suffix == ".tfrecord":
        return list(grain.experimental.TFRecordIterDataset(str(path)))
    reader = ArrayRecordReader(str(path))
    records = reader.read_all() if reader.num_records() else []
    reader.close()
    return records


def shards_of(dataset: Path) -> dict[str, list[bytes]]:
    paths = sorted(path for path in dataset.glob("*/*_shard_*"))
    return {
        path.relative_to(dataset).with_suffix("").as_posix(): records_of(path) for path in paths
    }


@pytest.mark.parametrize("record", RECORD_ENCODINGS)
def test_formats_have_equal_records_and_shards(
    datasets: dict[tuple[str, str], Path], record: str
) -> None:
    array, tf = datasets["arrayrecord", record], datasets["tfrecord", record]
    assert shards_of(tf) == shards_of(array)
    assert len(shards_of(tf)) > 3
    assert {path.suffix for path in tf.glob("*/*_shard_*")} == {".tfrecord"}
    for split in ("train", "test"):
        index = pq.read_table(tf / split / "rows.parquet")
        assert index.equals(pq.read_table(array / split / "rows.parquet"))


# --- training -----------------------------------------------------------------------------------


def test_training_rejects_tfrecord(datasets: dict[tuple[str, str], Path]) -> None:
    dataset = datasets["tfrecord", "arrow_ipc"]
    cure = ("training reads arrayrecord", "make the dataset again with --output_format=arrayrecord")
    shard = next(iter(dataset.glob("train/*.tfrecord")))
    for files in (dataset, dataset / "train", shard, dataset / "train/*.tfrecord"):
        refusal_of(lambda: ProbeRowDataSource(str(files)), *cure)  # noqa: B023
    refusal_of(lambda: build_dataset(config_of(dataset)), *cure)


@pytest.fixture(scope="module", params=ENCODINGS)
def uncut(table: pa.Table, tmp_path_factory, request) -> dict[str, Path]:
    """A dataset of one row a probe, by kind of record: cut rows would end a little elsewhere."""
    folder = tmp_path_factory.mktemp(f"uncut-{request.param}")
    pq.write_table(table, folder / "in.parquet")
    flags = (f"--measurement_encoding={request.param}", "--max_row_size_mb=1")
    return {
        kind: make_dataset_with_tied_probe(
            folder / "in.parquet", folder / kind, "arrayrecord", kind, *flags
        )
        for kind in RECORD_ENCODINGS
    }


@pytest.mark.parametrize("cache_dir", [None, "cache"])
def test_training_batches_equal_for_tf_example(
    uncut: dict[str, Path], tmp_path: Path, cache_dir: str | None
) -> None:
    found = []
    for kind, folder in uncut.items():
        config: dict[str, Any] = {"cache_dir": str(tmp_path / kind)} if cache_dir else {}
        dataset = build_dataset(config_of(folder, **config))
        found.append(list(itertools.islice(iter(dataset), 6)))
    assert len(found[0]) == 6
    for one, other in zip(*found, strict=True):
        assert one.keys() == other.keys()
        assert all((one[name] == other[name]).all() for name in one)


def test_manifest_without_format_options(
    datasets: dict[tuple[str, str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As datasets were written before there were such options."""
    from tests.support.damaged_dataset import DamagedDataset

    source = datasets["arrayrecord", "arrow_ipc"]
    copy = DamagedDataset(Path(shutil.copytree(source, tmp_path / "copy")))
    for name in ("output_format", "record_encoding"):
        copy.manifest(lambda values: values["options"].pop(name))  # noqa: B023
    assert (
        "output_format" not in json.loads((copy.folder / "manifest.json").read_bytes())["options"]
    )
    assert verify.main([str(copy.folder)]) == 0
    assert len(ProbeRowDataSource(str(copy.folder))) > 0
