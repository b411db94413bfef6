"""Where rows go: the split and the shard of each row.

A row's place follows from its probe's address, its number and the options alone. So the writer
and `beam_pipeline.verify` agree on it, and no result depends on the runner.
"""

import hashlib
import struct

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.options import DatasetOptions

# Counted on sorted runs, 16 or 28 bytes a measurement: a record is up to twice that.
MAX_SHARD_RUN_BYTES = 256 << 20
# src_id and row_index, big-endian, so that the order of bytes is the order of numbers.
_ROW_KEY = struct.Struct(">qi")


def split_of(src_addr: str, train_ratio: float, split_seed: int) -> int:
    """Returns the split of a probe, as an index into manifest.SPLITS."""
    digest = hashlib.blake2b(
        addresses.packed(src_addr),
        digest_size=8,
        key=str(split_seed).encode(),
        person=b"split",
    ).digest()
    return int(int.from_bytes(digest, "big") >= train_ratio * 2.0**64)


def row_key(src_id: int, row_index: int) -> bytes:
    """Returns the key that decides a row's shard and its place there; keys sort as numbers do."""
    return _ROW_KEY.pack(src_id, row_index)


def shard_of(key: bytes, num_shards: int) -> int:
    """Returns the shard of a key; the salt keeps it independent of other hashes of the key."""
    digest = hashlib.blake2b(key, digest_size=8, person=b"shard").digest()
    return int.from_bytes(digest, "big") % num_shards


def count_shards(num_probes: int, num_run_bytes: int, options: DatasetOptions) -> int:
    """Returns the number of shards of a split, given its size as sorted runs."""
    if options.num_shards:
        return options.num_shards
    by_probes = -(-num_probes // options.probes_per_shard)
    return max(1, by_probes, -(-num_run_bytes // MAX_SHARD_RUN_BYTES))
