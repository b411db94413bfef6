"""Cuts JSON lines and JSON arrays into records: the bytes of one value each, in bounded memory.

Bytes come in as blocks, records leave as lists, one for each block. Lines end at b"\\n" alone,
and a blank line is no record, as readers of JSON lines have it. The elements of an array are told
by brackets and quotes alone: whether one is JSON is seen when it is parsed.
"""

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np

from beam_pipeline.kernels import kernel

BLOCK_BYTES = 1 << 20
# The bound keeps a file without line ends out of memory.
MAX_RECORD_BYTES = 128 << 20
# Stands for a record over that bound; compared by `is`. No JSON holds a NUL.
TOO_LONG = b"\0 a record over MAX_RECORD_BYTES"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WHITESPACE = b" \t\r\n"
_QUOTE, _BACKSLASH, _COMMA = (np.uint8(ord(char)) for char in '"\\,')
_OPEN_LIST, _CLOSE_LIST, _OPEN_OBJECT, _CLOSE_OBJECT = (np.uint8(ord(char)) for char in "[]{}")
# What the kernel knows at the end of a block.
_DEPTH, _IN_STRING, _ESCAPED = range(3)


class ArrayError(Exception):
    """A JSON array does not end, or something comes after it."""


class _Unfinished:
    """The beginning of a record whose end has not been seen, or that it is too long."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.num_bytes = 0

    def add(self, piece: bytes) -> None:
        self.num_bytes += len(piece)
        if self.num_bytes > MAX_RECORD_BYTES:
            self.pieces.clear()
        else:
            self.pieces.append(piece)

    def finished(self, last_piece: bytes) -> bytes:
        """Returns the whole record; the next one begins."""
        self.add(last_piece)
        too_long = self.num_bytes > MAX_RECORD_BYTES
        record = TOO_LONG if too_long else b"".join(self.pieces)
        self.pieces, self.num_bytes = [], 0
        return record


def blocks_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yields all of a stream, less a byte order mark."""
    mark = _BYTE_ORDER_MARK
    while block := stream.read(BLOCK_BYTES):
        yield block.removeprefix(mark)
        mark = b""


def blocks_of_range(stream: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """Yields the bytes of all lines that begin in [start, end) of a file."""
    # A line begins at `start` if the byte before it ends one.
    at = start - 1 if start else _size_of_byte_order_mark(stream)
    stream.seek(at)
    has_begun = start == 0
    has_ended = not has_begun
    while at < end and (block := stream.read(min(BLOCK_BYTES, end - at))):
        at += len(block)
        if not has_begun:
            _, newline, block = block.partition(b"\n")
            has_begun = bool(newline)
        if block:
            has_ended = block.endswith(b"\n")
            yield block
    while not has_ended and (block := stream.read(BLOCK_BYTES)):
        rest, newline, _ = block.partition(b"\n")
        has_ended = bool(newline)
        yield rest + newline


def _size_of_byte_order_mark(stream: BinaryIO) -> int:
    size = len(_BYTE_ORDER_MARK)
    return size if stream.read(size) == _BYTE_ORDER_MARK else 0


def lines_of(blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yields the lines that are not blank, without their ends."""
    unfinished = _Unfinished()
    for block in blocks:
        lines = block.split(b"\n")
        if len(lines) > 1:
            lines[0] = unfinished.finished(lines[0])
            yield [line for line in lines[:-1] if line and not line.isspace()]
        unfinished.add(lines[-1])
    line = unfinished.finished(b"")
    if line and not line.isspace():
        yield [line]


def is_array(first_block: bytes) -> bool:
    """Tells by the beginning of a JSON file whether it is one array."""
    return first_block.lstrip(_WHITESPACE).startswith(b"[")


def elements_of(blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yields the elements of a JSON array, with the whitespace around them.

    Raises:
      ArrayError: the array does not end, or something comes after it.
    """
    state = np.zeros(3, np.int64)
    ends = np.empty(BLOCK_BYTES, np.int32)
    unfinished = _Unfinished()
    has_begun = has_ended = has_elements = False
    for block in blocks:
        if not has_begun:
            block = block.lstrip(_WHITESPACE)[1:]
            has_begun, state[_DEPTH] = True, 1
        if has_ended:
            _expect_blank(block)
            continue
        count = _find_ends(np.frombuffer(block, np.uint8), state, ends) if block else 0
        records, start = [], 0
        for end in ends[:count].tolist():
            records.append(unfinished.finished(block[start:end]))
            start = end + 1
        if state[_DEPTH] == 0:
            has_ended = True
            _expect_blank(block[start:])
            if not has_elements and len(records) == 1 and not records[0].strip(_WHITESPACE):
                records = []  # there is nothing in [ ]
        else:
            unfinished.add(block[start:])
        has_elements = has_elements or bool(records)
        yield records
    if not has_ended:
        raise ArrayError("the JSON array does not end: the file is cut short")


def _expect_blank(block: bytes) -> None:
    if block.strip(_WHITESPACE):
        raise ArrayError("something follows the end of the JSON array")


@kernel
def _find_ends(block, state, ends):
    """Fills where elements end, at a comma or at the end of the array; returns how many do."""
    depth, in_string, escaped = state[0], state[1], state[2]
    count = 0
    for at in range(block.size):
        byte = block[at]
        if in_string:
            if escaped:
                escaped = 0
            elif byte == _BACKSLASH:
                escaped = 1
            elif byte == _QUOTE:
                in_string = 0
        elif byte == _QUOTE:
            in_string = 1
        elif byte in (_OPEN_LIST, _OPEN_OBJECT):
            depth += 1
        elif byte in (_CLOSE_LIST, _CLOSE_OBJECT):
            depth -= 1
            if depth == 0:
                ends[count] = at
                count += 1
                break
        elif byte == _COMMA and depth == 1:
            ends[count] = at
            count += 1
    state[0], state[1], state[2] = depth, in_string, escaped
    return count
