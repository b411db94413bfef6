"""Checks of the records of a shard, each a small generator of faults.

Records are decoded many at a time, as columns, so that no check loops over measurements in Python.
Expected values are computed from the stored ones without the writer's sort, sizes or kernels of
hashes, so that the writer's faults are found. Checks between records are in `across`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.dataset import addresses, layout
from beam_pipeline.dataset.decoded_rows import DecodedRows
from beam_pipeline.dataset.layout import DatasetOptions, shard_of_row, split_of
from beam_pipeline.dataset.manifest import SPLITS
from beam_pipeline.dataset.row_codec import COMPACT_HEADER, MEASUREMENT_SCHEMA
from beam_pipeline.dataset.row_encoder import encode_compact_rows
from beam_pipeline.dataset.row_index import numbers

_US_PER_SECOND = 1_000_000
# A record's index in its batch, and what is wrong with it.
RecordFault = tuple[int, str]


class ShardPlace(NamedTuple):
    """The place of a shard; `path` is that in the dataset, `split` an index into SPLITS."""

    options: DatasetOptions
    path: str
    split: int
    number: int
    num_shards: int
    format_version: int


class Columns(NamedTuple):
    """m measurements as stored: int64 µs, uint64 address halves, float32 ms, [m] each.

    `family` is the status of `addresses.parse`. Only the arrow encoding has `versions`, int8 [m],
    and `texts`, the addresses as text.
    """

    time_us: np.ndarray
    hi: np.ndarray
    lo: np.ndarray
    family: np.ndarray
    rtt: np.ndarray
    versions: np.ndarray | None = None
    texts: pa.Array | None = None


class StoredRows(NamedTuple):
    """r decoded records of a shard, and their m measurements one after another.

    Row i has the measurements bounds[i]:bounds[i + 1]. A canonical src_addr is None if the stored
    one is not an address.
    """

    shard: ShardPlace
    first_record: int  # number of the first in the shard; the others follow
    decoded: DecodedRows
    columns: Columns
    src_addrs: list[str]
    canonical_src_addrs: list[str | None]

    @classmethod
    def of(cls, decoded: DecodedRows, shard: ShardPlace, first_record: int) -> "StoredRows":
        """Returns decoded records as columns for the checks."""
        found = decoded.measurements
        columns = (
            _compact_columns(found) if isinstance(found, np.ndarray) else _arrow_columns(found)
        )
        texts = decoded.columns["src_addr"].combine_chunks()
        hi, lo, family = addresses.parse(texts)
        is_address = pa.array(_is_known(family))
        canonical = pc.if_else(is_address, addresses.format_any(hi, lo), None).to_pylist()
        return cls(shard, first_record, decoded, columns, texts.to_pylist(), canonical)

    @property
    def options(self) -> DatasetOptions:
        return self.shard.options

    @property
    def bounds(self) -> np.ndarray:
        """The bounds of each row's measurements, int64 [r + 1]."""
        return self.decoded.bounds

    @property
    def sizes(self) -> np.ndarray:
        """The number of measurements of each row, int64 [r]."""
        return np.diff(self.bounds)

    def of_rows(self, name: str) -> np.ndarray:
        """Returns a column of integers of RECORD_SCHEMA, int [r]."""
        return numbers(self.decoded.columns, name)

    def count(self, of_measurements: np.ndarray) -> np.ndarray:
        """Returns how many measurements of each row are true, int64 [r]."""
        so_far = np.append(0, np.cumsum(of_measurements, dtype=np.int64))
        return so_far[self.bounds[1:]] - so_far[self.bounds[:-1]]

    def first(
        self, is_wrong: np.ndarray, message: Callable[[int, int], str]
    ) -> Iterator[RecordFault]:
        """Yields the first fault of each record, and the number of its further ones.

        `message` is called with the measurement's index here and in its row.
        """
        wrong = np.flatnonzero(is_wrong)
        of_row = np.searchsorted(self.bounds, wrong, "right") - 1
        for row, at, count in zip(*map(np.ndarray.tolist, np.unique(of_row, True, False, True))):
            others = f" (and {count - 1} more in this record)" if count > 1 else ""
            found = int(wrong[at])
            yield row, f"{message(found, found - int(self.bounds[row]))}{others}"


def _is_known(family: np.ndarray) -> np.ndarray:
    return (family == addresses.FAMILY_IPV4) | (family == addresses.FAMILY_IPV6)


def _arrow_columns(batch: pa.RecordBatch) -> Columns:
    time, texts, versions, rtt = (batch.column(name) for name in MEASUREMENT_SCHEMA.names)
    hi, lo, family = addresses.parse(texts)
    time_us = time.cast(pa.int64()).to_numpy()
    return Columns(time_us, hi, lo, family, rtt.to_numpy(), versions.to_numpy(), texts)


