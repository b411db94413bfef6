"""The rules for measurements: Arrow batches become checked columns and faults.

docs/format.md lists the rules. Work is per column and per distinct address, never per measurement
in Python.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.layout import Encoding
from beam_pipeline.dataset.row_codec import MAX_FIRST_SECOND
from beam_pipeline.dataset.rtt import MAX_RTT_MS, decode_rtt, encode_rtt
from beam_pipeline.sources.options import COLUMNS

_US_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
_NS_PER_US = 1_000
_MAX_COMPACT_US = (MAX_FIRST_SECOND + 1) * 1_000_000 - 1
_ADDRESS_REASONS = {
    addresses.NULL: "null",
    addresses.ZONE_ID: "zone_id",
    addresses.INVALID: "invalid",
}
# In this order: a row is counted under the first rule it breaks.
REASONS = (
    "event_time_null",
    "event_time_unreadable",
    "event_time_before_1970",
    "event_time_out_of_range",
    "src_addr_null",
    "src_addr_zone_id",
    "src_addr_invalid",
    "dst_addr_null",
    "dst_addr_zone_id",
    "dst_addr_invalid",
    "ip_version_null",
    "ip_version_unreadable",
    "ip_version_not_4_or_6",
    "ip_version_not_of_dst_addr",
    "rtt_null",
    "rtt_unreadable",
    "rtt_not_finite",
    "rtt_out_of_range",
)
_REASON_CODE = {reason: code for code, reason in enumerate(REASONS, start=1)}


class AddressColumn(NamedTuple):
    """n addresses as codes, int32 [n], into a table of their halves, uint64 [m] each."""

    codes: np.ndarray
    hi: np.ndarray
    lo: np.ndarray


@dataclass(frozen=True)
class Block:
    """n measurements that satisfy every rule, as columns."""

    event_time: np.ndarray  # int64 [n], µs since 1970 UTC
    src: AddressColumn
    dst: AddressColumn
    rtt: np.ndarray  # float32 [n], ms, -1.0 = failed

    def __len__(self) -> int:
        return len(self.event_time)


class Faults(NamedTuple):
    """Rows of a batch that break a rule: their positions, int64 [k], and reasons, k names."""

    rows: np.ndarray
    reasons: list[str]


def check(
    batch: pa.RecordBatch,
    encoding: Encoding = "arrow",
    unreadable: Mapping[str, np.ndarray] | None = None,
) -> tuple[Block, Faults]:
    """Returns the measurements of a batch that satisfy every rule, and the rows that break one.

    Compact measurements are limited to RTTs of 50 days and to times within the span of a row.
    `unreadable` has the rows, bool [n], of values that are null because they could not be read, by
    column.
    """
    is_compact = encoding == "compact"
    reason = np.zeros(batch.num_rows, np.uint8)

    def mark(column: str) -> None:
        if unreadable and column in unreadable:
            reason[unreadable[column]] = _REASON_CODE[f"{column}_unreadable"]

    # The last rule is applied first, so that the first rule broken overwrites the others.
    rtt = _check_rtt(_decoded(batch.column("rtt")), reason, is_compact)
    mark("rtt")
    dst, dst_status = _parse_addresses(batch.column("dst_addr"))
    _check_version(_decoded(batch.column("ip_version")), dst_status, dst.codes, reason)
    mark("ip_version")
    _check_addresses("dst_addr", dst.codes, dst_status, reason)
    src, src_status = _parse_addresses(batch.column("src_addr"))
    _check_addresses("src_addr", src.codes, src_status, reason)
    event_time = _check_event_time(_decoded(batch.column("event_time")), reason, is_compact)
    mark("event_time")
    return _judged(Block(event_time, src, dst, rtt), reason)


def check_encoding(block: Block, encoding: Encoding) -> tuple[Block, Faults]:
    """Checks measurements of a dataset, which can only be out of range of `encoding`."""
    is_compact, reason = encoding == "compact", np.zeros(len(block), np.uint8)
    rtt = _check_rtt(pa.array(block.rtt), reason, is_compact)
    times = pa.array(block.event_time, pa.timestamp("us"))
    event_time = _check_event_time(times, reason, is_compact)
    return _judged(Block(event_time, block.src, block.dst, rtt), reason)


def as_stored(block: Block) -> Block:
    """Returns measurements as compact rows store them: whole seconds, RTTs rounded."""
    event_time = block.event_time // 1_000_000 * 1_000_000
    return replace(block, event_time=event_time, rtt=decode_rtt(encode_rtt(block.rtt)))


def _judged(block: Block, reason: np.ndarray) -> tuple[Block, Faults]:
    """Separates the measurements with reason code 0 from the others."""
    if not reason.any():
        return block, Faults(np.zeros(0, np.int64), [])
    rows = np.flatnonzero(reason)
    return _select(block, reason == 0), Faults(rows, [REASONS[reason[i] - 1] for i in rows])


def _select(block: Block, kept: np.ndarray) -> Block:
    src = block.src._replace(codes=block.src.codes[kept])
    dst = block.dst._replace(codes=block.dst.codes[kept])
    return Block(block.event_time[kept], src, dst, block.rtt[kept])


def _decoded(column: pa.Array) -> pa.Array:
    if not pa.types.is_dictionary(column.type):
        return column
    if pa.types.is_string_view(column.type.value_type):  # `dictionary_decode` does not support it
        plain = column.dictionary.cast(pa.large_string())
        column = pa.DictionaryArray.from_arrays(column.indices, plain)
    return column.dictionary_decode()


def _nulls(column: pa.Array) -> np.ndarray:
    return column.is_null().to_numpy(zero_copy_only=False)


def _check_rtt(column: pa.Array, reason: np.ndarray, is_compact: bool) -> np.ndarray:
    nulls = _nulls(column) if column.null_count else None
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore", under="ignore"):
        rtt = values.astype(np.float32)
    if is_compact:
        reason[rtt > MAX_RTT_MS] = _REASON_CODE["rtt_out_of_range"]
    finite = np.isfinite(rtt)
    if not finite.all():
        reason[~finite] = _REASON_CODE["rtt_not_finite"]
    if nulls is not None:
        reason[nulls] = _REASON_CODE["rtt_null"]
    # Adding 0.0 turns -0.0 into 0.0.
    return np.where(values < 0, np.float32(-1), rtt + np.float32(0))


def _check_version(
    column: pa.Array, dst_status: np.ndarray, dst_codes: np.ndarray, reason: np.ndarray
) -> None:
    version = column.fill_null(0).to_numpy(zero_copy_only=False)
    differs = version != dst_status[dst_codes]
    if not differs.any():
        return
    reason[differs] = _REASON_CODE["ip_version_not_of_dst_addr"]
    reason[(version != 4) & (version != 6)] = _REASON_CODE["ip_version_not_4_or_6"]
    if column.null_count:
        reason[_nulls(column)] = _REASON_CODE["ip_version_null"]


def _parse_addresses(column: pa.Array) -> tuple[AddressColumn, np.ndarray]:
    """Returns the addresses, and the status of each entry of their table, uint8 [m]."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    elif len(column.dictionary) > len(column):
        column = _with_used_entries(column)
    codes = column.indices
    hi, lo, status = addresses.parse(column.dictionary)
    if codes.null_count:
        # An additional entry represents the nulls.
        codes = codes.cast(pa.int32()).fill_null(len(status))
        hi, lo = np.append(hi, np.uint64(0)), np.append(lo, np.uint64(0))
        status = np.append(status, np.uint8(addresses.NULL))
    return AddressColumn(codes.to_numpy().astype(np.int32, copy=False), hi, lo), status


