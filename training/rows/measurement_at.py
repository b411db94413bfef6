"""Reads the time, RTT or destination of one measurement by the row's layout, in kernels."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types, uint8, uint16, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from beam_pipeline.dataset.addresses import parse_ipv4_text, parse_ipv6_text
from beam_pipeline.dataset.rtt import rtt_code
from beam_pipeline.kernels import kernel
from training.rows.row_layout import ARROW, RANK_BLOCK, load32, load64

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


# _prefetch(array, at) asks the processor for the cache line of array[at], without waiting for it.
_prefetch: Any = intrinsic(_generate_prefetch)


@njit
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


@njit
def _load16(raw, at):
    at = uint64(at)
    return uint16(raw[at]) | (uint16(raw[at + uint64(1)]) << uint16(8))


@njit
def _load_big_endian(raw, at, num_bytes):
    value = uint64(0)
    for i in range(num_bytes):
        value = (value << uint64(8)) | uint64(raw[uint64(at + i)])
    return value


@njit
def second_at(raw, layout, i):
    """Returns the second since 1970 of measurement i."""
    if layout.kind == ARROW:
        return np.int64(load64(raw, layout.times + 8 * i)) // _US_PER_SECOND
    return layout.first_second + np.int64(load32(raw, layout.times + 4 * i))


@njit
def rtt_code_at(raw, layout, i):
    """Returns the RTT of measurement i as `encode_rtt` gives it."""
    if layout.kind == ARROW:
        return np.int64(rtt_code(np.uint32(load32(raw, layout.rtts + 4 * i)).view(np.float32)))
    return np.int64(_load16(raw, layout.rtts + 2 * i))


@njit
def is_ipv6_at(raw, layout, i):
    """Tells whether the destination of measurement i is IPv6."""
    if layout.kind == ARROW:
        return raw[uint64(layout.families + i)] == uint8(6)
    if layout.num_ipv6 == 0 or layout.num_ipv6 == layout.num_measurements:
        return layout.num_ipv6 > 0
    byte = raw[uint64(layout.families + (i >> 3))]
    return (byte >> uint8(i & 7)) & uint8(1) == uint8(1)


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
    count = np.int64(load32(raw, layout.ranks + 4 * block))
    for at in range(block * RANK_BLOCK // 8, i // 8):
        count += _count_bits(raw[uint64(layout.families + at)])
    for bit in range(i & ~7, i):
        count += is_ipv6_at(raw, layout, bit)
    return count


@njit
def _parsed_dst(raw, layout, i):
    """Reads a destination that is text; is_ipv6 is -1 where the text is damaged."""
    start = np.int64(load32(raw, layout.dst + 4 * i))
    end = np.int64(load32(raw, layout.dst + 4 * i + 4))
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
    num_before = np.int64(0)  # IPv6 destinations
    if 0 < layout.num_ipv6 < layout.num_measurements:
        num_before = _ipv6_before(raw, layout, i)
    if not is_ipv6_at(raw, layout, i):
        return uint64(0), _load_big_endian(raw, layout.dst + 4 * (i - num_before), 4), 0
    place = num_before if layout.num_ipv6 < layout.num_measurements else i
    at = layout.dst_more + 16 * place
    return _load_big_endian(raw, at, 8), _load_big_endian(raw, at + 8, 8), 1


@kernel
def are_readable(raw, layout):
    """Tells whether every destination of a row can be read."""
    num_damaged = 0
    for i in range(layout.num_measurements):
        num_damaged += dst_at(raw, layout, i)[2] < 0
    return num_damaged == 0
