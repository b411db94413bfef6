"""Checks of single records, each a small generator of faults.

Measurements are columns, to avoid a Python loop. Expected values are computed from the stored ones
without the writer's sort or sizes, so that the writer's faults are found. Checks between records
are in `across`.
"""

import ipaddress
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.dataset import addresses, layout
from beam_pipeline.dataset.layout import DatasetOptions, shard_of_row, split_of
from beam_pipeline.dataset.manifest import SPLITS
from beam_pipeline.dataset.row_codec import (
    COMPACT_HEADER,
    MEASUREMENT_SCHEMA,
    ProbeRow,
    decode_record,
)
from beam_pipeline.dataset.row_encoder import encode_compact
from beam_pipeline.dataset.sorted_run import widen

_US_PER_SECOND = 1_000_000
# Raised by `read_row` for bytes that are not a record.
UNREADABLE_RECORD = (ValueError, OSError, pa.ArrowException, struct.error)


class ShardPlace(NamedTuple):
    """The place of a shard; `path` is that in the dataset, `split` an index into SPLITS."""

    options: DatasetOptions
    path: str
    split: int
    number: int
    num_shards: int
    format_version: int


class Columns(NamedTuple):
    """n measurements as stored: int64 µs, uint64 address halves, float32 ms, [n] each.

    `family` is the status of `addresses.parse`. Only the arrow encoding has `versions`, int8 [n],
    and `texts`, the addresses as text.
    """

    time_us: np.ndarray
    hi: np.ndarray
    lo: np.ndarray
    family: np.ndarray
    rtt: np.ndarray
    versions: np.ndarray | None = None
    texts: pa.Array | None = None


class StoredRow(NamedTuple):
    """A decoded record, and its number in its shard.

    `canonical_src_addr` is None if its src_addr is not an address.
    """

    row: ProbeRow
    columns: Columns
    shard: ShardPlace
    record: int
    canonical_src_addr: str | None

    @property
    def options(self) -> DatasetOptions:
        return self.shard.options


def read_row(data: bytes, shard: ShardPlace, record: int) -> StoredRow:
    """Decodes a record; raises UNREADABLE_RECORD if it is not one."""
    row = decode_record(data)
    columns = _compact_columns(row) if row.encoding == "compact" else _arrow_columns(row)
    return StoredRow(row, columns, shard, record, _canonical(row.src_addr))


def _canonical(text: str) -> str | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return None if address.scope_id else str(address.ipv4_mapped or address)
    return str(address)


def _arrow_columns(row: ProbeRow) -> Columns:
    batch = row.to_arrow()
    if any(column.null_count for column in batch.columns):
        raise ValueError("measurements with nulls")
    time, texts, versions, rtt = (batch.column(name) for name in MEASUREMENT_SCHEMA.names)
    hi, lo, family = addresses.parse(texts)
    time_us = time.cast(pa.int64()).to_numpy()
    return Columns(time_us, hi, lo, family, rtt.to_numpy(), versions.to_numpy(), texts)


def _compact_columns(row: ProbeRow) -> Columns:
    run = widen(row.run)
    hi, lo = np.ascontiguousarray(run["dst_hi"]), np.ascontiguousarray(run["dst_lo"])
    is_ipv4 = (hi == 0) & (lo >> np.uint64(32) == 0xFFFF)
    family = np.where(is_ipv4, addresses.FAMILY_IPV4, addresses.FAMILY_IPV6)
    return Columns(run["event_time"], hi, lo, family, run["rtt"])


def _first(is_wrong: np.ndarray, message: Callable[[int], str]) -> Iterator[str]:
    """Yields the first fault of `is_wrong`, bool [n], and the number of further ones."""
    wrong = np.flatnonzero(is_wrong)
    if len(wrong):
        others = f" (and {len(wrong) - 1} more in this record)" if len(wrong) > 1 else ""
        yield f"{message(int(wrong[0]))}{others}"


def encoding(stored: StoredRow) -> Iterator[str]:
    """The encodings are those of the options, and compact bytes are canonical."""
    row_format, row = stored.options.row_format, stored.row
    if row.encoding != row_format.encoding:
        yield f"its encoding is {row.encoding}, the options say {row_format.encoding}"
    if row.record_encoding != row_format.record_encoding:
        yield f"the record is {row.record_encoding}, the options say {row_format.record_encoding}"
    if row.encoding == "compact" and encode_compact(row.run) != bytes(row.measurements):
        yield "its compact bytes differ from the encoding of its measurements: some were altered"


def row_columns(stored: StoredRow) -> Iterator[str]:
    """The row's columns agree with its measurements; compact ones have only whole seconds."""
    row, time_us = stored.row, stored.columns.time_us
    if len(time_us) == 0:
        yield "it has no measurements"
        return
    if row.n_measurements != len(time_us):
        yield f"n_measurements is {row.n_measurements}, it has {len(time_us)}"
    unit = _US_PER_SECOND if row.encoding == "compact" else 1
    for name, said, found in (
        ("first_timestamp", row.first_timestamp_us, time_us[0]),
        ("last_timestamp", row.last_timestamp_us, time_us[-1]),
    ):
        if said // unit != found // unit:
            yield f"{name} is {said} µs, that measurement has {found} µs"
    span = (row.last_timestamp_us - row.first_timestamp_us) / _US_PER_SECOND
    if row.record_encoding == "tf_example":
        span = float(np.float32(span))  # the precision of a float_list
    if row.time_span_seconds != span:
        yield f"time_span_seconds is {row.time_span_seconds}, it should be {span}"


