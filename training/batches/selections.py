"""Weights of rows by probe, address family and time: how often a row occurs in an epoch.

  {"family": {"ipv4": 1, "ipv6": 3},
   "probe": {"192.0.2.1": 2},
   "period": [["2024-01-01", "2024-07-01", 0.5]]}

A row's weight is the product of its weights in the three selections, by default 1. It needs only
the row index, and nothing is copied: the plan repeats a large row's contexts, or a small row. A row
belongs to a period if it begins in it.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import IPv6Address, ip_address
from numbers import Real
from typing import Any

import numpy as np

from beam_pipeline.errors import UsageError
from training.rows.row_table import RowTable

MIN_WEIGHT, MAX_WEIGHT = 0.01, 100.0  # of a row that is used
_FAMILIES = ("ipv4", "ipv6")
_EXAMPLE = '{"family": {"ipv6": 3}}'
_WORD = 1 << 64


def checked_selections(weights: Any) -> dict[str, Any]:
    """Returns selections as plain values for JSON; UsageError if one is invalid."""
    if not isinstance(weights, Mapping):
        raise UsageError(f"row_weights are {weights!r}: give selections, {_EXAMPLE}")
    if unknown := sorted(set(map(str, weights)) - {"family", "probe", "period"}):
        raise UsageError(
            f"row_weights have {unknown[0]!r}: use family, probe or period, {_EXAMPLE}"
        )
    checked: dict[str, Any] = {}
    for name in ("family", "probe"):
        if name not in weights:
            continue
        if not isinstance(weights[name], Mapping):
            raise UsageError(f"row_weights have {weights[name]!r} for {name}: give a mapping")
        checked[name] = {
            _family(key) if name == "family" else _address(key): _weight(f"{name} {key}", weight)
            for key, weight in weights[name].items()
        }
    if "period" in weights:
        if isinstance(weights["period"], str) or not isinstance(weights["period"], Sequence):
            raise UsageError(
                f"row_weights have the period {weights['period']!r}: it must be a list of periods"
            )
        checked["period"] = [_period(period) for period in weights["period"]]
    return checked


def row_weights(rows: RowTable, selections: Mapping[str, Any]) -> np.ndarray:
    """Returns the weight of each row, float64 [rows], given the result of `checked_selections`.

    Raises UsageError if a product of weights is too small or too large, or all are 0.
    """
    values = np.ones(len(rows))
    if family := selections.get("family"):
        values *= np.where(rows.src_is_ipv6, family.get("ipv6", 1.0), family.get("ipv4", 1.0))
    for address, weight in selections.get("probe", {}).items():
        values[_rows_of(rows, address)] *= weight
    in_period = np.zeros(len(rows), bool)
    for begin, end, weight in selections.get("period", ()):
        is_new = (rows.first_second >= _second(begin)) & (rows.first_second < _second(end))
        is_new &= ~in_period  # the first matching period counts
        values[is_new] *= weight
        in_period |= is_new
    used = values[values > 0]
    if len(values) and not len(used):
        raise UsageError(f"row_weights {dict(selections)} leave no row: set one of them above 0")
    if len(used) and not (used.min() >= MIN_WEIGHT and used.max() <= MAX_WEIGHT):
        worst = used.min() if used.min() < MIN_WEIGHT else used.max()
        raise UsageError(
            f"a row has weight {worst:g}, the product of several: it must be 0, or {MIN_WEIGHT:g} "
            f"to {MAX_WEIGHT:g}"
        )
    return values


def _rows_of(rows: RowTable, address: str) -> np.ndarray:
    parsed = ip_address(address)
    number = int(parsed if isinstance(parsed, IPv6Address) else IPv6Address(f"::ffff:{parsed}"))
    hi, lo = np.uint64(number // _WORD), np.uint64(number % _WORD)
    if len(rows.src_hi) == 0:
        return (rows.src_lo == lo) & bool(hi == 0)
    return (rows.src_lo == lo) & (rows.src_hi == hi)


def _family(name: Any) -> str:
    if name not in _FAMILIES:
        raise UsageError(f"row_weights have the family {name!r}: use ipv4 or ipv6, {_EXAMPLE}")
    return name


def _address(text: Any) -> str:
    try:
        return str(ip_address(str(text)))
    except ValueError as error:
        raise UsageError(
            f"row_weights have the probe {text!r}: it must be an IP address"
        ) from error


def _weight(name: str, weight: Any) -> float:
    is_number = isinstance(weight, Real) and not isinstance(weight, bool)
    if not is_number or not 0 <= float(weight) < math.inf:
        raise UsageError(f"{name} has weight {weight!r}: it must be 0 or more; 0 excludes its rows")
    return float(weight)


def _period(period: Any) -> list[Any]:
    try:
        begin, end, weight = period
        if not _second(begin) < _second(end):
            raise ValueError
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"row_weights have the period {period!r}: give [begin, end, weight], two times in UTC "
            "such as 2024-01-31 or 2024-01-31T12:00:00, the earlier one first"
        ) from error
    return [str(begin), str(end), _weight(f"period {begin} to {end}", weight)]


def _second(text: Any) -> int:
    time = datetime.fromisoformat(str(text))
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())
