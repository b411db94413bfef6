"""Offsets of the columns of a probe row in its bytes, so that kernels read only what they need.

The bytes are a record, a memory map of many compact rows (see `column_cache`), or a shard as stored
in its file (see `blocks`). `locate` computes the layout of a record without Arrow if the record has
exactly the form that `row_codec` writes. Any other record is decoded and encoded as compact bytes.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import uint8, uint32, uint64

from beam_pipeline.dataset import arrow_record, row_codec, row_encoder, tf_example
from beam_pipeline.kernels import kernel, subkernel
from training.raw_shards.blocks import load32, load64, num_together, place_of

COMPACT, ARROW = 0, 1
NO_RANKS = np.zeros(0, np.uint32)
RANK_BLOCK = 512
HASH_BYTES = 8  # after each row in the column cache
NEITHER = -1  # kind of bytes not in a form that `row_codec` writes
_US_PER_SECOND = 1_000_000


class Layout(NamedTuple):
    """The size of a row and the offsets of its columns in an array of bytes."""

    kind: int  # COMPACT or ARROW
    num_measurements: int
    num_ipv6: int
    first_second: int
    times: int  # COMPACT: uint32 seconds after first_second. ARROW: int64 µs
    rtts: int  # COMPACT: uint16 codes. ARROW: float32 ms
    dst: int  # COMPACT: IPv4, 4 bytes each. ARROW: int32 offsets into the text at dst_more
    dst_more: int  # COMPACT: IPv6, 16 bytes each. ARROW: the text of the addresses
    families: int  # COMPACT: if mixed, one bit each, set for IPv6. ARROW: int8 4 or 6
    ranks: int  # COMPACT: if mixed, see `count_ipv6`


FIRST_OFFSET = Layout._fields.index("times")


class Columns(NamedTuple):
    """One row's measurements: read-only uint8 [bytes], or [1, bytes] of a shard; and the layout."""

    raw: np.ndarray
    layout: Layout


class Located(NamedTuple):
    """The key and columns of the row in a record; its ranks if they are not in `raw`."""

    src_id: int
    row_index: int
    columns: Columns
    ranks: np.ndarray = NO_RANKS


# --- finding the columns of a record --------------------------------------------------------------

_EMPTY_RECORD_BYTES = int(arrow_record.record_bytes(0, 0))
_RECORD_BODY = _EMPTY_RECORD_BYTES - 8 * 8 - 8  # less eight columns of 8 bytes, end of stream
_EMPTY_ARROW_BYTES = int(row_codec.arrow_measurements_bytes(0, 0)) - 8  # less the one offset
_ARROW_BODY = _EMPTY_ARROW_BYTES - 8
_HEADER_BYTES = row_codec.COMPACT_HEADER.size
_MAGIC = int.from_bytes(row_codec.COMPACT_MAGIC, "little")
_RECORD_HEAD = np.frombuffer(row_codec.RECORD_HEAD, "<u8")
_MEASUREMENTS_HEAD = np.frombuffer(row_codec.MEASUREMENTS_HEAD, "<u8")


def locate(record: bytes) -> Located:
    """Finds the measurements of a record; ValueError if it is damaged."""
    if record.startswith(tf_example.MAGIC):  # this costs a copy
        record = arrow_record.encode_record(tf_example.decode_example(record))
    return _locate_own(record) or _locate_any(record)


def _locate_own(record: bytes) -> Located | None:
    """Computes the layout; None if any size or mark differs from what `row_codec` writes."""
    raw = np.frombuffer(record, np.uint8)
    src_id, row_index, *found = _find_own(raw, 0, len(record))
    layout = Layout._make(found)
    if layout.kind == NEITHER:
        return None
    columns = Columns(raw, layout)
    if layout.kind == COMPACT and 0 < layout.num_ipv6 < layout.num_measurements:
        columns = with_ranks(record[layout.times - _HEADER_BYTES : layout.ranks])
    return Located(src_id, row_index, columns)


