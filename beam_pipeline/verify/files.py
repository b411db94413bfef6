"""Checks of a dataset's files: manifest sums, names, sizes, checksums, descriptions.

Each check is a small generator of faults, as in `record`, but of whole files. Users may edit
README.md and croissant.json, so only generated lines and fields that follow from the manifest are
compared.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from beam_pipeline.dataset import data_card, dead_letters
from beam_pipeline.dataset.croissant import CROISSANT_NAME, croissant
from beam_pipeline.dataset.data_card import CARD_HEAD, CARD_NAME, title
from beam_pipeline.dataset.layout import ROW_BYTES, DatasetOptions, count_shards
from beam_pipeline.dataset.manifest import (
    DEAD_LETTER_FOLDER,
    MANIFEST_NAME,
    Manifest,
    Shard,
    Split,
    wrong_sums,
)
from beam_pipeline.dataset.rows import Dataset
from beam_pipeline.dataset.sorted_run import NARROW, WIDE
from beam_pipeline.errors import one_line
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import (
    checksum_text,
    exists,
    file_digests,
    is_local,
    is_special_file,
    read_file,
    size_and_checksum,
)
from beam_pipeline.storage.parquet import open_parquet
from beam_pipeline.verify.across import Fault


def sums(manifest: Manifest) -> Iterator[Fault]:
    """The manifest's counts, generations and splits add up."""
    return map(_manifest_fault, wrong_sums(manifest))


def shard_totals(shard: Shard, found: Mapping[str, int]) -> Iterator[Fault]:
    """A shard has the size and counts of the manifest."""
    for name, value in found.items():
        if value != (said := getattr(shard, name)):
            yield Fault(shard.path, None, f"its {name} is {value}, the manifest says {said}")


def split_totals(
    name: str, split: Split, num_probes: int, options: DatasetOptions, format_version: int
) -> Iterator[Fault]:
    """A split has the manifest's probes, and the number of shards derived from its size."""
    if split.num_probes != num_probes:
        yield _manifest_fault(
            f"num_probes of {name} is {split.num_probes}, its shards hold {num_probes}"
        )
    # The writer counts 16 or 28 bytes per measurement, by family, which the manifest lacks.
    row_bytes = ROW_BYTES * split.num_records if format_version > 1 else 0
    low, high = (
        count_shards(num_probes, row_bytes + split.num_measurements * dtype.itemsize, options)
        for dtype in (NARROW, WIDE)
    )
    if not low <= len(split.shards) <= high:
        wanted = f"{low}" if low == high else f"{low} to {high}"
        yield _manifest_fault(
            f"{name} has {len(split.shards)} shards; {num_probes} probes and "
            f"{split.num_measurements} measurements make {wanted}"
        )


def _manifest_fault(message: str) -> Fault:
    return Fault(MANIFEST_NAME, None, message)


def _names_in(folder: str) -> list[str]:
    """Returns the sorted names of the files directly in a folder; none if it does not exist."""
    if is_local(folder):
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    below = (path.removeprefix(f"{folder}/") for path in gcs.list_objects(f"{folder}/"))
    return sorted(name for name in below if "/" not in name)


def shard_files(dataset: Dataset, name: str, options: DatasetOptions) -> Iterator[Fault]:
    """Shards are named train_shard_00000-of-00016.arrayrecord, in order, and all are listed."""
    shards = dataset.manifest.splits[name].shards
    for number, shard in enumerate(shards):
        file = f"{name}_shard_{number:05d}-of-{len(shards):05d}{options.shard_suffix}"
        wanted = f"{name}/{file}"
        if shard.path != wanted:
            yield Fault(shard.path, None, f"the manifest lists it instead of {wanted}")
    named = {shard.path for shard in shards}
    for file in _names_in(dataset.file(name)):
        looks_like_shard = "_shard_" in file or file.endswith((".arrayrecord", ".tfrecord"))
        if looks_like_shard and f"{name}/{file}" not in named:
            yield Fault(f"{name}/{file}", None, "it is not in the manifest: remove it")


def letters(dataset: Dataset) -> Iterator[Fault]:
    """All dead-letter files exist, and each reason has the counted number of rows."""
    found: Counter[str] = Counter()
    names, wanted = _names_in(dataset.file(DEAD_LETTER_FOLDER)), set()
    yield from letter_checksums(dataset)
    for name in names:
        path = f"{DEAD_LETTER_FOLDER}/{name}"
        match = re.fullmatch(r"dead_letter_\d{5,}-of-(\d{5,})\.parquet", name)
        if match is None:
            yield Fault(path, None, "it is not a file of dead letters: remove it")
            continue
        total = int(match[1])
        wanted |= {f"dead_letter_{n:05d}-of-{total:05d}.parquet" for n in range(total)}
        try:
            found.update(_reasons(dataset.file(path)))
        except (OSError, pa.ArrowException) as error:
            yield Fault(path, None, f"it cannot be read: {one_line(error)}")
    for name in sorted(wanted.difference(names)):
        yield Fault(f"{DEAD_LETTER_FOLDER}/{name}", None, "it is missing")
    said = Counter(dataset.manifest.counts.dead_letters)
    for reason in sorted({*said, *found}):
        if said[reason] != found[reason]:
            message = f"it holds {found[reason]} rows of {reason}, the manifest says {said[reason]}"
            yield Fault(DEAD_LETTER_FOLDER, None, message)


