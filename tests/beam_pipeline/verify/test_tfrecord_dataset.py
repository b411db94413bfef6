"""The damages of `test_verify`, to shards of TFRecord whose records are a tf.train.Example."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.tf_example import decode_example, encode_example
from beam_pipeline.dataset.tfrecord import TFRecordWriter, read_tfrecord
from beam_pipeline.main import main
from beam_pipeline.verify import __main__ as verify
from tests.support.damaged_dataset import DamagedDataset, found_by
from tests.support.engines import Gcs
from tests.support.helpers import measurements_table

HEAD_BYTES = 12  # length and its checksum


class ExampleCopy(DamagedDataset):
    """A dataset to be damaged, of TFRecord."""

    suffix = ".tfrecord"

    def read(self, shard: str) -> list[bytes]:
        return [r for r in read_tfrecord(str(self.folder / shard)) if isinstance(r, bytes)]

    def write(self, shard: str, records: list[bytes]) -> None:
        writer = TFRecordWriter(str(self.folder / shard))
        for record in records:
            writer.write(record)
        writer.close()

    def damage(self, change: Callable[[bytearray], Any]) -> str:
        """Changes the bytes of a shard of several records and stamps its checksum."""
        shard = next(shard for shard in self.shards if len(self.read(shard)) > 3)
        data = bytearray((self.folder / shard).read_bytes())
        change(data)
        (self.folder / shard).write_bytes(data)
        self.stamp(index=False)
        return shard


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Path:
    table = measurements_table(7000, seed=1, num_probes=14)
    pq.write_table(table, folder / "in.parquet")
    flags = (
        "--max_row_size_mb=0.02", "--num_shards=3", "--train_ratio=0.6",
        "--measurement_encoding=arrow", "--output_format=tfrecord", "--record_encoding=tf_example",
    )  # fmt: skip
    assert main([f"--input={folder}/in.parquet", f"--output={folder}/out", *flags]) == 0
    return folder / "out"


@pytest.fixture
def copy(dataset: Path, tmp_path: Path) -> ExampleCopy:
    return ExampleCopy(Path(shutil.copytree(dataset, tmp_path / "dataset")))


# --- the file -----------------------------------------------------------------------------------


def second_record_at(data: bytearray) -> int:
    return HEAD_BYTES + struct.unpack_from("<Q", data)[0] + 4


def test_flipped_bit(copy: ExampleCopy, capsys: pytest.CaptureFixture[str]) -> None:
    def flip(data: bytearray) -> None:
        start = second_record_at(data)
        size = struct.unpack_from("<Q", data, start)[0]
        data[start + HEAD_BYTES + size // 2] ^= 4

    shard = copy.damage(flip)
    assert found_by(capsys, copy.folder) == {"records": [(shard, 1)]}
    assert verify.main([str(copy.folder)]) == 1
    out = capsys.readouterr().out
    assert f"{shard} record 1: it cannot be read: its checksum does not match" in out
    assert "partly" in out


def wrong_length(data: bytearray) -> None:
    data[second_record_at(data) + 1] ^= 1


def cut_within_a_record(data: bytearray) -> None:
    del data[second_record_at(data) + HEAD_BYTES + 30 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (wrong_length, "the length of record 1 is damaged, so the rest cannot be read"),
        (cut_within_a_record, "it ends within record 1, after 30 of its"),
    ],
)
def test_damage_hides_the_rest_of_a_file(
    damage: Callable[[bytearray], None], message: str, copy: ExampleCopy, capsys
) -> None:
    shard = copy.damage(damage)
    assert found_by(capsys, copy.folder) == {"records": [(shard, None)]}
    assert verify.main([str(copy.folder)]) == 1
    assert f"records: {shard}: {message}" in capsys.readouterr().out


# --- the records --------------------------------------------------------------------------------


def test_wrong_feature(copy: ExampleCopy, capsys: pytest.CaptureFixture[str]) -> None:
    record = copy.single()
    row = decode_example(record)
    span = float(np.nextafter(np.float32(row.time_span_seconds), 0))
    where = copy.replace(record, encode_example(row._replace(time_span_seconds=span)))
    assert found_by(capsys, copy.folder) == {"row_columns": [where]}


def test_verify_on_gcs(copy: ExampleCopy, gcs: Gcs, capsys: pytest.CaptureFixture[str]) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(copy.folder, f"{bucket}/rows")
    assert verify.main([f"{bucket}/rows"]) == 0
    shard = copy.damage(cut_within_a_record)
    gcs.upload(copy.folder, f"{bucket}/cut")
    assert found_by(capsys, f"{bucket}/cut") == {"records": [(shard, None)]}  # type: ignore[arg-type]
