"""Parquet files on any filesystem: opened for reading, row groups packed."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.errors import machine_errors
from beam_pipeline.storage.files import is_local, open_ranges

PIECE_BYTES = 8 << 20  # of a column chunk, where memory must not depend on it
_LOCAL_PIECE_BYTES = 1 << 20


def open_parquet(
    path: str,
    dictionary_columns: list[str] | None = None,
    buffer_bytes: int = 0,
    version: int = 0,
) -> pq.ParquetFile:
    """Opens a Parquet file for reading.

    `buffer_bytes` reads column chunks in pieces, to bound memory for large row groups. 0 reads
    remote column chunks whole, neighbours in one request; local files are always read in pieces, at
    no cost.
    """
    is_remote = not is_local(path)
    source = pa.PythonFile(open_ranges(path, version), mode="r") if is_remote else path
    with machine_errors():
        return pq.ParquetFile(
            source,
            read_dictionary=dictionary_columns,
            buffer_size=buffer_bytes or (0 if is_remote else _LOCAL_PIECE_BYTES),
            pre_buffer=is_remote and not buffer_bytes,
            # As nanoseconds, INT96 would wrap around outside the years 1677 to 2262.
            coerce_int96_timestamp_unit="us",
        )


class _Empty:
    """A source that seems large, and has no bytes."""

    closed = was_read = False

    def seek(self, *_: int) -> int:
        return 0

    def tell(self) -> int:
        return 2**62  # larger than any file

    def read(self, *_: int) -> bytes:
        self.was_read = True
        return b""

    def close(self) -> None:
        self.closed = True


def column_chunks(
    metadata: pq.FileMetaData, groups: Sequence[int], columns: Sequence[int]
) -> Iterator[pq.ColumnChunkMetaData]:
    """Yields the metadata of some columns in row groups; OSError if it is damaged.

    Where a footer is damaged, `RowGroupMetaData.column` aborts the process, since PyArrow does not
    catch the exception. A reader raises it, so one is opened first, up to its first read.
    """
    source = _Empty()
    file = pa.PythonFile(source, mode="r")
    reader: Any = pq.ParquetFile(file, metadata=metadata, buffer_size=1).reader
    for group in groups if columns else ():
        source.was_read = False
        try:
            next(reader.iter_batches(1, [group], columns, use_threads=False), None)
        except (OSError, pa.ArrowException):
            if not source.was_read:
                raise
        yield from map(metadata.row_group(group).column, columns)


def read_row_groups(path: str, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Yields a file's row groups as tables, with some or all columns."""
    with open_parquet(path, buffer_bytes=PIECE_BYTES) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number, columns=columns)


class RowGroups(NamedTuple):
    numbers: tuple[int, ...]
    first_row: int  # of the first row group, counted in the file
    num_rows: int


def pack_row_groups(row_group_rows: Sequence[int], max_rows: float) -> Iterator[RowGroups]:
    """Groups row groups into runs of up to `max_rows` rows; larger ones stand alone.

    A file without row groups is one empty run.
    """
    numbers: list[int] = []
    first_row = rows = 0
    for number, num_rows in enumerate(row_group_rows):
        if numbers and rows + num_rows > max_rows:
            yield RowGroups(tuple(numbers), first_row, rows)
            numbers, first_row, rows = [], first_row + rows, 0
        numbers.append(number)
        rows += num_rows
    yield RowGroups(tuple(numbers), first_row, rows)
