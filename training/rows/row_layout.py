"""Where the columns of a probe row lie in its bytes, so that kernels read only what they touch.

A layout is a LAYOUT record of byte offsets into `raw`, a uint8 array: the record as it was read,
or a map of many compact rows (see `column_cache`). The kernels below read one measurement of it,
in either encoding: its second, its RTT code, its destination; nothing else is decoded.

`locate` finds the columns of a record by arithmetic, without Arrow, where the record looks just
as `row_codec` writes it; any other record goes through Arrow and becomes compact bytes.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types, uint8, uint16, uint32, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from beam_pipeline.dataset import arrow_record, row_codec, tf_example
from beam_pipeline.dataset.addresses import parse_ipv4_text, parse_ipv6_text
from beam_pipeline.dataset.rtt import rtt_code
from beam_pipeline.kernels import kernel

COMPACT, ARROW = 0, 1
# Offsets of columns, and what it takes to read them:
#   compact  times: uint32 seconds after first_second; rtts: uint16 codes; dst: IPv4, 4 bytes each;
#            dst_more: IPv6, 16 bytes each; families: bits, and ranks, see `ranks_of`, where the
#            row has both families
#   arrow    times: int64 µs; rtts: float32 ms; dst: int32 offsets into the text at dst_more;
#            families: int8 4 or 6
LAYOUT = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("kind", "num_measurements", "num_ipv6", "first_second"),
            *("times", "rtts", "dst", "dst_more", "families", "ranks"),
        )
    ]
)
RANK_BLOCK = 512
_US_PER_SECOND = 1_000_000


# --- finding ------------------------------------------------------------------------------------


class Located(NamedTuple):
    """What a record says of itself, and the bytes and layout of its measurements."""

    src_id: int
    row_index: int
    num_measurements: int
    raw: bytes
    layout: tuple[int, ...]  # as LAYOUT


_EMPTY_RECORD_BYTES = int(row_codec.record_bytes(0, ""))
_RECORD_BODY = _EMPTY_RECORD_BYTES - 8 * 8 - 8  # eight columns of 8 bytes, the end of the stream
_EMPTY_ARROW_BYTES = int(row_codec.arrow_measurements_bytes(0, 0)) - 8  # less the one offset
_ARROW_BODY = _EMPTY_ARROW_BYTES - 8
_HEADER_BYTES = row_codec.COMPACT_HEADER.size
_MAGIC = int.from_bytes(row_codec.COMPACT_MAGIC, "little")
_MAX_FIRST_SECOND = row_codec.MAX_FIRST_SECOND


def locate(record: bytes) -> Located:
    """Finds the measurements of a record.

    Raises:
      ValueError: the bytes are no record, or its measurements are damaged.
    """
    if record.startswith(tf_example.MAGIC):  # at the price of a copy
        record = arrow_record.encode_record(tf_example.decode_example(record))
    return _locate_own(record) or _locate_any(record)


def _locate_own(record: bytes) -> Located | None:
    """Locates by arithmetic; None if any size or mark is not where `row_codec` puts it."""
    if len(record) < _EMPTY_RECORD_BYTES or not record.startswith(row_codec.RECORD_HEAD):
        return None
    src_id, row_index, *found = _find_own(np.frombuffer(record, np.uint8))
    kind, num_measurements, num_ipv6, _, times, *_, end = layout = tuple(found)
    if kind == ARROW and record.startswith(row_codec.MEASUREMENTS_HEAD, times - _ARROW_BODY):
        return Located(src_id, row_index, num_measurements, record, layout)
    if kind != COMPACT:
        return None
    raw = record
    if 0 < num_ipv6 < num_measurements:
        raw, layout = with_ranks(record[times - _HEADER_BYTES : end])
    return Located(src_id, row_index, num_measurements, raw, layout)


def _locate_any(record: bytes) -> Located:
    row = row_codec.decode_record(record)
    raw, layout = to_compact(row.run)
    if layout[1] != row.n_measurements:
        raise ValueError(f"{layout[1]} measurements where n_measurements is {row.n_measurements}")
    return Located(row.src_id, row.row_index, row.n_measurements, raw, layout)


def to_compact(run: np.ndarray) -> tuple[bytes, tuple[int, ...]]:
    """Returns a run as compact measurements with their ranks, and their layout.

    Raises:
      ValueError: it is empty, not in order, or compact measurements cannot hold its times.
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


