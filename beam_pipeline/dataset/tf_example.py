"""A probe row as the bytes of a `tf.train.Example`, and back, without TensorFlow or protobuf.

The protobuf library takes 16 ms to encode a row of 8 MiB, this module 2. Features are sorted by
name, as in protobuf's deterministic serialisation. `encode_features` takes any features; those of a
probe row are lists of one value:

  bytes_list   measurements, src_addr
  float_list   time_span_seconds, a float32: the exact span is last_timestamp - first_timestamp
  int64_list   src_id, n_measurements, row_index; first_timestamp, last_timestamp in µs

On the wire an Example is a list of entries (name, feature), and a feature is one of three lists,
all delimited: tag, length, bytes.
"""

import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.dataset.arrow_record import RowColumns

_DELIMITED = 2  # wire type of fields with a length
_ONE, _TWO = 1 << 3 | _DELIMITED, 2 << 3 | _DELIMITED  # tags of fields 1 and 2, delimited
BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3  # fields of Feature
_FLOAT = struct.Struct("<f")
_INT32 = range(-(2**31), 2**31)
_FEW = 8  # numbers that are encoded one by one
MAGIC = b"\x0a"  # the first byte of an Example: the tag of its features

_LISTS = {
    "src_id": INT64_LIST,
    "measurements": BYTES_LIST,
    "n_measurements": INT64_LIST,
    "time_span_seconds": FLOAT_LIST,
    "first_timestamp": INT64_LIST,
    "last_timestamp": INT64_LIST,
    "src_addr": BYTES_LIST,
    "row_index": INT64_LIST,
}


def encode_example(row: RowColumns) -> bytes:
    """Returns a row as an Example, deterministically."""
    return b"".join(_parts(row, row.measurements))


def example_bytes(row: RowColumns, measurements_bytes: int) -> int:
    """Returns the size of a row's Example with measurements of that many bytes."""
    return sum(map(len, _parts(row, range(measurements_bytes))))


def _parts(row: RowColumns, measurements: Any) -> list[Any]:
    """Returns an Example in parts, so that `measurements` are copied once or only measured."""
    values = {name: _encode_value(value) for name, value in row._asdict().items()}
    values["measurements"] = measurements
    features: list[Any] = []
    for name, value in sorted(values.items()):
        features += _entry(name, _LISTS[name], _delimited(_ONE, [value]))
    return _delimited(_ONE, features)


class Feature(NamedTuple):
    """A feature of any Example; `kind` is BYTES_LIST, FLOAT_LIST or INT64_LIST."""

    name: str
    kind: int
    values: Sequence[Any] | np.ndarray


def encode_features(features: Iterable[Feature]) -> bytes:
    """Returns an Example with sorted features; OverflowError for a number out of range."""
    in_order = sorted(features, key=lambda feature: feature.name)
    return join_entries([entry_encoder(name, kind)(values) for name, kind, values in in_order])


def join_entries(entries: Iterable[bytes]) -> bytes:
    """Returns an Example of features encoded by `entry_encoder`, in the order of names."""
    return b"".join(_delimited(_ONE, [b"".join(entries)]))


@functools.cache
def entry_encoder(name: str, kind: int) -> Callable[[Sequence[Any] | np.ndarray], bytes]:
    """Returns an encoder of a feature's values, with its name encoded once."""
    named, tag = b"".join(_delimited(_ONE, [name.encode()])), bytes([kind << 3 | _DELIMITED])

    def encode(values: Sequence[Any] | np.ndarray) -> bytes:
        content = _list_of(kind, values)
        content_size = _varint(sum(map(len, content)))
        feature = b"".join((tag, content_size, *content))
        feature_size = _varint(len(feature))
        num_bytes = len(named) + 1 + len(feature_size) + len(feature)
        return b"".join((b"\x0a", _varint(num_bytes), named, b"\x12", feature_size, feature))

    return encode


def _entry(name: str, kind: int, values: list[Any]) -> list[Any]:
    """Returns a feature as uncopied parts."""
    feature = _delimited(kind << 3 | _DELIMITED, values)
    return _delimited(_ONE, _delimited(_ONE, [name.encode()]) + _delimited(_TWO, feature))


