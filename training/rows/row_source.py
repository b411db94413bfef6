"""Rows by number over many shards, local or gs://: `ProbeRowDataSource` and its reader.

Each row is one read of one record, or, in a local shard that is not compressed, none: its
measurements are used where they lie in the file. Its key and size are compared with rows.parquet,
and errors name shards that were replaced or damaged after the manifest was written.
"""
# pyarrow has no types; the arguments of kernels get theirs from numba.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

import mmap
import struct
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset import addresses, row_codec
from beam_pipeline.dataset.row_reader import READ_ERRORS, BadRowError, RowReader
from beam_pipeline.dataset.rtt import decode_rtt
from beam_pipeline.errors import ProbelineError
from beam_pipeline.kernels import kernel
from beam_pipeline.storage.files import file_infos, is_local
from training.rows.blocks import blocks_of, is_intact, record_offsets
from training.rows.gathered_rows import NO_ROWS, GatheredRows, gather
from training.rows.keyed_random import key_of
from training.rows.measurement_at import dst_at
from training.rows.row_layout import ARROW, Columns, Located, locate, locate_in_file
from training.rows.row_table import RowTable, ShardSet, find_shards, load_rows

__all__ = [
    "BadRow",
    "BadRowError",
    "ProbeDataSource",
    "ProbeRowDataSource",
    "ShardReader",
    "check_shards",
]


# Records of up to this size are copied together, so that a batch needs little memory for them;
_MAX_GATHERED_BYTES = 1 << 16
# those from this size on are used in place, between the headers of blocks, which costs some time.
_MIN_IN_PLACE_BYTES = 1 << 19
# Of so many shards the offsets of records are kept.
_MAX_OFFSETS = 256


class BadRow(NamedTuple):
    """The place of a row that was skipped, and the reason."""

    shard: int
    position: int
    reason: str


