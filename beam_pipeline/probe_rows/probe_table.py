"""Tables of probes, packed: with many probes they are a large part of what a chunk moves.

A table is its columns one after another, each in as few bytes a value as it needs beyond its
smallest value. So an IPv4 address takes 4 bytes instead of 16, and a count mostly one:

  | number of probes uint64 | for each column: smallest value uint64, width uint64 | the columns |
"""

from collections.abc import Sequence

import numpy as np
from numba import uint8, uint64

from beam_pipeline.kernels import kernel

NUM_COLUMNS = 4  # upper and lower half of the address, numbers of narrow and of wide records
_HEADER_BYTES = 8 + 16 * NUM_COLUMNS


def pack(tables: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Packs tables that lie side by side.

    Args:
      tables: uint64 [NUM_COLUMNS, p].
      bounds: int64 [t + 1], where each table begins and ends; none is empty.

    Returns:
      All packed tables, uint8 [n], and where each begins and ends, int64 [t + 1].
    """
    smallest, widths = np.empty((2, len(bounds) - 1, NUM_COLUMNS), np.uint64)
    _measure(tables, bounds, smallest, widths)
    value_bytes = widths.sum(axis=1).view(np.int64) * np.diff(bounds)
    packed_bounds = np.concatenate([[0], np.cumsum(_HEADER_BYTES + value_bytes)])
    packed = np.empty(packed_bounds[-1], np.uint8)
    _pack(tables, bounds, smallest, widths, packed)
    return packed, packed_bounds


def counts_of(tables: np.ndarray) -> np.ndarray:
    """Returns the numbers of narrow and of wide records of each probe, int64 [2, p]."""
    return tables[2:].view(np.int64)


def unpack(tables: Sequence[bytes]) -> np.ndarray:
    """Returns packed tables side by side: uint64 [NUM_COLUMNS, p]."""
    counts = np.frombuffer(b"".join(table[:8] for table in tables), np.uint64).view(np.int64)
    starts = np.cumsum([0, *map(len, tables[:-1])])
    columns = np.empty((NUM_COLUMNS, counts.sum()), np.uint64)
    _unpack(np.frombuffer(b"".join(tables), np.uint8), starts, counts, columns)
    return columns


@kernel
def _width(span):
    """Returns the bytes that values up to `span` take."""
    width = 0
    while width < 8 and span >> uint64(8 * width) > 0:
        width += 1
    return width


@kernel
def _measure(tables, bounds, smallest, widths):
    """Sets the smallest value of each column of each table, and the bytes of a value."""
    for table in range(len(widths)):
        for column in range(len(tables)):
            values = tables[column, bounds[table] : bounds[table + 1]]
            smallest[table, column] = values.min()
            widths[table, column] = _width(values.max() - values.min())


@kernel
def _pack(tables, bounds, smallest, widths, packed):
    at = 0
    for table in range(len(widths)):
        start, end = bounds[table], bounds[table + 1]
        at = _put(packed, at, uint64(end - start), 8)
        for column in range(len(tables)):
            at = _put(packed, at, smallest[table, column], 8)
            at = _put(packed, at, widths[table, column], 8)
        for column in range(len(tables)):
            width = int(widths[table, column])
            for value in tables[column, start:end]:
                at = _put(packed, at, value - smallest[table, column], width)


@kernel
def _put(packed, at, value, width):
    """Writes the low bytes of a value and returns where they end."""
    for i in range(width):
        packed[at + i] = uint8(value >> uint64(8 * i))
    return at + width


@kernel
def _take(packed, at, width):
    """Reads a value of `width` bytes."""
    value = uint64(0)
    for i in range(width):
        value |= uint64(packed[at + i]) << uint64(8 * i)
    return value


@kernel
def _unpack(packed, starts, counts, columns):
    first = 0
    for table in range(len(starts)):
        header = starts[table] + 8
        at = starts[table] + _HEADER_BYTES
        for number in range(len(columns)):
            base = _take(packed, header + 16 * number, 8)
            width = int(_take(packed, header + 16 * number + 8, 8))
            for probe in range(first, first + counts[table]):
                columns[number, probe] = base + _take(packed, at, width)
                at += width
        first += counts[table]
