"""JSON lines to records: their bytes as they are, checked, or their fields as a tf.train.Example.

A line is JSON as RFC 8259 has it, so NaN is none. orjson parses it; Python's own `json` what orjson
rejects beyond that: lone surrogates and integers of more than 64 bits.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import orjson

from beam_pipeline.dataset.tf_example import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    Feature,
    encode_features,
)


class BadRecordError(Exception):
    """A record cannot be converted; the message is its reason."""


def is_json(line: bytes) -> bool:
    """Tells whether a line is JSON."""
    try:
        parse(line)
    except BadRecordError:
        return False
    return True


def parse(line: bytes) -> Any:
    """Returns what a line of JSON holds; BadRecordError if it is none."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(line.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadRecordError("json_invalid") from error


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def example_of_line(line: bytes, fields: Sequence[str] = ()) -> bytes:
    """Returns the fields of a JSON object as a tf.train.Example.

    A string is a bytes_list of its UTF-8; an integer, true or false an int64_list, any other number
    a float_list of float32; a list of these is all its values. null is no feature.

    Args:
      fields: those to take; by default all.

    Raises:
      BadRecordError: the line is no object, has no field of some name, or holds what a
        tf.train.Example cannot: objects, lists within lists, lists of several kinds, large numbers.
    """
    found = parse(line)
    if not isinstance(found, dict):
        raise BadRecordError("json_not_an_object")
    if any(name not in found for name in fields):
        raise BadRecordError("field_missing")
    taken = {name: found[name] for name in fields} if fields else found
    features = (_feature(name, value) for name, value in taken.items() if value is not None)
    try:
        return encode_features(features)
    except OverflowError as error:
        raise BadRecordError("number_out_of_range") from error
    except UnicodeEncodeError as error:
        raise BadRecordError("utf8_invalid") from error


def _feature(name: str, value: Any) -> Feature:
    values = value if isinstance(value, list) else [value]
    kinds = {type(item) for item in values}
    if kinds <= {str}:
        return Feature(name, BYTES_LIST, [text.encode() for text in values])
    if kinds <= {int, bool}:
        return Feature(name, INT64_LIST, values)
    if kinds <= {int, float}:
        if any(map(math.isinf, values)):  # JSON has none: the number is too large
            raise OverflowError
        return Feature(name, FLOAT_LIST, values)
    raise BadRecordError("field_unsuited")
