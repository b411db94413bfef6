"""The row index of some shards, as arrays: an epoch is planned from it without reading a row."""

import fnmatch
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import orjson

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.manifest import SPLITS, Dataset, Shard, open_dataset
from beam_pipeline.dataset.row_index import IndexedRows, RowIndex
from beam_pipeline.errors import ProbelineError
from beam_pipeline.kernels import kernel
from training.rows.blocks import record_offsets
from training.rows.keyed_random import combine

_US_PER_SECOND = 1_000_000


@dataclass(frozen=True)
class RowTable(IndexedRows):
    """The row index, arrays [rows] in the order of shard and position.

    Seconds are since 1970, src_hi and src_lo as in `beam_pipeline.dataset.addresses`; `identity` is
    the key of (src_id, row_index), `offset` the place of the record in a shard that is not
    compressed, see `blocks`.
    """

    first_second: np.ndarray
    last_second: np.ndarray
    src_hi: np.ndarray
    src_lo: np.ndarray
    src_is_ipv6: np.ndarray
    identity: np.ndarray
    offset: np.ndarray

    def take(self, rows: np.ndarray) -> "RowTable":
        """Returns some of the rows, by number or as a mask."""
        return RowTable(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    @property
    def untimed_tokens(self) -> np.ndarray:
        """The number of tokens of each row's measurements without timestamps: int64 [rows]."""
        n = self.n_measurements.astype(np.int64)
        addresses_tokens = n * (10 + 12 * self.src_is_ipv6) + 12 * self.num_ipv6
        return n + addresses_tokens + 3 * n - 2 * self.num_failed


@dataclass(frozen=True)
class ShardSet:
    """A split, or some of its shards.

    Attributes:
      shards: all shards of the split, by number.
      chosen: the numbers of those in use.
    """

    dataset: Dataset
    split: str
    shards: list[Shard]
    chosen: list[int]

    def path(self, shard: int) -> str:
        """Returns the path of a shard."""
        return self.dataset.file(self.shards[shard].path)

    @property
    def fingerprint(self) -> str:
        """A digest of the files' checksums: the same for the same rows, wherever they are."""
        index = self.dataset.manifest.splits[self.split].index_crc32c
        shards = [(number, self.shards[number].crc32c) for number in self.chosen]
        data = orjson.dumps([self.split, index, shards])
        return hashlib.blake2b(data, digest_size=8).hexdigest()


def find_shards(files: str | Sequence[str]) -> ShardSet:
    """Finds shards of one split of one finished dataset.

    Args:
      files: a dataset's folder (its train split), a split's folder, a shard, a glob of shards, or
        several of the last two; local or gs://.

    Raises:
      ProbelineError: no such finished dataset or shard exists, several splits or datasets are
        named, or the dataset is TFRecord, which has no access by number.
    """
    patterns = [files] if isinstance(files, str) else list(files)
    if not patterns:
        raise ProbelineError("files is empty: name a dataset, a split of it or its shards")
    dataset = open_dataset(patterns[0])
    output_format = dataset.manifest.output_format
    if output_format != "arrayrecord":
        raise ProbelineError(
            f"{dataset.path} is of --output_format={output_format}, training reads arrayrecord "
            "only: make the dataset again with --output_format=arrayrecord"
        )
    chosen: set[tuple[str, int]] = set()
    for pattern in patterns:
        if not (found := _match(dataset, pattern)):
            names = f"{dataset.path}/train and {dataset.path}/test"
            raise ProbelineError(f"{pattern} names no shard of {dataset.path}: it has {names}")
        chosen |= found
    splits = sorted({split for split, _ in chosen})
    if len(splits) > 1:
        raise ProbelineError(
            f"{', '.join(patterns)} name shards of {' and '.join(splits)}: choose one of them"
        )
    numbers = sorted(number for _, number in chosen)
    return ShardSet(dataset, splits[0], dataset.manifest.splits[splits[0]].shards, numbers)


def _match(dataset: Dataset, pattern: str) -> set[tuple[str, int]]:
    """Returns (split, number) of each shard that a path or glob names."""
    pattern = _plain(pattern)
    if pattern == _plain(dataset.path):
        pattern = _plain(dataset.file("train"))
    return {
        (split, number)
        for split in SPLITS
        for number, shard in enumerate(dataset.manifest.splits[split].shards)
        if pattern == _plain(dataset.file(split))
        or fnmatch.fnmatchcase(_plain(dataset.file(shard.path)), pattern)
    }


def _plain(path: str) -> str:
    return path.rstrip("/") if "://" in path else os.path.normpath(path)


def load_rows(shards: ShardSet) -> RowTable:
    """Reads the chosen shards' lines of rows.parquet.

    Raises:
      ProbelineError: the file is missing, or differs from the one that the manifest describes.
    """
    index = RowIndex.read(shards.dataset, shards.split)
    hi, lo, family = addresses.parse(index.src_addr)
    rows = RowTable(
        **{field.name: getattr(index, field.name) for field in fields(IndexedRows)},
        first_second=index.first_us // _US_PER_SECOND,
        last_second=index.last_us // _US_PER_SECOND,
        src_hi=hi,
        src_lo=lo,
        src_is_ipv6=family == addresses.FAMILY_IPV6,
        identity=_identities(index.src_id, index.row_index),
        offset=record_offsets(index.shard, index.num_bytes),
    )
    if len(shards.chosen) < len(shards.shards):
        rows = rows.take(np.isin(rows.shard, shards.chosen))
    return rows


@kernel
def _identities(src_id, row_index):
    keys = np.empty(len(src_id), np.uint64)
    for row in range(len(src_id)):
        keys[row] = combine(combine(0, src_id[row]), row_index[row])
    return keys
