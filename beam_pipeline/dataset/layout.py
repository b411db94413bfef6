"""The options that shape a dataset, and the split and shard of a row.

A row's place follows from its probe's address, its number and the options alone, so the writer and
`beam_pipeline.verify` agree on it, and results do not depend on the runner. `placement` computes
the same for many rows at a time. Heavy imports are avoided, so that command lines are parsed before
NumPy and Arrow are loaded.
"""

import hashlib
import socket
import struct
from dataclasses import dataclass
from typing import Literal

Encoding = Literal["arrow", "compact"]
ENCODINGS: tuple[Encoding, ...] = ("arrow", "compact")
RecordEncoding = Literal["arrow_ipc", "tf_example"]
RECORD_ENCODINGS: tuple[RecordEncoding, ...] = ("arrow_ipc", "tf_example")
OutputFormat = Literal["arrayrecord", "tfrecord"]
OUTPUT_FORMATS: tuple[OutputFormat, ...] = ("arrayrecord", "tfrecord")
Duplicates = Literal["keep", "drop"]
DUPLICATES: tuple[Duplicates, ...] = ("keep", "drop")


@dataclass(frozen=True)
class RowFormat:
    """How rows are encoded, and the largest size of a record."""

    encoding: Encoding
    max_row_bytes: int
    record_encoding: RecordEncoding = "arrow_ipc"


@dataclass(frozen=True)
class DatasetOptions:
    """The options that shape the bytes of a dataset, named as their flags.

    Those with a default are missing from manifests that are older than the flag.
    """

    measurement_encoding: Encoding
    max_row_size_mb: float
    train_ratio: float
    split_seed: int
    probes_per_shard: int
    num_shards: int
    array_record_options: str
    output_format: OutputFormat = "arrayrecord"
    record_encoding: RecordEncoding = "arrow_ipc"
    duplicates: Duplicates = "keep"

    @property
    def row_format(self) -> RowFormat:
        """The encodings and the largest size of a row."""
        max_row_bytes = int(self.max_row_size_mb * (1 << 20))
        return RowFormat(self.measurement_encoding, max_row_bytes, self.record_encoding)

    @property
    def shard_suffix(self) -> str:
        """The suffix of shard names."""
        return f".{self.output_format}"


# Sizes of shards are counted before encoding: 16 or 28 bytes per measurement, by family, and
# ROW_BYTES per row. In arrow encoding, measurements take up to twice that.
ROW_BYTES = 1 << 10
MIN_SHARD_BYTES, MAX_SHARD_BYTES = 16 << 20, 256 << 20
_MANY_SHARDS = 1000  # shards of more than the minimum
HASH_FACTORS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SPLIT_SALT = b"split"
_WORD = (1 << 64) - 1
# src_id and row_index, big-endian, so that bytes sort as numbers.
_ROW_KEY = struct.Struct(">qi")


def packed(address: str) -> bytes:
    """Returns the 4 or 16 bytes of a canonical address, in network order."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.inet_pton(family, address)


def src_id(address: str) -> int:
    """Returns the 63-bit identifier of a probe: blake2b of its packed address."""
    digest = hashlib.blake2b(packed(address), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def split_of(src_addr: str, train_ratio: float, split_seed: int) -> int:
    """Returns the split of a probe, as an index into manifest.SPLITS."""
    digest = hashlib.blake2b(
        packed(src_addr),
        digest_size=8,
        key=str(split_seed).encode(),
        person=SPLIT_SALT,
    ).digest()
    return int(int.from_bytes(digest, "big") >= train_ratio * 2.0**64)


def place_of(src_addr: str, row_index: int) -> int:
    """Returns the place of a row, 64 bits: a hash of the address, or of it and the row's number."""
    place = _mixed(*halves(src_addr))
    return _mixed(row_index, place) if row_index else place


def halves(src_addr: str) -> tuple[int, int]:
    """Returns the halves of a canonical address; IPv4 is ::ffff:a.b.c.d."""
    data = packed(src_addr)
    return divmod(int.from_bytes(b"\xff\xff" + data if len(data) == 4 else data, "big"), 1 << 64)


def _mixed(hi: int, lo: int) -> int:
    mixed = (hi * HASH_FACTORS[0] + lo) & _WORD
    for shift, factor in ((30, HASH_FACTORS[1]), (27, HASH_FACTORS[2])):
        mixed = ((mixed ^ mixed >> shift) * factor) & _WORD
    return mixed ^ mixed >> 31


def shard_of_row(src_addr: str, row_index: int, num_shards: int, format_version: int = 2) -> int:
    """Returns the shard of a row: which of equal ranges its place is in.

    In datasets of format version 1, a hash of the row's key modulo the number of shards.
    """
    if format_version == 1:
        return shard_of(_ROW_KEY.pack(src_id(src_addr), row_index), num_shards)
    return (place_of(src_addr, row_index) >> 32) * num_shards >> 32


def shard_of(key: bytes, num_shards: int) -> int:
    """Returns the shard of a key; a salt keeps it independent of other hashes of the key."""
    digest = hashlib.blake2b(key, digest_size=8, person=b"shard").digest()
    return int.from_bytes(digest, "big") % num_shards


def count_shards(num_probes: int, num_bytes: int, options: DatasetOptions) -> int:
    """Returns the number of shards of a split, given its size before encoding.

    Without an option, a thousand shards, but of 16 MiB at least and 256 MiB at most.
    """
    if options.num_shards:
        return options.num_shards
    least = -(-num_bytes // MAX_SHARD_BYTES)
    if options.probes_per_shard:
        return max(1, -(-num_probes // options.probes_per_shard), least)
    return max(1, min(_MANY_SHARDS, num_bytes // MIN_SHARD_BYTES), least)
