"""The manifest: its bytes, and what readers refuse to open."""

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
from beam_pipeline.dataset.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    SUCCESS_NAME,
    Counts,
    KnownOptions,
    Manifest,
    Shard,
    Split,
    write_success,
)
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import ProbelineError
from beam_pipeline.inspect import __main__ as inspect
from beam_pipeline.storage.files import checksum_text, crc32c
from beam_pipeline.verify import __main__ as verify


def a_manifest() -> Manifest:
    shard = Shard("train/train_shard_00000-of-00001.arrayrecord", 3, 40, 5000, "0badcafe")
    return Manifest(
        format_version=FORMAT_VERSION,
        options={"train_ratio": 0.9, "measurement_encoding": "arrow", "num_shards": 0},
        versions={"pyarrow": "25.0.1", "probeline": "1.0"},
        counts=Counts(2, 43, 40, {"rtt_null": 2, "src_addr_invalid": 1}),
        splits={
            "train": Split(2, 3, 40, 5000, [shard], "12345678"),
            "test": Split(0, 0, 0, 0, [], "00000000"),
        },
    )


@pytest.fixture
def dataset(tmp_path) -> Path:
    """A committed dataset without its shards."""
    folder = tmp_path / "out"
    for name in ("train", "test"):
        (folder / name).mkdir(parents=True)
    write_success(str(folder), a_manifest().to_json())
    return folder


def refusal_to_open(path: Path | str) -> str:
    with pytest.raises(ProbelineError) as refusal:
        open_dataset(str(path))
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


# --- the manifest's bytes -----------------------------------------------------------------------


def test_manifest_is_sorted_json():
    data = a_manifest().to_json()
    values = json.loads(data)
    assert data == json.dumps(values, indent=2, sort_keys=True).encode() + b"\n"
    assert Manifest.from_json(data) == a_manifest()
    assert values["format_version"] == FORMAT_VERSION
    assert values["splits"]["train"]["shards"][0]["crc32c"] == "0badcafe"


def test_checksum_is_crc_32c():
    """The check value of the standard; CRC-32 of zlib would give another."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


# --- opening ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/train",
        "/test/",
        "/train/*.arrayrecord",
        "/test/test_shard_?????-of-0000[1-3].arrayrecord",
        "/train/train_shard_00000-of-00001.tfrecord",
    ],
)
def test_open_by_folder_split_shard_or_glob(dataset, path):
    opened = open_dataset(f"{dataset}{path}")
    assert opened.path == str(dataset)
    assert opened.manifest == a_manifest()
    shard = opened.manifest.splits["train"].shards[0]
    assert opened.file(shard.path) == f"{dataset}/train/train_shard_00000-of-00001.arrayrecord"


def test_unfinished_dataset(dataset):
    os.remove(dataset / SUCCESS_NAME)
    for path in ("", "/train/*.arrayrecord"):
        assert refusal_to_open(f"{dataset}{path}").startswith(
            f"{dataset} is not a finished dataset: it has no _SUCCESS; run python -m"
        )


@pytest.mark.parametrize("damage", [lambda data: data.replace(b"40", b"41"), lambda data: b""])
def test_modified_manifest(dataset, damage):
    path = dataset / MANIFEST_NAME
    path.write_bytes(damage(path.read_bytes()))
    assert "manifest.json has checksum" in refusal_to_open(dataset)


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 0])
def test_unsupported_format_version(dataset, version):
    """Its other fields are not read."""
    write_success(str(dataset), json.dumps({"format_version": version, "parts": []}).encode())
    assert refusal_to_open(dataset) == (
        f"{dataset} has format version {version}, this Probeline reads 1 and 2: "
        "use the version that wrote it"
    )
    os.remove(dataset / MANIFEST_NAME)
    assert (
        refusal_to_open(dataset) == f"{dataset} has no manifest.json: copy the dataset as a whole"
    )


# --- committing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1])
def test_killed_commit_does_not_open(tmp_path, monkeypatch, steps):
    replace = os.replace
    done = []

    def dies(source, target):
        if len(done) == steps:
            raise KeyboardInterrupt
        done.append(target)
        replace(source, target)

    monkeypatch.setattr(os, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        write_success(str(tmp_path), a_manifest().to_json())
    assert done == [str(tmp_path / MANIFEST_NAME)][:steps]
    assert "is not a finished dataset" in refusal_to_open(tmp_path)


# --- a dataset from somebody else: edited manifest and index --------------------------------------


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


def generation(**values: Any) -> list[dict[str, Any]]:
    counts = {"input_files": 0, "rows_read": 0, "measurements": 0, "dead_letters": {}}
    whole = {"started": "", "input": [], "options": {}, "versions": {}, "counts": counts}
    return [{**whole, "num_probes": 0, "num_records": 0, **values}]


SHARD = ("splits", "train", "shards", 0)
EDITS = [
    (("options",), None),
    (("options", "max_row_size_mb"), [8]),
    (("options", "train_ratio"), "0.9"),
    (("options", "output_format"), "csv"),
    (("options", "anonymize"), "prefix_preserving"),  # without a fingerprint
    (("options", "anonymize_key_fingerprint"), "0123456789abcdef"),  # of real addresses
    (("options",), {"anonymize": "prefix_preserving", "anonymize_key_fingerprint": "passes"}),
    (("generations",), generation(first_us=2**70)),
    (("generations",), generation(files=[{"path": "x", "num_bytes": 1, "version": 2**64}])),
    (("counts", "measurements"), 2**70),
    (("splits",), {}),
    (("splits", "test"), None),
    ((*SHARD, "sha256"), "00"),
    ((*SHARD, "path"), "../secret"),
    ((*SHARD, "path"), "/etc/passwd"),
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


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_pipe_or_device_as_metadata_file(folder: Path, make: Callable) -> None:
    for name in ("train/rows.parquet", "manifest.json", "_SUCCESS"):
        (folder / name).unlink()
        make(folder / name)
        assert "not a regular file" in refusal_of(lambda: open_dataset(str(folder)).index("train"))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("{}/r*s/train/*.arrayrecord", "has a pattern in the name of a folder"),
        ("{}/rows/train/rows.parquet", "is not a finished dataset but a file"),
        ("file://{}/rows", "give a local path without file://"),
    ],
)
def test_name_of_something_other_than_a_dataset(folder: Path, name: str, parts: str) -> None:
    name = name.format(folder.parent)
    line = refusal_of(lambda: open_dataset(name))
    assert line.startswith(name) and parts in line


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_pipe_or_device_as_shard(folder: Path, make: Callable, capsys) -> None:
    (path,) = list(folder.glob("train/train_shard_00000-*"))
    path.unlink()
    make(path)
    rows = open_dataset(str(folder)).rows("train")
    with pytest.raises(ProbelineError, match="missing or not a regular file"):
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
    "has num_ipv6 -1": change("num_ipv6", -1),
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
