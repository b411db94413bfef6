"""Offsets of the columns of a probe row in its bytes, so that kernels read only what they need.

A `Layout` has the offsets of one row's columns in `raw`, an array of bytes: a record as it was
read, or a map of many compact rows (see `column_cache`).

`locate` computes the layout of a record without Arrow if the record has exactly the form that
`row_codec` writes. Any other record is decoded by Arrow and encoded as compact bytes.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit, uint8, uint32, uint64

from beam_pipeline.dataset import arrow_record, row_codec, tf_example
from beam_pipeline.kernels import kernel

COMPACT, ARROW = 0, 1
RANK_BLOCK = 512
_NEITHER = -1  # the kind of bytes in any other form than that of `row_codec`
_US_PER_SECOND = 1_000_000


class Layout(NamedTuple):
    """The size of a row and the offsets of its columns in an array of bytes.

    Attributes:
      kind: COMPACT or ARROW.
      times: COMPACT: uint32 seconds after first_second. ARROW: int64 µs.
      rtts: COMPACT: uint16 codes. ARROW: float32 ms.
      dst: COMPACT: IPv4, 4 bytes each. ARROW: int32 offsets into the text at dst_more.
      dst_more: COMPACT: IPv6, 16 bytes each. ARROW: the text of the addresses.
      families: COMPACT: one bit each, set for IPv6, if the row has both. ARROW: int8 4 or 6.
      ranks: COMPACT: see `_ranks`, if the row has both families.
    """

    kind: int
    num_measurements: int
    num_ipv6: int
    first_second: int
    times: int
    rtts: int
    dst: int
    dst_more: int
    families: int
    ranks: int


FIRST_OFFSET = Layout._fields.index("times")


class Columns(NamedTuple):
    """One row's measurements: uint8 bytes, read-only, with the layout of its columns."""

    raw: np.ndarray
    layout: Layout


class Located(NamedTuple):
    """The key and the columns of the row in a record."""

    src_id: int
    row_index: int
    columns: Columns


# --- finding the columns of a record --------------------------------------------------------------

_EMPTY_RECORD_BYTES = int(row_codec.record_bytes(0, ""))
_RECORD_BODY = _EMPTY_RECORD_BYTES - 8 * 8 - 8  # eight columns of 8 bytes, the end of the stream
_EMPTY_ARROW_BYTES = int(row_codec.arrow_measurements_bytes(0, 0)) - 8  # less the one offset
_ARROW_BODY = _EMPTY_ARROW_BYTES - 8
_HEADER_BYTES = row_codec.COMPACT_HEADER.size
_MAGIC = int.from_bytes(row_codec.COMPACT_MAGIC, "little")


def locate(record: bytes) -> Located:
    """Finds the measurements of a record.

    Raises:
      ValueError: the bytes are not a record, or its measurements are damaged.
    """
    if record.startswith(tf_example.MAGIC):  # this costs a copy
        record = arrow_record.encode_record(tf_example.decode_example(record))
    return _locate_own(record) or _locate_any(record)


def _locate_own(record: bytes) -> Located | None:
    """Computes the layout; None if any size or mark is not where `row_codec` puts it."""
    if len(record) < _EMPTY_RECORD_BYTES or not record.startswith(row_codec.RECORD_HEAD):
        return None
    raw = np.frombuffer(record, np.uint8)
    src_id, row_index, *found = _find_own(raw)
    layout = Layout._make(found)
    if layout.kind == ARROW:
        begin = layout.times - _ARROW_BODY
        is_own = record.startswith(row_codec.MEASUREMENTS_HEAD, begin)
        return Located(src_id, row_index, Columns(raw, layout)) if is_own else None
    if layout.kind != COMPACT:
        return None
    columns = Columns(raw, layout)
    if 0 < layout.num_ipv6 < layout.num_measurements:
        columns = with_ranks(record[layout.times - _HEADER_BYTES : layout.ranks])
    return Located(src_id, row_index, columns)


def _locate_any(record: bytes) -> Located:
    row = row_codec.decode_record(record)
    columns = to_compact(row.run)
    if (found := columns.layout.num_measurements) != row.n_measurements:
        raise ValueError(f"{found} measurements where n_measurements is {row.n_measurements}")
    return Located(row.src_id, row.row_index, columns)


def to_compact(run: np.ndarray) -> Columns:
    """Returns a sorted run as compact measurements with their ranks.

    Raises:
      ValueError: the run is empty, not in order, or its times exceed the compact range.
    """
    seconds = run["event_time"] // _US_PER_SECOND
    if len(run) == 0:
        raise ValueError("it holds no measurement")
    if seconds[0] < 0 or (seconds[1:] < seconds[:-1]).any():
        raise ValueError("its times are not in order, or before 1970")
    span = int(seconds[-1] - seconds[0])
    if span > row_codec.COMPACT_MAX_SPAN_SECONDS:
        raise ValueError(
            f"it spans {span} s, compact measurements {row_codec.COMPACT_MAX_SPAN_SECONDS} s"
        )
    return with_ranks(row_codec.encode_compact(run))