def locate_in_file(raw: np.ndarray, offset: int, num_bytes: int) -> Located | None:
    """Does the same as `_locate_own` for a record in its shard, uint8 [1, bytes]."""
    src_id, row_index, *found = _find_own(raw, offset, num_bytes)
    layout = Layout._make(found)
    if layout.kind == NEITHER:
        return None
    counts = NO_RANKS
    if layout.kind == COMPACT and 0 < layout.num_ipv6 < layout.num_measurements:
        counts = _count_mixed(raw, layout)
        if counts[-1] != layout.num_ipv6:
            return None
    return Located(src_id, row_index, Columns(raw, layout), counts[:-1])


def _locate_any(record: bytes) -> Located:
    row = row_codec.decode_record(record)
    columns = to_compact(row.run)
    if (found := columns.layout.num_measurements) != row.n_measurements:
        raise ValueError(f"{found} measurements where n_measurements is {row.n_measurements}")
    return Located(row.src_id, row.row_index, columns)


def to_compact(run: np.ndarray) -> Columns:
    """Returns a sorted run as compact measurements with ranks; ValueError if that is impossible."""
    seconds = run["event_time"] // _US_PER_SECOND
    if len(run) == 0:
        raise ValueError("it has no measurements")
    if seconds[0] < 0 or (seconds[1:] < seconds[:-1]).any():
        raise ValueError("its times are not in order, or before 1970")
    span = int(seconds[-1] - seconds[0])
    if span > row_codec.COMPACT_MAX_SPAN_SECONDS:
        raise ValueError(
            f"it spans {span} s, compact measurements {row_codec.COMPACT_MAX_SPAN_SECONDS} s"
        )
    return with_ranks(row_encoder.encode_compact(run))


def with_ranks(compact: bytes) -> Columns:
    """Returns compact measurements followed by their ranks; ValueError if they are damaged."""
    raw = np.frombuffer(compact, np.uint8)
    layout = Layout._make(_find_compact(raw, 0, len(compact)))
    if layout.kind == NEITHER or not compact.startswith(row_codec.COMPACT_MAGIC):
        raise ValueError(f"its {len(compact)} bytes are not compact measurements")
    num, num_ipv6 = layout.num_measurements, layout.num_ipv6
    if 0 < num_ipv6 < num:
        counts = _count_mixed(raw, layout)
        if counts[-1] != num_ipv6:
            raise ValueError("the families of compact measurements contradict their header")
        raw = np.frombuffer(compact + counts[:-1].tobytes(), np.uint8)
    return Columns(raw, layout)