class ShardReader(RowReader[RowTable]):
    """Reads the rows of a set of shards, and locates their measurements."""

    def __init__(self, shards: ShardSet, rows: RowTable):
        cure = "copy the dataset again, or leave such rows out with on_bad_row=skip"
        super().__init__(shards.dataset, shards.split, rows, cure)
        self.shards = shards
        options = shards.dataset.manifest.options["array_record_options"].split(",")
        is_plain = sorted(options) == ["group_size:1", "uncompressed"]
        self._is_plain, self._is_local = is_plain, is_local(shards.dataset.path)
        self._is_checked = np.zeros(len(rows), bool)
        self._offsets: dict[int, np.ndarray] = {}  # of the records of a shard

    def locate_in_place(self, row: int) -> Located:
        """Returns the measurements of a row, a large one as it lies in an uncompressed shard.

        Raises:
          BadRowError: as `locate`.
        """
        is_worth_it = self._is_plain and self.rows.num_bytes[row] >= _MIN_IN_PLACE_BYTES
        return (self._locate_in_shard(row) if is_worth_it else None) or self.locate(row)

    def gather(self, rows: np.ndarray) -> GatheredRows:
        """Copies those of some rows that are mapped, small and as they should be."""
        is_small = self.rows.num_bytes[rows] <= _MAX_GATHERED_BYTES
        small = rows[is_small & (self._is_plain and self._is_local)]
        if not len(small):
            return NO_ROWS
        return gather(small, self.rows, self._is_checked, self._offsets_of, self._file)

    def _offsets_of(self, shard: int) -> np.ndarray:
        """Returns the offset of each record of a shard, see `blocks`."""
        if (offsets := self._offsets.get(shard)) is None:
            if len(self._offsets) >= _MAX_OFFSETS:
                self._offsets = {}
            offsets = record_offsets(self.rows.num_bytes[self.rows.of_shard(shard)])
            self._offsets[shard] = offsets
        return offsets

    def _file(self, shard: int) -> np.ndarray:
        """Returns a shard for kernels, uint8 [1, bytes]."""
        return np.frombuffer(self.map_shard(shard), np.uint8)[np.newaxis]

    def _locate_in_shard(self, row: int) -> Located | None:
        """Returns the place of a row in its shard; None if reading it must tell what is wrong.

        Its checksum is compared when it is fetched, or else when it is first used.
        """
        shard, position = self.rows.place(row)
        offset, num_bytes = int(self._offsets_of(shard)[position]), int(self.rows.num_bytes[row])
        try:
            if self._is_local:
                file = self._map_row(shard, offset, num_bytes)
            else:
                file, offset = self._fetch_row(shard, offset, num_bytes)
        except (*READ_ERRORS, ProbelineError):
            return None
        is_checked = self._is_local and self._is_checked[row]
        if not is_checked and not is_intact(file, offset, num_bytes):
            return None
        if located := locate_in_file(file, offset, num_bytes):
            self._check(row, located)
            self._is_checked[row] = True
        return located

    def _map_row(self, shard: int, offset: int, num_bytes: int) -> np.ndarray:
        """Returns the shard of a row; what of the row is not in memory is read at once."""
        begin = offset - offset % mmap.PAGESIZE
        self.map_shard(shard).madvise(mmap.MADV_WILLNEED, begin, num_bytes)
        return self._file(shard)

    def _fetch_row(self, shard: int, offset: int, num_bytes: int) -> tuple[np.ndarray, int]:
        """Returns the blocks of a shard that a row lies in, and its offset in these."""
        blocks = blocks_of(offset, num_bytes)
        data = self.read_range(shard, blocks.begin, blocks.end)
        return np.frombuffer(data, np.uint8)[np.newaxis], blocks.offset

    def locate(self, row: int) -> Located:
        """Returns the measurements of a row.

        Raises:
          BadRowError: the row cannot be read, or differs from its line in the index.
        """
        return self.locate_in(row, self.read(row))

    def locate_in(self, row: int, record: bytes) -> Located:
        """Returns the measurements of a row, given its record; raises as `locate`."""
        try:
            located = locate(record)
        except ValueError as error:
            raise self.bad_row(row, str(error)) from error
        self._check(row, located)
        return located

    def _check(self, row: int, located: Located) -> None:
        found = located.src_id, located.row_index, located.columns.layout.num_measurements
        rows = self.rows
        if (key_of(*found[:2]), found[2]) != (rows.identity[row], rows.n_measurements[row]):
            names = "(src_id, row_index, n_measurements)"
            raise self.bad_row(row, f"it holds {names} {found}, rows.parquet says otherwise")

    def describe(self, row: int, reason: str) -> BadRow:
        """Returns the place of a row that is skipped."""
        return BadRow(*self.rows.place(row), reason)


def check_shards(shards: ShardSet) -> None:
    """Compares the sizes and, on GCS, the checksums of the shards with the manifest.

    Raises:
      ProbelineError: some shards are missing or differ.
    """
    infos = file_infos([shards.path(number) for number in shards.chosen])
    faults = []
    for number in shards.chosen:
        path, shard = shards.path(number), shards.shards[number]
        info = infos[path]
        if info is None:
            faults.append(f"{path} is missing")
        elif info.num_bytes != shard.num_bytes:
            faults.append(f"{path} has {info.num_bytes} bytes, not {shard.num_bytes}")
        elif info.crc32c is not None and info.crc32c != shard.crc32c:
            faults.append(f"{path} has checksum {info.crc32c}, not {shard.crc32c}")
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise ProbelineError(
            f"the manifest of {shards.dataset.path} says otherwise: {'; '.join(faults[:5])}{more}: "
            "copy the dataset again as a whole"
        )


# --- one row at a time --------------------------------------------------------------------------


