"""Finished datasets as input: their shards are files, their rows become measurements again.

The manifest plans the work. Every shard is checked against it: size and checksum before it is read,
the number of records after. Damage ends the job regardless of --on_bad_file, since the cure is a
new copy of the dataset.
"""

import os
import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.decoded_rows import DecodedRows, decode, in_batches
from beam_pipeline.dataset.manifest import INDEX_NAME, MANIFEST_NAME, NAMES_NAME, SPLITS, wrong_sums
from beam_pipeline.dataset.rows import READ_ERRORS, Dataset, open_whole, read_shard
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.sources.inputs import MeasurementFile, Piece, StoredShard
from beam_pipeline.sources.measurements import AddressColumn, Block
from beam_pipeline.sources.options import COLUMNS
from beam_pipeline.storage.files import (
    checksum_text,
    is_gcs,
    is_local,
    read_file,
    size_and_checksum,
)
from beam_pipeline.storage.lines import damage_reason
from beam_pipeline.storage.matching import file_versions

_OWN_NAMES = (MANIFEST_NAME, INDEX_NAME, NAMES_NAME, "croissant.json")
_DATA_SUFFIX = r"\.(parquet|arrow|feather|csv|tsv|json|jsonl|ndjson)(\.(gz|bz2|xz|zst))?$"


def is_dataset(path: str) -> bool:
    """Returns whether a path is a dataset's folder, finished or not, by its manifest."""
    if not is_local(path) and not is_gcs(path):
        return False
    manifest = read_file(f"{path.rstrip('/')}/{MANIFEST_NAME}")
    return manifest is not None and b'"format_version"' in manifest


def refuse_more_input(folder: str) -> None:
    """Raises UsageError for measurements beside a dataset, which --input would leave unread."""
    for name in sorted(os.listdir(folder)):
        if re.search(_DATA_SUFFIX, name) and name not in _OWN_NAMES and name[0] not in "._":
            raise UsageError(
                f"--input={folder} is a dataset and also holds {name}, which is none of its files: "
                "move it to a folder of its own"
            )


def is_part(path: str) -> bool:
    """Returns whether a path is a split of a dataset, or files in it."""
    inside = re.fullmatch(rf"(.+)/({'|'.join(SPLITS)})(/[^/]*)?/?", path)
    return inside is not None and is_dataset(inside[1])


def open_input(path: str) -> Dataset:
    """Opens a dataset named by --input; UsageError if the path is only a part of one."""
    return open_whole(path, f"--input={path}")


def shards_of(dataset: Dataset, is_of_output: bool = False) -> list[MeasurementFile]:
    """Returns the shards of both splits as input files.

    ProbelineError if one is missing, the manifest does not add up, or the dead letters of the
    dataset that the run appends to are not as listed.
    """
    manifest = dataset.manifest
    for fault in wrong_sums(manifest):
        raise ProbelineError(
            f"{dataset.file(MANIFEST_NAME)} does not add up: {fault}; copy the dataset again as a "
            "whole"
        )
    letters = manifest.dead_letter_files if is_of_output else []
    for letter, file in zip(letters, file_versions([dataset.file(each.path) for each in letters])):
        _check(file.path, letter.crc32c, letter.num_bytes)
    shards = [shard for split in SPLITS for shard in manifest.splits[split].shards]
    versions = file_versions([dataset.file(shard.path) for shard in shards])
    anonymized_by = manifest.options.get("anonymize_key_fingerprint", "")
    found: list[MeasurementFile] = []
    for shard, file in zip(shards, versions, strict=True):
        if file.num_bytes != shard.num_bytes:
            raise _damaged(file.path, f"it has {file.num_bytes} bytes, not {shard.num_bytes}")
        stored = StoredShard(
            manifest.output_format,  # type: ignore[arg-type]
            shard.num_records,
            shard.crc32c,
            anonymized_by,
            is_of_output,
        )
        rows = (shard.num_measurements,)
        found.append(MeasurementFile(file, "probe_rows", rows, shard=stored))
    return found


def read_blocks(piece: Piece, batch_rows: int) -> Iterator[Block]:
    """Yields a shard's measurements in row order; ProbelineError if it is not as listed."""
    shard = piece.shard
    assert shard is not None
    _check(piece.path, shard.crc32c, piece.file.num_bytes)
    num_records = 0
    try:
        for records in in_batches(read_shard(piece.path, shard.output_format)):
            for found in decode(records):
                if isinstance(found, Exception):
                    raise found
                yield from _blocks(found, batch_rows)
                num_records += len(found.num_bytes)
    except READ_ERRORS as error:
        reason = f"record {num_records}: {damage_reason(piece.path, error)}"
        raise _damaged(piece.path, reason) from error
    if num_records != shard.num_records:
        raise _damaged(piece.path, f"it has {num_records} records, not {shard.num_records}")
    if is_gcs(piece.path):  # ArrayRecord opens an object itself, in its newest version
        _check(piece.path, shard.crc32c, piece.file.num_bytes)


def _check(path: str, crc32c: str, num_bytes: int) -> None:
    size, checksum = size_and_checksum(path)
    if (size, checksum_text(checksum)) != (num_bytes, crc32c):
        raise _damaged(
            path,
            f"it has {size} bytes of checksum {checksum_text(checksum)}, the manifest says "
            f"{num_bytes} of {crc32c}",
        )


def _damaged(path: str, reason: str) -> ProbelineError:
    return ProbelineError(
        f"{path} is not the file in the manifest of its dataset: {reason}; copy the dataset "
        "again as a whole"
    )


def _blocks(rows: DecodedRows, max_rows: int) -> Iterator[Block]:
    """Yields the measurements of rows as columns, up to `max_rows` at a time."""
    src_hi, src_lo, _ = addresses.parse(rows.columns["src_addr"].combine_chunks())
    of_row = np.repeat(np.arange(len(src_lo), dtype=np.int32), np.diff(rows.bounds))
    run = rows.to_run()
    for begin in range(0, len(run), max_rows):
        part, codes = run[begin : begin + max_rows], of_row[begin : begin + max_rows]
        entries = slice(codes[0], codes[-1] + 1)
        hi, lo = np.ascontiguousarray(part["dst_hi"]), np.ascontiguousarray(part["dst_lo"])
        yield Block(
            event_time=np.ascontiguousarray(part["event_time"]),
            src=AddressColumn(codes - codes[0], src_hi[entries], src_lo[entries]),
            dst=AddressColumn(np.arange(len(part), dtype=np.int32), hi, lo),
            rtt=np.ascontiguousarray(part["rtt"]),
        )


def as_batch(block: Block) -> pa.RecordBatch:
    """Returns the measurements of a block as a batch with the columns of COLUMNS."""
    (src_hi, src_lo), (dst_hi, dst_lo) = (
        (column.hi[column.codes], column.lo[column.codes]) for column in (block.src, block.dst)
    )
    is_ipv4 = (dst_hi == 0) & (dst_lo >> np.uint64(32) == 0xFFFF)
    columns = [
        pa.array(block.event_time, pa.timestamp("us")),
        addresses.format_any(src_hi, src_lo),
        addresses.format_any(dst_hi, dst_lo),
        pa.array(np.where(is_ipv4, 4, 6), pa.int8()),
        pa.array(block.rtt, pa.float32()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))
