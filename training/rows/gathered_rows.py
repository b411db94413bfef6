"""Small records of mapped or fetched files, copied into one array by one kernel call for each."""
# The arguments of kernels get their types from numba.
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from beam_pipeline.kernels import kernel
from training.rows.blocks import copy_record, holds_record
from training.rows.measurement_at import all_readable
from training.rows.row_layout import (
    ARROW,
    NEITHER,
    Columns,
    Layout,
    count_ipv6,
    find_row,
    ranks_bytes,
)
from training.rows.row_table import RowTable, row_key

_NUM_FIELDS = len(Layout._fields)


class GatheredRows(NamedTuple):
    """Rows and their bytes.

    Attributes:
      rows: int64 [rows], in order.
      raw: uint8, read-only: records, each with its ranks behind it.
      layouts: int64 [rows, fields of `Layout`].
    """

    rows: np.ndarray
    raw: np.ndarray
    layouts: np.ndarray

    def columns(self, row: int) -> Columns | None:
        """Returns the measurements of a row, if it is one of these."""
        place = int(np.searchsorted(self.rows, row))
        if place == len(self.rows) or self.rows[place] != row:
            return None
        return Columns(self.raw, Layout._make(self.layouts[place].tolist()))


NO_ROWS = GatheredRows(
    np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros((0, _NUM_FIELDS), np.int64)
)


class Piece(NamedTuple):
    """Some consecutive ones of the rows that are gathered, and where they lie.

    Attributes:
      own: which of them.
      offsets: int64 [own], of their records in the file.
      file: uint8 [1, bytes], from the beginning of a block on; None if it cannot be read.
    """

    own: slice
    offsets: np.ndarray
    file: np.ndarray | None


def gather(
    rows: np.ndarray, table: RowTable, is_checked: np.ndarray, pieces: Iterable[Piece]
) -> GatheredRows:
    """Copies those of some rows that are as they should be; reading the others tells what is wrong.

    Args:
      rows: int64, their lines in `table`, in order.
      is_checked: bool [lines], whether a row's bytes were compared with their checksum; updated.
      pieces: all rows.
    """
    num_bytes, n = table.num_bytes[rows], table.n_measurements[rows]
    identity = table.identity[rows]
    sizes = num_bytes + ranks_bytes(n, table.num_ipv6[rows])
    begins = np.cumsum(sizes) - sizes
    raw = np.empty(sizes.sum(), np.uint8)
    layouts = np.zeros((len(rows), _NUM_FIELDS), np.int64)
    is_right = is_checked[rows]
    for own, offsets, file in pieces:
        if file is None:
            is_right[own] = False
            continue
        of_rows = offsets, num_bytes[own], identity[own], n[own], begins[own]
        _take_rows(file, of_rows, raw, layouts[own], is_right[own])
    is_checked[rows] = is_right
    raw.flags.writeable = False  # kernels are compiled for read-only bytes
    return GatheredRows(rows[is_right], raw, layouts[is_right])


@kernel
def _take_rows(file, of_rows, raw, layouts, is_right):
    """Copies rows of one piece to raw[begins] and fills their layouts; is_right: see `gather`."""
    offset, num_bytes, identity, n_measurements, begins = of_rows
    for j in range(len(offset)):
        is_checked = is_right[j]
        is_right[j] = is_checked or holds_record(file, offset[j], num_bytes[j])
        if not is_right[j]:
            continue
        copy_record(file, offset[j], num_bytes[j], raw, begins[j])
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
            is_right[j] = is_checked or all_readable(raw, layout)
        elif 0 < layout.num_ipv6 < layout.num_measurements:
            counts = count_ipv6(raw, layout.families, layout.num_measurements)
            is_right[j] = counts[-1] == layout.num_ipv6
            ranks = counts[:-1].view(np.uint8)
            layouts[j, -1] = begins[j] + num_bytes[j]
            raw[layouts[j, -1] : layouts[j, -1] + len(ranks)] = ranks