def _compact_columns(run: np.ndarray) -> Columns:
    hi, lo = np.ascontiguousarray(run["dst_hi"]), np.ascontiguousarray(run["dst_lo"])
    is_ipv4 = (hi == 0) & (lo >> np.uint64(32) == 0xFFFF)
    family = np.where(is_ipv4, addresses.FAMILY_IPV4, addresses.FAMILY_IPV6)
    return Columns(run["event_time"], hi, lo, family, run["rtt"])


def encoding(rows: StoredRows) -> Iterator[RecordFault]:
    """The encodings are those of the options, and compact bytes are canonical."""
    row_format, decoded = rows.options.row_format, rows.decoded
    for found, wanted, what in (
        (decoded.encoding, row_format.encoding, "its encoding"),
        (decoded.record_encoding, row_format.record_encoding, "the record"),
    ):
        if found != wanted:
            message = f"{what} is {found}, the options say {wanted}"
            yield from ((row, message) for row in range(len(rows.sizes)))
    has_any = np.flatnonzero(rows.sizes)
    if isinstance(decoded.measurements, np.ndarray) and len(has_any):
        stored = decoded.columns["measurements"].take(pa.array(has_any)).to_pylist()
        bounds = np.append(rows.bounds[has_any], rows.bounds[-1])
        written = encode_compact_rows(decoded.measurements, bounds)
        for row, found, wanted in zip(has_any.tolist(), stored, written, strict=True):
            if found != wanted:
                message = "its compact bytes differ from the encoding of its measurements"
                yield row, f"{message}: some were altered"


