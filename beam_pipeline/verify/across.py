"""Checks between records: shard order, rows.parquet, and the rows of a probe.

About 50 bytes of facts per row are kept and sorted by probe once all shards are read. Each check is
a small generator of faults over these columns.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.layout import DatasetOptions
from beam_pipeline.dataset.placement import places, probe_hashes
from beam_pipeline.dataset.row_codec import COMPACT_MAX_SPAN_SECONDS
from beam_pipeline.dataset.row_index import INDEX_SCHEMA, numbers
from beam_pipeline.verify.records import StoredRows

_US_PER_SECOND = 1_000_000
_MIN_FULL = 0.98

# The first or last measurement of a row, without its time; ordered by field.
END = np.dtype([("hi", "<u8"), ("lo", "<u8"), ("rtt", "<f4")])
ENDS = np.dtype([("first", END), ("last", END)])
FACTS = np.dtype(
    [
        ("src_id", "<i8"),
        ("src_addr_crc32", "<u4"),
        ("row_index", "<i4"),
        ("split", "u1"),
        ("shard", "<i4"),
        ("position", "<i4"),
        ("first_timestamp", "<i8"),
        ("last_timestamp", "<i8"),
        ("num_bytes", "<i8"),
        ("ends", "<i4"),  # an index into an array of ENDS, or -1
    ]
)


class Fault(NamedTuple):
    """A broken promise; `record` counts from 0 in its shard, None means the whole file."""

    shard: str
    record: int | None
    message: str


class FactCollector:
    """Collects the facts of rows, shard by shard; ends only for probes with several rows."""

    def __init__(self, options: DatasetOptions) -> None:
        self._options, self._full_bytes = options, min_full_bytes(options)
        self._facts = [np.empty(0, FACTS)]
        self._ends = [np.empty(0, ENDS)]
        self._num_ends = 0
        self._lines: list[pa.Table] = []  # of the shard

    def add(self, rows: StoredRows) -> None:
        """Adds the facts of rows, with counts from their measurements."""
        columns, decoded, sizes = rows.columns, rows.decoded, rows.sizes
        of_lines = {
            "shard": np.full(len(sizes), rows.shard.number, np.int32),
            "position": np.arange(len(sizes)) + rows.first_record,
            "num_bytes": decoded.num_bytes,
            "n_measurements": sizes,
            "num_ipv6": rows.count(columns.family == addresses.FAMILY_IPV6),
            "num_failed": rows.count(columns.rtt < 0),
        }
        stored = {
            name: decoded.columns[name] for name in INDEX_SCHEMA.names if name not in of_lines
        }
        every = {**stored, **of_lines}
        lines = pa.table({name: every[name] for name in INDEX_SCHEMA.names}).cast(INDEX_SCHEMA)
        self._lines.append(lines)
        facts = np.zeros(len(sizes), FACTS)
        for name in FACTS.names or ():
            if name in INDEX_SCHEMA.names:
                facts[name] = numbers(lines, name)
        facts["src_addr_crc32"] = [zlib.crc32(each.encode()) for each in rows.src_addrs]
        facts["split"], facts["ends"] = rows.shard.split, -1
        has_several_rows = (facts["row_index"] > 0) | (decoded.num_bytes >= self._full_bytes)
        which = np.flatnonzero(has_several_rows & (sizes > 0))
        facts["ends"][which] = self._num_ends + np.arange(len(which))
        ends = np.empty(len(which), ENDS)
        for name, at in ("first", rows.bounds[which]), ("last", rows.bounds[which + 1] - 1):
            for part, values in ("hi", columns.hi), ("lo", columns.lo), ("rtt", columns.rtt):
                ends[name][part] = values[at]
        self._ends.append(ends)
        self._num_ends += len(ends)
        self._facts.append(facts)

    def end_shard(self) -> pa.Table:
        """Returns the expected lines of rows.parquet for the rows since the last call."""
        lines = pa.concat_tables([INDEX_SCHEMA.empty_table(), *self._lines])
        self._lines = []
        return lines

    def all_rows(self, shards: dict[tuple[int, int], str], is_complete: bool) -> "AllRows":
        """Returns the facts of all rows; `shards` are paths by split and number."""
        facts = np.concatenate(self._facts)
        self._facts = []
        names = ("position", "shard", "split", "row_index", "src_id")
        facts = facts[np.lexsort([facts[name] for name in names])]
        return AllRows(facts, np.concatenate(self._ends), shards, self._options, is_complete)


def shard_order(shard: str, lines: pa.Table, format_version: int) -> Iterator[Fault]:
    """A shard's records ascend by (place, src_id, row_index), in version 1 by the last two.

    Ties are a fault of `row_indices`.
    """
    index, src_id = (lines[name].to_numpy().astype(np.int64) for name in ("row_index", "src_id"))
    place = np.zeros(len(lines), np.uint64)
    if format_version > 1:
        hi, lo, _ = addresses.parse(lines["src_addr"].combine_chunks())
        place = places(probe_hashes(hi, lo), index)
    rank = np.empty(len(lines), np.int64)
    order = np.lexsort([index, src_id, place])
    differs = [np.diff(column[order]) != 0 for column in (place, src_id, index)]
    rank[order] = np.append(0, np.cumsum(np.logical_or.reduce(differs)))[: len(lines)]
    for at in np.flatnonzero(rank[1:] < rank[:-1]).tolist():
        before, key = ((int(src_id[i]), int(index[i])) for i in (at, at + 1))
        message = f"(src_id, row_index) {key} comes after {before}"
        yield Fault(shard, int(lines["position"][at + 1].as_py()), message)


def index_lines(shard: str, found: pa.Table, lines: pa.Table) -> Iterator[Fault]:
    """The lines of a shard in rows.parquet, `found`, agree with its readable records."""
    position = lines["position"].to_numpy()
    for at in position[position >= found.num_rows].tolist():
        yield Fault(shard, at, "rows.parquet has no line for it")
    expected = lines.slice(0, int(np.searchsorted(position, found.num_rows)))
    found = found.take(expected["position"])
    differs = {
        name: pc.fill_null(pc.not_equal(found[name], expected[name]), True).to_numpy()
        for name in INDEX_SCHEMA.names
    }
    for at in np.flatnonzero(np.logical_or.reduce(list(differs.values()))).tolist():
        said = ", ".join(
            f"{name} {_plain(found[name][at])} (is {_plain(expected[name][at])})"
            for name, is_other in differs.items()
            if is_other[at]
        )
        yield Fault(shard, int(position[at]), f"rows.parquet says {said}")


def _plain(value: pa.Scalar) -> object:
    """Returns a value; timestamps as µs, since an int64 may be out of the range of dates."""
    return value.value if isinstance(value, pa.TimestampScalar) else value.as_py()


def min_full_bytes(options: DatasetOptions) -> int:
    """Returns the minimum size of a full row: 98 %, or without room for one more measurement.

    A measurement takes up to 72 bytes with padding; in compact up to 30 plus the bitmap of
    families, added with the first destination of the other family. A tf_example may take 16 more.
    """
    row_format = options.row_format
    limit = row_format.max_row_bytes
    step = 72 if row_format.encoding == "arrow" else 30 + limit // 80
    step += 16 if row_format.record_encoding == "tf_example" else 0
    return min(int(limit * _MIN_FULL), limit - step)


@dataclass(frozen=True)
class AllRows:
    """FACTS of all rows in the order of (src_id, row_index), and the referenced ENDS.

    `shards` are paths by split and number; it is not complete if records are unreadable.
    """

    facts: np.ndarray
    ends: np.ndarray
    shards: dict[tuple[int, int], str]
    options: DatasetOptions
    is_complete: bool = True

    @cached_property
    def neighbours(self) -> np.ndarray:
        """The rows, int64 [k], followed by a row of the same probe."""
        src_id = self.facts["src_id"]
        return np.flatnonzero(src_id[1:] == src_id[:-1])

    @cached_property
    def followed(self) -> np.ndarray:
        """The `neighbours` that are not followed by a duplicate."""
        row_index, at = self.facts["row_index"], self.neighbours
        return at[row_index[at] < row_index[at + 1]]

    def name(self, at: int) -> str:
        shard, record, _ = self.fault(at, "")
        return f"{shard} record {record}"

    def fault(self, at: int, message: str) -> Fault:
        fact = self.facts[at]
        return Fault(self.shards[fact["split"], fact["shard"]], int(fact["position"]), message)


def row_indices(rows: AllRows) -> Iterator[Fault]:
    """The rows of a probe are numbered 0, 1, …; gaps are faults unless records are unreadable."""
    src_id, index = rows.facts["src_id"], rows.facts["row_index"].astype(np.int64)
    at = rows.neighbours
    for i in at[index[at + 1] == index[at]].tolist():
        yield rows.fault(i + 1, f"row {index[i]} of src_id {src_id[i]} is also {rows.name(i)}")
    if not rows.is_complete:
        return
    is_first = np.ones(len(src_id), bool)
    is_first[at + 1] = False
    for i in np.flatnonzero(is_first & (index != 0)).tolist():
        yield rows.fault(i, f"src_id {src_id[i]} starts with row {index[i]}: row 0 is missing")
    for i in at[index[at + 1] > index[at] + 1].tolist():
        yield rows.fault(
            i + 1,
            f"row {index[i + 1]} of src_id {src_id[i]} follows row {index[i]}: some are missing",
        )


def row_order(rows: AllRows) -> Iterator[Fault]:
    """A row of a probe begins where the one before ends or later, including ties."""
    facts, at = rows.facts, rows.followed
    last, first = facts["last_timestamp"][at], facts["first_timestamp"][at + 1]
    for i in at[last > first].tolist():
        yield rows.fault(i + 1, f"it begins before {rows.name(i)}, an earlier row, ends")
    for i in at[last == first].tolist():
        ends, next_ends = facts["ends"][i : i + 2]
        if min(ends, next_ends) < 0:
            continue  # not full, a fault of `underfull`
        before, after = rows.ends[ends]["last"].tolist(), rows.ends[next_ends]["first"].tolist()
        if before > after:
            message = f"its first measurement must come before the last one of {rows.name(i)}"
            yield rows.fault(i + 1, message)
        elif before == after and rows.options.duplicates == "drop":
            yield rows.fault(i + 1, f"its first measurement equals the last one of {rows.name(i)}")


def underfull(rows: AllRows) -> Iterator[Fault]:
    """Every row but a probe's last is full, or in compact limited by its span."""
    facts, at = rows.facts, rows.followed
    full_bytes = min_full_bytes(rows.options)
    at = at[facts["num_bytes"][at] < full_bytes]
    if rows.options.measurement_encoding == "compact":
        second = facts["first_timestamp"] // _US_PER_SECOND
        at = at[second[at + 1] - second[at] <= COMPACT_MAX_SPAN_SECONDS]
    for i in at.tolist():
        yield rows.fault(
            i,
            f"it takes {facts['num_bytes'][i]} bytes, under {full_bytes}, but is not the last row "
            f"of its probe: {rows.name(i + 1)} follows",
        )


def one_split(rows: AllRows) -> Iterator[Fault]:
    """A probe is in only one split."""
    split, at = rows.facts["split"], rows.neighbours
    for i in at[split[at] != split[at + 1]].tolist():
        yield rows.fault(i + 1, f"another row of its probe is in the other split, {rows.name(i)}")


def collisions(rows: AllRows) -> Iterator[Fault]:
    """Different probes have different src_ids."""
    checksum, at = rows.facts["src_addr_crc32"], rows.neighbours
    for i in at[checksum[at] != checksum[at + 1]].tolist():
        src_id = rows.facts["src_id"][i]
        yield rows.fault(i + 1, f"{rows.name(i)} has the same src_id {src_id}, but not src_addr")
