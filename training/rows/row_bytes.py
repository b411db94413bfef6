"""`RowBytes`: the bytes of many rows for kernels, of some rows in memory or of a column cache."""

from typing import Any, NamedTuple

import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple

from beam_pipeline.kernels import subkernel
from training.raw_shards.blocks import hash_of, load64
from training.rows.row_layout import HASH_BYTES, Columns, Layout, compact_layout

_NUM_FIELDS = len(Layout._fields)
_to_tuple: Any = to_fixed_tuple


class RowBytes(NamedTuple):
    """The bytes of rows.

    Either the rows in `held` have bytes and a layout each, or every row is compact and at its
    offset (the column cache), followed by its hash, which is checked when the row is first used.
    """

    raw: np.ndarray  # uint8, read-only
    held: np.ndarray = np.zeros(0, np.int64)  # the rows that have bytes, ascending
    layouts: np.ndarray = np.zeros((0, _NUM_FIELDS), np.int64)  # [held, fields of `Layout`]
    offsets: np.ndarray = np.zeros(0, np.int64)  # [rows]
    is_checked: np.ndarray = np.zeros(0, bool)  # [rows], updated
    num_measurements: np.ndarray = np.zeros(0, np.int32)  # [rows]
    num_ipv6: np.ndarray = np.zeros(0, np.int32)  # [rows]
    first_second: np.ndarray = np.zeros(0, np.int64)  # [rows]

    def columns(self, row: int) -> Columns | None:
        """Returns the measurements of a row in `held`, else None."""
        place = int(np.searchsorted(self.held, row))
        if place == len(self.held) or self.held[place] != row:
            return None
        return Columns(self.raw, Layout._make(self.layouts[place].tolist()))


NO_BYTES = RowBytes(np.frombuffer(b"", np.uint8))


@subkernel
def _compare_hash(row_bytes, row):
    raw, offsets = row_bytes.raw, row_bytes.offsets
    end = (offsets[row + 1] if row + 1 < len(offsets) else len(raw)) - HASH_BYTES
    is_right = hash_of(raw, offsets[row], end - offsets[row]) == load64(raw, end)
    row_bytes.is_checked[row] = is_right
    return is_right


@subkernel
def has_bytes(row_bytes, row):
    """Returns whether a row has bytes and, in the cache, a matching hash."""
    if len(row_bytes.offsets):
        return row_bytes.is_checked[row] or _compare_hash(row_bytes, row)
    slot = np.searchsorted(row_bytes.held, row)
    return slot < len(row_bytes.held) and row_bytes.held[slot] == row


@subkernel
def layout_of(row_bytes, row):
    """Returns the `Layout` of a row that has bytes."""
    if len(row_bytes.offsets) == 0:
        slot = np.searchsorted(row_bytes.held, row)
        return Layout(*_to_tuple(row_bytes.layouts[slot], _NUM_FIELDS))
    return compact_layout(
        row_bytes.offsets[row],
        np.int64(row_bytes.num_measurements[row]),
        np.int64(row_bytes.num_ipv6[row]),
        row_bytes.first_second[row],
    )
