"""The fields of a record: which are read, nested ones, and the record's id.

A nested field has a name such as `doc.question`. If the record has a field of exactly that name,
that field is read. Otherwise the parts between dots lead from object to object; a number is a
position in a list, and any other part applies to each element of a list. `messages[].content` and
`messages[*].content` are the same as `messages.content`; `messages[role=user|system].content` takes
only elements whose `role` is one of these.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from beam_pipeline.documents.lm_eval import with_texts

# The names of document files. Defined here, since it is needed without the readers.
DOCUMENT_NAME = re.compile(
    r"\.(?:(?:json|(?P<lines>jsonl|ndjson))(?P<compressed>\.(?:gz|gzip|zstd?|bz2|xz))?"
    r"|(?P<parquet>parquet))\Z",
    re.IGNORECASE,
)
_DIGEST_BYTES = 8
_SHOWN_DEPTH = 4  # of nested fields, in a message
_packed = msgspec.msgpack.Encoder(order="deterministic").encode


_PART = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
Path = tuple[str | int, ...]  # of a value in a record: keys of objects and positions in lists


class Fields(NamedTuple):
    """The fields of a record that are read."""

    text: str = "text"  # with `nested`, several may be separated by commas
    id: str = "id"
    # A record without an id gets the hash of all its fields (`record_hash`), so all are read.
    hash_ids: bool = False
    nested: bool = False  # the text is that of `text_at`
    lm_eval: bool = False  # records are samples, whose texts are those of `with_texts`


def training_fields(text_field: str, id_field: str) -> Fields:
    """Returns the fields of training documents: nested unless the text is one top-level field."""
    return Fields(text_field, id_field, nested=any(sign in text_field for sign in ".,["))


def top_level(name: str, present: Iterable[str]) -> list[str]:
    """Returns the top-level fields, of those present, that hold a field or several."""
    several = [one.strip() for one in name.split(",")]
    names = [name, *several, *(part for one in several for part in _PART.findall(one)[:1])]
    present = set(present)
    return [each for each in dict.fromkeys(names) if each in present]


def leaf_names(
    record: dict[str, Any], nested: bool = True, in_lists: bool = False, outer: str = ""
) -> Iterator[str]:
    """Yields the names of the values in a record, nested ones dotted, the lowest cut."""
    for name, value in record.items():
        values = value if in_lists and isinstance(value, list) else [value]
        inner = [each for each in values if isinstance(each, dict)]
        if nested and inner and outer.count(".") < _SHOWN_DEPTH:
            for each in inner:
                yield from leaf_names(each, nested, in_lists, f"{outer}{name}.")
        else:
            yield outer + name


def places_at(record: dict[str, Any], name: str) -> Iterator[tuple[Path, Any]]:
    """Yields the values of a field in order, without nulls, with their paths in the record."""
    return _places(record, [name] if name in record else _PART.findall(name) or [""], ())


def _places(value: Any, parts: Sequence[str], path: Path) -> Iterator[tuple[Path, Any]]:
    part = parts[0] if parts else ""
    if isinstance(value, list):
        if part.isdecimal():
            if int(part) < len(value):
                yield from _places(value[int(part)], parts[1:], (*path, int(part)))
            return
        rest = parts[1:] if part[:1] == "[" else parts
        for number, element in enumerate(value):
            if part[:1] != "[" or _has(element, part[1:-1]):
                yield from _places(element, rest, (*path, number))
    elif not parts:
        if value is not None:
            yield path, value
    elif isinstance(value, dict) and part in value:
        yield from _places(value[part], parts[1:], (*path, part))


def _has(element: Any, condition: str) -> bool:
    """Returns whether an element has one of the values of `key=value|value`; "" and "*": any."""
    key, _, allowed = condition.partition("=")
    return condition in ("", "*") or (
        isinstance(element, dict) and element.get(key) in allowed.split("|")
    )


def texts_at(record: dict[str, Any], name: str) -> Iterator[tuple[Path, str]]:
    """Yields the texts of a field, or of several, with their paths in the record.

    Numbers are text, truth values `true` or `false`, and bytes UTF-8. Raises TypeError for any
    other value.
    """
    for each in [name] if name in record else name.split(","):
        for path, value in places_at(record, each.strip()):
            if isinstance(value, bytes):
                value = value.decode("utf-8", "surrogatepass")
            if not isinstance(value, (str, int, float)):
                raise TypeError(f"a {type(value).__name__} is not text")
            yield path, str(value).lower() if isinstance(value, bool) else str(value)


def parts_of(record: dict[str, Any], fields: Fields) -> list[tuple[Path, str]]:
    """Returns the texts of a record, which joined by line feeds are its text, with their paths."""
    if fields.nested:
        return list(texts_at(record, fields.text))
    return [((fields.text,), record[fields.text])]


def text_at(record: dict[str, Any], name: str) -> str | None:
    """Returns the texts of `texts_at`, one per line, or None without one."""
    texts = [text for _, text in texts_at(record, name)]
    return "\n".join(texts) if texts else None


def text_of(record: dict[str, Any], fields: Fields) -> Any:
    """Returns the value of a record's text field, which is text with nested fields."""
    if fields.lm_eval:
        record = with_texts(record)
    return text_at(record, fields.text) if fields.nested else record.get(fields.text)


def id_at(record: dict[str, Any], name: str) -> Any:
    """Returns the value of a record's id field, which may be nested; None without one."""
    if name in record or "." not in name:
        return record.get(name)
    return next((value for _, value in places_at(record, name)), None)


def document_id(record: dict[str, Any], id_field: str = "id") -> str:
    """Returns the id of a record as text: `str` of its id field, or else `record_hash`."""
    value = id_at(record, id_field)
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
