"""Rows by number, local and on `gs://`."""

import pickle
import shutil
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset import layout
from beam_pipeline.dataset.layout import Encoding
from beam_pipeline.dataset.row_codec import decode_record
from beam_pipeline.main import main
from tests.conftest import Gcs
from tests.support.codec_rows import both_encodings
from tests.support.helpers import measurements_table, reference_rows, run_of_tuples
from tests.support.job_runs import write_input
from tests.support.loader_helpers import read_all, refusal_of
from tests.support.probe_rows_on_disk import (
    OPTIONS,
    Mixed,
    RowSpec,
    ipv4_probe,
    make_measurements,
    mixed_rows,
    read_records,
    shard_paths,
    write_dataset,
)
from training.rows.row_source import ProbeRowDataSource
from training.rows.row_table import find_shards, load_rows
from training.rows.shard_reader import ShardReader


def test_datasets_equal_those_of_the_pipeline(tmp_path: Path) -> None:
    table = measurements_table(2000, seed=3, num_probes=12)
    source, output = write_input(tmp_path / "in", table), tmp_path / "out"
    flags = ["--train_ratio=1", "--num_shards=3", f"--array_record_options={OPTIONS}"]
    flags.append("--measurement_encoding=compact")
    assert main([f"--input={source}", f"--output={output}", *flags]) == 0
    rows = [RowSpec(name, run_of_tuples(told)) for name, told in reference_rows(table).items()]
    own = write_dataset(tmp_path / "own", rows, "compact", 3)
    for one, other in zip(shard_paths(output), shard_paths(own), strict=True):
        assert one.name == other.name and one.read_bytes() == other.read_bytes()
    indexes = [pq.read_table(folder / "train" / "rows.parquet") for folder in (output, own)]
    assert indexes[0].equals(indexes[1])


@both_encodings
def test_elements_are_the_rows_of_the_shards_in_order(mixed: Mixed, encoding: Encoding) -> None:
    source = ProbeRowDataSource(str(mixed[encoding]))
    records = [r for path in shard_paths(mixed[encoding]) for r in read_records(path)]
    assert len(source) == len(records) == len(mixed_rows())
    for index, record in enumerate(records):
        row, element = decode_record(record), source[index]
        assert element.keys() == {
            *("src_id", "src_addr", "row_index", "n_measurements", "measurements", "metadata")
        }
        assert element["src_id"] == row.src_id == layout.src_id(element["src_addr"])
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


def test_measurements_are_a_sequence(mixed: Mixed) -> None:
    source = ProbeRowDataSource(str(mixed["compact"]))
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


def test_indices_are_those_of_a_sequence(mixed: Mixed) -> None:
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


def test_repr_says_which_data_and_nothing_else(mixed: Mixed, tmp_path: Path) -> None:
    text = repr(ProbeRowDataSource(str(mixed["arrow"])))
    moved = shutil.copytree(mixed["arrow"], tmp_path / "moved")
    for same in (mixed["arrow"] / "train", moved):
        assert repr(ProbeRowDataSource(str(same))) == text
    assert "0x" not in text
    shards = [str(path) for path in shard_paths(mixed["arrow"])]
    assert len({text, *(repr(ProbeRowDataSource(files)) for files in (*shards, shards[:2]))}) == 5
    run = make_measurements(10, 1)
    others = [RowSpec("1.1.1.1", run), RowSpec("1.1.1.1", run.copy())]
    others[1].run["rtt"] += 1  # all else is equal
    folders = [write_dataset(tmp_path / f"{i}", [row]) for i, row in enumerate(others)]
    assert len({repr(ProbeRowDataSource(str(folder))) for folder in folders}) == 2


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


def test_all_ways_to_name_shards(mixed: Mixed, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.chdir(dataset)
    for here in (".", "./", "train", "./train", "train/*.arrayrecord"):
        assert find_shards(here).chosen == [0, 1, 2], here


def test_what_names_no_shards_is_refused(mixed: Mixed, tmp_path: Path) -> None:
    dataset = mixed["arrow"]
    other = mixed["compact"]
    for wrong, *parts in (
        (f"{tmp_path}/nothing", "is not a finished dataset", "_SUCCESS", "nothing"),
        (f"{dataset}/train/nothing-*.arrayrecord", "names no shard", "nothing"),
        (f"{dataset}/*/*.arrayrecord", "train", "test", "use one split"),
        ([f"{dataset}/train", f"{other}/train"], "names no shard", f"{other}/train"),
        ([], "files is empty"),
        ("s3://bucket/rows", "s3://bucket", "gs://"),
    ):
        refusal_of(lambda: find_shards(wrong), *parts)  # noqa: B023


def test_rows_on_gs_are_those_on_disk(mixed: Mixed, gcs: Gcs) -> None:
    bucket = gcs.make_bucket()
    gcs.upload(mixed["arrow"], f"{bucket}/deep/rows")
    local, remote = (
        ProbeRowDataSource(folder) for folder in (str(mixed["arrow"]), f"{bucket}/deep/rows")
    )
    assert repr(local) == repr(remote) and len(local) == len(remote)
    for one, other in zip(local, remote, strict=True):
        assert list(one.pop("measurements")) == list(other.pop("measurements"))
        assert one == other
    again = pickle.loads(pickle.dumps(remote))
    assert list(again[-1]["measurements"]) == list(local[-1]["measurements"])
    for files in (f"{bucket}/deep/rows/test", f"{bucket}/deep/rows/test/*.arrayrecord"):
        assert [row["src_addr"] for row in read_all(files)] == ["9.9.9.9"]
