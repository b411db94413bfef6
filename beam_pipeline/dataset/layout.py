"""The options that shape a dataset, and the split and shard of each row.

A row's place follows from its probe's address, its number and the options alone, so the writer and
`beam_pipeline.verify` agree on it, and results do not depend on the runner. Heavy imports are
avoided, so that command lines are parsed before NumPy and Arrow are loaded.
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


# Counted on sorted runs, 16 or 28 bytes per measurement: a record is up to twice that.
MAX_SHARD_RUN_BYTES = 256 << 20
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
        person=b"split",
    ).digest()
    return int(int.from_bytes(digest, "big") >= train_ratio * 2.0**64)


def row_key(src_id: int, row_index: int) -> bytes:
    """Returns the key that places a row in a shard; keys sort as numbers do."""
    return _ROW_KEY.pack(src_id, row_index)


def shard_of(key: bytes, num_shards: int) -> int:
    """Returns the shard of a key; a salt keeps it independent of other hashes of the key."""
    digest = hashlib.blake2b(key, digest_size=8, person=b"shard").digest()
    return int.from_bytes(digest, "big") % num_shards


def count_shards(num_probes: int, num_run_bytes: int, options: DatasetOptions) -> int:
    """Returns the number of shards of a split, given its size as sorted runs."""
    if options.num_shards:
        return options.num_shards
    by_probes = -(-num_probes // options.probes_per_shard)
    return max(1, by_probes, -(-num_run_bytes // MAX_SHARD_RUN_BYTES))
