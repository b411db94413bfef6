"""Rows by number, local and on `gs://`; what was changed or damaged is named, never used."""

import dataclasses
import pickle
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grain
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.manifest import (
    MANIFEST_NAME,
    SUCCESS_NAME,
    Manifest,
    success_stamp,
    write_success,
)
from beam_pipeline.dataset.options import ENCODINGS, Encoding
from beam_pipeline.dataset.row_codec import decode_record
from beam_pipeline.main import main
from tests.conftest import Gcs
from tests.support.helpers import measurements_table, reference_rows, run_of_tuples
from tests.support.job_runs import write_input
from tests.support.loader_helpers import refusal_of
from tests.support.probe_rows_on_disk import (
    OPTIONS,
    RowSpec,
    damage_record,
    ipv4_probe,
    make_measurements,
    mixed_rows,
    read_records,
    restamp,
    shard_paths,
    write_dataset,
    write_records,
)
from training.dataset import DataConfig, build_dataset
from training.rows.row_source import BadRowError, ProbeRowDataSource
from training.rows.row_table import find_shards, load_rows
from training.rows.shard_reader import ShardReader, check_shards

both_encodings = pytest.mark.parametrize("encoding", ENCODINGS)


@pytest.fixture
def copy(mixed: dict[Encoding, Path], tmp_path: Path) -> Path:
    """A dataset to change."""
    return Path(shutil.copytree(mixed["arrow"], tmp_path / "copy"))


def read_all(dataset: Path | str) -> list[dict[str, Any]]:
    return list(ProbeRowDataSource(str(dataset)))


def first_batches(dataset: Path | str, num_batches: int = 20, **config: Any) -> None:
    """Reads from a dataset all that a loader would, some epochs of it."""
    options = {"batch_size": 4, "crop_size": 256, **config}
    iterator = iter(build_dataset(DataConfig(str(dataset), **options)))
    for _ in range(num_batches):
        if next(iterator, None) is None:
            break


# --- the helper -----------------------------------------------------------------------------------


@both_encodings
def test_datasets_of_these_tests_are_as_the_pipeline_writes_them(
    tmp_path: Path, encoding: Encoding
) -> None:
    table = measurements_table(2000, seed=3, num_probes=12)
    source, output = write_input(tmp_path / "in", table), tmp_path / "out"
    flags = [
        *("--train_ratio=1", "--num_shards=3", f"--array_record_options={OPTIONS}"),
        f"--measurement_encoding={encoding}",
    ]
    assert main([f"--input={source}", f"--output={output}", *flags]) == 0
    rows = [RowSpec(name, run_of_tuples(told)) for name, told in reference_rows(table).items()]
    own = write_dataset(tmp_path / "own", rows, encoding, 3)
    for one, other in zip(shard_paths(output), shard_paths(own), strict=True):
        assert one.name == other.name and one.read_bytes() == other.read_bytes()
    indexes = [pq.read_table(folder / "train" / "rows.parquet") for folder in (output, own)]
    assert indexes[0].equals(indexes[1])


# --- ProbeRowDataSource ---------------------------------------------------------------------------


@both_encodings
def test_elements_are_the_rows_of_the_shards_in_order(
    mixed: dict[Encoding, Path], encoding: Encoding
) -> None:
    source = ProbeRowDataSource(str(mixed[encoding]))
    records = [r for path in shard_paths(mixed[encoding]) for r in read_records(path)]
    assert len(source) == len(records) == len(mixed_rows())
    for index, record in enumerate(records):
        row, element = decode_record(record), source[index]
        assert element.keys() == {
            *("src_id", "src_addr", "row_index", "n_measurements", "measurements", "metadata")
        }
        assert element["src_id"] == row.src_id == addresses.src_id(element["src_addr"])
        assert (element["src_addr"], element["row_index"]) == (row.src_addr, row.row_index)
        assert element["n_measurements"] == len(element["measurements"]) == row.n_measurements
        arrow = row.to_arrow()
        assert list(element["measurements"]) == arrow.to_pylist()
        assert source.to_arrow(index).equals(arrow)
        assert element["metadata"] == {
            "time_span_seconds": row.time_span_seconds,
            "first_timestamp": _naive(row.first_timestamp_us),
            "last_timestamp": _naive(row.last_timestamp_us),
        }


