"""What must hold of one record of a dataset (SPEC 4), each promise a small generator of faults.

A check takes a StoredRow, the measurements as columns, so that nothing is done per measurement
in Python. Expected values are worked out from what is stored, not with the writer's own sort or
sizes, so that a fault of the writer shows. Checks across records are in `verify_rows`.
"""

import ipaddress
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.layout import DatasetOptions, row_key, shard_of, split_of
from beam_pipeline.dataset.manifest import SPLITS
from beam_pipeline.dataset.row_codec import (
    COMPACT_HEADER,
    MEASUREMENT_SCHEMA,
    ProbeRow,
    decode_record,
)
from beam_pipeline.dataset.sorted_run import widen

_US_PER_SECOND = 1_000_000
# What `read_row` raises for bytes that are no record.
UNREADABLE_RECORD = (ValueError, OSError, pa.ArrowException, struct.error)


class Fault(NamedTuple):
    """A promise that is not kept; `record` counts from 0 in its shard, None: the whole file."""

    shard: str
    record: int | None
    message: str


class Place(NamedTuple):
    """Where a record was found; `shard` is a path in the dataset, `split` an index into SPLITS."""

    shard: str
    record: int
    split: int
    shard_number: int
    num_shards: int


class Columns(NamedTuple):
    """n measurements as stored: int64 µs, uint64 address halves, float32 ms, [n] each.

    `family` is 4 or 6, or what `addresses.parse` says of a text that is no address. Only the
    arrow encoding stores `versions`, int8 [n], and `texts`, the addresses as text.
    """

    time_us: np.ndarray
    hi: np.ndarray
    lo: np.ndarray
    family: np.ndarray
    rtt: np.ndarray
    versions: np.ndarray | None = None
    texts: pa.Array | None = None


@dataclass(frozen=True)
class StoredRow:
    """A record that could be read, and where it was found."""

    row: ProbeRow
    columns: Columns
    place: Place

    def fault(self, message: str) -> Fault:
        return Fault(self.place.shard, self.place.record, message)

    @cached_property
    def canonical_src_addr(self) -> str | None:
        """The canonical text of src_addr, None if it is no address."""
        try:
            address = ipaddress.ip_address(self.row.src_addr)
        except ValueError:
            return None
        if isinstance(address, ipaddress.IPv6Address):
            return None if address.scope_id else str(address.ipv4_mapped or address)
        return str(address)


def read_row(record: bytes, place: Place) -> StoredRow:
    """Decodes a record.

    Raises:
      UNREADABLE_RECORD: the bytes are no record of RECORD_SCHEMA and MEASUREMENT_SCHEMA.
    """
    row = decode_record(record)
    read = _compact_columns if row.encoding == "compact" else _arrow_columns
    return StoredRow(row, read(row), place)


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


# --- one record ---------------------------------------------------------------------------------


def encoding(stored: StoredRow, options: DatasetOptions) -> Iterator[Fault]:
    """A record and its measurements have the encodings that the options say."""
    wanted = options.measurement_encoding
    if stored.row.encoding != wanted:
        yield stored.fault(f"its encoding is {stored.row.encoding}, the options say {wanted}")
    if stored.row.record_encoding != options.record_encoding:
        yield stored.fault(
            f"the record is {stored.row.record_encoding}, the options say {options.record_encoding}"
        )


def row_columns(stored: StoredRow, options: DatasetOptions) -> Iterator[Fault]:
    """The row's columns tell of its measurements; compact ones know whole seconds only."""
    row, time_us = stored.row, stored.columns.time_us
    if len(time_us) == 0:
        yield stored.fault("it holds no measurement")
        return
    if row.n_measurements != len(time_us):
        yield stored.fault(f"n_measurements is {row.n_measurements}, it holds {len(time_us)}")
    unit = _US_PER_SECOND if row.encoding == "compact" else 1
    ends = (row.first_timestamp_us, time_us[0]), (row.last_timestamp_us, time_us[-1])
    for name, (said, found) in zip(("first", "last"), ends, strict=True):
        if said // unit != found // unit:
            yield stored.fault(f"{name}_timestamp is {said} µs, that measurement has {found} µs")
    span = (row.last_timestamp_us - row.first_timestamp_us) / _US_PER_SECOND
    if row.record_encoding == "tf_example":
        span = float(np.float32(span))  # its float_list has no other
    if row.time_span_seconds != span:
        yield stored.fault(f"time_span_seconds is {row.time_span_seconds}, it should be {span}")


def measurement_order(stored: StoredRow, options: DatasetOptions) -> Iterator[Fault]:
    """Measurements are ordered by event_time, destination, rtt (compact: by whole seconds)."""
    time_us, hi, lo, _, rtt, *_ = stored.columns
    if len(time_us) and time_us[0] < 0:
        yield stored.fault(f"measurement 0 is from before 1970 ({time_us[0]} µs)")
    wrong = np.flatnonzero(time_us[1:] < time_us[:-1])
    if stored.row.encoding == "arrow" and len(wrong) == 0:
        a = np.flatnonzero(time_us[1:] == time_us[:-1])
        b = a + 1
        lower = (lo[b] < lo[a]) | ((lo[b] == lo[a]) & (rtt[b] < rtt[a]))
        wrong = a[(hi[b] < hi[a]) | ((hi[b] == hi[a]) & lower)]
    if len(wrong):
        at = int(wrong[0])
        by = "event_time" if time_us[at + 1] < time_us[at] else "dst_addr and rtt"
        yield stored.fault(f"measurement {at + 1} belongs before {at} by {by}{_others(wrong)}")


