"""Single rows of a split by their line in the row index, from ArrayRecord or TFRecord shards.

A record of a TFRecord shard is found by the sizes of the records before it. What a record says of
itself is compared with its line, so that a shard that was swapped or damaged after the manifest
was written is never used.
"""
# ArrayRecord has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

import collections
import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Generator
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from beam_pipeline.dataset.manifest import Dataset
from beam_pipeline.dataset.row_codec import ProbeRow, decode_record
from beam_pipeline.dataset.tfrecord import FRAMING_BYTES, HEAD_BYTES
from beam_pipeline.errors import ProbelineError, one_line
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import file_infos, is_local, open_ranges
from beam_pipeline.storage.gcs import FileInfo, prepare_native_reader

READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
READ_ERRORS = (RuntimeError, ValueError, IndexError, OSError, struct.error)
# What one thread keeps open; a reader holds its shard's index, 8 bytes a record and more.
_MAX_OPEN_SHARDS = 64


class BadRowError(ProbelineError):
    """A record that cannot be used; the message names its shard and its position there.

    Example:

        source = ProbeRowDataSource("rows/train")
        try:
            row = source[0]
        except BadRowError as error:
            print(error)
    """


def verify_cure(dataset: Dataset) -> str:
    """Returns the cure for a bad row: the command that shows what else is damaged."""
    return f"python -m beam_pipeline.verify {dataset.path} lists what else is damaged"


class _OpenShard(Protocol):
    def read(self, position: int) -> bytes: ...
    def close(self) -> None: ...


class Lines(Protocol):
    """What is known of rows: arrays [rows], as in `row_index.IndexedRows`, and their places."""

    @property
    def num_bytes(self) -> np.ndarray: ...
    @property
    def src_id(self) -> np.ndarray: ...
    @property
    def row_index(self) -> np.ndarray: ...
    @property
    def n_measurements(self) -> np.ndarray: ...

    def place(self, row: int) -> tuple[int, int]: ...
    def of_shard(self, shard: int) -> slice: ...