def _with_used_entries(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """Drops unused dictionary entries: some writers store a whole table's with each row group."""
    entries = column.dictionary
    if pa.types.is_string_view(entries.type):  # `take` does not support it
        entries = entries.cast(pa.large_string())
    used = column.indices.drop_null().unique()
    return pa.DictionaryArray.from_arrays(pc.index_in(column.indices, used), entries.take(used))


def _check_addresses(name: str, codes: np.ndarray, status: np.ndarray, reason: np.ndarray) -> None:
    if status.min(initial=addresses.FAMILY_IPV4) >= addresses.FAMILY_IPV4:
        return
    by_entry = np.zeros(len(status), np.uint8)
    for bad, suffix in _ADDRESS_REASONS.items():
        by_entry[status == bad] = _REASON_CODE[f"{name}_{suffix}"]
    by_row = by_entry[codes]
    reason[by_row > 0] = by_row[by_row > 0]


def _check_event_time(column: pa.Array, reason: np.ndarray, is_compact: bool) -> np.ndarray:
    values = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    unit = column.type.unit
    if unit == "ns":
        # Arrow's cast rounds towards zero, which would move the end of 1969 into 1970.
        values = values // _NS_PER_US
    elif unit != "us":
        factor = _US_PER_UNIT[unit]
        too_far = values > np.iinfo(np.int64).max // factor
        reason[too_far] = _REASON_CODE["event_time_out_of_range"]
        values = np.where(too_far, 0, np.maximum(values, -1) * factor)
    if is_compact:
        reason[values > _MAX_COMPACT_US] = _REASON_CODE["event_time_out_of_range"]
    early = values < 0
    if early.any():
        reason[early] = _REASON_CODE["event_time_before_1970"]
    if column.null_count:
        reason[_nulls(column)] = _REASON_CODE["event_time_null"]
    return values


def valid_times(column: pa.Array, encoding: Encoding) -> tuple[np.ndarray, np.ndarray]:
    """Returns times, int64 [n] in µs since 1970, and which of them are valid, bool [n]."""
    reason = np.zeros(len(column), np.uint8)
    times = _check_event_time(_decoded(column), reason, encoding == "compact")
    return times, reason == 0


def as_text(batch: pa.RecordBatch, rows: np.ndarray) -> list[dict[str, str | None]]:
    """Returns the values of some rows, int64 [k], as text for dead letters."""
    columns = [_column_as_text(batch.column(name), pa.array(rows)) for name in COLUMNS]
    return [dict(zip(COLUMNS, values, strict=True)) for values in zip(*columns, strict=True)]


def _column_as_text(column: pa.Array, rows: pa.Array) -> list[str | None]:
    column = _decoded(column)
    if pa.types.is_string_view(column.type):  # `take` does not support it
        column = column.cast(pa.large_string())
    column = column.take(rows)
    try:
        column = column.cast(pa.string())
    except pa.ArrowInvalid:  # a timestamp outside the calendar has no text
        column = column.cast(pa.int64()).cast(pa.string())
    # Arrow does not check that a Parquet file's strings are UTF-8.
    values = column.cast(pa.binary()).to_pylist()
    return [value if value is None else value.decode(errors="backslashreplace") for value in values]
