"""Rows by number over many shards, local or gs://: `ProbeRowDataSource`."""
# pyarrow has no types; the arguments of kernels get theirs from numba.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

import os
import struct
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, overload

import numpy as np
import pyarrow as pa

from beam_pipeline.dataset import addresses, row_codec
from beam_pipeline.dataset.rtt import decode_rtt
from beam_pipeline.kernels import kernel
from training.rows.measurement_at import dst_at
from training.rows.row_layout import ARROW, Columns, Located
from training.rows.row_table import RowTable, ShardSet, find_shards, load_rows
from training.rows.shard_reader import BadRow, BadRowError, ShardReader, check_shards

__all__ = ["BadRow", "BadRowError", "ProbeDataSource", "ProbeRowDataSource"]


def _datetime(time_us: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(microseconds=time_us)


@kernel
def _read_dst(raw, layout, i):
    return dst_at(raw, layout, i)


class Measurements(Sequence[dict[str, Any]]):
    """The measurements of a row, each decoded when it is accessed; `columns` is for kernels.

    An item is {event_time: datetime (UTC, naive), dst_addr: str, ip_version: int, rtt: float ms}.
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
        Accessing a damaged row raises `BadRowError`.

    Example:

        source = ProbeRowDataSource("rows/train")
        row = source[0]
        row["src_addr"], len(row["measurements"]), row["measurements"][0]["rtt"]
    """

    def __init__(self, arrayrecord_path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]):
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
        """Returns the location of a row's measurements, for `contexts.draw_contexts`."""
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
    """The rows of the given shards: an alias of `ProbeRowDataSource`.

    Args:
      arrayrecord_files: the shards, of one split.

    Example:

        import glob

        source = ProbeDataSource(glob.glob("rows/train/*.arrayrecord"))
        source[0]["n_measurements"]
    """

    def __init__(self, arrayrecord_files: Sequence[str]):
        super().__init__(arrayrecord_files)
