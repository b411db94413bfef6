"""Reads rows of many shards, local or gs://, and finds their measurements, for batches.

Each row is one read of one record, or, in a local shard that is not compressed, none: its
measurements are used where they lie in the file. On gs:// its bytes are fetched from such a shard,
together with its neighbours; ArrayRecord would ask for the rest of the shard. Its key and size are
compared with rows.parquet, and errors name shards that were replaced or damaged after the manifest
was written.
"""

import itertools
import mmap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.dataset.rows import READ_ERRORS, BadRowError, RowReader
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import file_infos, is_local
from training.rows.blocks import blocks_of, is_intact, record_in, record_offsets
from training.rows.gathered_rows import NO_ROWS, GatheredRows, Piece, gather
from training.rows.keyed_random import key_of
from training.rows.row_layout import Located, locate, locate_in_file
from training.rows.row_table import RowTable, ShardSet

__all__ = ["BadRow", "BadRowError", "ShardReader", "check_feed", "check_shards", "num_threads_for"]

# Records of up to this size are copied together, so that a batch needs little memory for them;
_MAX_GATHERED_BYTES = 1 << 16
# those from this size on are used in place, between the headers of blocks, which costs some time.
_MIN_IN_PLACE_BYTES = 1 << 19
# On gs:// records that are fetched together begin in one stretch of the shard, with no larger gap.
_STRETCH_BYTES, _MAX_GAP_BYTES = 8 << 20, 1 << 18
_MIN_FETCHES = 16  # at a time
# Of so many shards the offsets of records are kept.
_MAX_OFFSETS = 256


class BadRow(NamedTuple):
    """The place of a row that was skipped, and the reason."""

    shard: int
    position: int
    reason: str


