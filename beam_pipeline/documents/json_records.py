"""Splits JSON files into records: lines, or the elements of one array, without parsing them.

  blocks of bytes, cut anywhere → split_records → Records: buffers of whole records

Lines end at b"\\n"; elements are found by brackets and quotes. The buffers hold every byte of the
file, so that a copy can keep what it does not change. Memory is bounded: a longer record is cut.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import orjson

from beam_pipeline.kernels import kernel
from beam_pipeline.storage.lines import split_lines

PADDING = bytes(64)  # after the records, for kernels that read beyond them
_WHITESPACE = b" \t\r\n"
_QUOTE, _BACKSLASH, _COMMA, _COLON, _SPACE = (np.uint8(ord(char)) for char in '"\\,: ')
_OPEN_LIST, _CLOSE_LIST, _OPEN_OBJECT, _CLOSE_OBJECT = (np.uint8(ord(char)) for char in "[]{}")
_TAB, _LINE_FEED, _RETURN = (np.uint8(ord(char)) for char in "\t\n\r")
_NONE = np.empty(0, np.int64)
_RECORD_SEPARATOR = b"\x1e"  # of RFC 7464
_BETWEEN = _WHITESPACE + _RECORD_SEPARATOR
_SEPARATOR = np.uint8(0x1E)
# The state of `_find_ends` between two blocks: depth, whether in a string, whether after a
# backslash, the last byte of the open element that is not space. The depth comes first.
_DEPTH, _STATE = 0, 4


class Records(NamedTuple):
    """Consecutive bytes of a file, with the records in them: record i is data[starts[i]:stops[i]].

    Before and after the records are separators, blank lines, brackets of an array, and what was cut
    from records. PADDING follows.
    """

    data: bytes
    starts: np.ndarray  # int64 [k]
    stops: np.ndarray  # int64 [k]
    num_blank: int = 0  # lines of only whitespace

    @property
    def count(self) -> int:
        return len(self.starts)

    @property
    def max_bytes(self) -> int:
        return int(np.max(self.stops - self.starts, initial=0))

    @property
    def content(self) -> memoryview:
        """The bytes of the file."""
        return memoryview(self.data)[: -len(PADDING)]

    def at(self, number: int) -> bytes:
        return self.data[self.starts[number] : self.stops[number]]

    def each(self) -> list[bytes]:
        bounds = zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        return [self.data[start:stop] for start, stop in bounds]


def split_records(
    blocks: Iterable[bytes],
    may_be_array: bool,
    max_record_bytes: int,
    may_be_sequence: bool = True,
) -> Iterator[Records]:
    """Yields all bytes of a file in order, with the records that end in each block.

    With `may_be_array`, a file that begins with `[` is an array. With `may_be_sequence`, it may
    have objects that are not one to a line. Otherwise it has lines, of which blank ones are not
    records. A longer record is cut after `max_record_bytes` + 1 bytes. Raises ArrayError if the
    array or the last object does not end, or something follows the array.
    """
    blocks = iter(blocks)
    first_block = next(blocks, b"")
    is_array = may_be_array and begins_array(first_block)
    form = _Array() if is_array else _Lines()
    if may_be_sequence and not is_array and begins_sequence(first_block):
        form = _Sequence()
    lead = first_block.index(b"[") + 1 if is_array else 0  # before the first record
    held: list[bytes] = []  # since the last end
    is_cut = False  # their record has been yielded
    for block in chain([first_block], blocks):
        ends = form.ends(block)
        if is_cut and len(ends):
            stop = int(ends[0]) + 1
            yield _records([block[:stop]])
            block, ends, is_cut = block[stop:], ends[1:] - stop, False
        if len(ends):
            stop, stops = int(ends[-1]) + 1, ends + sum(map(len, held))
            starts = np.append(lead, stops[:-1] + 1)
            stops = np.minimum(stops + form.tail, starts + max_record_bytes + 1)
            yield form.without_blank(_records([*held, memoryview(block)[:stop]], starts, stops))
            block, held, lead = block[stop:], [], 0
        held.append(block)
        size = sum(map(len, held)) - lead
        if size and (is_cut or form.has_ended):
            yield _records(held)
            held = []
        elif size > max_record_bytes:
            starts, stops = np.array([[lead], [lead + max_record_bytes + 1]])
            yield form.without_blank(_records(held, starts, stops))
            held, lead, is_cut = [], 0, True
    form.check_end()
    if any(held):
        starts, stops = np.array([[0], [sum(map(len, held))]])
        yield form.without_blank(_records(held, starts, stops))


def _records(
    parts: Sequence[bytes | memoryview], starts: np.ndarray = _NONE, stops: np.ndarray = _NONE
) -> Records:
    return Records(b"".join((*parts, PADDING)), starts, stops)


# --- lines ----------------------------------------------------------------------------------------


class _Lines:
    """Finds lines, and leaves out blank ones."""

    has_ended, tail = False, 0

    def ends(self, block: bytes) -> np.ndarray:
        """Returns the positions of line feeds, int64."""
        return np.flatnonzero(np.frombuffer(block, np.uint8) == _LINE_FEED)

    def without_blank(self, records: Records) -> Records:
        """Returns the records that are not blank."""
        data, starts, stops, _ = records
        first = np.frombuffer(data, np.uint8)[starts]
        is_record = (first > _SPACE) | (first < _TAB) | (first > _RETURN) & (first < _SPACE)
        is_space = ~is_record & (starts < stops)  # begins with whitespace; the others are empty
        for at in np.flatnonzero(is_space).tolist():
            is_record[at] = not data[starts[at] : stops[at]].isspace()
        num_blank = len(starts) - int(np.count_nonzero(is_record))
        return Records(data, starts[is_record], stops[is_record], num_blank)

    def check_end(self) -> None:
        """Accepts any end."""


# --- arrays ---------------------------------------------------------------------------------------


class ArrayError(Exception):
    """A JSON array or sequence is truncated, or an array is followed by other content."""


def begins_array(block: bytes) -> bool:
    """Returns whether a file, given its beginning without byte order mark, is a JSON array."""
    return block.lstrip(_WHITESPACE).startswith(b"[")


# --- files of objects -----------------------------------------------------------------------------


def split_objects[T](
    blocks: Iterable[bytes],
    max_record_bytes: int,
    of_lines: Callable[[Iterable[bytes], int], Iterator[T]] = split_lines,
) -> Iterator[T | list[bytes]]:
    """Yields the lines of a file, or the elements of its array or sequence; lists of any length.

    A sequence has objects of any number of lines, one after the other, such as pretty-printed ones
    or RFC 7464. Records are cut after `max_record_bytes` + 1 bytes. Lines are split by `of_lines`.
    """
    blocks = iter(blocks)
    first_block = next(blocks, b"")
    blocks = chain([first_block], blocks)
    if not begins_array(first_block) and not begins_sequence(first_block):
        return of_lines(blocks, max_record_bytes)
    return (records.each() for records in split_records(blocks, True, max_record_bytes))


def begins_sequence(block: bytes) -> bool:
    """Returns whether a file, given its beginning, has objects that are not one to a line."""
    block = block.lstrip(_WHITESPACE)
    if block.startswith(_RECORD_SEPARATOR):
        return True
    line = block.partition(b"\n")[0]
    if not block.startswith(b"{") or is_object(line):
        return False
    if not line[1:].strip(_WHITESPACE) and block[1:].lstrip(_WHITESPACE).startswith(b'"'):
        return True  # an object of several lines
    ends = _find_ends(np.frombuffer(block, np.uint8), np.zeros(_STATE, np.int64), True)
    if not len(ends):
        return False
    if not is_object(block[: ends[0]]):  # a broken one; then the next one in its line tells
        return (
            len(ends) > 1
            and line[ends[0] :].lstrip().startswith(b"{")
            and is_object(block[ends[0] : ends[1]])
        )
    rest = block[ends[0] :].lstrip(_BETWEEN)
    return not rest or rest.startswith(b"{")


def is_object(text: bytes) -> bool:
    """Returns whether a text is one JSON object."""
    try:
        return type(orjson.loads(text)) is dict
    except orjson.JSONDecodeError:
        return False


class _Array:
    """Finds elements, with surrounding whitespace."""

    tail = 0

    def __init__(self) -> None:
        self.has_ended = self._has_elements = False
        self._state = np.zeros(_STATE, np.int64)

    def ends(self, block: bytes) -> np.ndarray:
        """Returns the positions of commas between elements and of the last bracket, int64."""
        if self.has_ended:
            ends, rest = _NONE, block
        else:
            ends = _find_ends(np.frombuffer(block, np.uint8), self._state, False).astype(np.int64)
            self.has_ended = self._state[_DEPTH] == 0
            rest = block[ends[-1] + 1 :] if self.has_ended else b""
        if rest.strip(_WHITESPACE):
            raise ArrayError("other content follows the end of the JSON array")
        return ends

    def without_blank(self, records: Records) -> Records:
        """Returns all records, but none for an empty array."""
        may_be_empty = self.has_ended and not self._has_elements and records.count == 1
        self._has_elements = True
        if may_be_empty and not records.at(0).strip(_WHITESPACE):
            return records._replace(starts=_NONE, stops=_NONE)
        return records

    def check_end(self) -> None:
        """Raises ArrayError if the array has not ended."""
        if not self.has_ended:
            raise ArrayError("the JSON array does not end: the file is truncated")


class _Sequence:
    """Finds objects that follow each other, with whitespace or nothing between them."""

    has_ended, tail = False, 1  # a record ends with its last bracket

    def __init__(self) -> None:
        self._state = np.zeros(_STATE, np.int64)

    def ends(self, block: bytes) -> np.ndarray:
        """Returns the positions of the objects' last brackets, int64."""
        return _find_ends(np.frombuffer(block, np.uint8), self._state, True).astype(np.int64) - 1

    def without_blank(self, records: Records) -> Records:
        """Returns the records without whitespace and separators before them."""
        starts, stops = records.starts, records.stops
        lead = [len(record) - len(record.lstrip(_BETWEEN)) for record in records.each()]
        starts = starts + np.array(lead, np.int64)
        return records._replace(starts=starts[starts < stops], stops=stops[starts < stops])

    def check_end(self) -> None:
        """Raises ArrayError if the last object has not ended."""
        if self._state[_DEPTH]:
            raise ArrayError("the last JSON object does not end: the file is truncated")


