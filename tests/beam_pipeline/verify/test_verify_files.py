"""What is wrong with the files of a dataset or its manifest, and whether the command finds it."""

import hashlib
import shutil
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from tests.support.damaged_dataset import (
    DamagedDataset,
    Where,
    change_bytes,
    checksum_of,
    encoding_not_that_of_the_options,
    found_by,
)


def flip(data: bytearray) -> None:
    data[20_000] ^= 1


def test_flipped_byte(copy: DamagedDataset, capsys: pytest.CaptureFixture[str]) -> None:
    shard = copy.shards[0]
    change_bytes(copy, shard, flip)
    found = found_by(capsys, copy.folder)
    assert set(found) == {"files", "records"} and found["files"] == [(shard, None)]
    ((name, record),) = found["records"]
    assert name == shard and record is not None
    with pytest.raises(RuntimeError, match="hash mismatch"):
        ArrayRecordReader(str(copy.folder / shard)).read(record, record + 1)
    copy.stamp(index=False)
    assert found_by(capsys, copy.folder) == {"records": [(shard, record)]}


def truncated(copy: DamagedDataset) -> Where:
    change_bytes(copy, copy.shards[1], lambda data: data.__delitem__(slice(50_000, None)))
    return copy.shards[1], None


def missing(copy: DamagedDataset) -> Where:
    (copy.folder / copy.shards[4]).unlink()
    return copy.shards[4], None


def extra(copy: DamagedDataset) -> Where:
    name = "train/train_shard_00003-of-00004.arrayrecord"
    shutil.copy(copy.folder / copy.shards[0], copy.folder / name)
    return name, None


def other_sha256(copy: DamagedDataset) -> Where:
    def change(values: dict) -> None:
        values["splits"]["train"]["shards"][0]["sha256"] = "0" * 64

    copy.manifest(change)
    return copy.shards[0], None


def misnamed(copy: DamagedDataset) -> Where:
    name = "train/train_shard_0-of-3.arrayrecord"
    (copy.folder / copy.shards[0]).rename(copy.folder / name)
    copy.manifest(lambda values: values["splits"]["train"]["shards"][0].update(path=name))
    return name, None


def index_missing(copy: DamagedDataset) -> Where:
    (copy.folder / "test/rows.parquet").unlink()
    return "test/rows.parquet", None


def change_index(copy: DamagedDataset, change: Callable[[pa.Table], pa.Table]) -> None:
    path = copy.folder / "train/rows.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    checksums = {
        "index_crc32c": checksum_of(path.read_bytes()),
        "index_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    copy.manifest(lambda values: values["splits"]["train"].update(checksums))


def index_line_wrong(copy: DamagedDataset) -> Where:
    def change(table: pa.Table) -> pa.Table:
        lines = table.to_pylist()
        at = next(i for i, line in enumerate(lines) if line["position"] == 2)
        lines[at]["num_failed"] += 1
        return pa.Table.from_pylist(lines, table.schema)

    change_index(copy, change)
    return copy.shards[0], 2


def index_line_missing(copy: DamagedDataset) -> Where:
    change_index(copy, lambda table: table.slice(0, table.num_rows - 1))
    return copy.shards[2], len(copy.read(copy.shards[2])) - 1


def index_of_other_columns(copy: DamagedDataset) -> Where:
    change_index(copy, lambda table: table.drop_columns(["num_ipv6"]))
    return "train/rows.parquet", None


def letters_missing(copy: DamagedDataset) -> Where:
    for path in (copy.folder / "dead_letter").iterdir():
        path.unlink()
    return "dead_letter", None


def letters_lost(copy: DamagedDataset) -> Where:
    (path,) = (copy.folder / "dead_letter").iterdir()
    pq.write_table(pq.read_table(path).slice(1), path)
    return "dead_letter", None


def letters_with_one_bit_flipped(copy: DamagedDataset) -> Where:
    (path,) = (copy.folder / "dead_letter").iterdir()
    data = bytearray(path.read_bytes())
    data[40] ^= 1  # of a value
    path.write_bytes(data)
    return f"dead_letter/{path.name}", None


def one_of_two_files_of_letters(copy: DamagedDataset) -> Where:
    (path,) = (copy.folder / "dead_letter").iterdir()
    path.rename(path.with_name("dead_letter_00000-of-00002.parquet"))
    return "dead_letter/dead_letter_00001-of-00002.parquet", None


def rows_read_wrong(copy: DamagedDataset) -> Where:
    return copy.manifest(lambda values: values["counts"].update(rows_read=1))


def sum_of_a_split_wrong(copy: DamagedDataset) -> Where:
    return copy.manifest(lambda values: values["splits"]["test"].update(num_bytes=1))


def num_probes_wrong(copy: DamagedDataset) -> Where:
    return copy.manifest(lambda values: values["splits"]["test"].update(num_probes=1))


def shards_not_as_many_as_wanted(copy: DamagedDataset) -> Where:
    return copy.manifest(lambda values: values["options"].update(num_shards=4))


def measurements_in_another_shard(copy: DamagedDataset) -> Where:
    def change(values: dict) -> None:
        shards = values["splits"]["train"]["shards"]
        shards[1]["num_measurements"] += 1
        shards[2]["num_measurements"] -= 1

    copy.manifest(change)
    return copy.shards[2], None


OF_FILES: dict[Any, set[str]] = {
    truncated: {"files", "records"},
    missing: {"files"},
    extra: {"files"},
    other_sha256: {"files"},
    misnamed: {"files"},
    index_missing: {"files"},
    index_line_wrong: {"index"},
    index_line_missing: {"index"},
    index_of_other_columns: {"index"},
    letters_missing: {"dead_letters"},
    letters_lost: {"dead_letters"},
    letters_with_one_bit_flipped: {"dead_letters"},
    one_of_two_files_of_letters: {"dead_letters"},
    rows_read_wrong: {"counts"},
    sum_of_a_split_wrong: {"counts"},
    num_probes_wrong: {"totals", "counts"},
    shards_not_as_many_as_wanted: {"totals"},
    measurements_in_another_shard: {"totals"},
    encoding_not_that_of_the_options: {"encoding"},
}


@pytest.mark.parametrize("damage", OF_FILES, ids=lambda damage: damage.__name__)
def test_faults_of_files_and_manifest(
    damage: Callable[[DamagedDataset], Where],
    copy: DamagedDataset,
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = damage(copy)
    found = found_by(capsys, copy.folder)
    assert set(found) == OF_FILES[damage]
    assert all(where in places for places in found.values())
