"""A dataset from somebody else: edited manifest and index, checksums made to match."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_pipeline.dataset.layout import DatasetOptions
from beam_pipeline.dataset.manifest import KnownOptions, write_success
from beam_pipeline.dataset.rows import BadRowError, open_dataset
from beam_pipeline.errors import ProbelineError
from beam_pipeline.inspect import __main__ as inspect
from beam_pipeline.storage.files import checksum_text, crc32c
from beam_pipeline.verify import __main__ as verify


@pytest.fixture
def folder(mixed: dict, tmp_path: Path) -> Path:
    return Path(shutil.copytree(mixed["compact"], tmp_path / "rows"))


def edit(folder: Path, *keys: Any, value: Any) -> None:
    """Sets a field of the manifest and commits it."""
    values = place = json.loads((folder / "manifest.json").read_bytes())
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    write_success(str(folder), json.dumps(values).encode())


def refusal_of(action: Callable[[], Any]) -> str:
    with pytest.raises(ProbelineError) as refusal:
        action()
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


SHARD = ("splits", "train", "shards", 0)
EDITS = [
    (("format_version",), True),
    (("options",), None),
    (("options", "max_row_size_mb"), [8]),
    (("options", "max_row_size_mb"), float("nan")),
    (("options", "train_ratio"), "0.9"),
    (("options", "num_shards"), -1),
    (("options", "output_format"), "csv"),
    (("options", "anonymize"), 5),
    (("versions", "probeline"), {}),
    (("counts", "dead_letters"), {"rtt_null": -1}),
    (("counts", "rows_read"), True),
    (("counts", "measurements"), 2**70),
    (("splits",), {}),
    (("splits", "test"), None),
    ((*SHARD, "num_bytes"), "5"),
    ((*SHARD, "sha256"), "00"),
    ((*SHARD, "path"), "../secret"),
    ((*SHARD, "path"), "/etc/passwd"),
    ((*SHARD, "path"), "train/\0"),
    ((*SHARD, "path"), "train/\x1b[2J"),
    ((*SHARD, "path"), "test/test_shard_00000-of-00001.arrayrecord"),
    (("dead_letter_files",), [{"path": "train/rows.parquet", "num_bytes": 1, "crc32c": "0" * 8}]),
]


@pytest.mark.parametrize(("keys", "value"), EDITS)
def test_invalid_manifest_field(folder: Path, keys: tuple, value: Any) -> None:
    edit(folder, *keys, value=value)
    assert "manifest.json is not a manifest" in refusal_of(lambda: open_dataset(str(folder)))


def test_deeply_nested_manifest(folder: Path) -> None:
    write_success(str(folder), b'{"format_version":' + b"[" * 100_000)
    assert "is not a manifest" in refusal_of(lambda: open_dataset(str(folder)))


def test_unknown_manifest_fields_are_ignored(folder: Path) -> None:
    edit(folder, "options", "not_yet_known", value=[0.5])
    edit(folder, *SHARD, "blake3", value="00")
    edit(folder, "made_by", value={"somebody": "else"})
    assert open_dataset(str(folder)).manifest.options["not_yet_known"] == [0.5]


def test_every_dataset_option_is_validated() -> None:
    known = set(KnownOptions.__annotations__)
    assert {field.name for field in fields(DatasetOptions)} <= known


@pytest.mark.parametrize("name", ["_SUCCESS", "manifest.json", "train/rows.parquet"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_pipe_or_device_as_metadata_file(folder: Path, name: str, make: Callable) -> None:
    (folder / name).unlink()
    make(folder / name)
    assert "not a regular file" in refusal_of(lambda: open_dataset(str(folder)).index("train"))


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_pipe_or_device_as_shard(folder: Path, make: Callable, capsys) -> None:
    (path,) = list(folder.glob("train/train_shard_00000-*"))
    path.unlink()
    make(path)
    rows = open_dataset(str(folder)).rows("train")
    with pytest.raises(BadRowError, match="missing or not a regular file"):
        rows[0]
    assert verify.main([str(folder)]) == 1
    assert "it is not a regular file" in capsys.readouterr().out


def change(column: str, value: Any) -> Callable[[pa.Table], pa.Table]:
    def changed(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(column)
        values = [value, *table.column(column).cast(pa.int64()).to_pylist()[1:]]
        array = pa.array(values, pa.int64()).cast(table.schema.field(column).type)
        return table.set_column(at, table.schema.field(column), array)

    return changed


INDEX_EDITS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "has shard 99": change("shard", 99),
    "has position 5000": change("position", 5000),
    f"has num_bytes {2**40}": change("num_bytes", 2**40),
    "has n_measurements 2147483647": change("n_measurements", 2**31 - 1),
    "has num_ipv6 -1": change("num_ipv6", -1),
    "has num_failed 2000000000": change("num_failed", 2_000_000_000),
    "has row_index -1": change("row_index", -1),
    "has last_timestamp 0": change("last_timestamp", 0),
    "has nulls in num_bytes": change("num_bytes", None),
    "lines for": lambda table: table.slice(1),
    "its columns are": lambda table: table.drop_columns(["src_id"]),
}


@pytest.mark.parametrize("message", INDEX_EDITS)
def test_invalid_row_index(folder: Path, message: str) -> None:
    path = folder / "train" / "rows.parquet"
    pq.write_table(INDEX_EDITS[message](pq.read_table(path)), path)
    checksum = checksum_text(crc32c(path.read_bytes()))
    edit(folder, "splits", "train", "index_crc32c", value=checksum)
    refusal = refusal_of(lambda: open_dataset(str(folder)).index("train"))
    assert message in refusal and "train/rows.parquet is not the row index" in refusal
    path.write_bytes(b"nothing")
    edit(folder, "splits", "train", "index_crc32c", value=checksum_text(crc32c(b"nothing")))
    assert "cannot be read" in refusal_of(lambda: open_dataset(str(folder)).index("train"))


def test_terminal_escapes_are_printed_as_text(folder: Path, capsys) -> None:
    edit(folder, "counts", "dead_letters", value={"\x1b]0;title\x07\x9b2J": 3})
    for program in (inspect, verify):
        program.main([str(folder)])
        printed = capsys.readouterr()
        text = printed.out + printed.err
        assert "\\x1b]0;title\\x07\\x9b2J" in text.replace("\n", "")
        assert not {"\x1b", "\x07", "\x9b"} & set(text)