class RowReader[Rows: Lines]:
    """Reads the rows of a split by number; threads may share it, and it can be pickled.

    Args:
      rows: the lines of the rows that are read, or all lines of their shards if these are TFRecord.
      cure: what the message of a BadRowError tells a user to do.
    """

    def __init__(self, dataset: Dataset, split: str, rows: Rows, cure: str):
        self.rows = rows
        self._dataset = dataset
        self._shards = dataset.manifest.splits[split].shards
        self._copies: dict[int, str] = {}  # local ones, by the shard's number
        self._cure = cure
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _local=threading.local())

    def read(self, row: int) -> bytes:
        """Returns the record of a row; BadRowError if it cannot be read."""
        shard, position = self.rows.place(row)
        try:
            return self._open(shard).read(position)
        except READ_ERRORS as error:
            self._opened().pop(shard, None)
            raise self.bad_row(row, one_line(error)) from error

    def decode(self, row: int) -> ProbeRow:
        """Returns a row, its measurements decoded; BadRowError if it is not that of its line."""
        record = self.read(row)
        try:
            decoded = decode_record(record)
            _ = decoded.run
        except READ_ERRORS as error:
            raise self.bad_row(row, one_line(error)) from error
        self.check(row, decoded.src_id, decoded.row_index, decoded.n_measurements)
        return decoded

    def check(self, row: int, src_id: int, row_index: int, n_measurements: int) -> None:
        """Raises BadRowError if what a record says of itself differs from the line of `row`."""
        found, rows = (src_id, row_index, n_measurements), self.rows
        said = int(rows.src_id[row]), int(rows.row_index[row]), int(rows.n_measurements[row])
        if found != said:
            names = "(src_id, row_index, n_measurements)"
            raise self.bad_row(row, f"it holds {names} {found}, rows.parquet says {said}")

    def bad_row(self, row: int, reason: str) -> BadRowError:
        """Returns the error that says why a row cannot be used."""
        shard, position = self.rows.place(row)
        path = self._dataset.file(self._shards[shard].path)
        return BadRowError(f"{path} record {position}: {reason}; {self._cure}")

    def map_shard(self, number: int) -> mmap.mmap:
        """Returns the bytes of a local ArrayRecord shard; what is wrong raises READ_ERRORS."""
        shard = self._open(number)
        assert isinstance(shard, _ArrayRecordShard)
        return shard.mapped

    def is_copied(self, number: int) -> bool:
        """Tells whether a shard is being read from a local copy."""
        return number in self._copies

    @contextlib.contextmanager
    def on_disk(self, number: int, folder: str) -> Generator[str]:
        """Yields the local path of an ArrayRecord shard; one on `gs://` is copied by one request.

        Until the block ends, this thread reads its rows from there.

        Raises:
          ProbelineError: it cannot be copied.
        """
        path = self._dataset.file(self._shards[number].path)
        if is_local(path):
            yield path
            return
        copy = os.path.join(folder, os.path.basename(path))
        try:
            gcs.download(path, copy)
            self._copies[number] = copy
            yield copy
        finally:
            self._copies.pop(number, None)
            self._opened().pop(number, None)
            with contextlib.suppress(FileNotFoundError):
                os.remove(copy)

    def _opened(self) -> "collections.OrderedDict[int, _OpenShard]":
        """Returns the shards that this thread has open, the most recently used one last."""
        if not hasattr(self._local, "shards"):
            self._local.shards = collections.OrderedDict()
        return self._local.shards

    def _open(self, number: int) -> _OpenShard:
        shards = self._opened()
        if number in shards:
            shards.move_to_end(number)
            return shards[number]
        shard = self._shards[number]
        path = self._copies.get(number) or self._dataset.file(shard.path)
        if is_local(path) and (info := file_infos([path])[path]) != FileInfo(shard.num_bytes, None):
            found = f"it has {info.num_bytes} bytes" if info else "it is missing or no regular file"
            raise ValueError(f"{found}, the manifest says {shard.num_bytes} bytes")
        if self._dataset.manifest.output_format == "tfrecord":
            shards[number] = _TFRecordShard(path, self.rows.num_bytes[self.rows.of_shard(number)])
        else:
            shards[number] = _ArrayRecordShard(path, shard.num_records)
        if len(shards) > _MAX_OPEN_SHARDS:
            shards.popitem(last=False)[1].close()
        return shards[number]


class _ArrayRecordShard:
    def __init__(self, path: str, num_records: int):
        self._path = path
        self._num_records = num_records

    @cached_property
    def mapped(self) -> mmap.mmap:
        """The bytes of a local file, which are read when they are looked at."""
        with open(self._path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @cached_property
    def _reader(self) -> Any:
        prepare_native_reader(self._path)
        reader = ArrayRecordReader(self._path, options=READER_OPTIONS)
        if not reader.ok():
            reader.close()  # raises what is wrong
            raise ValueError("the shard cannot be opened")
        if (found := reader.num_records()) != self._num_records:
            said = self._num_records
            raise ValueError(f"the shard has {found} records, the manifest says {said}")
        return reader

    def read(self, position: int) -> bytes:
        # read([position]) copies once more and looks at every record's place.
        self._reader.seek(position)
        return self._reader.read()

    def close(self) -> None:
        if "_reader" in vars(self):
            self._reader.close()


class _TFRecordShard:
    def __init__(self, path: str, record_bytes: np.ndarray):
        self._record_bytes = record_bytes
        framed = record_bytes + FRAMING_BYTES
        self._begins = np.cumsum(framed) - framed
        self._file = open_ranges(path)
        self.close = self._file.close

    def read(self, position: int) -> bytes:
        self._file.seek(int(self._begins[position]))
        said = int(self._record_bytes[position])
        length = int.from_bytes(self._file.read(HEAD_BYTES)[:8], "little")
        if length != said:
            raise ValueError(f"it has {length} bytes, rows.parquet says {said}")
        return self._file.read(length)