def ranks_bytes(num: np.ndarray, num_ipv6: np.ndarray) -> np.ndarray:
    """Returns the size of each row's ranks: int64 [rows]."""
    is_mixed = (num_ipv6 > 0) & (num_ipv6 < num)
    return np.where(is_mixed, (num + RANK_BLOCK - 1) // RANK_BLOCK * 4, 0)


def cached_bytes(num: np.ndarray, num_ipv6: np.ndarray) -> np.ndarray:
    """Returns the size of each row in the column cache, including ranks and hash: int64 [rows]."""
    num, num_ipv6 = num.astype(np.int64), num_ipv6.astype(np.int64)
    sizes = row_codec.compact_measurements_bytes(num, num_ipv6) + ranks_bytes(num, num_ipv6)
    return (sizes + 7) // 8 * 8 + HASH_BYTES


# --- finding, compiled --------------------------------------------------------------------------


_layout: Any = Layout  # in compiled code, of int64


@subkernel
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


@subkernel
def _padded(size):
    return (size + 7) & -8


@subkernel
def _nothing():
    kind, zero = np.int64(NEITHER), np.int64(0)
    return _layout(kind, zero, zero, zero, zero, zero, zero, zero, zero, zero)


@subkernel
def _compact_at(raw, start, num_bytes):
    if num_bytes < _HEADER_BYTES:
        return _nothing()
    num, num_ipv6 = np.int64(load32(raw, start + 4)), np.int64(load32(raw, start + 8))
    first_second = load64(raw, start + 12)
    if num_ipv6 > num or num == 0 or first_second > uint64(row_codec.MAX_FIRST_SECOND):
        return _nothing()
    layout = compact_layout(start, num, num_ipv6, np.int64(first_second))
    return layout if layout.ranks == start + num_bytes else _nothing()


@subkernel
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
    if raw.ndim == 1:
        for i in range(num):
            num_ipv6 += raw[families + i] == uint8(6)
    else:
        at, end = families, families + num
        while at < end:
            together, place = num_together(at, end), np.int64(place_of(raw, at))
            for i in range(place, place + together):
                num_ipv6 += raw[0, i] == uint8(6)
            at += together
    return _layout(np.int64(ARROW), num, num_ipv6, zero, times, rtts, dst, text, families, zero)


@subkernel
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


@subkernel
def _begins_with(raw, at, head):
    """Returns whether the words of `head` are at an offset."""
    num_other = 0
    for i in range(len(head)):
        num_other += load64(raw, at + 8 * i) != head[i]
    return num_other == 0


@subkernel
def find_row(raw, begin, num_bytes):
    """Returns (src_id, row_index, layout) of a record; NEITHER unless in `row_codec`'s form."""
    # Sizes are int32; a negative one is read as a size larger than the record.
    zero, nothing, body, end = np.int64(0), _nothing(), begin + _RECORD_BODY, begin + num_bytes
    if num_bytes < _EMPTY_RECORD_BYTES or not _begins_with(raw, begin, _RECORD_HEAD):
        return zero, zero, nothing
    num_inside = np.int64(load32(raw, body + 12))
    start = body + 16
    rest = start + _padded(num_inside)
    if load32(raw, body + 8) != 0 or end < rest + 6 * 8:
        return zero, zero, nothing
    num = np.int64(load32(raw, rest))
    last = rest + 40 + _padded(np.int64(load32(raw, rest + 36)))
    if load32(raw, rest + 32) != 0 or end != last + 16:
        return zero, zero, nothing
    layout = nothing
    if load32(raw, start) == uint32(_MAGIC):
        layout = _compact_at(raw, start, num_inside)
    elif num_inside >= _EMPTY_ARROW_BYTES and _begins_with(raw, start, _MEASUREMENTS_HEAD):
        layout = _arrow_at(raw, start, num_inside, num)
    if layout.num_measurements != num:
        layout = nothing
    return np.int64(load64(raw, body)), np.int64(np.int32(load32(raw, last))), layout


@kernel
def _find_own(raw, begin, num_bytes):
    """Returns (src_id, row_index, *layout) as `find_row`."""
    src_id, row_index, layout = find_row(raw, begin, num_bytes)
    return (src_id, row_index, *_plain(layout))


@subkernel
def _count_bits(word):
    word -= (word >> uint64(1)) & uint64(0x5555555555555555)
    word = (word & uint64(0x3333333333333333)) + ((word >> uint64(2)) & uint64(0x3333333333333333))
    word = (word + (word >> uint64(4))) & uint64(0x0F0F0F0F0F0F0F0F)
    return (word * uint64(0x0101010101010101)) >> uint64(56)


@subkernel
def count_between(raw, families, first, end):
    """Counts the IPv6 destinations of measurements [first, end); first is a multiple of 64."""
    total = uint64(0)
    for at in range(first, end, 64):
        word = load64(raw, families + at // 8)
        if end - at < 64:
            word &= (uint64(1) << uint64(end - at)) - uint64(1)
        total += _count_bits(word)
    return np.int64(total)


@subkernel
def count_ipv6(raw, families, num):
    """Counts IPv6 destinations before each block of RANK_BLOCK, and in all: uint32 [blocks + 1]."""
    counts = np.zeros((num + RANK_BLOCK - 1) // RANK_BLOCK + 1, np.uint32)
    for block in range(len(counts) - 1):
        first = block * RANK_BLOCK
        of_block = count_between(raw, families, first, min(num, first + RANK_BLOCK))
        counts[block + 1] = counts[block] + of_block
    return counts


@kernel
def _count_mixed(raw, layout):
    return count_ipv6(raw, layout.families, layout.num_measurements)
