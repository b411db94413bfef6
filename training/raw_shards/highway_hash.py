"""64-bit HighwayHash, the checksum of an ArrayRecord chunk, computed over bytes in place.

ArrayRecord's reader computes it over a copy of every record. The four lanes of the state are LLVM
vectors, because numba does not vectorise a plain loop, which takes twice as long.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types, uint32, uint64
from numba.extending import intrinsic

from beam_pipeline.kernels import subkernel

PACKET_BYTES = 32
_KEY = np.frombuffer(b"Riegeli/records\nRiegeli/records\n", "<u8")
_MULTIPLIERS = np.array(
    [
        *(0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3),
        *(0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377),
    ],
    np.uint64,
)
_SWAPPED_KEY = _KEY >> np.uint64(32) | _KEY << np.uint64(32)
# v0, v1, mul0 and mul1 of the algorithm, four lanes each.
_START = np.concatenate([_MULTIPLIERS ^ np.concatenate([_KEY, _SWAPPED_KEY]), _MULTIPLIERS])
# The source of each byte when two lanes are mixed.
_ZIPPER = (3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7)


def _generate_update(typing_context, state, raw, at, num_packets):
    def generate(context, builder, signature, args):
        number, lanes = ir.IntType(64), ir.VectorType(ir.IntType(64), 4)
        lane_bytes = ir.VectorType(ir.IntType(8), PACKET_BYTES)
        order = [half + place for half in (0, 16) for place in _ZIPPER]
        shuffled = ir.Constant(ir.VectorType(ir.IntType(32), PACKET_BYTES), order)

        def constant(value):
            return ir.Constant(lanes, [value] * 4)

        def zipped(vector):
            cells = builder.bitcast(vector, lane_bytes)
            nothing = ir.Constant(lane_bytes, ir.Undefined)
            return builder.bitcast(builder.shuffle_vector(cells, nothing, shuffled), lanes)

        def product(low_of, high_of):
            low = builder.and_(low_of, constant(0xFFFF_FFFF))
            return builder.mul(low, builder.lshr(high_of, constant(32)))

        arrays = zip(signature.args[:2], args)
        pointers = [
            context.make_array(kind)(context, builder, array).data for kind, array in arrays
        ]
        first = builder.bitcast(pointers[0], lanes.as_pointer())
        places = [builder.gep(first, [number(part)]) for part in range(4)]
        before = [builder.load(place, align=8) for place in places]
        entry = builder.basic_block
        head, body, end = (builder.append_basic_block() for _ in range(3))
        builder.branch(head)
        builder.position_at_end(head)
        count, *parts = builder.phi(number), *(builder.phi(lanes) for _ in before)
        builder.cbranch(builder.icmp_signed("<", count, args[3]), body, end)
        builder.position_at_end(body)
        v0, v1, mul0, mul1 = parts
        here = builder.add(args[2], builder.mul(count, number(PACKET_BYTES)))
        packet = builder.bitcast(builder.gep(pointers[1], [here]), lanes.as_pointer())
        v1 = builder.add(v1, builder.add(mul0, builder.load(packet, align=1)))
        mul0 = builder.xor(mul0, product(v1, v0))
        v0 = builder.add(v0, mul1)
        mul1 = builder.xor(mul1, product(v0, v1))
        v0 = builder.add(v0, zipped(v1))
        v1 = builder.add(v1, zipped(v0))
        after = builder.add(count, number(1))
        for phi, old, new in zip(
            [count, *parts], [number(0), *before], [after, v0, v1, mul0, mul1]
        ):
            phi.add_incoming(old, entry)
            phi.add_incoming(new, body)
        builder.branch(head)
        builder.position_at_end(end)
        for place, part in zip(places, parts):
            builder.store(part, place, align=8)
        return context.get_dummy_value()

    return types.void(state, raw, types.int64, types.int64), generate


# update(state, raw, at, num_packets) hashes the packets from raw[at] on; raw is uint8 [bytes].
update: Any = intrinsic(_generate_update)


@subkernel
def new_state():
    """Returns the state, uint64 [16], before the first packet."""
    return _START.copy()


@subkernel
def _swapped(word):
    return word >> uint64(32) | word << uint64(32)


@subkernel
def _rotated(half, num_bits):
    return uint32(half << num_bits) | half >> uint32(32 - num_bits)


@subkernel
def finish(state, rest, num_rest):
    """Returns the hash of the packets so far and of the first `num_rest` < 32 bytes of `rest`."""
    packet = np.zeros(4, np.uint64)
    cells = packet.view(np.uint8)
    if num_rest > 0:
        for lane in range(4):
            state[lane] += (uint64(num_rest) << uint64(32)) + uint64(num_rest)
            low = _rotated(uint32(state[4 + lane]), num_rest)
            high = _rotated(uint32(state[4 + lane] >> uint64(32)), num_rest)
            state[4 + lane] = uint64(high) << uint64(32) | uint64(low)
        whole, more = num_rest & ~3, num_rest & 3
        for i in range(whole):
            cells[i] = rest[i]
        if num_rest & 16:
            for i in range(4):
                cells[28 + i] = rest[num_rest - 4 + i]
        elif more:
            cells[16] = rest[whole]
            cells[17] = rest[whole + (more >> 1)]
            cells[18] = rest[num_rest - 1]
        update(state, cells, 0, 1)
    for _ in range(4):
        for lane in range(4):
            packet[lane] = _swapped(state[lane ^ 2])
        update(state, cells, 0, 1)
    return state[0] + state[4] + state[8] + state[12]
