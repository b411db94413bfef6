"""The manifest of a dataset: `write_success` commits a dataset, `open_dataset` opens one.

A dataset is committed once `_SUCCESS` exists and holds the checksum of `manifest.json`. The
manifest holds nothing that differs between two runs over the same input, such as a date or a
machine.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson

from beam_pipeline.errors import ProbelineError
from beam_pipeline.storage.files import checksum_text, crc32c, read_file, write_file

FORMAT_VERSION = 1
SPLITS = ("train", "test")
MANIFEST_NAME, SUCCESS_NAME, INDEX_NAME = "manifest.json", "_SUCCESS", "rows.parquet"
DEAD_LETTER_FOLDER = "dead_letter"


@dataclass(frozen=True)
class Shard:
    """One file of records; `path` is relative to the dataset, `crc32c` of the whole file."""

    path: str
    num_records: int
    num_measurements: int
    num_bytes: int
    crc32c: str


@dataclass(frozen=True)
class Split:
    """The train or the test side."""

    num_probes: int
    num_records: int
    num_measurements: int
    num_bytes: int
    shards: list[Shard] = field(default_factory=list)
    index_crc32c: str = ""


@dataclass(frozen=True)
class Counts:
    """The input by outcome: rows_read = measurements + the sum of the dead letters."""

    input_files: int
    rows_read: int
    measurements: int
    dead_letters: dict[str, int]

    @property
    def num_dead_letters(self) -> int:
        return sum(self.dead_letters.values())


@dataclass(frozen=True)
class Manifest:
    """The contents of `manifest.json`."""

    format_version: int
    options: dict[str, Any]  # those that shape the bytes of the shards, by flag name
    versions: dict[str, str]  # of the libraries that shape them
    counts: Counts
    splits: dict[str, Split]

    @property
    def output_format(self) -> str:
        """The file format of the shards; manifests older than the option have ArrayRecord."""
        return self.options.get("output_format", "arrayrecord")

    def to_json(self) -> bytes:
        """Returns the file's bytes: sorted keys, two spaces, a final newline."""
        form = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps(dataclasses.asdict(self), option=form)

    @staticmethod
    def from_json(data: bytes) -> "Manifest":
        """Inverts `to_json`; ValueError if the bytes are not a manifest."""
        return msgspec.json.decode(data, type=Manifest)


@dataclass(frozen=True)
class Dataset:
    """A finished dataset: its folder and its manifest."""

    path: str
    manifest: Manifest

    def file(self, relative_path: str) -> str:
        """Returns the full path of a file of the dataset."""
        return f"{self.path}/{relative_path}"


def success_stamp(manifest: bytes) -> bytes:
    """Returns the contents of `_SUCCESS` for a manifest of these bytes."""
    return f"{checksum_text(crc32c(manifest))}\n".encode()


def write_success(folder: str, manifest: bytes) -> None:
    """Commits the dataset: the manifest first, `_SUCCESS` last, each whole or not at all."""
    write_file(f"{folder}/{MANIFEST_NAME}", manifest, durable=True)
    write_file(f"{folder}/{SUCCESS_NAME}", success_stamp(manifest), durable=True)


def dataset_folder(path: str) -> str:
    """Returns the folder of the dataset that a folder, a split, a shard or a glob is in."""
    folder = path.rstrip("/")
    while any(char in folder for char in "*?[") or folder.endswith((".arrayrecord", ".tfrecord")):
        folder = folder.rpartition("/")[0]
    parent, _, name = folder.rpartition("/")
    is_bucket = parent.endswith(":/")
    if name in SPLITS and not is_bucket and read_file(f"{folder}/{MANIFEST_NAME}") is None:
        folder = parent
    return folder or "."


def open_dataset(path: str) -> Dataset:
    """Opens a finished dataset, given its folder, a split's folder, a shard or a glob of shards.

    Raises:
      ProbelineError: it is not finished, was changed since, or has a newer format.
    """
    folder = dataset_folder(path)
    stamp = read_file(f"{folder}/{SUCCESS_NAME}")
    if stamp is None:
        raise ProbelineError(
            f"{folder} holds no finished dataset: it has no {SUCCESS_NAME}; run "
            "python -m beam_pipeline.main to the end, or check the path"
        )
    data = read_file(f"{folder}/{MANIFEST_NAME}")
    if data is None:
        raise ProbelineError(f"{folder} has no {MANIFEST_NAME}: copy the dataset as a whole")
    found, said = checksum_text(crc32c(data)), stamp.decode(errors="replace").strip()
    if found != said:
        raise ProbelineError(
            f"{folder}/{MANIFEST_NAME} has checksum {found}, {SUCCESS_NAME} says {said!r}: one of "
            "them was changed or belongs to another dataset; copy the dataset again as a whole"
        )
    try:
        version = msgspec.json.decode(data, type=dict)["format_version"]
        if version == FORMAT_VERSION:
            return Dataset(folder, Manifest.from_json(data))
    except (KeyError, ValueError) as error:
        raise ProbelineError(
            f"{folder}/{MANIFEST_NAME} is not a manifest ({type(error).__name__}: {error}): copy "
            "the dataset again as a whole"
        ) from error
    raise ProbelineError(
        f"{folder} has format version {version}, this Probeline reads {FORMAT_VERSION}: use the "
        "version that wrote it"
    )
