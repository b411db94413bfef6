"""Reads a part of a bzip2 file without decompressing what is before it.

  file: header | block | block | … | end mark, checksum, padding | header of the next stream | …

A block holds up to 900 kB of text and begins with a mark of 48 bits, at any bit. Marks are searched
for, and each block is shifted to a byte, put behind a header of its own and decompressed; its own
checksum is verified. The checksum of a stream, which only adds the order of its blocks, is not.
"""

import bz2
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from beam_pipeline.storage.lines import BLOCK_BYTES, BYTE_ORDER_MARK

_BLOCK, _END = 0x314159265359, 0x177245385090
_HEADER = b"BZh9"  # for blocks of any size
_HEADER_BITS, _MARK_BITS, _CHECKSUM_BITS = 32, 48, 32
_HEAD_BYTES = 16  # header and first mark of a stream fit
_CHUNK_BYTES = 1 << 20
_MAX_BLOCK_BYTES = 2 << 20  # compressed, which adds little to 900 kB


class _Pattern(NamedTuple):
    """A mark that begins at one of the bits of a byte, as bits of the 8 bytes from there."""

    is_block: bool
    bit: int
    value: int
    mask: int
    inner: bytes  # of the second byte to the sixth, which have no other bits


def _pattern(mark: int, bit: int) -> _Pattern:
    shift = 64 - _MARK_BITS - bit
    value, mask = mark << shift, (1 << _MARK_BITS) - 1 << shift
    return _Pattern(mark == _BLOCK, bit, value, mask, value.to_bytes(8, "big")[1:6])


_PATTERNS = [_pattern(mark, bit) for mark in (_BLOCK, _END) for bit in range(8)]


def read_lines_of_span(stream: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """Yields all lines that begin in the blocks at bytes [start, end), without byte order mark.

    What is before the first line end belongs to the span before, unless `start` is 0.

    Raises:
      OSError, EOFError: a block is damaged, or the file is truncated; after all blocks before it.
    """
    has_begun = start == 0
    for number, (bit, block) in enumerate(_read_blocks(stream, start)):
        if bit >= 8 * end:  # only the rest of the last line
            if not has_begun:
                return
            line, newline, _ = block.partition(b"\n")
            yield line + newline
            if newline:
                return
            continue
        if start == number == 0:
            block = block.removeprefix(BYTE_ORDER_MARK)
        if not has_begun:
            _, newline, block = block.partition(b"\n")
            has_begun = bool(newline)
        for at in range(0, len(block), BLOCK_BYTES):  # runs of a byte may be long
            yield block[at : at + BLOCK_BYTES]


def _read_blocks(stream: BinaryIO, start: int) -> Iterator[tuple[int, bytes]]:
    """Yields the place in bits, and the content, of all blocks that begin at byte `start` or later.

    A mark may also occur by chance. Then the bits up to it are no whole block: they give nothing.
    """
    stream.seek(start)
    data, base = b"", start  # from the byte in which the open block begins
    block: int | None = None
    searched = complete = 8 * start
    expected = None if start else _HEADER_BITS  # of the first mark of a stream
    while chunk := stream.read(_CHUNK_BYTES):
        data += chunk
        for bit, is_block in _find_marks(data, base, searched):
            searched = bit + 1
            if block is not None:
                content = _decompressed(data, block - 8 * base, bit - 8 * base)
                if not content:
                    continue
                yield block, content
            elif bit != (expected or bit):  # the mark of a block before it is damaged
                raise OSError("Invalid data stream")
            block = bit if is_block else None
            complete = bit + _MARK_BITS + (0 if is_block else _CHECKSUM_BITS)
            expected = -(-complete // 8) * 8 + _HEADER_BITS
        searched = max(searched, 8 * (base + len(data) - _HEAD_BYTES))
        cut = (searched if block is None else block) // 8 - base
        data, base = data[cut:], base + cut
        if block is not None and len(data) > _MAX_BLOCK_BYTES:
            raise OSError("Invalid data stream")
    if block is not None and (content := _decompressed(data, block - 8 * base, len(data) * 8)):
        yield block, content
    rest = data[max(0, -(-complete // 8) - base) :][: len(_HEADER) - 1]
    has_begun = bool(rest) and _HEADER.startswith(rest)  # a stream without a whole mark
    if block is not None or has_begun or complete > 8 * (base + len(data)):
        raise EOFError("Compressed file ended before the end-of-stream marker was reached")


def _find_marks(data: bytes, base: int, first: int) -> list[tuple[int, bool]]:
    """Returns the places in bits, from `first` on, of all marks in data, and which begin a block.

    `base` is the place of the data in the file, in bytes.
    """
    found = []
    for pattern in _PATTERNS:
        at = data.find(pattern.inner, max(0, first // 8 - base))
        while at >= 0:
            place = 8 * (base + at - 1) + pattern.bit
            is_whole = at > 0 and place + _MARK_BITS <= 8 * (base + len(data))
            bits = int.from_bytes(data[at - 1 : at + 7].ljust(8, b"\0"), "big")
            if is_whole and bits & pattern.mask == pattern.value and place >= first:
                found.append((place, pattern.is_block))
            at = data.find(pattern.inner, at + 1)
    return sorted(found)


def _decompressed(data: bytes, first: int, last: int) -> bytes:
    """Returns the content of the block in bits [first, last); b"" if it is not whole."""
    shifted = np.frombuffer(data, np.uint8)[first // 8 : -(-last // 8)]
    if shift := first % 8:
        shifted = shifted << shift | np.append(shifted[1:], np.uint8(0)) >> (8 - shift)
    # Less than a byte of the next mark, which would be checked.
    aligned = shifted[: -(-(last - first) // 8)].tobytes()
    decompressor = bz2.BZ2Decompressor()
    parts = [decompressor.decompress(_HEADER + aligned)]
    while parts[-1]:  # it returns some 32 KiB once it has read all
        parts.append(decompressor.decompress(b""))
    return b"".join(parts)