def letter_checksums(dataset: Dataset) -> Iterator[Fault]:
    """Dead-letter files have the listed checksums; older manifests list none."""
    for file in dataset.manifest.dead_letter_files:
        size, message = content(dataset.file(file.path), file.crc32c, file.sha256)
        if size is None:
            continue  # reported by `letters`
        if size != file.num_bytes:
            message = f"it has {size} bytes, the manifest says {file.num_bytes}"
        if message:
            yield Fault(file.path, None, message)


def content(path: str, crc32c: str, sha256: str) -> tuple[int | None, str]:
    """Returns a file's size, None if unreadable, and its fault, "" if it has none.

    `gs://` stores only the CRC-32C.
    """
    try:
        if is_special_file(path):
            return None, "it is not a regular file"
        if not exists(path):
            return None, "it is missing"
        kept = None if is_local(path) else (*size_and_checksum(path), sha256)
        size, checksum, digest = kept or file_digests(path)
    except OSError as error:
        return None, f"it cannot be read: {one_line(error)}"
    if (found := checksum_text(checksum)) != crc32c:
        return size, f"its crc32c is {found}, the manifest says {crc32c}"
    if sha256 and digest != sha256:
        return size, f"its sha256 is {digest}, the manifest says {sha256}"
    return size, ""


def _reasons(path: str) -> Counter[str]:
    reasons: Counter[str] = Counter()
    if is_special_file(path):
        raise OSError("it is not a regular file")
    with open_parquet(path) as file:
        if not file.schema_arrow.equals(dead_letters.SCHEMA):
            raise pa.ArrowInvalid(f"its columns are {', '.join(file.schema_arrow.names)}")
        for batch in file.iter_batches(columns=["reason"]):
            for count in batch.column("reason").value_counts().to_pylist():
                reasons[str(count["values"])] += count["counts"]
    return reasons


# --- README.md and croissant.json


class _File(msgspec.Struct):
    id: str = msgspec.field(name="@id", default="")
    sha256: str = ""


class _RecordSet(msgspec.Struct):
    data: list[dict[str, Any]] = []


class _Croissant(msgspec.Struct, rename="camel"):
    """The part of croissant.json that repeats the manifest."""

    distribution: list[_File]
    record_set: list[_RecordSet]


def descriptions(dataset: Dataset) -> Iterator[Fault]:
    """README.md and croissant.json agree with the manifest; older versions lack one or both."""
    manifest = dataset.manifest
    is_written = all(split.index_sha256 for split in manifest.splits.values())
    for name, faults in ((CARD_NAME, _card_faults), (CROISSANT_NAME, _croissant_faults)):
        path, messages = dataset.file(name), ["it is not a regular file"]
        if not is_special_file(path):
            data = read_file(path)
            messages = ["it is missing"] if is_written else []
            if data is not None:
                messages = faults(dataset, manifest, data)
        yield from (Fault(name, None, message) for message in messages)


def num_claims(manifest: Manifest) -> int:
    return len(data_card.claims(manifest)) + len(_claims(croissant(manifest, {}, b"")))


def _card_faults(dataset: Dataset, manifest: Manifest, data: bytes) -> Iterator[str]:
    text = data.decode(errors="replace")
    if not text.startswith(CARD_HEAD):
        return  # written by a user or an older version
    yield from _title_faults(manifest, text)
    lines = text.splitlines()
    for start, line in data_card.claims(manifest).items():
        if line not in lines:
            found = next((each for each in lines if each.startswith(start)), None)
            said = "lacks it" if found is None else f"says {found!r}"
            yield f"the manifest says {line!r}, it {said}"


def _croissant_faults(dataset: Dataset, manifest: Manifest, data: bytes) -> Iterator[str]:
    try:
        found = _claims(data)
    except (ValueError, RecursionError) as error:
        yield f"it cannot be read: {error}"
        return
    yield from _title_faults(manifest, data.decode(errors="replace"))
    written = read_file(dataset.file(MANIFEST_NAME)) or b""
    for what, value in _claims(croissant(manifest, {}, written)).items():
        if found.get(what) != value:
            said = f"says {found[what]}" if what in found else "lacks it"
            yield f"{what} is {value} in the manifest, it {said}"


def _title_faults(manifest: Manifest, text: str) -> Iterator[str]:
    """Yields generated titles with other numbers; users may write their own."""
    pattern = re.sub("[0-9,]+", "[0-9,]+", title(manifest))
    for found in sorted({*re.findall(pattern, text)} - {title(manifest)}):
        yield f"the manifest says {title(manifest)!r}, it says {found!r}"


def _claims(data: bytes) -> dict[str, Any]:
    """Returns the checksums and counts of a croissant.json by name; ValueError if invalid."""
    described = msgspec.json.decode(data, type=_Croissant)
    said: dict[str, Any] = {
        f"sha256 of {file.id}": file.sha256 for file in described.distribution if file.sha256
    }
    for record_set in described.record_set:
        for record in record_set.data:
            split = record.get("splits/name")
            said |= {f"{key.removeprefix('splits/')} of {split}": record[key] for key in record}
    return said
