"""The values of flags, checked by what the flags say: types, limits, choices."""

from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, cast

from beam_pipeline.cli.flags import check_range
from beam_pipeline.errors import UsageError


def several(value: Any) -> tuple[Any, ...]:
    """Returns a value, or a sequence of values, as a tuple."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return (value,)
    return tuple(cast(Sequence[Any], value))


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