def _list_of(kind: int, values: Sequence[Any] | np.ndarray) -> list[Any]:
    """Returns the content of a list; numbers are packed, and empty lists have no field."""
    if kind == BYTES_LIST:
        return [part for value in values for part in _delimited(_ONE, [value])]
    if not len(values):
        return []
    if kind == FLOAT_LIST:
        return _delimited(_ONE, [struct.pack(f"<{len(values)}f", *values)])
    if len(values) > _FEW:
        return _delimited(_ONE, [_varints(np.asarray(values, np.int64))])
    return _delimited(_ONE, [_varint(int(np.int64(value))) for value in values])


def _varints(numbers: np.ndarray) -> bytes:
    """Returns int64 numbers as consecutive varints."""
    bits = numbers.view(np.uint64)[:, None]
    digits = bits >> np.arange(0, 70, 7, dtype=np.uint64)
    is_used = digits != 0
    is_used[:, 0] = True
    is_last = np.cumsum(is_used[:, ::-1], axis=1)[:, ::-1] == 1
    coded = (digits & 0x7F).astype(np.uint8) | (~is_last * np.uint8(0x80))
    return coded[is_used].tobytes()


def _delimited(tag: int, parts: list[Any]) -> list[Any]:
    return [bytes([tag]) + _varint(sum(map(len, parts))), *parts]


def _varint(number: int) -> bytes:
    if 0 <= number < len(_SMALL):
        return _SMALL[number]
    return _long_varint(number)


def _long_varint(number: int) -> bytes:
    number &= 2**64 - 1  # two's complement
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


_SMALL = [_long_varint(number) for number in range(1 << 14)]


def _encode_value(value: Any) -> Any:
    if isinstance(value, int):
        return _varint(value)
    if isinstance(value, str):
        return value.encode()
    return _FLOAT.pack(value) if isinstance(value, float) else value


def decode_example(record: bytes) -> RowColumns:
    """Decodes an Example, features in any order; ValueError if they are not a row's."""
    features = _only(memoryview(record), 1)
    found = {}
    for field, entry in _fields(features):
        parts = dict(_fields(entry)) if field == 1 else {}
        if sorted(parts) != [1, 2]:
            raise ValueError("an Example whose entry is not a name and a feature")
        name = bytes(parts[1]).decode(errors="replace")
        if name not in _LISTS or name in found:
            raise ValueError(f"an Example with an unknown or repeated feature {name!r}")
        found[name] = _decode_value(_LISTS[name], parts[2])
    if missing := sorted(_LISTS.keys() - found.keys()):
        raise ValueError(f"an Example without {', '.join(missing)}")
    try:
        row = RowColumns(**found | {"src_addr": found["src_addr"].decode()})
    except UnicodeDecodeError as error:
        raise ValueError("an Example whose src_addr is not UTF-8") from error
    if row.n_measurements not in _INT32 or row.row_index not in _INT32:
        raise ValueError(
            f"an Example whose n_measurements {row.n_measurements} or row_index {row.row_index} "
            "is over 32 bits"
        )
    return row


def _decode_value(kind: int, feature: memoryview) -> bytes | float | int:
    value = _only(_only(feature, kind), 1)
    if kind == BYTES_LIST:
        return bytes(value)
    if kind == FLOAT_LIST:
        if len(value) != _FLOAT.size:
            raise ValueError(f"an Example whose float_list takes {len(value)} bytes, not 4")
        return _FLOAT.unpack(value)[0]
    number, end = _read_varint(value, 0)
    if end != len(value):
        raise ValueError("an Example whose int64_list holds more than one number")
    return number - 2**64 if number >= 2**63 else number


def _only(message: memoryview, wanted: int) -> memoryview:
    """Returns the only field of a message."""
    fields = list(_fields(message))
    numbers = [number for number, _ in fields]
    if numbers != [wanted]:
        raise ValueError(f"an Example with fields {numbers} where {wanted} belongs")
    return fields[0][1]


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yields the number and bytes of each field; all fields of a row's Example are delimited."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        size, start = _read_varint(message, at)
        at = start + size
        if tag & 7 != _DELIMITED or at > len(message):
            raise ValueError(f"an Example damaged at a field of tag {tag} and {size} bytes")
        yield tag >> 3, message[start:at]


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Returns a uint64 and its end."""
    number = 0
    for shift in range(0, 70, 7):
        if at == len(data):
            break
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            if number < 2**64:
                return number, at
            break
    raise ValueError("an Example damaged at a number")
