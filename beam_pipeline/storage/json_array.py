"""Splits a file that is one JSON array into its elements, without the array in memory.

Elements are found by brackets and quotes alone and are not validated.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from beam_pipeline.kernels import kernel
from beam_pipeline.storage.lines import PartialRecord

_WHITESPACE = b" \t\r\n"
_QUOTE, _BACKSLASH, _COMMA = (np.uint8(ord(char)) for char in '"\\,')
_OPEN_LIST, _CLOSE_LIST, _OPEN_OBJECT, _CLOSE_OBJECT = (np.uint8(ord(char)) for char in "[]{}")
# The state of `_find_ends` between two blocks.
_DEPTH, _IN_STRING, _ESCAPED = range(3)


class ArrayError(Exception):
    """A JSON array is truncated or followed by other content."""


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
        for end in _find_ends(np.frombuffer(block, np.uint8), state).tolist():
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
def _find_ends(block, state):
    """Returns the ends of elements: commas, and the end of the array."""
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
                ends[count] = at
                count += 1
                break
        elif byte == _COMMA and depth == 1:
            ends[count] = at
            count += 1
    state[_DEPTH], state[_IN_STRING], state[_ESCAPED] = depth, in_string, escaped
    return ends[:count]
