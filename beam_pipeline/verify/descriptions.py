"""What must hold of README.md and croissant.json: they say the same as the manifest.

People may add to both. Only what the job writes there, and can be told from the manifest alone, is
compared: no row is read.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from beam_pipeline.dataset import data_card
from beam_pipeline.dataset.croissant import CROISSANT_NAME, croissant
from beam_pipeline.dataset.data_card import CARD_HEAD, CARD_NAME, title
from beam_pipeline.dataset.manifest import MANIFEST_NAME, Manifest
from beam_pipeline.dataset.rows import Dataset
from beam_pipeline.storage.files import is_special_file, read_file
from beam_pipeline.verify.across import Fault


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
    """README.md and croissant.json repeat the manifest; older versions wrote none, or one."""
    manifest = dataset.manifest
    is_written = all(split.index_sha256 for split in manifest.splits.values())
    for name, faults in ((CARD_NAME, _card_faults), (CROISSANT_NAME, _croissant_faults)):
        path, messages = dataset.file(name), ["it is no regular file"]
        if not is_special_file(path):
            data = read_file(path)
            messages = ["it is missing"] if is_written else []
            if data is not None:
                messages = faults(dataset, manifest, data)
        yield from (Fault(name, None, message) for message in messages)


def num_claims(manifest: Manifest) -> int:
    """Returns how many figures are compared."""
    return len(data_card.claims(manifest)) + len(_claims(croissant(manifest, {}, b"")))


def _card_faults(dataset: Dataset, manifest: Manifest, data: bytes) -> Iterator[str]:
    text = data.decode(errors="replace")
    if not text.startswith(CARD_HEAD):
        return  # somebody else's, or an older version's
    yield from _title_faults(manifest, text)
    lines = text.splitlines()
    for start, line in data_card.claims(manifest).items():
        if line not in lines:
            found = next((each for each in lines if each.startswith(start)), None)
            said = "does not say it" if found is None else f"says {found!r}"
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
            said = f"says {found[what]}" if what in found else "does not say it"
            yield f"{what} is {value} in the manifest, it {said}"


def _title_faults(manifest: Manifest, text: str) -> Iterator[str]:
    """Yields other titles of the job's making; people may write one of their own."""
    pattern = re.sub("[0-9,]+", "[0-9,]+", title(manifest))
    for found in sorted({*re.findall(pattern, text)} - {title(manifest)}):
        yield f"the manifest says {title(manifest)!r}, it says {found!r}"


def _claims(data: bytes) -> dict[str, Any]:
    """Returns what a croissant.json says, by what it is said of; ValueError if it is none."""
    described = msgspec.json.decode(data, type=_Croissant)
    said: dict[str, Any] = {
        f"sha256 of {file.id}": file.sha256 for file in described.distribution if file.sha256
    }
    for record_set in described.record_set:
        for record in record_set.data:
            split = record.get("splits/name")
            said |= {f"{key.removeprefix('splits/')} of {split}": record[key] for key in record}
    return said