def _naive(time_us: int) -> datetime:
    whole = datetime.fromtimestamp(time_us // 1_000_000, UTC).replace(tzinfo=None)
    return whole.replace(microsecond=time_us % 1_000_000)


def test_both_encodings_are_the_same_rows(mixed: dict[Encoding, Path]) -> None:
    for arrow, compact in zip(read_all(mixed["arrow"]), read_all(mixed["compact"]), strict=True):
        assert arrow["src_addr"] == compact["src_addr"]
        one, other = arrow["measurements"], compact["measurements"]
        for exact, coarse in zip(one, other, strict=True):
            assert exact["dst_addr"] == coarse["dst_addr"]
            assert exact["event_time"].replace(microsecond=0) == coarse["event_time"]
            assert exact["rtt"] == pytest.approx(coarse["rtt"], rel=2**-11, abs=0.0006)


@both_encodings
def test_measurements_are_a_sequence(mixed: dict[Encoding, Path], encoding: Encoding) -> None:
    source = ProbeRowDataSource(str(mixed[encoding]))
    row = next(row for row in source if row["n_measurements"] == 61)
    measurements, items = row["measurements"], list(row["measurements"])
    assert measurements[-1] == items[60] and measurements[-61] == items[0]
    assert measurements[5:9] == items[5:9] and measurements[::-20] == items[::-20]
    assert measurements[100:] == []
    assert measurements[np.int64(3)] == items[3]
    for index in (61, -62):
        with pytest.raises(IndexError, match=f"{index} of a row of 61"):
            measurements[index]
    again = pickle.loads(pickle.dumps(row))
    assert list(again["measurements"]) == items


def test_indices_are_those_of_a_sequence(mixed: dict[Encoding, Path]) -> None:
    source = ProbeRowDataSource(str(mixed["arrow"]))
    num = len(source)
    addresses_in_order = [row["src_addr"] for row in source]
    assert source[-1]["src_addr"] == addresses_in_order[-1]
    assert source[-num]["src_addr"] == addresses_in_order[0]
    assert source[np.int64(2)]["src_addr"] == addresses_in_order[2]  # type: ignore[arg-type]
    for index in (num, -num - 1, 10**9):
        with pytest.raises(IndexError, match=f"row {index} of {num}"):
            source[index]
    assert len(list(source)) == num
    assert len(source.rows) == num


def test_measurements_are_decoded_when_asked_for(
    mixed: dict[Encoding, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(addresses, "format_any", lambda *args: calls.append(args))
    row = ProbeRowDataSource(str(mixed["compact"]))[0]
    assert len(row["measurements"]) > 0 and calls == []


def test_repr_says_which_data_and_nothing_else(mixed: dict[Encoding, Path], tmp_path: Path) -> None:
    text = repr(ProbeRowDataSource(str(mixed["arrow"])))
    assert text == repr(ProbeRowDataSource(str(mixed["arrow"] / "train")))
    moved = shutil.copytree(mixed["arrow"], tmp_path / "moved")
    assert text == repr(ProbeRowDataSource(str(moved)))
    assert "0x" not in text


def test_repr_tells_shards_apart(mixed: dict[Encoding, Path]) -> None:
    shards = [str(path) for path in shard_paths(mixed["arrow"])]
    texts = {repr(ProbeRowDataSource(files)) for files in (*shards, shards[:2])}
    assert len(texts) == 4


def test_repr_differs_where_the_data_does(tmp_path: Path) -> None:
    """Same addresses, numbers and times: only the round-trip times differ."""
    texts = []
    for rtt in (1.0, 2.0):
        run = make_measurements(10, 1)
        run["rtt"] = rtt
        dataset = write_dataset(tmp_path / f"{rtt}", [RowSpec(ipv4_probe(0), run)])
        texts.append(repr(ProbeRowDataSource(str(dataset))))
    assert texts[0] != texts[1]


def test_pickled_sources_read_on(mixed: dict[Encoding, Path]) -> None:
    source = ProbeRowDataSource(str(mixed["arrow"]))
    first = list(source[0]["measurements"])  # with an open reader
    again = pickle.loads(pickle.dumps(source))
    assert repr(again) == repr(source) and len(again) == len(source)
    assert list(again[0]["measurements"]) == first


def test_grain_takes_it_as_a_source(mixed: dict[Encoding, Path]) -> None:
    source = ProbeRowDataSource(str(mixed["compact"]))
    dataset = grain.MapDataset.source(source).shuffle(seed=1)  # type: ignore[arg-type]
    names = [(row["src_addr"], row["row_index"]) for row in dataset.map(lambda row: row)]
    in_order = [(row["src_addr"], row["row_index"]) for row in source]
    assert sorted(names) == sorted(in_order) and names != in_order
    read = list(dataset.to_iter_dataset(grain.ReadOptions(num_threads=4)))
    assert [(row["src_addr"], row["row_index"]) for row in read] == names


def test_more_shards_than_are_kept_open(tmp_path: Path) -> None:
    rows = [RowSpec(ipv4_probe(i), make_measurements(2, i)) for i in range(400)]
    dataset = write_dataset(tmp_path / "rows", rows, num_shards=150)
    source = ProbeRowDataSource(str(dataset))
    order = np.random.default_rng(0).permutation(400)
    assert {source[index]["src_addr"] for index in order} == {row.src_addr for row in rows}
    reader = ShardReader(find_shards(str(dataset)), source.rows)
    for index in order:
        assert reader.locate(int(index)).src_id == source.rows.src_id[index]
    assert len(reader._opened()) <= 64


# --- files= ---------------------------------------------------------------------------------------


def test_all_ways_to_name_shards(
    mixed: dict[Encoding, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = mixed["arrow"]
    shards = [str(path) for path in shard_paths(dataset)]
    for whole in (
        *(f"{dataset}", f"{dataset}/", f"{dataset}/train", f"{dataset}/train/"),
        *(
            f"{dataset}/train/*.arrayrecord",
            f"{dataset}/train/train_shard_*",
            f"{dataset}/*/train*",
        ),
        *(shards, shards[::-1], [shards[0], shards[0], f"{dataset}/train/*[12]-of-00003*"]),
    ):
        found = find_shards(whole)
        assert (found.split, found.chosen) == ("train", [0, 1, 2]), whole
        assert len(load_rows(found)) == len(mixed_rows())
    assert find_shards(shards[1]).chosen == [1]
    assert find_shards([shards[2], shards[0]]).chosen == [0, 2]
    assert find_shards(f"{dataset}/train/*_0000[02]-*").chosen == [0, 2]
    found = find_shards(f"{dataset}/test")
    assert (found.split, len(load_rows(found))) == ("test", 1)
    monkeypatch.chdir(dataset.parent)
    assert find_shards("arrow/train").chosen == [0, 1, 2]


def test_paths_from_within_the_dataset(
    mixed: dict[Encoding, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mixed["arrow"])
    for here in (".", "./", "train", "./train", "train/*.arrayrecord"):
        assert find_shards(here).chosen == [0, 1, 2], here


def test_what_names_no_shards_is_refused(mixed: dict[Encoding, Path], tmp_path: Path) -> None:
    dataset = mixed["arrow"]
    other = mixed["compact"]
    for wrong, *parts in (
        (f"{tmp_path}/nothing", "no finished dataset", "_SUCCESS", "nothing"),
        (f"{dataset}/train/nothing-*.arrayrecord", "names no shard", "nothing"),
        (f"{dataset}/train/train_shard_00009-of-00003.arrayrecord", "names no shard", "00009"),
        (f"{dataset}/*/*.arrayrecord", "train", "test", "choose one"),
        ([f"{dataset}/train", f"{dataset}/test"], "train", "test", "choose one"),
        ([f"{dataset}/train", f"{other}/train"], "names no shard", f"{other}/train"),
        ([], "files is empty"),
        ("gs:/bucket", "gs:/bucket"),
        ("s3://bucket/rows", "s3://bucket", "gs://"),
    ):
        refusal_of(lambda: find_shards(wrong), *parts)  # noqa: B023


# --- a dataset that was changed -------------------------------------------------------------------


def users(dataset: Path | str) -> list[Callable[[], object]]:
    """All ways to begin to read; each must refuse."""
    return [lambda: read_all(dataset), lambda: first_batches(dataset)]


def test_an_unfinished_dataset_is_refused(copy: Path) -> None:
    (copy / SUCCESS_NAME).unlink()
    for path in (copy, copy / "train", f"{copy}/train/*.arrayrecord", shard_paths(copy)[0]):
        for use in users(str(path)):
            refusal_of(use, str(copy), "no finished dataset", "_SUCCESS")


def test_a_changed_manifest_is_refused(copy: Path) -> None:
    data = (copy / MANIFEST_NAME).read_bytes()
    (copy / MANIFEST_NAME).write_bytes(data.replace(b'"num_bytes"', b'"num_bytez"', 1))
    for use in users(copy):
        refusal_of(use, f"{copy}/manifest.json has checksum", "copy the dataset again")
    (copy / MANIFEST_NAME).unlink()
    for use in users(copy):
        refusal_of(use, f"{copy} has no manifest.json")


def test_a_newer_format_is_refused(copy: Path) -> None:
    values = orjson.loads((copy / MANIFEST_NAME).read_bytes())
    newer = orjson.dumps({**values, "format_version": 2, "new_field": []})
    (copy / MANIFEST_NAME).write_bytes(newer)
    (copy / SUCCESS_NAME).write_bytes(success_stamp(newer))
    for use in users(copy):
        refusal_of(use, str(copy), "format version 2, this Probeline reads 1")


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
        line = refusal_of(use, "(src_id, row_index, n_measurements)", "rows.parquet says")
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


@both_encodings
def test_rows_on_gs_are_those_on_disk(
    mixed: dict[Encoding, Path], gcs: Gcs, encoding: Encoding
) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(mixed[encoding], f"{bucket}/deep/rows")
    local, remote = (
        ProbeRowDataSource(folder) for folder in (str(mixed[encoding]), f"{bucket}/deep/rows")
    )
    assert repr(local) == repr(remote) and len(local) == len(remote)
    for one, other in zip(local, remote, strict=True):
        assert list(one.pop("measurements")) == list(other.pop("measurements"))
        assert one == other
    again = pickle.loads(pickle.dumps(remote))
    assert list(again[-1]["measurements"]) == list(local[-1]["measurements"])
    for files in (f"{bucket}/deep/rows/test", f"{bucket}/deep/rows/test/*.arrayrecord"):
        assert [row["src_addr"] for row in read_all(files)] == ["9.9.9.9"]


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
        refusal_of(use, f"{bucket}/nothing holds no finished dataset")
