"""Finds and checks records of uncompressed shards in place in the file.

Offsets skip the headers of the file's 64 KiB blocks. Chunks of one uncompressed record follow one
another, so the sizes in rows.parquet determine the offset of every record. Kernels recognise such a
file by its shape, uint8 [1, bytes]; other byte arrays are uint8 [bytes].
"""

from typing import NamedTuple

import numpy as np
from numba import uint8, uint16, uint32, uint64

from beam_pipeline.kernels import kernel, subkernel
from training.raw_shards.highway_hash import PACKET_BYTES, finish, new_state, update

BLOCK_BYTES = 1 << 16
_HEADER_BYTES = 24
_BODY_BYTES = BLOCK_BYTES - _HEADER_BYTES
_CHUNK_HEADER_BYTES = 40
_DATA_HEAD_BYTES = 2  # the compression (none), and the length of the record's size
_MAX_HEADS_BYTES = _CHUNK_HEADER_BYTES + _DATA_HEAD_BYTES + 5
_ONE_RECORD = ord("r") | 1 << 8


def record_offsets(num_bytes: np.ndarray) -> np.ndarray:
    """Returns the offsets of records of these sizes, with `group_size:1,uncompressed`."""
    num_bytes = num_bytes.astype(np.int64)
    size_bytes = 1 + sum(num_bytes >= 1 << bits for bits in (7, 14, 21, 28))
    heads = _CHUNK_HEADER_BYTES + _DATA_HEAD_BYTES + size_bytes
    # The file begins with a chunk that has a header only.
    return _CHUNK_HEADER_BYTES + np.cumsum(heads + num_bytes) - num_bytes


class Blocks(NamedTuple):
    """Bytes [begin, end) of a file, from the beginning of a block; a record's offset in them."""

    begin: int
    end: int
    offset: int


def blocks_of(offset: int, num_bytes: int) -> Blocks:
    """Returns the bytes that contain a record and the header of its chunk."""
    first = (offset - _MAX_HEADS_BYTES) // _BODY_BYTES
    last = (offset + num_bytes) // _BODY_BYTES
    end = offset + num_bytes + _HEADER_BYTES * (last + 1)
    return Blocks(first * BLOCK_BYTES, end, offset - first * _BODY_BYTES)


# --- bytes, in an array [bytes] or in blocks -----------------------------------------------------


@subkernel
def place_of(raw, at):
    """Returns the index in memory of the byte at an offset."""
    at = uint64(at)
    if raw.ndim == 1:
        return at
    return at + uint64(_HEADER_BYTES) * (at // uint64(_BODY_BYTES) + uint64(1))


@subkernel
def byte_at(raw, at):
    """Returns the byte at an offset."""
    if raw.ndim == 1:
        return raw[uint64(at)]
    return raw[0, place_of(raw, at)]


@subkernel
def load16(raw, at):
    """Returns the little-endian uint16 at an offset."""
    return uint16(byte_at(raw, at)) | (uint16(byte_at(raw, at + 1)) << uint16(8))


@subkernel
def load32(raw, at):
    """Returns the little-endian uint32 at an offset."""
    value = uint32(byte_at(raw, at))
    if raw.ndim == 2:
        place = place_of(raw, at)
        if place % uint64(BLOCK_BYTES) <= uint64(BLOCK_BYTES - 4):  # in one block: one load
            for i in range(1, 4):
                value |= uint32(raw[0, place + uint64(i)]) << uint32(8 * i)
            return value
    for i in range(1, 4):
        value |= uint32(byte_at(raw, at + i)) << uint32(8 * i)
    return value


@subkernel
def load64(raw, at):
    """Returns the little-endian uint64 at an offset."""
    low, high = load32(raw, at), load32(raw, at + 4)
    return uint64(low) | (uint64(high) << uint64(32))


@subkernel
def num_together(at, end):
    """Returns the number of bytes of [at, end) before the next header of a file."""
    return min(end - at, _BODY_BYTES - at % _BODY_BYTES)


@subkernel
def hash_of(raw, begin, num_bytes):
    """Returns the HighwayHash of bytes, uint64."""
    state, packet = new_state(), np.empty(PACKET_BYTES, np.uint8)
    at, end = begin, begin + num_bytes
    while end - at >= PACKET_BYTES:
        num = num_together(at, end) // PACKET_BYTES
        update(state, raw, np.int64(place_of(raw, at)), num)
        at += num * PACKET_BYTES
        if end - at >= PACKET_BYTES:  # a header interrupts this packet
            for i in range(PACKET_BYTES):
                packet[i] = byte_at(raw, at + i)
            update(state, packet, 0, 1)
            at += PACKET_BYTES
    for i in range(end - at):
        packet[i] = byte_at(raw, at + i)
    return finish(state, packet, end - at)


@subkernel
def _holds_record(raw, offset, num_bytes):
    size_bytes, rest = 1, num_bytes >> 7
    while rest > 0:
        size_bytes, rest = size_bytes + 1, rest >> 7
    data = offset - size_bytes - _DATA_HEAD_BYTES
    header, data_bytes = data - _CHUNK_HEADER_BYTES, _DATA_HEAD_BYTES + size_bytes + num_bytes
    if header < 0 or place_of(raw, offset + num_bytes) > raw.size:
        return False
    has_heads = (
        load64(raw, header + 8) == uint64(data_bytes)
        and load64(raw, header + 24) == uint64(_ONE_RECORD)
        and load64(raw, header + 32) == uint64(num_bytes)
        and byte_at(raw, data) == uint8(0)
        and byte_at(raw, data + 1) == uint8(size_bytes)
    )
    return has_heads and load64(raw, header + 16) == hash_of(raw, data, data_bytes)


@kernel
def is_intact(raw, offset, num_bytes):
    """Returns whether a record of that size is at an offset, intact and alone in its chunk."""
    return _holds_record(raw, offset, num_bytes)


@subkernel
def _copy_record(raw, offset, num_bytes, target, begin):
    at, end = offset, offset + num_bytes
    while at < end:
        num, place = num_together(at, end), np.int64(place_of(raw, at))
        # Separate views let the compiler copy many bytes at a time.
        to, source = target[begin:], raw[0, place:]
        for i in range(num):
            to[i] = source[i]
        at, begin = at + num, begin + num


@kernel
def record_in(raw, offset, num_bytes):
    """Returns a copy of a record of a file."""
    target = np.empty(num_bytes, np.uint8)
    _copy_record(raw, offset, num_bytes, target, 0)
    return target


@kernel
def copy_records(raw, offsets, num_bytes, target, begins, is_intact_row):
    """Copies the intact records of a file to target[begins].

    Records with False in is_intact_row, bool [records], are checked and their entries set.
    """
    for j in range(len(offsets)):
        if not is_intact_row[j]:
            is_intact_row[j] = _holds_record(raw, offsets[j], num_bytes[j])
        if is_intact_row[j]:
            _copy_record(raw, offsets[j], num_bytes[j], target, begins[j])