def _datetime(time_us: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(microseconds=time_us)


@kernel
def _read_dst(raw, layout, i):
    return dst_at(raw, layout, i)


class Measurements(Sequence[dict[str, Any]]):
    """The measurements of a row, each decoded when it is accessed.

    An item is {event_time: datetime (UTC, naive), dst_addr: str, ip_version: int, rtt: float ms}.

    Attributes:
      columns: for kernels, see `row_layout`.
    """

    def __init__(self, columns: Columns):
        self.columns = columns

    def __len__(self) -> int:
        return self.columns.layout.num_measurements

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self._item(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"measurement {index} of a row of {len(self)}")
        return self._item(index % len(self))

    def _item(self, i: int) -> dict[str, Any]:
        raw, layout = self.columns
        if layout.kind == ARROW:
            (time_us,) = struct.unpack_from("<q", raw, layout.times + 8 * i)
            (rtt,) = struct.unpack_from("<f", raw, layout.rtts + 4 * i)
        else:
            (seconds,) = struct.unpack_from("<I", raw, layout.times + 4 * i)
            time_us = (layout.first_second + seconds) * 1_000_000
            (code,) = struct.unpack_from("<H", raw, layout.rtts + 2 * i)
            rtt = float(decode_rtt(np.array([code], np.uint16))[0])
        hi, lo, is_ipv6 = _read_dst(raw, layout, i)
        if is_ipv6 < 0:
            raise ValueError(f"the destination of measurement {i} is damaged")
        lo = lo if is_ipv6 else lo | addresses.MAPPED_IPV4
        text = addresses.format_any(np.array([hi], np.uint64), np.array([lo], np.uint64))
        return {
            "event_time": _datetime(time_us),
            "dst_addr": text[0].as_py(),
            "ip_version": 6 if is_ipv6 else 4,
            "rtt": rtt,
        }


class ProbeRowDataSource:
    """The rows of a dataset by number: a Grain random access data source.

    An element is {src_id, src_addr, row_index, n_measurements, measurements: a `Measurements`,
    metadata: {time_span_seconds, first_timestamp, last_timestamp}}. Elements are in the order of
    shard and position. Picklable; equal data have an equal `repr`.

    Args:
      arrayrecord_path: a dataset's folder (its train split), a split's folder, a shard, a glob of
        shards, or several of the last two; local or gs://.

    Raises:
      ProbelineError: no such finished dataset or shard exists, or it differs from its manifest.
        Accessing a row raises `BadRowError` if it is damaged.

    Example:

        source = ProbeRowDataSource("rows/train")
        row = source[0]
        row["src_addr"], len(row["measurements"]), row["measurements"][0]["rtt"]
    """

    def __init__(self, arrayrecord_path: str | Sequence[str]):
        shards = find_shards(arrayrecord_path)
        check_shards(shards)
        self._reader = ShardReader(shards, load_rows(shards))

    @property
    def rows(self) -> RowTable:
        """The lines of rows.parquet."""
        return self._reader.rows

    @property
    def shards(self) -> ShardSet:
        """The shards of the rows."""
        return self._reader.shards

    def __len__(self) -> int:
        return len(self._reader.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        row = int(index) % len(self)
        record = self._reader.read(row)
        try:
            decoded = row_codec.decode_record(record)
        except ValueError as error:
            raise self._reader.bad_row(row, str(error)) from error
        located = self._reader.locate_in(row, record)
        return {
            "src_id": decoded.src_id,
            "src_addr": decoded.src_addr,
            "row_index": decoded.row_index,
            "n_measurements": decoded.n_measurements,
            "measurements": Measurements(located.columns),
            "metadata": {
                "time_span_seconds": decoded.time_span_seconds,
                "first_timestamp": _datetime(decoded.first_timestamp_us),
                "last_timestamp": _datetime(decoded.last_timestamp_us),
            },
        }

    def locate(self, index: int) -> Located:
        """Returns the place of a row's measurements, for `contexts.draw_contexts`."""
        return self._reader.locate(index)

    def to_arrow(self, index: int) -> pa.RecordBatch:
        """Returns all measurements of a row as `row_codec.MEASUREMENT_SCHEMA`."""
        return row_codec.decode_record(self._reader.read(index)).to_arrow()

    def __repr__(self) -> str:
        shards = self.shards
        return (
            f"ProbeRowDataSource(split={shards.split}, shards={len(shards.chosen)}, "
            f"rows={len(self)}, fingerprint={shards.fingerprint})"
        )


class ProbeDataSource(ProbeRowDataSource):
    """The rows of some shards: `ProbeRowDataSource` by another name.

    Args:
      arrayrecord_files: the shards, of one split.

    Example:

        import glob

        source = ProbeDataSource(glob.glob("rows/train/*.arrayrecord"))
        source[0]["n_measurements"]
    """

    def __init__(self, arrayrecord_files: Sequence[str]):
        super().__init__(arrayrecord_files)
