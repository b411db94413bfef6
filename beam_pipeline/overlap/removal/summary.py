"""What the commands print at their end, read from their manifests."""

from typing import Any

import orjson

from beam_pipeline.overlap.removal.job import attributes_manifest
from beam_pipeline.overlap.removal.options import AttributeOptions
from beam_pipeline.overlap.results.layout import REMOVAL_MANIFEST
from beam_pipeline.storage.files import read_file


def print_removal(output: str) -> None:
    """Prints what became of the records and characters of a corpus."""
    counts = _counts(f"{output}/{REMOVAL_MANIFEST}")
    print(
        f"{counts['records_in']:,} records: {counts['records_in'] - counts['contaminated']:,} "
        f"untouched, {counts['changed']:,} changed to {counts['pieces']:,}, "
        f"{counts['records_removed']:,} dropped\n"
        f"{counts['chars_in']:,} characters: {counts['chars_kept']:,} kept, "
        f"{counts['chars_removed']:,} removed\n"
        f"The counts by file are in {output}/{REMOVAL_MANIFEST}"
    )


def print_attributes(options: AttributeOptions, output: str) -> None:
    """Prints how many documents have attributes."""
    manifest = f"{output}/{attributes_manifest(options)}"
    counts = _counts(manifest)
    print(
        f"Attributes of {counts['records_in']:,} records, "
        f"{counts['contaminated']:,} of them contaminated; the counts by file are in {manifest}"
    )


def _counts(path: str) -> dict[str, Any]:
    return orjson.loads(read_file(path) or b"{}")["counts"]
