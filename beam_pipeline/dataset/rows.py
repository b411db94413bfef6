"""A finished dataset, and its rows by number, from ArrayRecord or TFRecord shards.

Every record is compared with its line in the row index, so a shard swapped or damaged after the
manifest was written is never used. TFRecords are found by the sizes of the records before them.
ArrayRecord reads its shards itself, also on `gs://`.
"""
# pyarrow and ArrayRecord are untyped.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

import collections
import contextlib
import errno
import glob
import mmap
import operator
import os
import re
import struct
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, SupportsIndex, overload

import msgspec
import numpy as np
import pyarrow as pa

from beam_pipeline.dataset.decoded_rows import DecodedRows, decode, in_batches
from beam_pipeline.dataset.layout import OutputFormat
from beam_pipeline.dataset.manifest import (
    INDEX_NAME,
    MANIFEST_NAME,
    NEXT_FOLDER,
    READABLE_VERSIONS,
    SPLITS,
    SUCCESS_NAME,
    Manifest,
    committed_manifest,
)
from beam_pipeline.dataset.row_codec import ProbeRow, decode_record
from beam_pipeline.dataset.row_index import RowIndex, numbers, read_index, read_lines
from beam_pipeline.dataset.tfrecord import (
    FRAMING_BYTES,
    HEAD_BYTES,
    DamagedRecordError,
    masked_crc32c,
    read_tfrecord,
)
from beam_pipeline.errors import ProbelineError, UsageError, explained, one_line, program
from beam_pipeline.storage import gcs
from beam_pipeline.storage.array_record import open_reader
from beam_pipeline.storage.files import exists, file_infos, is_local, open_ranges, read_file
from beam_pipeline.storage.gcs import FileInfo

READ_ERRORS = (RuntimeError, ValueError, IndexError, OSError, struct.error)
# A failed system call in ArrayRecord's reader, such as "open() failed: Too many open files; …".
_FAILED_CALL = re.compile(r"\w+\(\) failed: (?P<reason>[^;]*)")
_ERRNOS = {os.strerror(number): number for number in errno.errorcode}
_SHARD_SUFFIXES = (".arrayrecord", ".tfrecord")
_CHECKED = ("src_id", "row_index", "n_measurements")  # of each record, with its line
_MAX_OPEN_SHARDS = 64  # per thread; an open shard takes at least 8 bytes per record


