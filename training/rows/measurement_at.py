"""Reads the time, RTT or destination of one measurement by the row's layout, in kernels."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types, uint8, uint32, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from beam_pipeline.dataset.addresses import parse_ipv4_text, parse_ipv6_text
from beam_pipeline.dataset.rtt import rtt_code
from beam_pipeline.kernels import kernel, subkernel
from training.raw_shards.blocks import byte_at, load16, load32, load64, place_of
from training.rows.row_layout import ARROW, RANK_BLOCK, count_between

_US_PER_SECOND = 1_000_000


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


# Prefetches the cache line of a byte, given its place in memory.
_prefetch_place: Any = intrinsic(_generate_prefetch)


@subkernel
def _prefetch(raw, at):
    _prefetch_place(raw, np.int64(place_of(raw, at)))


@subkernel
def prefetch(raw, layout, i):
    """Prefetches the fields of measurement i; rows are larger than the processor's caches."""
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


@subkernel
def _load_big_endian(raw, at):
    word, value = load32(raw, at), uint32(0)
    for i in range(4):
        value |= ((word >> uint32(8 * i)) & uint32(0xFF)) << uint32(24 - 8 * i)
    return uint64(value)


@subkernel
def second_at(raw, layout, i):
    """Returns the second since 1970 of measurement i."""
    if layout.kind == ARROW:
        return np.int64(load64(raw, layout.times + 8 * i)) // _US_PER_SECOND
    return layout.first_second + np.int64(load32(raw, layout.times + 4 * i))


@subkernel
def rtt_code_at(raw, layout, i):
    """Returns the RTT of measurement i as `encode_rtt` returns it."""
    if layout.kind == ARROW:
        return np.int64(rtt_code(np.uint32(load32(raw, layout.rtts + 4 * i)).view(np.float32)))
    return np.int64(load16(raw, layout.rtts + 2 * i))


@subkernel
def is_ipv6_at(raw, layout, i):
    """Returns whether the destination of measurement i is IPv6."""
    if layout.kind == ARROW:
        return byte_at(raw, layout.families + i) == uint8(6)
    if layout.num_ipv6 == 0 or layout.num_ipv6 == layout.num_measurements:
        return layout.num_ipv6 > 0
    byte = byte_at(raw, layout.families + (i >> 3))
    return (byte >> uint8(i & 7)) & uint8(1) == uint8(1)


@subkernel
def _ipv6_before(raw, layout, i, ranks):
    """Counts the IPv6 destinations before measurement i of a row with both families."""
    block = i // RANK_BLOCK
    if raw.ndim == 1:
        count = np.int64(load32(raw, layout.ranks + 4 * block))
    else:
        count = np.int64(ranks[block])
    return count + count_between(raw, layout.families, block * RANK_BLOCK, i)


@subkernel
def _text_of(raw, start, end):
    """Returns an array [bytes] and the range in it that holds a text."""
    if raw.ndim == 1:
        return raw, start, end
    text = np.empty(end - start, np.uint8)
    for i in range(end - start):
        text[i] = byte_at(raw, start + i)
    return text, 0, end - start


@subkernel
def _parsed_dst(raw, layout, i):
    """Parses a destination stored as text; is_ipv6 is -1 if the text is damaged."""
    start = np.int64(load32(raw, layout.dst + 4 * i))
    end = np.int64(load32(raw, layout.dst + 4 * i + 4))
    if start > end or end > layout.families - layout.dst_more:
        return uint64(0), uint64(0), -1
    text, start, end = _text_of(raw, layout.dst_more + start, layout.dst_more + end)
    if not is_ipv6_at(raw, layout, i):
        value = parse_ipv4_text(text, start, end)
        return uint64(0), uint64(value), 0 if value >= 0 else -1
    groups = np.zeros(8, np.uint64)
    if not parse_ipv6_text(text, start, end, groups):
        return uint64(0), uint64(0), -1
    hi, lo = uint64(0), uint64(0)
    for part in range(4):
        hi = (hi << uint64(16)) | groups[part]
        lo = (lo << uint64(16)) | groups[4 + part]
    return hi, lo, 1


@subkernel
def dst_at(raw, layout, i, ranks=None):
    """Returns the destination of measurement i: (hi, lo, is_ipv6), is_ipv6 -1 if damaged."""
    if layout.kind == ARROW:
        return _parsed_dst(raw, layout, i)
    num_before = np.int64(0)  # IPv6 destinations
    if 0 < layout.num_ipv6 < layout.num_measurements:
        num_before = _ipv6_before(raw, layout, i, ranks)
    if not is_ipv6_at(raw, layout, i):
        return uint64(0), _load_big_endian(raw, layout.dst + 4 * (i - num_before)), 0
    place = num_before if layout.num_ipv6 < layout.num_measurements else i
    at = layout.dst_more + 16 * place
    hi = _load_big_endian(raw, at) << uint64(32) | _load_big_endian(raw, at + 4)
    lo = _load_big_endian(raw, at + 8) << uint64(32) | _load_big_endian(raw, at + 12)
    return hi, lo, 1


@subkernel
def all_readable(raw, layout):
    """Returns whether every destination of an ARROW row can be read."""
    num_damaged, ranks = 0, np.zeros(0, np.uint32)
    for i in range(layout.num_measurements):
        num_damaged += dst_at(raw, layout, i, ranks)[2] < 0
    return num_damaged == 0


@kernel
def are_readable(raw, layout):
    """Calls `all_readable` from Python."""
    return all_readable(raw, layout)