class ShardReader(RowReader[RowTable]):
    """Reads the rows of a set of shards, and locates their measurements."""

    def __init__(self, shards: ShardSet, rows: RowTable):
        cure = "copy the dataset again, or leave such rows out with on_bad_row=skip"
        super().__init__(shards.dataset, shards.split, rows, cure)
        self.shards = shards
        self._is_plain = _is_plain(shards.dataset.manifest.options["array_record_options"])
        self._is_local = is_local(shards.dataset.path)
        self._is_checked = np.zeros(len(rows), bool)
        self._offsets: dict[int, np.ndarray] = {}  # of the records of a shard

    def locate_in_place(self, row: int) -> Located:
        """Returns the measurements of a row, a large one as it lies in an uncompressed shard.

        Raises:
          BadRowError: as `locate`.
        """
        is_worth_it = self._is_plain and self.rows.num_bytes[row] >= _MIN_IN_PLACE_BYTES
        return (self._locate_in_shard(row) if is_worth_it else None) or self.locate(row)

    def read(self, row: int) -> bytes:
        """Returns the record of a row; BadRowError if it cannot be read."""
        if self._is_plain and (record := self._read_plain(row)) is not None:
            return record
        return super().read(row)

    def _read_plain(self, row: int) -> bytes | None:
        """Returns a record that is not compressed; None if reading it must tell what is wrong."""
        shard, position = self.rows.place(row)
        offset, num_bytes = int(self._offsets_of(shard)[position]), int(self.rows.num_bytes[row])
        if self._is_local or self.is_copied(shard):
            try:
                file = self._file(shard)
            except READ_ERRORS:
                return None
        else:
            file, offset = self._fetch(shard, offset, num_bytes)
        if not is_intact(file, offset, num_bytes):
            return None
        return record_in(file, offset, num_bytes).tobytes()

    def gather(self, rows: np.ndarray, run: Callable[..., Iterable[Any]] = map) -> GatheredRows:
        """Copies those of some rows that are small, as they should be, and not compressed.

        Args:
          run: `map`, or that of an executor, for what is fetched.
        """
        small = rows[(self.rows.num_bytes[rows] <= _MAX_GATHERED_BYTES) & self._is_plain]
        if not len(small):
            return NO_ROWS
        if not self._is_local:
            self._is_checked[small] = False  # of other bytes
        pieces = self._mapped(small) if self._is_local else run(self._fetched, self._near(small))
        return gather(small, self.rows, self._is_checked, pieces)

    def _in_shards(self, rows: np.ndarray) -> Iterator[tuple[slice, int, np.ndarray]]:
        """Yields which of some rows are of one shard, the shard, and their offsets in it."""
        shards = self.rows.shards_of(rows)
        changes = np.flatnonzero(np.diff(shards, append=-1)) + 1
        for begin, end in itertools.pairwise([0, *changes.tolist()]):
            shard = int(shards[begin])
            positions = rows[begin:end] - self.rows.shard_begins[shard]
            yield slice(begin, end), shard, self._offsets_of(shard)[positions]

    def _mapped(self, rows: np.ndarray) -> Iterator[Piece]:
        for own, shard, offsets in self._in_shards(rows):
            try:
                yield Piece(own, offsets, self._file(shard))
            except READ_ERRORS:
                yield Piece(own, offsets, None)

    def _near(self, rows: np.ndarray) -> Iterator[tuple[slice, int, np.ndarray, int]]:
        """Yields rows that are fetched together: which, shard, offsets, bytes from the first on."""
        for own, shard, offsets in self._in_shards(rows):
            ends = offsets + self.rows.num_bytes[rows[own]]
            is_far = offsets[1:] - ends[:-1] > _MAX_GAP_BYTES
            is_far |= np.diff(offsets // _STRETCH_BYTES) > 0
            borders = [0, *(np.flatnonzero(is_far) + 1).tolist(), len(offsets)]
            for begin, end in itertools.pairwise(borders):
                together = slice(own.start + begin, own.start + end)
                num_bytes = int(ends[end - 1] - offsets[begin])
                yield together, shard, offsets[begin:end], num_bytes

    def _fetched(self, near: tuple[slice, int, np.ndarray, int]) -> Piece:
        own, shard, offsets, num_bytes = near
        file, first = self._fetch(shard, int(offsets[0]), num_bytes)
        return Piece(own, offsets - offsets[0] + first, file)

    def _offsets_of(self, shard: int) -> np.ndarray:
        """Returns the offset of each record of a shard, see `blocks`."""
        if (offsets := self._offsets.get(shard)) is None:
            if len(self._offsets) >= _MAX_OFFSETS:
                self._offsets = {}
            offsets = record_offsets(self.rows.num_bytes[self.rows.of_shard(shard)])
            self._offsets[shard] = offsets
        return offsets

    def _file(self, shard: int) -> np.ndarray:
        """Returns a shard for kernels, uint8 [1, bytes]."""
        return np.frombuffer(self.map_shard(shard), np.uint8)[np.newaxis]

    def _locate_in_shard(self, row: int) -> Located | None:
        """Returns the place of a row in its shard; None if reading it must tell what is wrong.

        Its checksum is compared when it is fetched, or else when it is first used.
        """
        shard, position = self.rows.place(row)
        offset, num_bytes = int(self._offsets_of(shard)[position]), int(self.rows.num_bytes[row])
        try:
            if self._is_local:
                file = self._map_row(shard, offset, num_bytes)
            else:
                file, offset = self._fetch(shard, offset, num_bytes)
        except READ_ERRORS:
            return None
        is_checked = self._is_local and self._is_checked[row]
        if not is_checked and not is_intact(file, offset, num_bytes):
            return None
        if located := locate_in_file(file, offset, num_bytes):
            self._check(row, located)
            self._is_checked[row] = True
        return located

    def _map_row(self, shard: int, offset: int, num_bytes: int) -> np.ndarray:
        """Returns the shard of a row; what of the row is not in memory is read at once."""
        begin = offset - offset % mmap.PAGESIZE
        self.map_shard(shard).madvise(mmap.MADV_WILLNEED, begin, num_bytes)
        return self._file(shard)

    def _fetch(self, shard: int, offset: int, num_bytes: int) -> tuple[np.ndarray, int]:
        """Returns the blocks of a shard on gs:// that records lie in, and their offset in these."""
        path, blocks = self.shards.path(shard), blocks_of(offset, num_bytes)
        data = gcs.read_range(path, blocks.begin, blocks.end - blocks.begin)
        return np.frombuffer(data, np.uint8)[np.newaxis], blocks.offset

    def locate(self, row: int) -> Located:
        """Returns the measurements of a row.

        Raises:
          BadRowError: the row cannot be read, or differs from its line in the index.
        """
        return self.locate_in(row, self.read(row))

    def locate_in(self, row: int, record: bytes) -> Located:
        """Returns the measurements of a row, given its record; raises as `locate`."""
        try:
            located = locate(record)
        except ValueError as error:
            raise self.bad_row(row, str(error)) from error
        self._check(row, located)
        return located

    def _check(self, row: int, located: Located) -> None:
        found = located.src_id, located.row_index, located.columns.layout.num_measurements
        rows = self.rows
        if (key_of(*found[:2]), found[2]) != (rows.identity[row], rows.n_measurements[row]):
            names = "(src_id, row_index, n_measurements)"
            raise self.bad_row(row, f"it holds {names} {found}, rows.parquet says otherwise")

    def describe(self, row: int, reason: str) -> BadRow:
        """Returns the place of a row that is skipped."""
        return BadRow(*self.rows.place(row), reason)


def check_shards(shards: ShardSet) -> None:
    """Compares the sizes and, on GCS, the checksums of the shards with the manifest.

    Raises:
      ProbelineError: some shards are missing or differ.
    """
    infos = file_infos([shards.path(number) for number in shards.chosen])
    faults = []
    for number in shards.chosen:
        path, shard = shards.path(number), shards.shards[number]
        info = infos[path]
        if info is None:
            faults.append(f"{path} is missing")
        elif info.num_bytes != shard.num_bytes:
            faults.append(f"{path} has {info.num_bytes} bytes, not {shard.num_bytes}")
        elif info.crc32c is not None and info.crc32c != shard.crc32c:
            faults.append(f"{path} has checksum {info.crc32c}, not {shard.crc32c}")
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise ProbelineError(
            f"the manifest of {shards.dataset.path} says otherwise: {'; '.join(faults[:5])}{more}: "
            "copy the dataset again as a whole"
        )


def num_threads_for(shards: ShardSet, wanted: int) -> int:
    """Returns how many threads read; on gs:// they wait for answers most of the time."""
    return wanted if is_local(shards.dataset.path) else max(wanted, _MIN_FETCHES)


def check_feed(shards: ShardSet, *, has_cache: bool) -> None:
    """Checks that batches can be made of some shards.

    Raises:
      UsageError: they hold no row; or they lie on gs://, there is no cache, and a row cannot be
        fetched by itself.
    """
    folder = shards.dataset.path
    if not shards.row_begins[-1]:
        raise UsageError(
            f"the chosen shards of {folder}/{shards.split} hold no row: choose others, or write "
            "the dataset with another train_ratio"
        )
    options = shards.dataset.manifest.options["array_record_options"]
    if not has_cache and not is_local(folder) and not _is_plain(options):
        raise UsageError(
            f"{folder} has array_record_options {options}: reading a row on gs:// would ask for "
            "the rest of its shard; give a cache_dir, a folder on a local disk, or write the "
            "dataset with group_size:1,uncompressed"
        )


def _is_plain(array_record_options: str) -> bool:
    return sorted(array_record_options.split(",")) == ["group_size:1", "uncompressed"]
