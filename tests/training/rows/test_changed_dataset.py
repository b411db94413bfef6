"""A dataset that was changed or damaged after it was written: the error names what is wrong."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.layout import Encoding
from beam_pipeline.dataset.manifest import (
    MANIFEST_NAME,
    Manifest,
    write_success,
)
from beam_pipeline.dataset.row_codec import decode_record
from tests.conftest import Gcs
from tests.support.codec_rows import both_encodings
from tests.support.loader_helpers import read_all, refusal_of
from tests.support.probe_rows_on_disk import (
    RowSpec,
    damage_record,
    ipv4_probe,
    make_measurements,
    read_records,
    restamp,
    shard_paths,
    write_dataset,
    write_records,
)
from training.dataset import DataConfig, build_dataset
from training.rows.row_source import BadRowError, ProbeRowDataSource
from training.rows.row_table import find_shards
from training.rows.shard_reader import check_shards


@pytest.fixture
def copy(mixed: dict[Encoding, Path], tmp_path: Path) -> Path:
    """A dataset to change."""
    return Path(shutil.copytree(mixed["arrow"], tmp_path / "copy"))


def first_batches(dataset: Path | str, num_batches: int = 20, **config: Any) -> None:
    """Reads from a dataset all that a loader would, some epochs of it."""
    options = {"batch_size": 4, "crop_size": 256, **config}
    iterator = iter(build_dataset(DataConfig(str(dataset), **options)))
    for _ in range(num_batches):
        if next(iterator, None) is None:
            break


# --- a dataset that was changed -------------------------------------------------------------------


def users(dataset: Path | str) -> list[Callable[[], object]]:
    """All ways to begin to read; each must refuse."""
    return [lambda: read_all(dataset), lambda: first_batches(dataset)]


def test_a_changed_manifest_is_refused(copy: Path) -> None:
    data = (copy / MANIFEST_NAME).read_bytes()
    (copy / MANIFEST_NAME).write_bytes(data.replace(b'"num_bytes"', b'"num_bytez"', 1))
    for use in users(copy):
        refusal_of(use, f"{copy}/manifest.json has checksum", "copy the dataset again")
    (copy / MANIFEST_NAME).unlink()
    for use in users(copy):
        refusal_of(use, f"{copy} has no manifest.json")


@pytest.mark.parametrize("change", ["missing", "truncated", "longer", "empty"])
def test_a_changed_shard_is_named(copy: Path, change: str) -> None:
    path = shard_paths(copy)[1]
    data = path.read_bytes()
    new = {"truncated": data[:-1], "longer": data + b"\0", "empty": b""}
    if change == "missing":
        path.unlink()
    else:
        path.write_bytes(new[change])
    found = (
        "is missing" if change == "missing" else f"has {len(new[change])} bytes, not {len(data)}"
    )
    for use in users(copy):
        line = refusal_of(use, f"{path} {found}", "copy the dataset again")
        assert str(shard_paths(copy)[0]) not in line
    # Whoever does not need that shard is not disturbed.
    assert len(read_all(shard_paths(copy)[0])) > 0


def test_of_many_changed_shards_some_are_named(tmp_path: Path) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(2, i)) for i in range(50)]
    dataset = write_dataset(tmp_path / "rows", rows, num_shards=8)
    for path in shard_paths(dataset)[1:]:
        path.unlink()
    line = refusal_of(lambda: check_shards(find_shards(str(dataset))), "and 2 more")
    assert len(re.findall("is missing", line)) == 5


def test_a_changed_index_is_refused(copy: Path) -> None:
    path = copy / "train" / "rows.parquet"
    table = pq.read_table(path)
    numbers = pa.array(np.asarray(table["n_measurements"]) + 1, pa.int32())
    pq.write_table(table.set_column(6, "n_measurements", numbers), path)
    for use in users(copy):
        refusal_of(use, f"{path} has checksum", "the manifest says", "copy the dataset again")
    path.unlink()
    for use in users(copy):
        refusal_of(use, f"{path}", "missing", "copy the dataset again")


def test_a_shard_in_place_of_another_of_the_same_size_is_found_out(tmp_path: Path) -> None:
    """What storage says of it is right: only its records tell."""
    rows = [RowSpec(f"10.0.0.{i}", make_measurements(60, 1)) for i in range(10, 40)]
    dataset = write_dataset(
        tmp_path / "rows", rows, "compact", array_record_options="group_size:1,uncompressed"
    )
    one, other = shard_paths(dataset)
    num = min(len(read_records(one)), len(read_records(other)))
    for path in (one, other):
        write_records(path, read_records(path)[:num], "group_size:1,uncompressed")
    index = pq.read_table(dataset / "train" / "rows.parquet")
    kept = index.filter(pa.array(np.asarray(index["position"]) < num))
    pq.write_table(kept, dataset / "train" / "rows.parquet")
    _set_records(dataset, [num, num])
    read_all(dataset)
    assert one.stat().st_size == other.stat().st_size
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    for use in users(dataset):
        line = refusal_of(use, "(src_id, row_index, n_measurements)", "differ from rows.parquet")
        assert re.search(rf"({one}|{other}) record \d+: ", line)


def _set_records(dataset: Path, num_records: list[int]) -> None:
    restamp(dataset)
    manifest = Manifest.from_json((dataset / MANIFEST_NAME).read_bytes())
    split = manifest.splits["train"]
    shards = [
        dataclasses.replace(shard, num_records=num)
        for shard, num in zip(split.shards, num_records, strict=True)
    ]
    split = dataclasses.replace(split, num_records=sum(num_records), shards=shards)
    splits = {**manifest.splits, "train": split}
    write_success(str(dataset), dataclasses.replace(manifest, splits=splits).to_json())


def test_a_shard_with_too_few_records_is_named(copy: Path) -> None:
    path = shard_paths(copy)[2]
    num = len(read_records(path))
    write_records(path, read_records(path)[:-1])
    restamp(copy)
    for use in users(copy):
        refusal_of(use, f"{path} record", f"{num - 1} records, the manifest says {num}")


def test_a_shard_that_is_no_array_record_is_named(copy: Path) -> None:
    path = shard_paths(copy)[0]
    path.write_bytes(b"\xaa" * path.stat().st_size)
    for use in users(copy):
        refusal_of(use, f"{path} record", "copy the dataset again")


# --- damaged records ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["group_size:1,zstd:1", "group_size:1,uncompressed"])
@both_encodings
def test_flipped_bytes_in_a_shard_name_its_record(
    tmp_path: Path, encoding: Encoding, options: str
) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(90, i)) for i in range(10)]
    dataset = write_dataset(tmp_path / "rows", rows, encoding, 1, array_record_options=options)
    (path,) = shard_paths(dataset)
    data = bytearray(path.read_bytes())
    at = len(data[: 1 << 16].rstrip(b"\0")) // 2  # the records are in the first block
    data[at : at + 8] = bytes(255 - byte for byte in data[at : at + 8])
    path.write_bytes(data)
    for use in users(dataset):
        line = refusal_of(use, "copy the dataset again", "on_bad_row=skip")
        assert re.match(rf"{path} record \d: ", line)
    good = bad = 0
    source = ProbeRowDataSource(str(dataset))
    for index in range(len(source)):
        try:
            assert len(source[index]["measurements"]) == 90
            good += 1
        except BadRowError as error:
            assert str(error).startswith(f"{path} record {index}: ")
            bad += 1
    assert (good, bad) == (9, 1)


def offset_in_record(record: bytes, what: str) -> int:
    """Returns where, in the record of a row of mixed families, a kind of damage belongs."""
    row = decode_record(record)
    measurements = bytes(row.measurements)
    start = record.index(measurements)
    n = row.n_measurements
    return {
        "src_id": record.index(row.src_id.to_bytes(8, "little")),
        "head": 20,
        "measurements": start,
        "n": start + 4,
        "families": start + 20 + 6 * n,
    }[what]


@pytest.mark.parametrize("n", [10, 300])
@pytest.mark.parametrize(
    ("encoding", "what"),
    [
        *(("arrow", what) for what in ("src_id", "head", "measurements", "text")),
        *(("compact", what) for what in ("src_id", "head", "measurements", "n", "families")),
    ],
)
def test_a_record_whose_content_is_damaged_is_named(
    tmp_path: Path, n: int, encoding: Encoding, what: str
) -> None:
    """ArrayRecord's own checksum holds: the record was damaged before it was written."""
    rows = [RowSpec(ipv4_probe(i), make_measurements(n, i, ipv6_share=0.5)) for i in range(6)]
    dataset = write_dataset(tmp_path / "rows", rows, encoding, 1)
    (path,) = shard_paths(dataset)
    record = read_records(path)[3]
    if what == "text":
        first = decode_record(record).to_arrow().column("dst_addr")[0].as_py()
        at, new = record.index(first.encode()), b"?" * 2 * n  # many, so that a context meets one
    elif what == "families":
        at = offset_in_record(record, what)
        new = bytes([record[at] ^ 1 << 3])  # one family more or less than the header counts
    else:
        at, new = offset_in_record(record, what), b"\xa5\x5a\xa5"
    damage_record(dataset, 0, 3, at, new)
    source = ProbeRowDataSource(str(dataset))
    refusal = (f"{path} record 3: ", "copy the dataset again", "on_bad_row=skip")
    refusal_of(lambda: first_batches(dataset, 60), *refusal)
    if what == "text":  # is decoded when it is asked for
        with pytest.raises(ValueError, match="destination of measurement 0 is damaged"):
            list(source[3]["measurements"])
    else:
        refusal_of(lambda: source[3], *refusal)
    assert all(len(source[index]["measurements"]) == n for index in range(6) if index != 3)


# --- gs:// ----------------------------------------------------------------------------------------


def test_changed_objects_are_refused(mixed: dict[Encoding, Path], gcs: Gcs, tmp_path: Path) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(mixed["arrow"], f"{bucket}/rows")
    path = shard_paths(mixed["arrow"])[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "changed").write_bytes(data)
    name = f"{bucket}/rows/train/{path.name}"
    gcs.upload(tmp_path / "changed", name)
    for use in users(f"{bucket}/rows"):
        refusal_of(use, f"{name} has checksum", "copy the dataset again")
    (tmp_path / "changed").write_bytes(data[:-5])
    gcs.upload(tmp_path / "changed", name)
    for use in users(f"{bucket}/rows/train/*.arrayrecord"):
        refusal_of(use, f"{name} has {len(data) - 5} bytes, not {len(data)}")
    for use in users(f"{bucket}/nothing"):
        refusal_of(use, f"{bucket}/nothing is not a finished dataset")
