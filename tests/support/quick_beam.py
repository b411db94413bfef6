"""Beam without the work that it repeats for each transform: it reads signatures again and again."""

import inspect
from collections.abc import Callable
from typing import Any

from apache_beam.transforms import core
from apache_beam.typehints import decorators

_get_signature = decorators.get_signature
_signatures: dict[Callable[..., Any], inspect.Signature] = {}


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    method = getattr(function, "__func__", None)
    if method is None:
        return _get_signature(function)
    if method not in _signatures:
        _signatures[method] = _get_signature(function)
    return _signatures[method]


def install() -> None:
    """Has Beam in this process, and in those forked from it, keep the signatures of methods."""
    decorators.get_signature = core.get_signature = _signature_of
