"""The formats of the files of an overlap run: JSON lines, gzip and Parquet.

A gzip file may be several
members one after another, so that workers compress and the last step only copies. zlib makes the
same bytes on any processor; ISA-L, ten times as fast, chooses its code by the processor.
"""

import json
import zlib
from collections.abc import Iterable
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.storage.files import atomic_write, open_file

_BLOCK_BYTES = 1 << 20
_COPY_BYTES = 8 << 20
_GZIP_FORMAT = 31  # what zlib calls wbits: a gzip header, without a name or a time
_LEVEL = 3


def json_line(record: Any) -> bytes:
    """Returns a value as one line of JSON."""
    return json_value(record) + b"\n"


def json_value(value: Any) -> bytes:
    """Returns a value as JSON; lone surrogates, which UTF-8 cannot hold, as escapes."""
    try:
        return orjson.dumps(value)
    except TypeError:  # what orjson raises for a lone surrogate
        return json.dumps(value, separators=(",", ":")).encode()


class GzipMember:
    """Compresses what is written to a stream as one gzip member; the bytes hold no time."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_FORMAT)
        self._pieces: list[bytes] = []
        self._num_bytes = 0

    def write(self, data: bytes) -> None:
        """Appends some bytes."""
        self._pieces.append(data)
        self._num_bytes += len(data)
        if self._num_bytes >= _BLOCK_BYTES:
            self._compress()

    def _compress(self) -> None:
        self._stream.write(self._compressor.compress(b"".join(self._pieces)))
        self._pieces, self._num_bytes = [], 0

    def __enter__(self) -> "GzipMember":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is None:
            self._compress()
            self._stream.write(self._compressor.flush())


class TableWriter:
    """Writes rows to a Parquet file; `flush` ends a row group.

    Args:
      options: of `pyarrow.parquet.ParquetWriter`.
    """

    def __init__(self, stream: BinaryIO, schema: pa.Schema, **options: Any):
        self._schema = schema
        self._writer = pq.ParquetWriter(stream, schema, compression="zstd", **options)
        self._columns: dict[str, list[Any]] = {}
        self.num_rows = 0
        self._clear()

    def _clear(self) -> None:
        self._columns = {name: [] for name in self._schema.names}
        self.num_pending = self.pending_bytes = 0

    def add(self, *values: Any, num_bytes: int = 0) -> None:
        """Adds a row, given by its values in the order of the schema, of about `num_bytes`."""
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        self.num_rows += 1
        self.num_pending += 1
        self.pending_bytes += num_bytes

    def flush(self) -> None:
        """Writes the rows added since the last call as a row group."""
        if self.num_pending:
            self._writer.write_table(pa.Table.from_pydict(self._columns, schema=self._schema))
        self._clear()

    def add_metadata(self, key: str, value: Any) -> None:
        """Adds a value to the metadata of the file, as JSON."""
        self._writer.add_key_value_metadata({key: orjson.dumps(value).decode()})

    def __enter__(self) -> "TableWriter":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is None:
            self.flush()
        self._writer.close()


def write_lines(path: str, temp_folder: str, records: Iterable[Any]) -> None:
    """Writes records as a file of JSON lines."""
    with atomic_write(path, temp_folder) as stream:
        for record in records:
            stream.write(json_line(record))


def join_files(path: str, temp_folder: str, parts: Iterable[str], empty: bytes = b"") -> None:
    """Writes the bytes of some files one after another as one file, `empty` if there are none."""
    with atomic_write(path, temp_folder) as target:
        for part in parts:
            empty = b""
            with open_file(part) as source:
                while block := source.read(_COPY_BYTES):
                    target.write(block)
        target.write(empty)


def empty_member() -> bytes:
    """Returns an empty gzip member."""
    return zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_FORMAT).flush()
