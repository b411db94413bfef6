"""The manifest: what a finished dataset is made of, and the only way for a reader to open one.

A dataset is committed when `_SUCCESS` is there, holding the checksum of `manifest.json`. Readers
ask `open_dataset`, which refuses a folder that is not finished, was changed, or was written by a
newer format, even when it is given a bare glob of shards. The manifest holds nothing that
differs between two runs over the same input: no date, no run, no machine.
"""

import dataclasses
import os
from dataclasses import dataclass, field
from typing import Any

import orjson
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.claim_checks import crc32c, create_file, is_local
from beam_pipeline.errors import ProbelineError

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
    """What came in and what became of it: rows_read = measurements + the dead letters' sum."""

    input_files: int
    rows_read: int
    measurements: int
    dead_letters: dict[str, int]

    @property
    def num_dead_letters(self) -> int:
        return sum(self.dead_letters.values())


@dataclass(frozen=True)
class Manifest:
    """All of `manifest.json`.

    Attributes:
      options: the options that shape the bytes of the shards, by flag name.
      versions: of the libraries that shape them.
    """

    format_version: int
    options: dict[str, Any]
    versions: dict[str, str]
    counts: Counts
    splits: dict[str, Split]

    def to_json(self) -> bytes:
        """Returns the file's bytes: sorted keys, two spaces, a final newline."""
        form = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
        return orjson.dumps(dataclasses.asdict(self), option=form)

    @staticmethod
    def from_json(data: bytes) -> "Manifest":
        """Inverts `to_json`; KeyError, TypeError or ValueError if the bytes are no manifest."""
        values = orjson.loads(data)
        splits = {
            name: Split(**{**split, "shards": [Shard(**shard) for shard in split["shards"]]})
            for name, split in values["splits"].items()
        }
        counts = Counts(**values["counts"])
        return Manifest(**{**values, "counts": counts, "splits": splits})


@dataclass(frozen=True)
class Dataset:
    """A finished dataset: where it lies and its manifest."""

    path: str
    manifest: Manifest

    def file(self, relative_path: str) -> str:
        """Returns the full path of a file of the dataset."""
        return FileSystems.join(self.path, *relative_path.split("/"))


def checksum_text(checksum: int) -> str:
    """Returns a CRC-32C as 8 hex digits."""
    return f"{checksum:08x}"


def read_small_file(path: str) -> bytes | None:
    """Returns the whole of a file, or None if there is none."""
    if not FileSystems.exists(path):
        return None
    with FileSystems.open(path, mime_type="application/octet-stream") as file:
        return file.read()


def write_success(path: str, manifest: bytes) -> None:
    """Commits the dataset at `path`: the manifest first, `_SUCCESS` last, each whole or not."""
    _write_whole(FileSystems.join(path, MANIFEST_NAME), manifest)
    stamp = f"{checksum_text(crc32c(manifest))}\n".encode()
    _write_whole(FileSystems.join(path, SUCCESS_NAME), stamp)


def _write_whole(path: str, data: bytes) -> None:
    """Writes a small file so that no reader sees half of it; doing it again changes nothing."""
    if not is_local(path):
        with create_file(path) as file:  # an object appears when its upload ends
            file.write(data)
        return
    temporary_path = f"{path}.{os.getpid()}.tmp"
    with open(temporary_path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary_path, path)


def dataset_folder(path: str) -> str:
    """Returns the dataset that a folder, a split's folder, a shard or a glob of shards is in."""
    at = path.rstrip("/")
    if any(char in at for char in "*?[") or at.endswith((".arrayrecord", ".tfrecord")):
        at = FileSystems.split(at)[0].rstrip("/")
    if FileSystems.split(at)[1] in SPLITS and not FileSystems.exists(
        FileSystems.join(at, MANIFEST_NAME)
    ):
        at = FileSystems.split(at)[0].rstrip("/")
    return at or "."


def open_dataset(path: str) -> Dataset:
    """Opens a finished dataset, given its folder, a split's folder, a shard or a glob of shards.

    Raises:
      ProbelineError: it is not finished, was changed since, or is of a newer format.
    """
    folder = dataset_folder(path)
    stamp = read_small_file(FileSystems.join(folder, SUCCESS_NAME))
    if stamp is None:
        raise ProbelineError(
            f"{folder} holds no finished dataset: it has no {SUCCESS_NAME}; run "
            "python -m beam_pipeline.main to the end, or check the path"
        )
    data = read_small_file(FileSystems.join(folder, MANIFEST_NAME))
    if data is None:
        raise ProbelineError(f"{folder} has no {MANIFEST_NAME}: copy the dataset as a whole")
    found = checksum_text(crc32c(data))
    if found != stamp.decode(errors="replace").strip():
        raise ProbelineError(
            f"{folder}/{MANIFEST_NAME} has checksum {found}, {SUCCESS_NAME} says "
            f"{stamp.decode(errors='replace').strip()!r}: one of them was changed or belongs to "
            "another dataset; copy the dataset again as a whole"
        )
    version = orjson.loads(data).get("format_version")
    if version != FORMAT_VERSION:
        raise ProbelineError(
            f"{folder} has format version {version}, this Probeline reads {FORMAT_VERSION}: "
            "use the version that wrote it"
        )
    return Dataset(folder, Manifest.from_json(data))
