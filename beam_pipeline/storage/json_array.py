"""Splits a file of JSON into its objects: lines, the elements of an array, or a sequence.

A sequence has objects of any number of lines, one after the other, such as pretty-printed ones or
RFC 7464. Elements are found by brackets and quotes alone and are not validated.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
import orjson

from beam_pipeline.kernels import kernel
from beam_pipeline.storage.lines import PartialRecord, split_lines

_WHITESPACE = b" \t\r\n"
_QUOTE, _BACKSLASH, _COMMA = (np.uint8(ord(char)) for char in '"\\,')
_OPEN_LIST, _CLOSE_LIST, _OPEN_OBJECT, _CLOSE_OBJECT = (np.uint8(ord(char)) for char in "[]{}")
# The state of `_find_ends` between two blocks.
_DEPTH, _IN_STRING, _ESCAPED = range(3)
_RECORD_SEPARATOR = b"\x1e"  # of RFC 7464


class ArrayError(Exception):
    """A JSON array or sequence is truncated, or an array is followed by other content."""


def split_records(blocks: Iterable[bytes], max_record_bytes: int) -> Iterator[list[bytes]]:
    """Yields the lines of a file, or the objects of its array or sequence; lists of any length.

    Records are cut after `max_record_bytes` + 1 bytes.
    """
    blocks = iter(blocks)
    first_block = next(blocks, b"")
    split = split_lines
    if begins_array(first_block):
        split = split_array
    elif begins_sequence(first_block):
        split = split_sequence
    return split(chain([first_block], blocks), max_record_bytes)


def begins_sequence(block: bytes) -> bool:
    """Returns whether a file, given its beginning, has objects that are not one to a line."""
    if block.lstrip(_WHITESPACE).startswith(_RECORD_SEPARATOR):
        return True
    if _is_json(block.lstrip(_WHITESPACE).partition(b"\n")[0]):
        return False
    try:
        records = next(iter(split_sequence([block], len(block))), [])
    except ArrayError:  # the block may end within an object
        records = []
    return bool(records) and _is_json(records[0])


def _is_json(text: bytes) -> bool:
    try:
        return type(orjson.loads(text)) is dict
    except orjson.JSONDecodeError:
        return False


def split_sequence(blocks: Iterable[bytes], max_record_bytes: int) -> Iterator[list[bytes]]:
    """Yields the objects of a sequence, one list per block; blocks are cut anywhere."""
    state = np.zeros(3, np.int64)
    partial = PartialRecord(max_record_bytes)
    block = b""
    for block in blocks:
        block = block.replace(_RECORD_SEPARATOR, b" ")
        records, start = [], 0
        for end in _find_ends(np.frombuffer(block, np.uint8), state, True).tolist():
            records.append(partial.finish(block[start:end]).strip(_WHITESPACE))
            start = end
        partial.add(block[start:])
        yield records
    if partial.finish(b"").strip(_WHITESPACE):
        raise ArrayError("the last JSON object does not end: the file is truncated")


def begins_array(block: bytes) -> bool:
    """Returns whether a file, given its beginning without byte order mark, is a JSON array."""
    return block.lstrip(_WHITESPACE).startswith(b"[")


def split_array(blocks: Iterable[bytes], max_record_bytes: int) -> Iterator[list[bytes]]:
    """Yields the elements of a JSON array with surrounding whitespace, one list per block.

    Blocks are cut anywhere; elements are cut after `max_record_bytes` + 1 bytes.
    """
    state = np.zeros(3, np.int64)
    partial = PartialRecord(max_record_bytes)
    has_begun = has_ended = has_elements = False
    for block in blocks:
        if not has_begun:
            block = block.lstrip(_WHITESPACE)[1:]
            has_begun, state[_DEPTH] = True, 1
        if has_ended:
            _expect_blank(block)
            continue
        records, start = [], 0
        for end in _find_ends(np.frombuffer(block, np.uint8), state, False).tolist():
            records.append(partial.finish(block[start:end]))
            start = end + 1
        if state[_DEPTH] == 0:
            has_ended = True
            _expect_blank(block[start:])
            if not has_elements and len(records) == 1 and not records[0].strip(_WHITESPACE):
                records = []  # the array is empty
        else:
            partial.add(block[start:])
        has_elements = has_elements or bool(records)
        yield records
    if not has_ended:
        raise ArrayError("the JSON array does not end: the file is truncated")


def _expect_blank(block: bytes) -> None:
    if block.strip(_WHITESPACE):
        raise ArrayError("other content follows the end of the JSON array")


@kernel
def _find_ends(block, state, is_sequence):
    """Returns the ends of elements: commas and the end of the array, or those of objects."""
    ends = np.empty(block.size, np.int32)
    depth, in_string, escaped = state[_DEPTH], state[_IN_STRING], state[_ESCAPED]
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
                ends[count] = at + 1 if is_sequence else at
                count += 1
                if not is_sequence:
                    break
        elif byte == _COMMA and depth == 1 and not is_sequence:
            ends[count] = at
            count += 1
    state[_DEPTH], state[_IN_STRING], state[_ESCAPED] = depth, in_string, escaped
    return ends[:count]
