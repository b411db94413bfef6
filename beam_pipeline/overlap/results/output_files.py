"""The formats of the files of an overlap run: JSON lines, gzip and Parquet.

Workers compress gzip members, and the last step only joins them. zlib makes the same bytes on any
processor; ISA-L, ten times as fast, chooses its code by the processor.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.documents.batch import decode
from beam_pipeline.storage.files import atomic_write, open_file

_BLOCK_BYTES = 1 << 20
_GZIP_FORMAT = 31  # what zlib calls wbits: a gzip header, without a name or a time
_LEVEL = 3
EMPTY_MEMBER = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_FORMAT).flush()


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
    """Compresses what is written to it as one gzip member, without a time stamp."""

    def __init__(self, stream: BinaryIO, level: int = _LEVEL):
        self._stream = stream
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP_FORMAT)
        self._pieces: list[bytes | memoryview] = []
        self._num_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
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


class LazyFiles(ExitStack):
    """Files that are created on first use and complete when the block ends without an error."""

    def __init__(self, prefix: str, temp_folder: str):
        super().__init__()
        self._prefix = prefix
        self._temp_folder = temp_folder
        self._open: dict[str, Any] = {}

    def get(
        self, name: str, wrap: Callable[..., AbstractContextManager] = nullcontext, **options: Any
    ) -> Any:
        """Returns the file `prefix`.`name`, or what `wrap` makes of its stream."""
        if name not in self._open:
            stream = self.enter_context(atomic_write(f"{self._prefix}.{name}", self._temp_folder))
            self._open[name] = self.enter_context(wrap(stream, **options))
        return self._open[name]

    def path(self, name: str) -> str | None:
        """Returns the path of a file, None if it was not created."""
        return f"{self._prefix}.{name}" if name in self._open else None


def escape_surrogates(text: str) -> str:
    """Returns a text as Parquet takes it: lone surrogates as escapes, `\\ud800`."""
    return text.encode("utf-8", "backslashreplace").decode()


def strings_of(values: pa.LargeBinaryArray) -> pa.StringArray:
    """Returns UTF-8 as Parquet takes it, lone surrogates as escapes."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = (
            None if each is None else escape_surrogates(decode(each)) for each in values.to_pylist()
        )
        return pa.array(texts, pa.string())


def parquet_writer(stream: BinaryIO, schema: pa.Schema, **options: Any) -> pq.ParquetWriter:
    """Returns the writer of a Parquet file, compressed with Zstandard."""
    return pq.ParquetWriter(stream, schema, compression="zstd", **options)


def arrow_writer(stream: BinaryIO, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
    """Returns the writer of an Arrow stream, for what is read once more; see `read_tables`."""
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    return pa.ipc.new_stream(stream, schema, options=options)


def read_tables(path: str) -> Iterator[pa.Table]:
    """Yields the tables of a local file of `arrow_writer`, or of several joined byte by byte."""
    with pa.OSFile(path) as source:
        while source.tell() < source.size():
            for batch in pa.ipc.open_stream(source):
                yield pa.Table.from_batches([batch])


def make_table(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Returns rows, whose values are in the order of the schema, as a table."""
    columns = dict(zip(schema.names, zip(*rows, strict=True), strict=True))
    return pa.Table.from_pydict(columns, schema=schema)


def read_lines(path: str) -> Iterator[Any]:
    """Yields the records of a file of JSON lines."""
    with open_file(path) as stream:
        yield from parse_lines(stream)


def parse_lines(lines: Iterable[bytes]) -> Iterator[Any]:
    """Yields the records of JSON lines."""
    for line in lines:
        try:
            yield orjson.loads(line)
        except orjson.JSONDecodeError:  # a lone surrogate, which orjson refuses
            yield json.loads(line)


def write_lines(path: str, temp_folder: str, records: Iterable[Any]) -> None:
    """Writes records as a file of JSON lines."""
    with atomic_write(path, temp_folder) as stream:
        for record in records:
            stream.write(json_line(record))
