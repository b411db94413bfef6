"""JSON of many values at once: strings and places as columns of pieces, joined to lines by Arrow.

Every piece has the bytes of `json_value`; lone surrogates, which are rare, go through it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from beam_pipeline.documents.batch import array_buffers, decode
from beam_pipeline.kernels import kernel
from beam_pipeline.overlap.results.output_files import json_line, json_value

_QUOTE = np.uint8(ord('"'))
_SURROGATE, _SECOND_OF_SURROGATE = np.uint8(0xED), np.uint8(0xA0)  # and up, in UTF-8
_POWERS = 10 ** np.arange(1, 19, dtype=np.int64)


def _escapes() -> tuple[np.ndarray, np.ndarray]:
    """Returns how many bytes JSON has for each byte, uint8 [256], and these, uint8 [256, 6]."""
    sizes, escaped = np.ones(256, np.uint8), np.zeros((256, 6), np.uint8)
    for byte in range(256):
        data = json_value(chr(byte))[1:-1] if byte < 0x80 else bytes([byte])
        sizes[byte] = len(data)
        escaped[byte, : len(data)] = np.frombuffer(data, np.uint8)
    return sizes, escaped


_SIZES, _ESCAPED = _escapes()


def pieces_of(data: np.ndarray, bounds: np.ndarray) -> pa.LargeBinaryArray:
    """Returns the pieces data[bounds[i]:bounds[i + 1]] of uint8."""
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)


def piece(data: bytes) -> pa.LargeBinaryScalar:
    """Returns a piece that is the same in each line."""
    return pa.scalar(data, pa.large_binary())


def join_pieces(columns: Sequence[Any]) -> pa.LargeBinaryArray:
    """Returns the pieces of some columns, one behind the other."""
    return pc.binary_join_element_wise(*columns, piece(b""))  # pyright: ignore[reportAttributeAccessIssue]


def json_lines(columns: Sequence[Any]) -> pa.LargeBinaryArray:
    """Returns the pieces of some columns as lines, each with the bytes of `json_line`."""
    lines = join_pieces([*columns, piece(b"\n")])
    odd = pc.match_substring(lines, b"\\ud")  # pyright: ignore[reportAttributeAccessIssue]
    if not pc.any(odd).as_py():  # pyright: ignore[reportAttributeAccessIssue]
        return lines
    # With a lone surrogate, all that is not ASCII is an escape.
    texts = (line.as_py() for line in lines)
    fixed = [json_line(json.loads(text)) if b"\\ud" in text else text for text in texts]
    return pa.array(fixed, pa.large_binary())


def record_pieces(fields: Mapping[str, Any]) -> list[Any]:
    """Returns the pieces of objects of these fields, but for the last bracket."""
    named = ((piece(b',"' + name.encode() + b'":'), value) for name, value in fields.items())
    pieces = [each for pair in named for each in pair]
    return [piece(b"{" + pieces[0].as_py()[1:]), *pieces[1:]]


def record_lines(fields: Mapping[str, Any]) -> pa.LargeBinaryArray:
    """Returns lines of objects of these fields."""
    return json_lines([*record_pieces(fields), piece(b"}")])


def data_of(pieces: pa.LargeBinaryArray) -> memoryview:
    """Returns all pieces, one behind the other."""
    return memoryview(array_buffers(pieces)[0])


def sizes_of(pieces: pa.LargeBinaryArray) -> np.ndarray:
    """Returns the number of bytes of each piece, int64."""
    return np.diff(array_buffers(pieces)[1])


# --- strings ------------------------------------------------------------------------------------


@kernel
def _count_escaped(utf8, bounds, sizes):
    """Returns the size of each string as JSON, -1 for one with a lone surrogate."""
    counts = np.empty(bounds.size - 1, np.int64)
    for at in range(counts.size):
        count = 2
        for byte in range(bounds[at], bounds[at + 1]):
            count += sizes[utf8[byte]]
            if utf8[byte] == _SURROGATE and utf8[byte + 1] >= _SECOND_OF_SURROGATE:
                count = -1
                break
        counts[at] = count
    return counts


@kernel
def _escape(utf8, bounds, sizes, escaped, to):
    out = np.empty(to[-1], np.uint8)
    for string in range(bounds.size - 1):
        at = to[string]
        out[at] = _QUOTE
        at += 1
        for byte in range(bounds[string], bounds[string + 1]):
            value = utf8[byte]
            if sizes[value] == 1:
                out[at] = value
                at += 1
            else:
                for place in range(sizes[value]):
                    out[at] = escaped[value, place]
                    at += 1
        out[at] = _QUOTE
    return out


def json_sizes(strings: pa.LargeBinaryArray) -> np.ndarray:
    """Returns how many bytes each string has as JSON, int64."""
    counts = _count_escaped(*array_buffers(strings), _SIZES)
    for at in np.flatnonzero(counts < 0).tolist():
        counts[at] = len(json_value(decode(strings[at].as_py())))
    return counts


def json_strings(strings: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Returns strings, UTF-8 as `surrogatepass` writes it, as JSON."""
    utf8, bounds = array_buffers(strings)
    counts = _count_escaped(utf8, bounds, _SIZES)
    if (counts < 0).any():
        return pa.array([json_value(decode(each.as_py())) for each in strings], pa.large_binary())
    to = np.append(0, np.cumsum(counts))
    return pieces_of(_escape(utf8, bounds, _SIZES, _ESCAPED, to), to)


