"""Cuts the texts of many JSON records out of their bytes at once; a parser reads the rest.

  {"id": 1, "text": "a\\u00e9"}, …  →  aé…, and [{"id": 1, "text": MARK}, MARK, …]

Texts are most of the input. Each is found by its key and decoded 64 bytes at a time, without a
Python string. The rest shows whether it was the field's value: the mark, which no record can know,
is then the value of the field. If it is not, the caller reads the record as a whole.
"""

import json
import secrets
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from beam_pipeline.byte_blocks import (
    BLOCK,
    copy_block,
    count_bits,
    first_bit,
    mask_of,
    put_code_point,
)
from beam_pipeline.documents.json_records import Records
from beam_pipeline.kernels import kernel, subkernel

MARK = secrets.token_hex(8)
# Text after each record; without its commas it replaces a text. It is not a constant of a kernel,
# since it differs between processes.
_AFTER_RECORD = f',"{MARK}",'.encode()
_QUOTE, _BACKSLASH, _SPACE, _UNICODE = (np.uint8(ord(char)) for char in '"\\ u')
_OPEN, _ZERO, _CLOSE = (np.uint8(ord(char)) for char in "[0]")
_NOTHING, _LAST_CONTROL = np.uint8(0), np.uint8(0x1F)
_ONE, _TWO, _FOUR, _SIX = (np.uint64(n) for n in (1, 2, 4, 6))
_NO_CODE = np.uint32(0xFFFF_FFFF)


def _table(values: dict[str, int]) -> np.ndarray:
    table = np.full(256, _NO_CODE, np.uint32)
    for char, value in values.items():
        table[ord(char)] = value
    return table