@dataclass(frozen=True)
class Dataset:
    """A finished dataset, opened by `open_dataset`.

    Attributes:
      path: the folder, local or on `gs://`.
      manifest: the content of `manifest.json`: options, counts, and the files of each split.

    Example:

        dataset = open_dataset("rows")
        dataset.path, dataset.manifest.output_format
    """

    path: str
    manifest: Manifest

    def index(self, split: str) -> pa.Table:
        """Returns the row index of a split, `rows.parquet`, as a table with one line per row.

        Raises:
          UsageError: the split is not "train" or "test".
          ProbelineError: the file is missing or does not match the manifest.

        Example:

            open_dataset("rows").index("train").sort_by("n_measurements")
        """
        return read_index(self._index_path(split), self.manifest.splits[split])

    def index_lines(self, split: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yields some columns of the row index in parts, in bounded memory; errors as `index`."""
        return read_lines(self._index_path(split), self.manifest.splits[split], columns)

    def rows(self, split: str) -> "Rows":
        """Returns the rows of a split, accessed by number; errors as `index`.

        Example:

            open_dataset("rows").rows("train")[0].to_arrow()
        """
        return Rows(self, split)

    def file(self, relative_path: str) -> str:
        """Returns the full path of a file in the dataset."""
        return f"{self.path}/{relative_path}"

    def _index_path(self, split: str) -> str:
        if split not in SPLITS:
            raise UsageError(f"there is no split {split!r}: give {' or '.join(SPLITS)}")
        return self.file(f"{split}/{INDEX_NAME}")


def dataset_folder(path: str) -> str:
    """Returns the dataset folder, given its path or that of a split, shard or glob of shards."""
    folder = path.rstrip("/")
    while any(char in folder for char in "*?[") or folder.endswith(_SHARD_SUFFIXES):
        # A folder may look like a glob. On `gs://`, shards and globs of them need no request.
        may_be_folder = is_local(folder) or not folder.endswith(_SHARD_SUFFIXES)
        if may_be_folder and exists(f"{folder}/{SUCCESS_NAME}"):
            break
        folder = folder.rpartition("/")[0]
    parent, _, name = folder.rpartition("/")
    is_bucket = parent.endswith(":/")
    if name in SPLITS and not is_bucket and read_file(f"{folder}/{MANIFEST_NAME}") is None:
        folder = parent
    return folder or "."


def open_whole(path: str, given: str = "") -> Dataset:
    """Opens a dataset by its folder; UsageError if the path is that of a part of it.

    `given` is the flag with the path, for messages.
    """
    dataset = open_dataset(path)
    if (folder := dataset_folder(path)) != (path.rstrip("/") or "."):
        raise UsageError(f"{given or path} is part of a dataset: give its folder, {folder}")
    return dataset


def open_dataset(path: str) -> Dataset:
    """Opens a finished dataset without Beam; reads only `_SUCCESS` and `manifest.json`.

    Args:
      path: the folder of the dataset or of a split, a shard, or a glob of shards, local or on
        `gs://`.

    Raises:
      ProbelineError: it is not finished, was modified, or has a newer format.

    Example:

        dataset = open_dataset("rows")
        dataset.manifest.splits["train"].num_measurements
        dataset.index("train").num_rows
        dataset.rows("train")[0].to_arrow()
    """
    if path.startswith("file://"):
        raise UsageError(f"{path}: give a local path without file://")
    folder = dataset_folder(path)
    try:
        data = committed_manifest(folder)
    except ProbelineError:
        following = f"{folder}/{NEXT_FOLDER}"
        if read_file(f"{following}/{SUCCESS_NAME}") is not None:
            folder = following
        else:
            _refuse_other_names(path, folder)
        data = committed_manifest(folder)  # retried: it may just have been moved
    try:
        version = msgspec.json.decode(data, type=dict[str, Any])["format_version"]
        if version in READABLE_VERSIONS:
            return Dataset(folder, Manifest.from_json(data))
    except (KeyError, ValueError, RecursionError) as error:
        raise ProbelineError(
            f"{folder}/{MANIFEST_NAME} is not a manifest ({type(error).__name__}: {error}): copy "
            "the dataset again as a whole"
        ) from error
    known = " and ".join(map(str, READABLE_VERSIONS))
    raise ProbelineError(
        f"{folder} has format version {version}, this Probeline reads {known}: use the "
        "version that wrote it"
    )


def _refuse_other_names(path: str, folder: str) -> None:
    """Raises UsageError if a path without a dataset is of a file, or has a misplaced pattern."""
    names = "name the folder of a dataset or of its split, or shards, as rows/train/*.arrayrecord"
    if is_local(path) and os.path.isfile(path) and not path.endswith(_SHARD_SUFFIXES):
        raise UsageError(f"{path} is not a finished dataset but a file: {names}")
    is_of_folders = glob.has_magic(os.path.dirname(path)) or (
        is_local(path) and glob.has_magic(path) and any(map(os.path.isdir, glob.iglob(path)))
    )
    if is_of_folders and not exists(f"{folder}/{SUCCESS_NAME}"):
        raise UsageError(f"{path} has a pattern in the name of a folder: {names}")


class Rows(Sequence[ProbeRow]):
    """The rows of a split, in row-index order; row i is line i of `rows.parquet`.

    Rows are read and decoded on access. Instances are thread-safe and picklable.

    Args:
      dataset: from `open_dataset`.
      split: train or test.

    Attributes:
      lines: the columns of the row index, NumPy arrays [rows]; times are int64 µs since 1970 UTC.

    Raises:
      ProbelineError: the row index is missing or does not match the manifest, or an accessed row is
        damaged.

    Example:

        rows = open_dataset("rows").rows("train")
        longest = rows[int(rows.lines.n_measurements.argmax())]
        longest.src_addr, longest.n_measurements, longest.to_arrow()
    """

    def __init__(self, dataset: Dataset, split: str):
        self.lines = RowIndex.of(dataset.index(split))
        self._reader = RowReader(dataset, split, self.lines, verify_cure(dataset))

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, index: SupportsIndex) -> ProbeRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[ProbeRow]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> ProbeRow | list[ProbeRow]:
        if isinstance(index, slice):
            return [self._reader.decode(row) for row in range(*index.indices(len(self)))]
        row = operator.index(index)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._reader.decode(row % len(self))


class BadRowError(ProbelineError):
    """A damaged record; the message names its shard and position.

    Example:

        source = ProbeRowDataSource("rows/train")
        try:
            row = source[0]
        except BadRowError as error:
            print(error)
    """


def verify_cure(dataset: Dataset) -> str:
    """Returns the cure for a bad row: the command that lists all damage."""
    return f"{program('verify', 'beam_pipeline.verify')} {dataset.path} lists all damage"


class _OpenShard(Protocol):
    def read(self, position: int) -> bytes: ...
    def close(self) -> None: ...


class Lines(Protocol):
    """Columns and places of rows, as in `row_index.IndexedRows`."""

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
    """Reads the rows of a split by number; thread-safe and picklable.

    `rows` are the lines of the rows to read, for TFRecord all lines of their shards; `cure` is for
    the message of a BadRowError.
    """

    def __init__(self, dataset: Dataset, split: str, rows: Rows, cure: str):
        self.rows = rows
        self._dataset = dataset
        self._shards = dataset.manifest.splits[split].shards
        self._copies: dict[int, str] = {}  # by shard number
        self._cure = cure
        self._local = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _local=threading.local())

    def read(self, row: int) -> bytes:
        """Returns the record of a row.

        Raises:
          BadRowError: its bytes are damaged.
          ProbelineError: they could not be read, for lack of file handles for example.
        """
        shard, position = self.rows.place(row)
        try:
            return self._open(shard).read(position)
        except READ_ERRORS as error:
            self._opened().pop(shard, None)
            cause = _system_error(error)
            if cause is None:
                self._open(shard)  # raises if the file was cut since it was opened
                reason = str(error) or "ArrayRecord found damage before or in this record"
                raise self.bad_row(row, " ".join(reason.split())) from error
            raise explained("read", self._path(shard), cause) from error

    def decode(self, row: int) -> ProbeRow:
        """Returns a decoded row; BadRowError if it differs from its line."""
        record = self.read(row)
        try:
            decoded = decode_record(record)
            _ = decoded.run
        except READ_ERRORS as error:
            raise self.bad_row(row, one_line(error)) from error
        self.check(row, decoded.src_id, decoded.row_index, decoded.n_measurements)
        return decoded

    def batches(
        self, rows: np.ndarray, max_measurements: int
    ) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        """Yields the measurements of rows in order: long rows in parts, short ones together.

        BadRowError as `decode`.

        Yields:
          int64 [m], the row of each measurement, and MEASUREMENT_SCHEMA [m]; m is at most
          `max_measurements`, a multiple of 8.
        """
        at = 0
        for records in in_batches(map(self.read, rows.tolist())):
            here = rows[at : at + len(records)]
            at += len(here)
            if len(records) == 1:
                row = int(here[0])
                for part in self._parts(row, records[0], max_measurements):
                    yield np.full(len(part), row), part
            else:
                yield from self._batches(here, records, max_measurements)

    def _batches(
        self, rows: np.ndarray, records: Sequence[bytes], max_measurements: int
    ) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        at = 0
        for found in decode(records):
            if isinstance(found, Exception):
                raise self.bad_row(int(rows[at]), one_line(found)) from found
            here = rows[at : at + len(found.num_bytes)]
            at += len(here)
            self._check_all(here, found)
            of_each, batch = np.repeat(here, np.diff(found.bounds)), found.to_batch()
            for begin in range(0, len(of_each), max_measurements):
                part = of_each[begin : begin + max_measurements]
                yield part, batch.slice(begin, max_measurements)

    def _parts(self, row: int, record: bytes, max_measurements: int) -> Iterator[pa.RecordBatch]:
        try:
            decoded = decode_record(record)
            self.check(row, decoded.src_id, decoded.row_index, decoded.n_measurements)
            yield from decoded.to_batches(max_measurements)
        except READ_ERRORS as error:
            raise self.bad_row(row, one_line(error)) from error

    def _check_all(self, rows: np.ndarray, found: DecodedRows) -> None:
        columns = [numbers(found.columns, name) for name in _CHECKED]
        is_other = [
            column != getattr(self.rows, name)[rows]
            for name, column in zip(_CHECKED, columns, strict=True)
        ]
        for at in np.flatnonzero(np.logical_or.reduce(is_other)).tolist():
            self.check(int(rows[at]), *(int(column[at]) for column in columns))

    def check(self, row: int, src_id: int, row_index: int, n_measurements: int) -> None:
        """Raises BadRowError if a record's columns differ from the line of `row`."""
        found, rows = (src_id, row_index, n_measurements), self.rows
        said = int(rows.src_id[row]), int(rows.row_index[row]), int(rows.n_measurements[row])
        if found != said:
            names = ", ".join(_CHECKED)
            raise self.bad_row(row, f"its ({names}) is {found}, rows.parquet says {said}")

    def bad_row(self, row: int, reason: str) -> BadRowError:
        shard, position = self.rows.place(row)
        return BadRowError(f"{self._path(shard)} record {position}: {reason}; {self._cure}")

    def map_shard(self, number: int) -> mmap.mmap:
        """Maps an ArrayRecord shard; ProbelineError if the file was cut, as a use would crash."""
        shard = self._open(number)
        assert isinstance(shard, _ArrayRecordShard)
        if shard.mapped.size() < len(shard.mapped):
            del self._opened()[number]
            return self.map_shard(number)
        return shard.mapped

    def is_copied(self, number: int) -> bool:
        return number in self._copies

    @contextlib.contextmanager
    def on_disk(self, number: int, folder: str) -> Generator[str]:
        """Yields a local path of an ArrayRecord shard; on `gs://`, a copy in `folder`.

        During the block, this thread reads the shard's rows from the copy.
        """
        path = self._path(number)
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

    def _path(self, number: int) -> str:
        return self._dataset.file(self._shards[number].path)

    def _opened(self) -> "collections.OrderedDict[int, _OpenShard]":
        """Returns this thread's open shards, most recently used last."""
        if not hasattr(self._local, "shards"):
            self._local.shards = collections.OrderedDict()
        return self._local.shards

    def _open(self, number: int) -> _OpenShard:
        shards = self._opened()
        if number in shards:
            shards.move_to_end(number)
            return shards[number]
        shard = self._shards[number]
        path = self._copies.get(number) or self._path(number)
        if is_local(path) and (info := file_infos([path])[path]) != FileInfo(shard.num_bytes, None):
            found = f"has {info.num_bytes} bytes" if info else "is missing or not a regular file"
            raise ProbelineError(
                f"{path} {found}, the manifest says {shard.num_bytes} bytes: copy the dataset again"
            )
        if self._dataset.manifest.output_format == "tfrecord":
            shards[number] = _TFRecordShard(path, self.rows.num_bytes[self.rows.of_shard(number)])
        else:
            shards[number] = _ArrayRecordShard(path, shard.num_records)
        if len(shards) > _MAX_OPEN_SHARDS:
            shards.popitem(last=False)[1].close()
        return shards[number]


def _system_error(error: Exception) -> OSError | None:
    """Returns the failed system call behind a reader's error; None if the bytes are at fault."""
    if isinstance(error, OSError):
        return error
    failed = _FAILED_CALL.match(str(error))
    return failed and OSError(_ERRNOS.get(failed["reason"], errno.EIO), failed["reason"])


class _ArrayRecordShard:
    def __init__(self, path: str, num_records: int):
        self._path = path
        self._num_records = num_records

    @cached_property
    def mapped(self) -> mmap.mmap:
        with open(self._path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @cached_property
    def _reader(self) -> Any:
        reader = open_reader(self._path)
        if not reader.ok():
            reader.close()  # raises the reason
            raise ValueError("the shard cannot be opened")
        if (found := reader.num_records()) != self._num_records:
            said = self._num_records
            raise ValueError(f"the shard has {found} records, the manifest says {said}")
        return reader

    def read(self, position: int) -> bytes:
        # read([position]) copies once more and looks up every record.
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
        record, checksum = self._file.read(length), self._file.read(FRAMING_BYTES - HEAD_BYTES)
        if int.from_bytes(checksum, "little") != masked_crc32c(record):
            raise ValueError("its checksum does not match")
        return record


def read_shard(path: str, output_format: OutputFormat) -> Iterator[bytes | DamagedRecordError]:
    """Yields each record of a shard, or its DamagedRecordError.

    Raises DamagedRecordError or OSError if the file, or the rest of it, is unreadable.
    """
    if output_format == "tfrecord":
        yield from read_tfrecord(path)
        return
    reader = _open_shard(path)
    for record in range(reader.num_records()):
        try:
            data = reader.read()
        except READ_ERRORS as error:
            if cause := _system_error(error):
                raise cause from error
            yield DamagedRecordError(one_line(error))
            reader = _open_shard(path)  # a reader cannot be used after an error
            reader.seek(record + 1)
        else:
            yield data
    with contextlib.suppress(*READ_ERRORS):  # already reported with the record
        reader.close()


def _open_shard(path: str) -> Any:
    reader = open_reader(path)
    # A damaged file opens without an error and has 0 records; closing it raises the reason.
    if not reader.ok():
        reason = ""
        try:
            reader.close()
        except RuntimeError as error:
            if cause := _system_error(error):
                raise cause from error
            reason = f": {one_line(error)}"
        raise DamagedRecordError(f"it is not a whole ArrayRecord file{reason}")
    return reader
