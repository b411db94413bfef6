"""Rows by number over many shards, local or gs://: `ProbeRowDataSource`, and what it reads with.

A row is one read of one record. What a record says of itself is held against rows.parquet, so
that a shard that was swapped or damaged since the manifest was written is named, never used.
"""

import collections
import struct
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
from array_record.python.array_record_module import ArrayRecordReader

from beam_pipeline.dataset import addresses, row_codec
from beam_pipeline.dataset.rtt import decode_rtt
from beam_pipeline.errors import ProbelineError
from beam_pipeline.kernels import kernel
from beam_pipeline.storage.small_files import file_infos, prepare_native_reader
from training.rows.row_layout import ARROW, LAYOUT, Located, dst_at, locate
from training.rows.row_table import RowTable, ShardSet, find_shards, load_rows

_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
# What one thread keeps open; a reader holds its shard's index, 8 bytes a record and more.
_MAX_OPEN_SHARDS = 64
_READ_ERRORS = (RuntimeError, ValueError, IndexError, OSError)


class BadRowError(ProbelineError):
    """A record that cannot be used; the message names its shard and its place there."""


class BadRow(NamedTuple):
    """A row that was left out: where it is and why."""

    shard: int
    position: int
    reason: str


class ShardReader:
    """Reads records of a set of shards; threads may share it, processes may send it on."""

    def __init__(self, shards: ShardSet, rows: RowTable):
        self.shards = shards
        self.rows = rows
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {"shards": self.shards, "rows": self.rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def read(self, row: int) -> bytes:
        """Returns the record of a row.

        Raises:
          BadRowError: it cannot be read.
        """
        shard, position = int(self.rows.shard[row]), int(self.rows.position[row])
        try:
            reader = self._open(shard)
            # read([position]) copies once more and looks at every record's place.
            reader.seek(position)
            return reader.read()
        except _READ_ERRORS as error:
            self._opened().pop(shard, None)
            raise self.bad_row(row, " ".join(str(error).split())) from error

    def locate(self, row: int) -> Located:
        """Returns the measurements of a row.

        Raises:
          BadRowError: it cannot be read, or is another row than rows.parquet says.
        """
        try:
            return self.check(row, locate(self.read(row)))
        except ValueError as error:
            raise self.bad_row(row, str(error)) from error

    def check(self, row: int, located: Located) -> Located:
        """Returns what was located if it is the row that rows.parquet says; else BadRowError."""
        found = (located.src_id, located.row_index, located.num_measurements)
        rows = self.rows
        expected = (int(rows.src_id[row]), int(rows.row_index[row]), int(rows.n_measurements[row]))
        if found == expected:
            return located
        raise self.bad_row(
            row,
            f"it holds (src_id, row_index, n_measurements) {found}, rows.parquet says {expected}",
        )

    def bad_row(self, row: int, reason: str) -> BadRowError:
        """Returns the error that says why a row cannot be used."""
        path = self.shards.path(int(self.rows.shard[row]))
        return BadRowError(
            f"{path} record {self.rows.position[row]}: {reason}; copy the dataset again, or leave "
            "such rows out with on_bad_row=skip"
        )

    def describe(self, row: int, reason: str) -> BadRow:
        """Returns where a row is, with the reason why it is left out."""
        return BadRow(int(self.rows.shard[row]), int(self.rows.position[row]), reason)

    def _opened(self) -> "collections.OrderedDict[int, ArrayRecordReader]":
        if not hasattr(self._local, "readers"):
            self._local.readers = collections.OrderedDict()
        return self._local.readers

    def _open(self, shard: int) -> ArrayRecordReader:
        readers = self._opened()
        if shard in readers:
            readers.move_to_end(shard)
            return readers[shard]
        path = self.shards.path(shard)
        prepare_native_reader(path)
        reader = ArrayRecordReader(path, options=_READER_OPTIONS)
        expected = self.shards.shards[shard].num_records
        if not reader.ok():
            reader.close()  # raises what is wrong
            raise ValueError("the shard cannot be opened")
        if reader.num_records() != expected:
            raise ValueError(
                f"the shard has {reader.num_records()} records, the manifest says {expected}"
            )
        readers[shard] = reader
        if len(readers) > _MAX_OPEN_SHARDS:
            readers.popitem(last=False)[1].close()
        return reader


def check_shards(shards: ShardSet) -> None:
    """Compares what storage says of the shards with the manifest, without reading them.

    Raises:
      ProbelineError: shards are missing, of another size or, on GCS, of another checksum.
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
    """The measurements of a row, as dictionaries that are made when they are asked for.

    An item is {event_time: datetime (UTC, naive), dst_addr: str, ip_version: int, rtt: float ms}.

    Attributes:
      raw, layout: for kernels, see `row_layout`.
    """

    def __init__(self, raw: bytes, layout: tuple[int, ...]):
        self._raw = raw
        self.raw = np.frombuffer(raw, np.uint8)
        self.layout = np.array([layout], LAYOUT)[0]

    def __len__(self) -> int:
        return int(self.layout["num_measurements"])

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
        layout = self.layout
        if layout["kind"] == ARROW:
            (time_us,) = struct.unpack_from("<q", self._raw, int(layout["times"]) + 8 * i)
            (rtt,) = struct.unpack_from("<f", self._raw, int(layout["rtts"]) + 4 * i)
        else:
            (seconds,) = struct.unpack_from("<I", self._raw, int(layout["times"]) + 4 * i)
            time_us = (int(layout["first_second"]) + seconds) * 1_000_000
            (code,) = struct.unpack_from("<H", self._raw, int(layout["rtts"]) + 2 * i)
            rtt = float(decode_rtt(np.array([code], np.uint16))[0])
        hi, lo, is_ipv6 = _read_dst(self.raw, layout, i)
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
    shard and position. Picklable; `repr` is the same for the same data.

    Args:
      files: as `row_table.find_shards` takes it.
    """

    def __init__(self, files: str | Sequence[str]):
        self._files = files
        shards = find_shards(files)
        check_shards(shards)
        self._reader = ShardReader(shards, load_rows(shards))

    @property
    def rows(self) -> RowTable:
        """What is known of the rows without reading them."""
        return self._reader.rows

    @property
    def shards(self) -> ShardSet:
        """The shards that they are in."""
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
            located = self._reader.check(row, locate(record))
        except ValueError as error:
            raise self._reader.bad_row(row, str(error)) from error
        return {
            "src_id": decoded.src_id,
            "src_addr": decoded.src_addr,
            "row_index": decoded.row_index,
            "n_measurements": decoded.n_measurements,
            "measurements": Measurements(located.raw, located.layout),
            "metadata": {
                "time_span_seconds": decoded.time_span_seconds,
                "first_timestamp": _datetime(decoded.first_timestamp_us),
                "last_timestamp": _datetime(decoded.last_timestamp_us),
            },
        }

    def locate(self, index: int) -> Located:
        """Returns where a row's measurements are, for `contexts.draw_contexts`."""
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