_ESCAPES = _table(dict(zip('"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True)))
_DIGITS = _table({char: int(char, 16) for char in "0123456789abcdefABCDEF"})


class CutTexts(NamedTuple):
    """The texts of k records, and the records with MARK in place of each text that was found."""

    utf8: np.ndarray  # uint8, read-only
    bounds: np.ndarray  # int64 [k + 1]
    others: list[Any]  # k values of JSON


def cut_texts(records: Records, text_field: str) -> CutTexts | None:
    """Cuts from each record the string that follows its first key named `text_field`.

    The key may be that of an object within the record. None if orjson rejects any record.
    """
    key = json.dumps(text_field, ensure_ascii=False).encode("utf-8", "surrogatepass") + b":"
    data, starts, stops = np.frombuffer(records.data, np.uint8), records.starts, records.stops
    marks = np.frombuffer(_AFTER_RECORD + bytes(BLOCK), np.uint8)
    texts = np.empty(len(data) + int(BLOCK), np.uint8)
    rest = np.empty(len(data) + 2 * len(_AFTER_RECORD) * records.count + int(BLOCK), np.uint8)
    bounds = np.zeros(records.count + 1, np.int64)
    size = _cut(data, starts, stops, np.frombuffer(key, np.uint8), marks, texts, bounds, rest)
    try:
        # `from_buffers` does not check UTF-8.
        buffers = pa.py_buffer(bounds), pa.py_buffer(texts)
        pa.LargeStringArray.from_buffers(records.count, *buffers).validate(full=True)
        parsed = orjson.loads(memoryview(rest)[:size])
    except (pa.ArrowInvalid, orjson.JSONDecodeError):
        return None
    others = parsed[:-1:2]
    if len(parsed) != 2 * records.count + 1 or parsed[1::2] != [MARK] * records.count:
        return None  # a record is not exactly one value
    utf8 = texts[: bounds[-1]]
    utf8.flags.writeable = False
    return CutTexts(utf8, bounds, others)


@kernel
def _cut(data, starts, stops, key, marks, texts, bounds, rest):
    """Fills texts, bounds and rest, an array with the mark after each record; returns its size."""
    size, rest_size, mark_size = np.uint64(0), _ONE, np.uint64(marks.size) - BLOCK
    rest[0] = _OPEN
    for record in range(starts.size):
        start, stop = np.uint64(starts[record]), np.uint64(stops[record])
        at = _find_value(data, start, stop, key)
        if data[at] == _QUOTE and at < stop:
            after, new_size = _decode_string(data, at + _ONE, texts, size)
            if 0 < after <= stop:
                rest_size = _copy(data, start, at, rest, rest_size)
                rest_size = _copy(marks, _ONE, mark_size - _ONE, rest, rest_size)
                start, size = after, new_size
        rest_size = _copy(data, start, stop, rest, rest_size)
        rest_size = _copy(marks, np.uint64(0), mark_size, rest, rest_size)
        bounds[record + 1] = size
    rest[rest_size], rest[rest_size + _ONE] = _ZERO, _CLOSE
    return rest_size + _TWO


@subkernel
def _find_value(data, at, stop, key):
    """Returns the position after a key and spaces, or the end."""
    while at < stop:
        quotes = mask_of(data, at, _QUOTE, _NOTHING)
        for _ in range(count_bits(quotes)):
            place = at + first_bit(quotes)
            quotes &= quotes - _ONE
            num_equal = np.uint64(0)
            while num_equal < key.size and place + num_equal < stop:
                if data[place + num_equal] != key[num_equal]:
                    break
                num_equal += _ONE
            if num_equal == key.size:
                place += num_equal
                while data[place] == _SPACE:
                    place += _ONE
                return place
        at += BLOCK
    return stop


@subkernel
def _copy(data, at, stop, target, size):
    """Copies data[at:stop], and bytes after it, to target[size:]; returns the new size."""
    for place in range(at, stop, BLOCK):
        copy_block(data, place, _NOTHING, _NOTHING, _NOTHING, target, size + place - at)
    return size + stop - at


@subkernel
def _decode_string(data, at, texts, size):
    """Decodes the string whose first character is at `at` to texts[size:].

    Returns the position after its quote, 0 if it is not valid, and the size of all texts.
    """
    while True:
        copy_block(data, at, _NOTHING, _NOTHING, _NOTHING, texts, size)
        ends = mask_of(data, at, _QUOTE, _NOTHING) | mask_of(data, at, _BACKSLASH, _NOTHING)
        count = first_bit(ends | mask_of(data, at, _NOTHING, _LAST_CONTROL))
        at, size = at + count, size + count
        if count == BLOCK:
            continue
        if data[at] == _QUOTE:
            return at + _ONE, size
        code, at = _escaped(data, at)
        if code == _NO_CODE:
            return np.uint64(0), size
        size = put_code_point(code, texts, size)


@subkernel
def _escaped(data, at):
    """Returns the code point of an escape, _NO_CODE if it is invalid, and the position after it."""
    if data[at] != _BACKSLASH:
        return _NO_CODE, at
    if data[at + _ONE] != _UNICODE:
        return _ESCAPES[data[at + _ONE]], at + _TWO
    high = _four_digits(data, at + _TWO)
    if high & np.uint32(0xF800) != 0xD800 or high == _NO_CODE:
        return high, at + _SIX
    low = _NO_CODE
    if data[at + _SIX] == _BACKSLASH and data[at + _SIX + _ONE] == _UNICODE:
        low = _four_digits(data, at + _SIX + _TWO)
    if high >= 0xDC00 or low & np.uint32(0xFFFF_FC00) != 0xDC00:
        return _NO_CODE, at  # a lone surrogate
    code = (high & np.uint32(0x3FF)) << np.uint32(10) | low & np.uint32(0x3FF)
    return code + np.uint32(0x10000), at + _SIX + _SIX


@subkernel
def _four_digits(data, at):
    code = np.uint32(0)
    for place in range(at, at + _FOUR):
        digit = _DIGITS[data[place]]
        if digit == _NO_CODE:
            return _NO_CODE
        code = code << np.uint32(4) | digit
    return code
