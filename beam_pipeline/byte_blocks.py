"""Bytes in kernels, 64 at a time: masks of the bytes in a range, and words.

A processor compares 64 bytes in a few branch-free steps; the result is a mask with one bit per
byte. numba has no vector types, hence the LLVM below. Bounds are not checked: arrays must have 64
or 8 bytes from `at`.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from beam_pipeline.kernels import subkernel

BLOCK = np.uint64(64)  # bytes, and bits of a mask
_LANES, _WORD = ir.VectorType(ir.IntType(8), 64), ir.IntType(64)
_EVERY_LANE = ir.Constant(ir.VectorType(ir.IntType(32), 64), [0] * 64)
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_ONE, _TWO, _THREE, _FOUR, _EIGHT = (np.uint64(n) for n in (1, 2, 3, 4, 8))


def _pointer(context, builder, array_type, array, at, kind):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), kind.as_pointer())


def _in_all_lanes(builder, byte):
    first = builder.insert_element(ir.Constant(_LANES, ir.Undefined), byte, ir.IntType(32)(0))
    return builder.shuffle_vector(first, ir.Constant(_LANES, ir.Undefined), _EVERY_LANE)


def _is_in_range(builder, block, low, span):
    distance = builder.sub(block, _in_all_lanes(builder, low))
    return builder.icmp_unsigned("<=", distance, _in_all_lanes(builder, span))


def _generate_mask(typing_context, data, at, low, span):
    def generate(context, builder, signature, args):
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1], _LANES)
        is_in = _is_in_range(builder, builder.load(pointer, align=1), args[2], args[3])
        return builder.bitcast(is_in, _WORD)

    return types.uint64(data, types.uint64, types.uint8, types.uint8), generate


def _generate_copy(typing_context, data, at, low, span, add, target, to):
    def generate(context, builder, signature, args):
        source = _pointer(context, builder, signature.args[0], args[0], args[1], _LANES)
        block = builder.load(source, align=1)
        added = builder.add(block, _in_all_lanes(builder, args[4]))
        block = builder.select(_is_in_range(builder, block, args[2], args[3]), added, block)
        place = _pointer(context, builder, signature.args[5], args[5], args[6], _LANES)
        builder.store(block, place, align=1)
        return context.get_dummy_value()

    byte = types.uint8
    return types.void(data, types.uint64, byte, byte, byte, target, types.uint64), generate


def _generate_load(typing_context, data, at):
    def generate(context, builder, signature, args):
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1], _WORD)
        return builder.load(pointer, align=1)

    return types.uint64(data, types.uint64), generate


def _generate_count(typing_context, mask):
    def generate(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate


def _generate_first(typing_context, mask):
    def generate(context, builder, signature, args):
        return builder.cttz(args[0], ir.IntType(1)(0))

    return types.uint64(types.uint64), generate


# mask_of(data, at, low, span): bit i is low <= data[at + i] <= low + span.
mask_of: Any = intrinsic(_generate_mask)
# copy_block(data, at, low, span, add, target, to) copies 64 bytes; those in the range become + add.
copy_block: Any = intrinsic(_generate_copy)
# load_word(data, at): the 8 bytes from `at` on, the first one lowest.
load_word: Any = intrinsic(_generate_load)
# count_bits(mask), and first_bit(mask): 64 if none is set.
count_bits: Any = intrinsic(_generate_count)
first_bit: Any = intrinsic(_generate_first)


@subkernel
def low_bits(count):
    """Returns a mask of the first `count` bits, 1 to 64."""
    return _ALL >> (BLOCK - count)


@subkernel
def put_bits(mask, first, places, count):
    """Writes first + i for each set bit i to places[count:]; returns the new count.

    It needs room for 7 more, since it writes eight at a time: the processor would mispredict the
    number of bits.
    """
    num_bits = count_bits(mask)
    for written in range(np.uint64(0), num_bits, _EIGHT):
        for at in range(count + written, count + written + _EIGHT):
            places[at] = first + first_bit(mask)
            mask &= mask - _ONE
    return count + num_bits


@subkernel
def put_code_point(code, text, size):
    """Writes a code point as UTF-8; returns the new size of the text."""
    if code < 0x80:
        text[size] = code
        return size + _ONE
    if code < 0x800:
        text[size], text[size + _ONE] = 0xC0 | code >> 6, 0x80 | code & 0x3F
        return size + _TWO
    if code < 0x10000:
        text[size], text[size + _ONE] = 0xE0 | code >> 12, 0x80 | code >> 6 & 0x3F
        text[size + _TWO] = 0x80 | code & 0x3F
        return size + _THREE
    text[size], text[size + _ONE] = 0xF0 | code >> 18, 0x80 | code >> 12 & 0x3F
    text[size + _TWO], text[size + _THREE] = 0x80 | code >> 6 & 0x3F, 0x80 | code & 0x3F
    return size + _FOUR