# --- numbers ------------------------------------------------------------------------------------


@njit
def _num_digits(value):
    count = 1
    for power in _POWERS:
        count += value >= power
        if value < power:
            break
    return count


@njit
def _put_number(value, out, at):
    end = at + _num_digits(value)
    for place in range(end - 1, at - 1, -1):
        out[place] = 48 + value % 10
        value //= 10
    return end


@kernel
def place_sizes(bounds, starts, ends):
    """Returns how many bytes each list of places has as JSON, int64."""
    counts = np.empty(bounds.size - 1, np.int64)
    for at in range(counts.size):
        count = 1 + max(1, bounds[at + 1] - bounds[at])  # brackets, commas
        for place in range(bounds[at], bounds[at + 1]):
            count += 3 + _num_digits(np.int64(starts[place])) + _num_digits(np.int64(ends[place]))
        counts[at] = count
    return counts


@kernel
def _put_places(bounds, starts, ends, to):
    out = np.empty(to[-1], np.uint8)
    for each in range(bounds.size - 1):
        at = to[each]
        for place in range(bounds[each], bounds[each + 1]):
            out[at], out[at + 1] = 91 if place == bounds[each] else 44, 91  # "[[" or ",["
            at = _put_number(np.int64(starts[place]), out, at + 2)
            out[at] = 44
            at = _put_number(np.int64(ends[place]), out, at + 1)
            out[at] = 93
            at += 1
        out[at] = 93
    return out


def json_places(bounds: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.LargeBinaryArray:
    """Returns lists of places, none of them empty, as JSON: `[[0,5],[9,12]]`."""
    to = np.append(0, np.cumsum(place_sizes(bounds, starts, ends)))
    return pieces_of(_put_places(bounds, starts, ends, to), to)


def json_numbers(values: np.ndarray) -> pa.LargeBinaryArray:
    """Returns integers as JSON."""
    return pa.array(values).cast(pa.large_string()).cast(pa.large_binary())


def json_floats(values: np.ndarray) -> pa.LargeBinaryArray:
    """Returns at least one float64 as JSON."""
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].decode()
    split = pc.split_pattern(pa.array([text], pa.large_string()), ",")  # pyright: ignore[reportAttributeAccessIssue]
    return split.flatten().cast(pa.large_binary())


# --- columns ------------------------------------------------------------------------------------


def column_of(rows: pa.Table | pa.RecordBatch, name: str) -> Any:
    """Returns a column of a table as one array."""
    column = rows.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def json_fields(rows: pa.Table | pa.RecordBatch, *names: str) -> dict[str, pa.LargeBinaryArray]:
    """Returns columns of integers or strings as JSON."""
    columns = {name: column_of(rows, name) for name in names}
    return {
        name: json_numbers(column.to_numpy())
        if pa.types.is_integer(column.type)
        else json_strings(column)
        for name, column in columns.items()
    }