@njit
def compact_layout(start, num, num_ipv6, first_second):
    """Returns the layout of compact measurements from `start` on, followed by their ranks."""
    times = start + _HEADER_BYTES
    rtts = times + 4 * num
    families = rtts + 2 * num
    dst = families + ((num + 7) // 8 if 0 < num_ipv6 < num else 0)
    dst_more = dst + 4 * (num - num_ipv6)
    ranks = dst_more + 16 * num_ipv6
    return (COMPACT, num, num_ipv6, first_second, times, rtts, dst, dst_more, families, ranks)


@njit
def set_layout(layout, values, by):
    """Fills a LAYOUT record with a layout's values, for bytes that lie `by` further on."""
    layout.kind, layout.num_measurements, layout.num_ipv6 = values[0], values[1], values[2]
    layout.first_second, layout.times, layout.rtts = values[3], values[4] + by, values[5] + by
    layout.dst, layout.dst_more = values[6] + by, values[7] + by
    layout.families, layout.ranks = values[8] + by, values[9] + by


@kernel
def put_row(cells, start, raw, layouts, slot, layout):
    """Copies a row's bytes to cells[start:], and its layout there to layouts[slot]."""
    cells[start : start + len(raw)] = raw
    set_layout(layouts[slot], layout, start)


def with_ranks(compact: bytes) -> tuple[bytes, tuple[int, ...]]:
    """Returns compact measurements followed by their ranks, and their layout.

    Raises:
      ValueError: the bytes are no compact measurements.
    """
    found = _compact_layout(np.frombuffer(compact, np.uint8), 0, len(compact))
    if found[0] == _NEITHER or not compact.startswith(row_codec.COMPACT_MAGIC):
        raise ValueError(f"{len(compact)} bytes that are no compact measurements")
    _, num, num_ipv6, *_, families, _ = found
    if not 0 < num_ipv6 < num:
        return compact, found
    family_bits = np.frombuffer(compact, np.uint8, (num + 7) // 8, families)
    if np.unpackbits(family_bits, count=num, bitorder="little").sum() != num_ipv6:
        raise ValueError("the families of compact measurements contradict their header")
    return compact + ranks_of(family_bits, num).tobytes(), found


def ranks_bytes(num: np.ndarray, num_ipv6: np.ndarray) -> np.ndarray:
    """Returns how many bytes the ranks of rows take, int64 [rows]."""
    is_mixed = (num_ipv6 > 0) & (num_ipv6 < num)
    return np.where(is_mixed, (num + RANK_BLOCK - 1) // RANK_BLOCK * 4, 0)


def ranks_of(family_bits: np.ndarray, num: int) -> np.ndarray:
    """Counts the IPv6 destinations before each block of RANK_BLOCK: uint32 [blocks]."""
    bits = np.unpackbits(family_bits, count=num, bitorder="little")
    counts = np.add.reduceat(bits, np.arange(0, num, RANK_BLOCK), dtype=np.uint32)
    return np.concatenate([[0], np.cumsum(counts[:-1])]).astype("<u4")


# --- finding, compiled --------------------------------------------------------------------------

_NEITHER = -1  # kind of what is not as `row_codec` writes it


@njit
def _padded(size):
    return (size + 7) & -8


@njit
def _nothing():
    zero = np.int64(0)
    return (np.int64(_NEITHER), zero, zero, zero, zero, zero, zero, zero, zero, zero)


@njit
def _load_size(raw, at):
    """Returns an int32; a negative one as a size that is larger than any."""
    return np.int64(_load32(raw, at))


@kernel
def _compact_layout(raw, start, num_bytes):
    if num_bytes < _HEADER_BYTES:
        return _nothing()
    num, num_ipv6 = np.int64(_load32(raw, start + 4)), np.int64(_load32(raw, start + 8))
    first_second = _load64(raw, start + 12)
    if num_ipv6 > num or num == 0 or first_second > uint64(_MAX_FIRST_SECOND):
        return _nothing()
    layout = compact_layout(start, num, num_ipv6, np.int64(first_second))
    return layout if layout[7] + 16 * num_ipv6 == start + num_bytes else _nothing()


@njit
def _arrow_layout(raw, start, num_bytes, num):
    times = start + _ARROW_BODY
    offsets = times + 8 * num
    text = offsets + _padded(4 * (num + 1))
    if num == 0 or text > start + num_bytes or np.int64(_load64(raw, times)) < 0:
        return _nothing()
    text_bytes = _load_size(raw, offsets + 4 * num)
    families = text + _padded(text_bytes)
    rtts = families + _padded(num)
    if _load32(raw, offsets) != 0 or rtts + _padded(4 * num) + 8 != start + num_bytes:
        return _nothing()
    num_ipv6 = 0
    for i in range(num):
        num_ipv6 += raw[families + i] == uint8(6)
    nothing = np.int64(0)
    return (
        *(np.int64(ARROW), num, np.int64(num_ipv6), nothing),
        *(times, rtts, offsets, text, families, nothing),
    )


@kernel
def _find_own(raw):
    """Returns (src_id, row_index, *layout) of a record that begins as `row_codec` writes it."""
    body = np.int64(_RECORD_BODY)
    num_bytes = _load_size(raw, body + 12)
    start = body + 16
    rest = start + _padded(num_bytes)
    zero = np.int64(0)
    if _load32(raw, body + 8) != 0 or len(raw) < rest + 6 * 8:
        return (zero, zero, *_nothing())
    num = _load_size(raw, rest)
    end = rest + 40 + _padded(_load_size(raw, rest + 36))
    if _load32(raw, rest + 32) != 0 or len(raw) != end + 16:
        return (zero, zero, *_nothing())
    if _load32(raw, start) == uint32(_MAGIC):
        layout = _compact_layout(raw, start, num_bytes)
    else:
        layout = _arrow_layout(raw, start, num_bytes, num)
    if layout[1] != num:
        layout = _nothing()
    src_id, row_index = np.int64(_load64(raw, body)), np.int64(np.int32(_load32(raw, end)))
    return (src_id, row_index, *layout)


# --- reading ------------------------------------------------------------------------------------


def _generate_prefetch(typing_context, array, at):
    def generate(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.gep(data, [args[1]])
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data_cache = number(0), number(3), number(1)
        builder.call(function, [address, read, keep, data_cache])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


# _prefetch(array, at) asks the processor for the cache line of array[at], without waiting for it.
_prefetch: Any = intrinsic(_generate_prefetch)


@njit
def prefetch(raw, layout, i):
    """Begins to load what is read of measurement i; rows are larger than the processor's caches."""
    if layout.kind == ARROW:
        _prefetch(raw, layout.times + 8 * i)
        _prefetch(raw, layout.rtts + 4 * i)
        _prefetch(raw, layout.dst + 4 * i)
        return
    _prefetch(raw, layout.times + 4 * i)
    _prefetch(raw, layout.rtts + 2 * i)
    if layout.num_ipv6 == 0:
        _prefetch(raw, layout.dst + 4 * i)
    elif layout.num_ipv6 == layout.num_measurements:
        _prefetch(raw, layout.dst_more + 16 * i)
    else:
        _prefetch(raw, layout.families + (i >> 3))


@njit
def _load16(raw, at):
    at = uint64(at)
    return uint16(raw[at]) | (uint16(raw[at + uint64(1)]) << uint16(8))


@njit
def _load32(raw, at):
    at = uint64(at)
    value = uint32(raw[at])
    for i in range(1, 4):
        value |= uint32(raw[at + uint64(i)]) << uint32(8 * i)
    return value


@njit
def _load64(raw, at):
    low, high = _load32(raw, at), _load32(raw, at + 4)
    return uint64(low) | (uint64(high) << uint64(32))


@njit
def _load_big_endian(raw, at, num_bytes):
    value = uint64(0)
    for i in range(num_bytes):
        value = (value << uint64(8)) | uint64(raw[uint64(at + i)])
    return value


@njit
def _as_float32(bits):
    return np.uint32(bits).view(np.float32)


@njit
def second_at(raw, layout, i):
    """Returns the second since 1970 of measurement i."""
    if layout.kind == ARROW:
        return np.int64(_load64(raw, layout.times + 8 * i)) // _US_PER_SECOND
    return layout.first_second + np.int64(_load32(raw, layout.times + 4 * i))


@njit
def rtt_code_at(raw, layout, i):
    """Returns the RTT of measurement i as `encode_rtt` gives it."""
    if layout.kind == ARROW:
        return np.int64(rtt_code(_as_float32(_load32(raw, layout.rtts + 4 * i))))
    return np.int64(_load16(raw, layout.rtts + 2 * i))


@njit
def is_ipv6_at(raw, layout, i):
    """Tells whether the destination of measurement i is IPv6."""
    if layout.kind == ARROW:
        return raw[uint64(layout.families + i)] == uint8(6)
    if layout.num_ipv6 == 0 or layout.num_ipv6 == layout.num_measurements:
        return layout.num_ipv6 > 0
    return (raw[uint64(layout.families + (i >> 3))] >> uint8(i & 7)) & uint8(1) == uint8(1)


@njit
def _count_bits(byte):
    count = 0
    while byte:
        byte &= byte - uint8(1)
        count += 1
    return count


@njit
def _ipv6_before(raw, layout, i):
    """Counts the IPv6 destinations before measurement i of a row with both families."""
    block = i // RANK_BLOCK
    count = np.int64(_load32(raw, layout.ranks + 4 * block))
    for at in range(block * RANK_BLOCK // 8, i // 8):
        count += _count_bits(raw[uint64(layout.families + at)])
    for bit in range(i & ~7, i):
        count += is_ipv6_at(raw, layout, bit)
    return count


@njit
def _parsed_dst(raw, layout, i):
    """Reads a destination that is text; is_ipv6 is -1 where the text is damaged."""
    start = np.int64(_load32(raw, layout.dst + 4 * i))
    end = np.int64(_load32(raw, layout.dst + 4 * i + 4))
    if start > end or end > layout.families - layout.dst_more:
        return uint64(0), uint64(0), -1
    start, end = layout.dst_more + start, layout.dst_more + end
    if not is_ipv6_at(raw, layout, i):
        value = parse_ipv4_text(raw, start, end)
        return uint64(0), uint64(value), 0 if value >= 0 else -1
    groups = np.zeros(8, np.uint64)
    if not parse_ipv6_text(raw, start, end, groups):
        return uint64(0), uint64(0), -1
    hi, lo = uint64(0), uint64(0)
    for part in range(4):
        hi = (hi << uint64(16)) | groups[part]
        lo = (lo << uint64(16)) | groups[4 + part]
    return hi, lo, 1


@njit
def dst_at(raw, layout, i):
    """Returns the destination of measurement i: (hi, lo, is_ipv6), is_ipv6 -1 if damaged."""
    if layout.kind == ARROW:
        return _parsed_dst(raw, layout, i)
    if layout.num_ipv6 == 0:
        return uint64(0), _load_big_endian(raw, layout.dst + 4 * i, 4), 0
    place = i
    if layout.num_ipv6 < layout.num_measurements:
        num_before = _ipv6_before(raw, layout, i)
        if not is_ipv6_at(raw, layout, i):
            return uint64(0), _load_big_endian(raw, layout.dst + 4 * (i - num_before), 4), 0
        place = num_before
    at = layout.dst_more + 16 * place
    return _load_big_endian(raw, at, 8), _load_big_endian(raw, at + 8, 8), 1