def with_ranks(compact: bytes) -> Columns:
    """Returns compact measurements followed by their ranks.

    Raises:
      ValueError: the bytes are not compact measurements.
    """
    raw = np.frombuffer(compact, np.uint8)
    layout = Layout._make(_find_compact(raw, 0, len(compact)))
    if layout.kind == _NEITHER or not compact.startswith(row_codec.COMPACT_MAGIC):
        raise ValueError(f"{len(compact)} bytes that are no compact measurements")
    num, num_ipv6 = layout.num_measurements, layout.num_ipv6
    if 0 < num_ipv6 < num:
        family_bits = raw[layout.families :][: (num + 7) // 8]
        is_ipv6 = np.unpackbits(family_bits, count=num, bitorder="little")
        if is_ipv6.sum() != num_ipv6:
            raise ValueError("the families of compact measurements contradict their header")
        raw = np.frombuffer(compact + _ranks(is_ipv6), np.uint8)
    return Columns(raw, layout)


def ranks_bytes(num: np.ndarray, num_ipv6: np.ndarray) -> np.ndarray:
    """Returns the size of the ranks of each row: int64 [rows]."""
    is_mixed = (num_ipv6 > 0) & (num_ipv6 < num)
    return np.where(is_mixed, (num + RANK_BLOCK - 1) // RANK_BLOCK * 4, 0)


def _ranks(is_ipv6: np.ndarray) -> bytes:
    """Counts the IPv6 destinations before each block of RANK_BLOCK: uint32 [blocks]."""
    counts = np.add.reduceat(is_ipv6, np.arange(0, len(is_ipv6), RANK_BLOCK), dtype=np.uint32)
    return np.concatenate([[0], np.cumsum(counts[:-1])]).astype("<u4").tobytes()


# --- finding, compiled --------------------------------------------------------------------------


@njit
def load32(raw, at):
    """Returns the little-endian uint32 at an offset."""
    at = uint64(at)
    value = uint32(raw[at])
    for i in range(1, 4):
        value |= uint32(raw[at + uint64(i)]) << uint32(8 * i)
    return value


@njit
def load64(raw, at):
    """Returns the little-endian uint64 at an offset."""
    low, high = load32(raw, at), load32(raw, at + 4)
    return uint64(low) | (uint64(high) << uint64(32))


_layout: Any = Layout  # in compiled code, of int64


@njit
def compact_layout(start, num, num_ipv6, first_second):
    """Returns the layout of compact measurements at `start`, followed by their ranks."""
    times = start + _HEADER_BYTES
    rtts = times + 4 * num
    families = rtts + 2 * num
    dst = families + ((num + 7) // 8 if 0 < num_ipv6 < num else 0)
    dst_more = dst + 4 * (num - num_ipv6)
    ranks = dst_more + 16 * num_ipv6
    kind = np.int64(COMPACT)
    return _layout(kind, num, num_ipv6, first_second, times, rtts, dst, dst_more, families, ranks)


@njit
def _padded(size):
    return (size + 7) & -8


@njit
def _nothing():
    kind, zero = np.int64(_NEITHER), np.int64(0)
    return _layout(kind, zero, zero, zero, zero, zero, zero, zero, zero, zero)


@njit
def _compact_at(raw, start, num_bytes):
    if num_bytes < _HEADER_BYTES:
        return _nothing()
    num, num_ipv6 = np.int64(load32(raw, start + 4)), np.int64(load32(raw, start + 8))
    first_second = load64(raw, start + 12)
    if num_ipv6 > num or num == 0 or first_second > uint64(row_codec.MAX_FIRST_SECOND):
        return _nothing()
    layout = compact_layout(start, num, num_ipv6, np.int64(first_second))
    return layout if layout.ranks == start + num_bytes else _nothing()


@njit
def _arrow_at(raw, start, num_bytes, num):
    times = start + _ARROW_BODY
    dst = times + 8 * num
    text = dst + _padded(4 * (num + 1))
    if num == 0 or text > start + num_bytes or np.int64(load64(raw, times)) < 0:
        return _nothing()
    families = text + _padded(np.int64(load32(raw, dst + 4 * num)))
    rtts = families + _padded(num)
    if load32(raw, dst) != 0 or rtts + _padded(4 * num) + 8 != start + num_bytes:
        return _nothing()
    num_ipv6, zero = np.int64(0), np.int64(0)
    for i in range(num):
        num_ipv6 += raw[families + i] == uint8(6)
    return _layout(np.int64(ARROW), num, num_ipv6, zero, times, rtts, dst, text, families, zero)


@njit
def _plain(layout):
    """Returns a layout as a plain tuple, which is faster to return to Python."""
    return (
        *(layout.kind, layout.num_measurements, layout.num_ipv6, layout.first_second),
        *(layout.times, layout.rtts, layout.dst, layout.dst_more),
        *(layout.families, layout.ranks),
    )


@kernel
def _find_compact(raw, start, num_bytes):
    return _plain(_compact_at(raw, start, num_bytes))


@kernel
def _find_own(raw):
    """Returns (src_id, row_index, *layout) of a record that begins as `row_codec` writes it."""
    # Sizes are int32; a negative one is read as a size larger than the record.
    zero, body = np.int64(0), np.int64(_RECORD_BODY)
    num_bytes = np.int64(load32(raw, body + 12))
    start = body + 16
    rest = start + _padded(num_bytes)
    if load32(raw, body + 8) != 0 or len(raw) < rest + 6 * 8:
        return (zero, zero, *_plain(_nothing()))
    num = np.int64(load32(raw, rest))
    end = rest + 40 + _padded(np.int64(load32(raw, rest + 36)))
    if load32(raw, rest + 32) != 0 or len(raw) != end + 16:
        return (zero, zero, *_plain(_nothing()))
    if load32(raw, start) == uint32(_MAGIC):
        layout = _compact_at(raw, start, num_bytes)
    else:
        layout = _arrow_at(raw, start, num_bytes, num)
    if layout.num_measurements != num:
        layout = _nothing()
    src_id, row_index = np.int64(load64(raw, body)), np.int64(np.int32(load32(raw, end)))
    return (src_id, row_index, *_plain(layout))
