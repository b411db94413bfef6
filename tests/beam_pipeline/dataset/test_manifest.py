"""The manifest: its bytes, and what readers refuse to open."""

import json
import os
from pathlib import Path

import pytest

from beam_pipeline.dataset.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    SUCCESS_NAME,
    Counts,
    Manifest,
    Shard,
    Split,
    write_success,
)
from beam_pipeline.dataset.rows import dataset_folder, open_dataset
from beam_pipeline.errors import ProbelineError
from beam_pipeline.storage.files import crc32c


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


def refusal_of(path: Path | str) -> str:
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


@pytest.mark.parametrize("name", ["o[1]", "o*", "o?"])
@pytest.mark.parametrize("below", ["", "/", "/train", "/train/*.arrayrecord"])
def test_folder_name_with_glob_characters(dataset, name, below):
    folder = dataset.rename(dataset.with_name(name))
    assert open_dataset(f"{folder}{below}").path == str(folder)


def test_folder_named_train(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    write_success(str(folder), a_manifest().to_json())
    assert open_dataset(str(folder)).path == str(folder)
    assert dataset_folder(f"{folder}/train/*") == str(folder)


@pytest.mark.parametrize("bucket", ["train", "test"])
def test_bucket_named_like_a_split(bucket):
    assert dataset_folder(f"gs://{bucket}") == f"gs://{bucket}"
    assert dataset_folder(f"gs://{bucket}/*.arrayrecord") == f"gs://{bucket}"


@pytest.mark.parametrize("path", ["", "/train", "/train/*.arrayrecord", "/train/x.arrayrecord"])
def test_unfinished_dataset(dataset, path):
    os.remove(dataset / SUCCESS_NAME)
    assert refusal_of(f"{dataset}{path}").startswith(
        f"{dataset} is not a finished dataset: it has no _SUCCESS; run python -m"
    )


@pytest.mark.parametrize("path", ["nowhere", "nowhere/train/*.arrayrecord", "file", "file/train/*"])
def test_missing_dataset(tmp_path, path):
    (tmp_path / "file").write_bytes(b"x")
    assert "is not a finished dataset" in refusal_of(tmp_path / path)


@pytest.mark.parametrize(
    "damage", [lambda data: data + b" ", lambda data: data.replace(b"40", b"41"), lambda data: b""]
)
def test_modified_manifest(dataset, damage):
    path = dataset / MANIFEST_NAME
    path.write_bytes(damage(path.read_bytes()))
    assert "manifest.json has checksum" in refusal_of(dataset)


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 0])
def test_unsupported_format_version(dataset, version):
    """Its other fields are not read."""
    write_success(str(dataset), json.dumps({"format_version": version, "parts": []}).encode())
    assert refusal_of(dataset) == (
        f"{dataset} has format version {version}, this Probeline reads {FORMAT_VERSION}: "
        "use the version that wrote it"
    )
    os.remove(dataset / MANIFEST_NAME)
    assert refusal_of(dataset) == f"{dataset} has no manifest.json: copy the dataset as a whole"


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
    assert "is not a finished dataset" in refusal_of(tmp_path)
