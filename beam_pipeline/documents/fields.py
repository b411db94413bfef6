"""The fields of a record: which are read, nested ones, and the record's id.

A nested field has a name such as `doc.question`. If the record has a field of exactly that name,
that field is read. Otherwise the parts between dots lead from object to object; a number is a
position in a list, and any other part applies to each element of a list.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

# The names of document files. Defined here, since it is needed without the readers.
DOCUMENT_NAME = re.compile(r"\.(?:jsonl?(?:\.(?:gz|zst))?|parquet)\Z")
_DIGEST_BYTES = 8
_packed = msgspec.msgpack.Encoder(order="deterministic").encode


class Fields(NamedTuple):
    """The fields of a record that are read."""

    text: str = "text"
    id: str = "id"
    # A record without an id gets the hash of all its fields (`record_hash`), so all are read.
    hash_ids: bool = False
    nested: bool = False  # the text is that of `text_at`


def values_at(record: dict[str, Any], name: str) -> Iterator[Any]:
    """Yields the values of a field in order, without nulls, and lists element by element."""
    return _values(record, [name] if name in record else name.split("."))


def _values(value: Any, parts: Sequence[str]) -> Iterator[Any]:
    if isinstance(value, list):
        if not parts or not parts[0].isdecimal():
            for element in value:
                yield from _values(element, parts)
        elif int(parts[0]) < len(value):
            yield from _values(value[int(parts[0])], parts[1:])
    elif not parts:
        if value is not None:
            yield value
    elif isinstance(value, dict) and parts[0] in value:
        yield from _values(value[parts[0]], parts[1:])


def text_at(record: dict[str, Any], name: str) -> str | None:
    """Returns a field's texts, one per line, numbers as text; TypeError for any other value."""
    texts = []
    for value in values_at(record, name):
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise TypeError(f"a {type(value).__name__} is not text")
        texts.append(str(value))
    return "\n".join(texts) if texts else None


def document_id(record: dict[str, Any], id_field: str = "id") -> str:
    """Returns the id of a record as text: `str` of its id field, or else `record_hash`."""
    named = id_field in record  # otherwise nested
    value = record[id_field] if named else next(values_at(record, id_field), None)
    return record_hash(record) if value is None else str(value)


def record_hash(record: dict[str, Any]) -> str:
    """Returns a 64-bit hash of a record's fields, in any order, as a decimal number.

    The hash is BLAKE2b of the record in MessagePack with sorted keys; decimals, dates and times are
    text in ISO form. MessagePack cannot hold integers of more than 64 bits, lone surrogates or
    keys that are not text: such a record is hashed as ASCII JSON with sorted keys, and values
    without a JSON form as Python's repr.
    """
    try:
        data = _packed(record)
    except (OverflowError, UnicodeEncodeError, TypeError):
        data = json.dumps(record, sort_keys=True, default=repr).encode()
    digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
    return str(int.from_bytes(digest, "big"))
