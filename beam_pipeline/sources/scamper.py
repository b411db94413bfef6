"""Ping records of scamper as JSON lines, as `sc_warts2json` writes them.

A record has the replies to its probes; each is a measurement at the time its probe was sent, or, in
versions that do not report it, at the record's start. Probes without a reply are failed pings.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from beam_pipeline.sources.mapping import family_of
from beam_pipeline.sources.options import COLUMNS
from beam_pipeline.sources.tables import (
    BadRecordError,
    TableBatch,
    gathered,
    parse_records,
)
from beam_pipeline.storage.matching import FileVersion

_FAILED = -1.0
_US_PER_S = 1_000_000
_MARKS = ("cycle-start", "cycle-stop")  # records without measurements, of scamper's lists


def read_json(file: FileVersion) -> Iterator[TableBatch]:
    """Yields measurements, with the columns of COLUMNS; lines are counted from 0."""
    for first, records in gathered(file):
        lines, pings, bad = parse_records(enumerate(records, first), _parse)
        next_row = first + len(records)
        if not pings:
            yield TableBatch(None, np.zeros(0, np.int64), bad, next_row)
            continue
        times, srcs, dsts, rtts = zip(*pings, strict=True)
        src, dst = (pa.array(each, pa.string()).dictionary_encode() for each in (srcs, dsts))
        columns = [
            pa.array(times, pa.timestamp("us")),
            src,
            dst,
            family_of(dst),
            pa.array(rtts, pa.float64()),
        ]
        batch = pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))
        yield TableBatch(batch, np.array(lines, np.int64), bad, next_row)


def _parse(
    record: dict[str, Any],
) -> list[tuple[int | None, str | None, str | None, float | None]]:
    """Returns time in µs, source, destination and RTT of each probe of a record."""
    kind = record.get("type")
    if kind in _MARKS:
        return []
    if kind != "ping":
        raise BadRecordError("not_a_ping")
    try:
        start, ends = _time(record["start"]), (_text(record, "src"), _text(record, "dst"))
        replies, silent = record.get("responses", []), record.get("no_responses", [])
        found = [(_time(each.get("tx"), start), *ends, _rtt(each)) for each in replies]
        num_lost = max(0, record["ping_sent"] - len({each["seq"] for each in replies}))
        lost = [_time(each.get("tx"), start) for each in silent[:num_lost]]
    except (KeyError, TypeError, AttributeError, OverflowError):
        raise BadRecordError("wrong_type") from None
    lost += [start] * (num_lost - len(lost))
    return found + [(time, *ends, _FAILED) for time in lost]


def _time(value: Any, default: int | None = None) -> int | None:
    if value is None:
        return default
    return int(value["sec"]) * _US_PER_S + int(value.get("usec", 0))


def _text(record: dict[str, Any], name: str) -> str | None:
    value = record.get(name)
    if value is not None and type(value) is not str:
        raise TypeError
    return value


def _rtt(reply: dict[str, Any]) -> float | None:
    rtt = reply.get("rtt")
    if rtt is not None and type(rtt) not in (int, float):
        raise TypeError
    return None if rtt is None else float(rtt)