def rtt_values(stored: StoredRow, options: DatasetOptions) -> Iterator[Fault]:
    """An rtt is finite, negative only as -1.0, and zero is not negative."""
    rtt = stored.columns.rtt
    wrong = np.flatnonzero(~np.isfinite(rtt) | (np.signbit(rtt) & (rtt != -1)))
    if len(wrong):
        at = int(wrong[0])
        yield stored.fault(
            f"measurement {at} has rtt {rtt[at]}, which is neither -1.0 (failed) nor 0.0 or "
            f"more{_others(wrong)}"
        )


def destinations(stored: StoredRow, options: DatasetOptions) -> Iterator[Fault]:
    """Destinations are canonical addresses, and ip_version is their family."""
    _, hi, lo, family, _, versions, texts = stored.columns
    if versions is None or texts is None:
        yield from _compact_destinations(stored)
        return
    known = (family == addresses.FAMILY_IPV4) | (family == addresses.FAMILY_IPV6)
    if not known.all():
        wrong = np.flatnonzero(~known)
        at = int(wrong[0])
        yield stored.fault(f"measurement {at} goes to {texts[at]}, no address{_others(wrong)}")
        return
    wrong = np.flatnonzero(versions != family)
    if len(wrong):
        at = int(wrong[0])
        yield stored.fault(
            f"measurement {at} to {texts[at]} has ip_version {versions[at]}{_others(wrong)}"
        )
    canonical = addresses.format_any(hi, lo)
    if not canonical.equals(texts):
        wrong = np.flatnonzero(pc.not_equal(canonical, texts).to_numpy(zero_copy_only=False))
        at = int(wrong[0])
        yield stored.fault(
            f"measurement {at} goes to {texts[at]}, which is written {canonical[at]}"
            f"{_others(wrong)}"
        )


def _compact_destinations(stored: StoredRow) -> Iterator[Fault]:
    """Compact rows hold addresses as numbers: only the family can be a wrong one."""
    num_ipv6 = COMPACT_HEADER.unpack_from(stored.row.measurements)[2]
    found = int(np.count_nonzero(stored.columns.family == addresses.FAMILY_IPV6))
    if num_ipv6 != found:
        yield stored.fault(
            f"{num_ipv6} destinations are stored as IPv6, {num_ipv6 - found} of them are IPv4"
        )


def too_large(stored: StoredRow, options: DatasetOptions) -> Iterator[Fault]:
    """No record is larger than --max_row_size_mb."""
    size, limit = stored.row.num_bytes, options.row_format.max_row_bytes
    if size > limit:
        yield stored.fault(f"it takes {size} bytes, over the limit of {limit}")


def identity(stored: StoredRow, options: DatasetOptions) -> Iterator[Fault]:
    """src_addr is a canonical address and src_id its hash."""
    row, canonical = stored.row, stored.canonical_src_addr
    if canonical is None:
        yield stored.fault(f"src_addr {row.src_addr!r} is no address")
        return
    if canonical != row.src_addr:
        yield stored.fault(f"src_addr {row.src_addr!r} is written {canonical}")
    wanted = addresses.src_id(canonical)
    if row.src_id != wanted:
        yield stored.fault(f"src_id is {row.src_id}, that of {canonical} is {wanted}")


def placement(stored: StoredRow, options: DatasetOptions) -> Iterator[Fault]:
    """A row is in the split that its address says and the shard that its key says."""
    place, src_addr = stored.place, stored.canonical_src_addr
    if src_addr is None:
        return  # a fault of `identity`; where it belongs nobody knows
    split = split_of(src_addr, options.train_ratio, options.split_seed)
    if split != place.split:
        yield stored.fault(f"probe {src_addr} belongs to {SPLITS[split]}")
    # A wrong src_id is a fault of `identity` alone.
    key = row_key(addresses.src_id(src_addr), stored.row.row_index)
    shard = shard_of(key, place.num_shards)
    if shard != place.shard_number:
        yield stored.fault(f"row {stored.row.row_index} of {src_addr} belongs to shard {shard}")


def _others(wrong: np.ndarray) -> str:
    return f" (and {len(wrong) - 1} more in this record)" if len(wrong) > 1 else ""


RecordCheck = Callable[[StoredRow, DatasetOptions], Iterator[Fault]]
RECORD_CHECKS: dict[str, RecordCheck] = {
    "encoding": encoding,
    "row_columns": row_columns,
    "order": measurement_order,
    "rtt": rtt_values,
    "destinations": destinations,
    "size": too_large,
    "identity": identity,
    "placement": placement,
}