def row_columns(rows: StoredRows) -> Iterator[RecordFault]:
    """The row's columns agree with its measurements; compact ones have only whole seconds."""
    said, sizes = rows.of_rows("n_measurements"), rows.sizes
    for row in np.flatnonzero(sizes == 0).tolist():
        yield row, "it has no measurements"
    for row in np.flatnonzero((said != sizes) & (sizes > 0)).tolist():
        yield row, f"n_measurements is {said[row]}, it has {sizes[row]}"
    unit = _US_PER_SECOND if rows.decoded.encoding == "compact" else 1
    has_any = np.flatnonzero(sizes)
    ends = [rows.of_rows(name) for name in ("first_timestamp", "last_timestamp")]
    for name, said, at in (
        ("first_timestamp", ends[0], rows.bounds[:-1]),
        ("last_timestamp", ends[1], rows.bounds[1:] - 1),
    ):
        found = rows.columns.time_us[at[has_any]]
        for row in np.flatnonzero(said[has_any] // unit != found // unit).tolist():
            where = has_any[row]
            yield int(where), f"{name} is {said[where]} µs, that measurement has {found[row]} µs"
    is_float32 = rows.decoded.record_encoding == "tf_example"
    spans = rows.decoded.columns["time_span_seconds"].to_pylist()
    for row, first, last in zip(has_any.tolist(), *(end[has_any].tolist() for end in ends)):
        span = (last - first) / _US_PER_SECOND  # of Python's integers, correctly rounded
        span = float(np.float32(span)) if is_float32 else span
        if spans[row] != span:
            yield row, f"time_span_seconds is {spans[row]}, it should be {span}"


def measurement_order(rows: StoredRows) -> Iterator[RecordFault]:
    """Measurements are ordered by event_time, destination, rtt, and distinct with `drop`.

    Compact rows are ordered only by seconds, unless they were rounded before they were sorted.
    """
    time_us, hi, lo, _, rtt, *_ = rows.columns
    firsts = rows.bounds[:-1][rows.sizes > 0]
    is_early = np.zeros(len(time_us), bool)
    is_early[firsts] = time_us[firsts] < 0
    yield from rows.first(
        is_early, lambda i, at: f"measurement {at} is from before 1970 ({time_us[i]} µs)"
    )

    def by(what: str) -> Callable[[int, int], str]:
        return lambda _, at: f"measurement {at} must precede {at - 1} by {what}"

    # Whether each measurement is out of order with the one before it in its row.
    is_wrong = np.zeros(len(time_us), bool)
    is_wrong[1:] = time_us[1:] < time_us[:-1]
    is_wrong[firsts] = False
    yield from rows.first(is_wrong, by("event_time"))
    is_strict = rows.options.duplicates == "drop"
    if rows.decoded.encoding != "arrow" and not is_strict:
        return
    is_tied = np.zeros(len(time_us), bool)
    is_tied[1:] = time_us[1:] == time_us[:-1]
    is_tied[firsts] = False
    is_tied &= np.repeat(rows.count(is_wrong) == 0, rows.sizes)
    b = np.flatnonzero(is_tied)
    a = b - 1
    lower = (lo[b] < lo[a]) | ((lo[b] == lo[a]) & (rtt[b] < rtt[a]))
    is_wrong[:] = False
    is_wrong[b] = (hi[b] < hi[a]) | ((hi[b] == hi[a]) & lower)
    yield from rows.first(is_wrong, by("dst_addr and rtt"))
    if is_strict:
        is_equal = np.zeros(len(time_us), bool)
        is_equal[b] = (hi[b] == hi[a]) & (lo[b] == lo[a]) & (rtt[b] == rtt[a])
        is_equal &= np.repeat(rows.count(is_wrong) == 0, rows.sizes)
        yield from rows.first(is_equal, lambda _, at: f"measurement {at} equals the one before it")


def rtt_values(rows: StoredRows) -> Iterator[RecordFault]:
    """An rtt is finite, and negative only as -1.0, not as -0.0."""
    rtt = rows.columns.rtt
    yield from rows.first(
        ~np.isfinite(rtt) | (np.signbit(rtt) & (rtt != -1)),
        lambda i, at: (
            f"measurement {at} has rtt {rtt[i]}, which is neither -1.0 (failed) nor 0.0 or more"
        ),
    )


def destinations(rows: StoredRows) -> Iterator[RecordFault]:
    """Destinations are canonical addresses, and ip_version is their family."""
    _, hi, lo, family, _, versions, texts = rows.columns
    if versions is None or texts is None:  # compact: only the family can be wrong
        num_ipv6 = rows.count(family == addresses.FAMILY_IPV6)
        stored = rows.decoded.columns["measurements"].to_pylist()
        for row, (data, found) in enumerate(zip(stored, num_ipv6.tolist(), strict=True)):
            if found != (said := COMPACT_HEADER.unpack_from(data)[2]):
                yield (
                    row,
                    f"{said} destinations are stored as IPv6, {said - found} of them are IPv4",
                )
        return
    is_unknown = ~_is_known(family)
    yield from rows.first(
        is_unknown, lambda i, at: f"measurement {at} goes to {texts[i]}, which is not an address"
    )
    canonical = addresses.format_any(hi, lo)
    # The other faults of such a record follow from it.
    is_readable = np.repeat(rows.count(is_unknown) == 0, rows.sizes)
    yield from rows.first(
        (versions != family) & is_readable,
        lambda i, at: f"measurement {at} to {texts[i]} has ip_version {versions[i]}",
    )
    if not canonical.equals(texts):
        yield from rows.first(
            pc.not_equal(canonical, texts).to_numpy(zero_copy_only=False) & is_readable,
            lambda i, at: f"measurement {at} goes to {texts[i]}, in canonical form {canonical[i]}",
        )


def too_large(rows: StoredRows) -> Iterator[RecordFault]:
    """No record exceeds --max_row_size_mb."""
    sizes, limit = rows.decoded.num_bytes, rows.options.row_format.max_row_bytes
    for row in np.flatnonzero(sizes > limit).tolist():
        yield row, f"it takes {sizes[row]} bytes, over the limit of {limit}"


def identity(rows: StoredRows) -> Iterator[RecordFault]:
    """src_addr is a canonical address and src_id its hash."""
    src_ids = rows.of_rows("src_id").tolist()
    columns = zip(rows.src_addrs, rows.canonical_src_addrs, src_ids, strict=True)
    for row, (src_addr, canonical, src_id) in enumerate(columns):
        if canonical is None:
            yield row, f"src_addr {src_addr!r} is not an address"
            continue
        if canonical != src_addr:
            yield row, f"src_addr {src_addr!r} is {canonical} in canonical form"
        if src_id != (wanted := layout.src_id(canonical)):
            yield row, f"src_id is {src_id}, that of {canonical} is {wanted}"


def placement(rows: StoredRows) -> Iterator[RecordFault]:
    """A row is in the split of its address and the shard of its place."""
    place, options = rows.shard, rows.options
    indexes = rows.of_rows("row_index").tolist()
    for row, (src_addr, row_index) in enumerate(
        zip(rows.canonical_src_addrs, indexes, strict=True)
    ):
        if src_addr is None:
            continue  # a fault of `identity`
        split = split_of(src_addr, options.train_ratio, options.split_seed)
        if split != place.split:
            yield row, f"probe {src_addr} belongs to {SPLITS[split]}"
        # From the address: a wrong src_id is only a fault of `identity`.
        shard = shard_of_row(src_addr, row_index, place.num_shards, place.format_version)
        if shard != place.number:
            yield row, f"row {row_index} of {src_addr} belongs to shard {shard}"