def measurement_order(stored: StoredRow) -> Iterator[str]:
    """Measurements are ordered by event_time, destination, rtt, and distinct with `drop`.

    Compact rows are ordered only by seconds, unless they were rounded before they were sorted.
    """
    time_us, hi, lo, _, rtt, *_ = stored.columns
    if len(time_us) and time_us[0] < 0:
        yield f"measurement 0 is from before 1970 ({time_us[0]} µs)"
    is_wrong, by = time_us[1:] < time_us[:-1], "event_time"
    is_strict = stored.options.duplicates == "drop"
    if (stored.row.encoding == "arrow" or is_strict) and not is_wrong.any():
        by = "dst_addr and rtt"
        a = np.flatnonzero(time_us[1:] == time_us[:-1])
        b = a + 1
        lower = (lo[b] < lo[a]) | ((lo[b] == lo[a]) & (rtt[b] < rtt[a]))
        is_wrong[a] = (hi[b] < hi[a]) | ((hi[b] == hi[a]) & lower)
        if is_strict and not is_wrong.any():
            is_equal = (hi[b] == hi[a]) & (lo[b] == lo[a]) & (rtt[b] == rtt[a])
            yield from _first(is_equal, lambda at: f"measurement {b[at]} equals the one before it")
    yield from _first(is_wrong, lambda at: f"measurement {at + 1} must precede {at} by {by}")


def rtt_values(stored: StoredRow) -> Iterator[str]:
    """An rtt is finite, and negative only as -1.0, not as -0.0."""
    rtt = stored.columns.rtt
    yield from _first(
        ~np.isfinite(rtt) | (np.signbit(rtt) & (rtt != -1)),
        lambda at: (
            f"measurement {at} has rtt {rtt[at]}, which is neither -1.0 (failed) nor 0.0 or more"
        ),
    )


def destinations(stored: StoredRow) -> Iterator[str]:
    """Destinations are canonical addresses, and ip_version is their family."""
    _, hi, lo, family, _, versions, texts = stored.columns
    if versions is None or texts is None:  # compact: only the family can be wrong
        said = COMPACT_HEADER.unpack_from(stored.row.measurements)[2]
        num_ipv4 = said - int(np.count_nonzero(family == addresses.FAMILY_IPV6))
        if num_ipv4:
            yield f"{said} destinations are stored as IPv6, {num_ipv4} of them are IPv4"
        return
    is_unknown = (family != addresses.FAMILY_IPV4) & (family != addresses.FAMILY_IPV6)
    if is_unknown.any():
        yield from _first(
            is_unknown, lambda at: f"measurement {at} goes to {texts[at]}, which is not an address"
        )
        return
    yield from _first(
        versions != family,
        lambda at: f"measurement {at} to {texts[at]} has ip_version {versions[at]}",
    )
    canonical = addresses.format_any(hi, lo)
    if not canonical.equals(texts):
        yield from _first(
            pc.not_equal(canonical, texts).to_numpy(zero_copy_only=False),
            lambda at: f"measurement {at} goes to {texts[at]}, in canonical form {canonical[at]}",
        )


def too_large(stored: StoredRow) -> Iterator[str]:
    """No record exceeds --max_row_size_mb."""
    size, limit = stored.row.num_bytes, stored.options.row_format.max_row_bytes
    if size > limit:
        yield f"it takes {size} bytes, over the limit of {limit}"


def identity(stored: StoredRow) -> Iterator[str]:
    """src_addr is a canonical address and src_id its hash."""
    row, canonical = stored.row, stored.canonical_src_addr
    if canonical is None:
        yield f"src_addr {row.src_addr!r} is not an address"
        return
    if canonical != row.src_addr:
        yield f"src_addr {row.src_addr!r} is {canonical} in canonical form"
    wanted = layout.src_id(canonical)
    if row.src_id != wanted:
        yield f"src_id is {row.src_id}, that of {canonical} is {wanted}"


def placement(stored: StoredRow) -> Iterator[str]:
    """A row is in the split of its address and the shard of its place."""
    place, src_addr, options = stored.shard, stored.canonical_src_addr, stored.options
    if src_addr is None:
        return  # a fault of `identity`
    split = split_of(src_addr, options.train_ratio, options.split_seed)
    if split != place.split:
        yield f"probe {src_addr} belongs to {SPLITS[split]}"
    # From the address: a wrong src_id is only a fault of `identity`.
    row_index = stored.row.row_index
    shard = shard_of_row(src_addr, row_index, place.num_shards, place.format_version)
    if shard != place.number:
        yield f"row {stored.row.row_index} of {src_addr} belongs to shard {shard}"