@kernel
def _find_ends(block, state, is_sequence):
    """Returns the ends of elements: commas and the end of the array, or those of objects.

    In a sequence, a broken object takes no other with it: it ends before what JSON cannot have
    there, which is a line feed in a string, a bracket after a value, or a record separator.
    """
    ends = np.empty(block.size, np.int32)
    depth, in_string, escaped, last = state[0], state[1], state[2], state[3]
    count = 0
    for at in range(block.size):
        byte = block[at]
        if in_string and byte >= _SPACE:
            if escaped:
                escaped = 0
            elif byte == _BACKSLASH:
                escaped = 1
            elif byte == _QUOTE:
                in_string = 0
            continue
        if is_sequence and last:
            is_broken = byte == _SEPARATOR or (byte == _LINE_FEED and (in_string or depth == 0))
            if byte == _OPEN_OBJECT:
                is_broken = depth == 0 or last not in (_COLON, _COMMA, _OPEN_LIST)
            if is_broken:
                ends[count] = at
                count += 1
                depth, in_string, last = 0, 0, 0
        escaped = 0
        if byte > _SPACE:
            last = byte
        if byte == _QUOTE:
            in_string = 1
        elif byte in (_OPEN_LIST, _OPEN_OBJECT):
            depth += 1
        elif byte in (_CLOSE_LIST, _CLOSE_OBJECT):
            depth = max(depth - 1, 0)
            if depth == 0:
                ends[count] = at + 1 if is_sequence else at
                count += 1
                last = 0
                if not is_sequence:
                    break
        elif byte == _COMMA and depth == 1 and not is_sequence:
            ends[count] = at
            count += 1
    state[0], state[1], state[2], state[3] = depth, in_string, escaped, last
    return ends[:count]
