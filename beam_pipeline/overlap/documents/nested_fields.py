"""Fields within a record: `doc.question`, and lists such as those of answer choices.

A name that the record has as such is that field. Otherwise its parts, between dots, lead from
object to object; a number is a place in a list, and any other part goes on in each element.
"""

from collections.abc import Iterator, Sequence
from typing import Any


def values_at(record: dict[str, Any], name: str) -> Iterator[Any]:
    """Yields the values of a field in order, those of lists one by one, without nulls."""
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
    """Returns the texts of a field, a line each, and numbers as text; None if there are none.

    Raises:
      TypeError: a value is neither.
    """
    texts = []
    for value in values_at(record, name):
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise TypeError(f"a {type(value).__name__} is no text")
        texts.append(str(value))
    return "\n".join(texts) if texts else None
