"""Reads rows of many shards, local or gs://, and locates their measurements, for batches.

Every row is compared with its line of rows.parquet, so errors name shards that were replaced or
damaged after the manifest was written.
"""
# The arguments of kernels get their types from numba.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.dataset.rows import BadRowError
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.kernels import kernel
from beam_pipeline.storage.files import file_infos, is_local
from training.raw_shards.reader import RawReader, is_uncompressed
from training.rows.keyed_random import key_of
from training.rows.measurement_at import all_readable
from training.rows.row_bytes import NO_BYTES, RowBytes
from training.rows.row_layout import (
    ARROW,
    NEITHER,
    Layout,
    Located,
    count_ipv6,
    find_row,
    locate,
    locate_in_file,
    ranks_bytes,
)
from training.rows.row_table import RowTable, ShardSet, row_key

__all__ = ["BadRow", "BadRowError", "ShardReader", "check_feed", "check_shards", "num_threads_for"]

_MAX_GATHERED_BYTES = 1 << 16  # max size of records copied together, to limit a batch's memory
_MIN_IN_PLACE_BYTES = 1 << 19  # smaller records are copied: block headers slow reading in place
_MIN_FETCHES = 16  # concurrent requests to gs://
_NUM_FIELDS = len(Layout._fields)


class BadRow(NamedTuple):
    """The place of a skipped row, and the reason."""

    shard: int
    position: int
    reason: str


class ShardReader(RawReader[RowTable]):
    """Reads the rows of a set of shards, and locates their measurements."""

    def __init__(self, shards: ShardSet, rows: RowTable):
        cure = "copy the dataset again, or leave such rows out with on_bad_row=skip"
        super().__init__(shards.dataset, shards.split, rows, cure)
        self.shards = shards

    def locate_in_place(self, row: int) -> Located:
        """Returns the measurements of a row as `locate`; those of a large row in place."""
        num_bytes = int(self.rows.num_bytes[row])
        if num_bytes >= _MIN_IN_PLACE_BYTES and (found := self.view(row)):
            file, offset = found
            if located := locate_in_file(file, offset, num_bytes):
                self._check(row, located)
                self.is_checked[row] = True
                return located
        return self.locate(row)

    def gather(self, rows: np.ndarray, run: Callable[..., Iterable[Any]] = map) -> RowBytes:
        """Copies the rows that are small, intact and uncompressed; the caller reads the others.

        `rows` ascend; `run` is `map` or an executor's, for rows that are fetched. In the result,
        each record is followed by its ranks.
        """
        table = self.rows
        rows = rows[(table.num_bytes[rows] <= _MAX_GATHERED_BYTES) & self.is_raw]
        if not len(rows):
            return NO_BYTES
        num_bytes, n = table.num_bytes[rows], table.n_measurements[rows]
        sizes = num_bytes + ranks_bytes(n, table.num_ipv6[rows])
        begins = np.cumsum(sizes) - sizes
        raw = np.empty(sizes.sum(), np.uint8)
        layouts = np.zeros((len(rows), _NUM_FIELDS), np.int64)
        was_checked = self.is_checked[rows] & self._is_local
        is_right = self.copy(rows, raw, begins, run)
        filled, raw = raw, raw.view()
        raw.flags.writeable = False  # kernels are compiled for read-only bytes
        known = table.identity[rows], n, was_checked
        _find_rows(raw, filled, begins, num_bytes, *known, layouts, is_right)
        self.is_checked[rows] = is_right
        return RowBytes(raw, rows[is_right], layouts[is_right])

    def locate(self, row: int) -> Located:
        """Returns the measurements of a row; BadRowError if unreadable or not as in the index."""
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
            raise self.bad_row(row, f"its {names} are {found}, which differ from rows.parquet")


@kernel
def _find_rows(
    raw, filled, begins, num_bytes, identity, n_measurements, was_checked, layouts, is_right
):  # fmt: skip
    """Fills the layouts and ranks of intact records; is_right becomes False for a wrong row.

    `raw` and `filled`, to which the ranks are written, are the same bytes.
    """
    for j in range(len(begins)):
        if not is_right[j]:
            continue
        src_id, row_index, layout = find_row(raw, begins[j], num_bytes[j])
        is_right[j] = (
            layout.kind != NEITHER
            and row_key(src_id, row_index) == identity[j]
            and layout.num_measurements == n_measurements[j]
        )
        if not is_right[j]:
            continue
        for field in range(len(layout)):
            layouts[j, field] = layout[field]
        if layout.kind == ARROW:
            is_right[j] = was_checked[j] or all_readable(raw, layout)
        elif 0 < layout.num_ipv6 < layout.num_measurements:
            counts = count_ipv6(raw, layout.families, layout.num_measurements)
            is_right[j] = counts[-1] == layout.num_ipv6
            layouts[j, -1] = begins[j] + num_bytes[j]
            ranks = counts.view(np.uint8)
            for i in range(ranks.size - counts.itemsize):
                filled[layouts[j, -1] + i] = ranks[i]


def check_shards(shards: ShardSet) -> None:
    """Compares the sizes and, on GCS, the checksums of the shards with the manifest."""
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
            f"{shards.dataset.path} differs from its manifest: {'; '.join(faults[:5])}{more}: "
            "copy the dataset again"
        )


def num_threads_for(shards: ShardSet, wanted: int) -> int:
    """Returns the number of reading threads; on gs:// they mostly wait for responses."""
    return wanted if is_local(shards.dataset.path) else max(wanted, _MIN_FETCHES)


def check_feed(shards: ShardSet, *, has_cache: bool) -> None:
    """Raises UsageError if the shards have no rows, or are compressed on gs:// without a cache."""
    folder = shards.dataset.path
    if not shards.row_begins[-1]:
        raise UsageError(
            f"the chosen shards of {folder}/{shards.split} have no rows: choose others, or rebuild "
            "the dataset with a different train_ratio"
        )
    options = shards.dataset.manifest.array_record_options
    if not has_cache and not is_local(folder) and not is_uncompressed(options):
        raise UsageError(
            f"{folder} has array_record_options {options}: reading a row on gs:// would fetch the "
            "rest of its shard; set cache_dir to a folder on a local disk, or rebuild the dataset "
            "with group_size:1,uncompressed"
        )
