"""Reads records of many shards: uncompressed ones in place, all others with ArrayRecord.

docs/format.md describes the file. A local shard is mapped; on gs:// the blocks of a record are
fetched, together with those of nearby records, where ArrayRecord would request the whole shard.
Every record is compared with its checksum when it is fetched, or at first use if mapped. Records
that fail are left to ArrayRecord's reader, which reports the error.
"""

import itertools
import mmap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from beam_pipeline.dataset.rows import READ_ERRORS, Dataset, Lines, RowReader
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import is_local
from training.raw_shards.blocks import blocks_of, copy_records, is_intact, record_in, record_offsets

# On gs://, records fetched together begin in one stretch of the shard and have small gaps.
_STRETCH_BYTES, _MAX_GAP_BYTES = 8 << 20, 1 << 18
_MAX_OFFSETS = 256  # max shards with cached record offsets


class RawRows(Lines, Protocol):
    """`Lines` in order of shard and position; shard_begins: rows before each shard, and all."""

    @property
    def shard_begins(self) -> np.ndarray: ...
    def shards_of(self, rows: np.ndarray) -> np.ndarray: ...


class _Piece(NamedTuple):
    """Consecutive requested rows, their records' offsets, and the file; None if unreadable."""

    own: slice
    offsets: np.ndarray
    file: np.ndarray | None  # uint8 [1, bytes], from the beginning of a block


class RawReader[Rows: RawRows](RowReader[Rows]):
    """A `RowReader` of ArrayRecord shards with direct access to uncompressed records.

    `is_checked`, bool [rows], marks the rows that have passed all checks in this process.
    """

    def __init__(self, dataset: Dataset, split: str, rows: Rows, cure: str):
        super().__init__(dataset, split, rows, cure)
        self.is_raw = is_uncompressed(dataset.manifest.array_record_options)
        self.is_checked = np.zeros(len(rows.num_bytes), bool)
        self._is_local = is_local(dataset.path)
        self._offsets: dict[int, np.ndarray] = {}  # of the records of a shard

    def read(self, row: int) -> bytes:
        """Returns the record of a row; BadRowError if it cannot be read."""
        if (found := self._find(row)) is None:
            return super().read(row)
        file, offset = found
        return record_in(file, offset, int(self.rows.num_bytes[row])).tobytes()

    def view(self, row: int) -> tuple[np.ndarray, int] | None:
        """Returns a file, uint8 [1, bytes], and the offset of a row's record, or None to read it.

        The caller may set `is_checked` for the row.
        """
        return self._find(row, is_view=True)

    def _find(self, row: int, is_view: bool = False) -> tuple[np.ndarray, int] | None:
        if not self.is_raw:
            return None
        shard, position = self.rows.place(row)
        offset, num_bytes = int(self._offsets_of(shard)[position]), int(self.rows.num_bytes[row])
        is_on_disk = self._is_local or self.is_copied(shard)
        try:
            if is_on_disk:
                file = self._map(shard)
                if is_view:
                    begin = offset - offset % mmap.PAGESIZE
                    self.map_shard(shard).madvise(mmap.MADV_WILLNEED, begin, num_bytes)
            else:
                file, offset = self._fetch(shard, offset, num_bytes)
        except READ_ERRORS:
            return None
        is_checked = is_view and is_on_disk and self.is_checked[row]
        return (file, offset) if is_checked or is_intact(file, offset, num_bytes) else None

    def copy(
        self,
        rows: np.ndarray,
        target: np.ndarray,
        begins: np.ndarray,
        run: Callable[..., Iterable[Any]] = map,
    ) -> np.ndarray:
        """Copies the records of rows to target[begins]; returns which were intact: bool [rows].

        `rows` ascend; `run` is `map` or an executor's, for fetches.
        """
        if not self._is_local:
            self.is_checked[rows] = False  # every fetch returns new bytes
        is_intact_row = self.is_checked[rows]
        pieces = self._mapped(rows) if self._is_local else run(self._fetched, self._near(rows))
        for own, offsets, file in pieces:
            if file is None:
                is_intact_row[own] = False
                continue
            num_bytes = self.rows.num_bytes[rows[own]]
            copy_records(file, offsets, num_bytes, target, begins[own], is_intact_row[own])
        return is_intact_row

    def _in_shards(self, rows: np.ndarray) -> Iterator[tuple[slice, int, np.ndarray]]:
        """Yields the rows of each shard, the shard, and their offsets in it."""
        shards = self.rows.shards_of(rows)
        changes = np.flatnonzero(np.diff(shards, append=-1)) + 1
        for begin, end in itertools.pairwise([0, *changes.tolist()]):
            shard = int(shards[begin])
            positions = rows[begin:end] - self.rows.shard_begins[shard]
            yield slice(begin, end), shard, self._offsets_of(shard)[positions]

    def _mapped(self, rows: np.ndarray) -> Iterator[_Piece]:
        for own, shard, offsets in self._in_shards(rows):
            try:
                yield _Piece(own, offsets, self._map(shard))
            except READ_ERRORS:
                yield _Piece(own, offsets, None)

    def _near(self, rows: np.ndarray) -> Iterator[tuple[slice, int, np.ndarray, int]]:
        """Yields rows to fetch together: (rows, shard, offsets, bytes from the first on)."""
        for own, shard, offsets in self._in_shards(rows):
            ends = offsets + self.rows.num_bytes[rows[own]]
            is_far = offsets[1:] - ends[:-1] > _MAX_GAP_BYTES
            is_far |= np.diff(offsets // _STRETCH_BYTES) > 0
            borders = [0, *(np.flatnonzero(is_far) + 1).tolist(), len(offsets)]
            for begin, end in itertools.pairwise(borders):
                together = slice(own.start + begin, own.start + end)
                yield together, shard, offsets[begin:end], int(ends[end - 1] - offsets[begin])

    def _fetched(self, near: tuple[slice, int, np.ndarray, int]) -> _Piece:
        own, shard, offsets, num_bytes = near
        file, first = self._fetch(shard, int(offsets[0]), num_bytes)
        return _Piece(own, offsets - offsets[0] + first, file)

    def _offsets_of(self, shard: int) -> np.ndarray:
        if (offsets := self._offsets.get(shard)) is None:
            if len(self._offsets) >= _MAX_OFFSETS:
                self._offsets = {}
            offsets = record_offsets(self.rows.num_bytes[self.rows.of_shard(shard)])
            self._offsets[shard] = offsets
        return offsets

    def _map(self, shard: int) -> np.ndarray:
        return np.frombuffer(self.map_shard(shard), np.uint8)[np.newaxis]

    def _fetch(self, shard: int, offset: int, num_bytes: int) -> tuple[np.ndarray, int]:
        """Returns the blocks of a shard on gs:// that contain records, and the offset in them."""
        blocks = blocks_of(offset, num_bytes)
        path = self._dataset.file(self._shards[shard].path)
        data = gcs.read_range(path, blocks.begin, blocks.end - blocks.begin)
        return np.frombuffer(data, np.uint8)[np.newaxis], blocks.offset


def is_uncompressed(array_record_options: str) -> bool:
    """Returns whether shards written with these options can be read directly."""
    return sorted(array_record_options.split(",")) == ["group_size:1", "uncompressed"]
