"""The values of flags, checked by what the flags say: types, limits, choices.

The flags of a dataclass are its fields, and those of dataclasses that are defaults of its fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, cast

from beam_pipeline.cli.flags import check_range
from beam_pipeline.errors import UsageError


def several(value: Any) -> tuple[Any, ...]:
    """Returns a value, or a sequence of values, as a tuple."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return (value,)
    return tuple(cast(Sequence[Any], value))


def flags_of(options: Any) -> list[Field[Any]]:
    """Returns the flags of a dataclass, or of an instance, in order."""
    return [
        each
        for item in fields(options)
        for each in (flags_of(item.default) if is_dataclass(item.default) else [item])
        if each.metadata
    ]


def values_of(options: Any) -> dict[str, Any]:
    """Returns the values of the flags of a dataclass by their names."""
    values: dict[str, Any] = {}
    for item in fields(options):
        value = getattr(options, item.name)
        if is_dataclass(item.default):
            values |= values_of(value)
        elif item.metadata:
            values[item.name] = value
    return values


def from_flags[Options](options: type[Options], values: Mapping[str, Any]) -> Options:
    """Returns a dataclass from values of its flags; those that are not given have their default.

    Raises:
      UsageError: a value is not allowed.
    """
    given: dict[str, Any] = {}
    for item in fields(cast(Any, options)):
        if is_dataclass(item.default):
            given[item.name] = from_flags(cast(Any, type(item.default)), values)
        elif item.name in values:
            given[item.name] = values[item.name]
    return options(**given)


def check_flags(config: Any) -> None:
    """Raises UsageError for the first flag whose value is not of its type or not allowed."""
    for item in fields(config):
        if item.metadata:
            is_repeatable = item.metadata.get("action") == "append"
            value = getattr(config, item.name)
            if item.default is not MISSING and value == item.default:
                continue
            values = several(value) if is_repeatable else (value,)
            if not values or "" in values:
                raise UsageError(f"--{item.name} is empty: --help says what it is")
            for each in values:
                _check_value(item, each)


def _check_value(item: Field[Any], value: Any) -> None:
    given, choices = f"--{item.name}={value!r}", item.metadata.get("choices")
    if limits := item.metadata["limits"]:
        is_float = item.type is float
        if not isinstance(value, (int, float) if is_float else int) or isinstance(value, bool):
            low, high = limits
            kind = "number" if is_float else "whole number"
            raise UsageError(f"{given} is no {kind}: give one from {low} to {high}")
        check_range(item.name, value, *limits)
    elif item.type is bool:
        if not isinstance(value, bool):
            raise UsageError(f"{given}: give True or False")
    elif not isinstance(value, str):
        raise UsageError(f"{given} is a {type(value).__name__}: give a string")
    elif choices and value not in choices:
        raise UsageError(f"--{item.name}={value}: give {' or '.join(choices)}")
