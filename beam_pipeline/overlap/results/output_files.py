"""The file formats of an overlap run: JSON lines, gzip and Parquet.

JSON lines are made from single records or, for many lines, from columns of pieces that Arrow joins;
the bytes are the same. Workers compress gzip members, which the last step only joins. zlib gives
the same bytes on any processor; ISA-L is ten times as fast, but depends on the processor.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, BinaryIO

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipeline.documents.batch import array_buffers, decode
from beam_pipeline.storage.files import atomic_write, open_file

_BLOCK_BYTES = 1 << 20
_GZIP_FORMAT = 31  # zlib's wbits for a gzip header, without name and time
_LEVEL = 3
PLACES = pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32())]))  # in code points
EMPTY_MEMBER = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_FORMAT).flush()


# --- JSON of one record -------------------------------------------------------------------------


def json_line(record: Any) -> bytes:
    """Returns a value as one line of JSON."""
    return json_value(record) + b"\n"


def json_value(value: Any) -> bytes:
    """Returns a value as JSON, with lone surrogates, which UTF-8 cannot hold, escaped."""
    try:
        return orjson.dumps(value)
    except TypeError:  # a lone surrogate
        return json.dumps(value, separators=(",", ":")).encode()


def read_lines(path: str) -> Iterator[Any]:
    """Yields the records of a file of JSON lines."""
    with open_file(path) as stream:
        yield from parse_lines(stream)


def parse_lines(lines: Iterable[bytes]) -> Iterator[Any]:
    """Yields the records of JSON lines."""
    for line in lines:
        try:
            yield orjson.loads(line)
        except orjson.JSONDecodeError:  # a lone surrogate, which orjson rejects
            yield json.loads(line)


def write_lines(path: str, temp_folder: str, records: Iterable[Any]) -> None:
    """Writes records as JSON lines."""
    with atomic_write(path, temp_folder) as stream:
        for record in records:
            stream.write(json_line(record))


# --- JSON of columns ----------------------------------------------------------------------------


def piece(data: bytes) -> pa.LargeBinaryScalar:
    """Returns a piece that all lines share."""
    return pa.scalar(data, pa.large_binary())


def join_pieces(columns: Sequence[Any]) -> pa.LargeBinaryArray:
    """Concatenates the pieces of some columns by row."""
    return pc.binary_join_element_wise(*columns, piece(b""))


def json_lists(bounds: np.ndarray, pieces: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Returns pieces[bounds[i]:bounds[i + 1]] as JSON lists."""
    lists = pa.LargeListArray.from_arrays(bounds, pieces)
    joined = pc.binary_join(lists, piece(b","))
    return join_pieces([piece(b"["), joined, piece(b"]")])


def record_pieces(fields: Mapping[str, Any]) -> list[Any]:
    """Returns the pieces of objects with these fields, without the closing bracket."""
    named = ((piece(b',"' + name.encode() + b'":'), value) for name, value in fields.items())
    pieces = [each for pair in named for each in pair]
    return [piece(b"{" + pieces[0].as_py()[1:]), *pieces[1:]]


def record_lines(fields: Mapping[str, Any]) -> memoryview:
    """Returns lines of objects with these fields, in the bytes of `json_line`."""
    lines = join_pieces([*record_pieces(fields), piece(b"}\n")])
    odd = pc.match_substring(lines, b"\\ud")
    if pc.any(odd).as_py():
        # With a lone surrogate, `json_line` escapes everything that is not ASCII.
        texts = (line.as_py() for line in lines)
        fixed = [json_line(json.loads(text)) if b"\\ud" in text else text for text in texts]
        lines = pa.array(fixed, pa.large_binary())
    return data_of(lines)


def data_of(pieces: pa.LargeBinaryArray) -> memoryview:
    """Returns all pieces, concatenated."""
    return memoryview(array_buffers(pieces)[0])


def sizes_of(pieces: pa.LargeBinaryArray) -> np.ndarray:
    """Returns the size of each piece in bytes, int64."""
    return np.diff(array_buffers(pieces)[1])


def json_strings(strings: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Returns strings, as UTF-8 of `encode`, as JSON."""
    try:
        strings.cast(pa.large_string())
    except pa.ArrowInvalid:  # lone surrogates
        values = (json_value(decode(each)) for each in strings.to_pylist())
        return pa.array(values, pa.large_binary())
    utf8, _ = array_buffers(strings)
    is_escaped = (utf8 < ord(" ")) | (utf8 == ord('"')) | (utf8 == ord("\\"))
    for byte in np.unique(utf8[is_escaped])[::-1].tolist():  # backslashes first
        escape = json_value(chr(byte))[1:-1]
        strings = pc.replace_substring(strings, bytes([byte]), escape)
    return join_pieces([piece(b'"'), strings, piece(b'"')])


def json_numbers(values: np.ndarray) -> pa.LargeBinaryArray:
    """Returns integers as JSON."""
    return pa.array(values).cast(pa.large_string()).cast(pa.large_binary())


def json_floats(values: np.ndarray) -> pa.LargeBinaryArray:
    """Returns float64 values, at least one, as JSON."""
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].decode()
    split = pc.split_pattern(pa.array([text], pa.large_string()), ",")
    return split.flatten().cast(pa.large_binary())


def json_places(places: pa.ListArray) -> pa.LargeBinaryArray:
    """Returns PLACES, not a slice, as JSON: `[[0,5],[9,12]]`."""
    starts, ends = (json_numbers(each.to_numpy()) for each in places.flatten().flatten())
    pairs = join_pieces([piece(b"["), starts, piece(b","), ends, piece(b"]")])
    return json_lists(places.offsets.to_numpy().astype(np.int64), pairs)


def column_of(rows: pa.Table | pa.RecordBatch, name: str) -> Any:
    """Returns a column of a table as one array."""
    column = rows.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def json_fields(rows: pa.Table | pa.RecordBatch, *names: str) -> dict[str, pa.LargeBinaryArray]:
    """Returns columns of integers or strings as JSON."""
    columns = {name: column_of(rows, name) for name in names}
    return {
        name: json_numbers(column.to_numpy())
        if pa.types.is_integer(column.type)
        else json_strings(column)
        for name, column in columns.items()
    }


# --- gzip and files -----------------------------------------------------------------------------


class GzipMember:
    """Compresses written data as one gzip member, without a time stamp."""

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
    """Files that are created on first use, and complete if the block ends without an error."""

    def __init__(self, prefix: str, temp_folder: str):
        super().__init__()
        self._prefix = prefix
        self._temp_folder = temp_folder
        self._open: dict[str, Any] = {}

    def get(
        self, name: str, wrap: Callable[..., AbstractContextManager] = nullcontext, **options: Any
    ) -> Any:
        """Returns the file `prefix`.`name`, or its stream wrapped by `wrap`."""
        if name not in self._open:
            stream = self.enter_context(atomic_write(f"{self._prefix}.{name}", self._temp_folder))
            self._open[name] = self.enter_context(wrap(stream, **options))
        return self._open[name]

    @property
    def paths(self) -> dict[str, str]:
        """The path of each file by name."""
        return {name: f"{self._prefix}.{name}" for name in self._open}


# --- Parquet and Arrow --------------------------------------------------------------------------


def escape_surrogates(text: str) -> str:
    """Returns a text for Parquet, with lone surrogates escaped, `\\ud800`."""
    return text.encode("utf-8", "backslashreplace").decode()


def strings_of(values: pa.LargeBinaryArray) -> pa.StringArray:
    """Returns UTF-8 as strings for Parquet, with lone surrogates escaped."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = (
            None if each is None else escape_surrogates(decode(each)) for each in values.to_pylist()
        )
        return pa.array(texts, pa.string())


def place_lists(bounds: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.ListArray:
    """Returns ranges [start, end) as PLACES, with the bounds of each list."""
    fields = [each.astype(np.int32) for each in (starts, ends)]
    structs = pa.StructArray.from_arrays(fields, ["start", "end"])
    return pa.ListArray.from_arrays(bounds.astype(np.int32), structs)


def parquet_writer(stream: BinaryIO, schema: pa.Schema, **options: Any) -> pq.ParquetWriter:
    """Returns a Parquet writer with Zstandard compression."""
    return pq.ParquetWriter(stream, schema, compression="zstd", **options)


def arrow_writer(stream: BinaryIO, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
    """Returns the writer of an Arrow stream for a single read; see `read_tables`."""
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    return pa.ipc.new_stream(stream, schema, options=options)


def read_tables(path: str) -> Iterator[pa.Table]:
    """Yields the tables of a local file of `arrow_writer`, or of several concatenated."""
    with pa.OSFile(path) as source:
        while source.tell() < source.size():
            for batch in pa.ipc.open_stream(source):
                yield pa.Table.from_batches([batch])


def make_table(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Returns rows, with values in the order of the schema, as a table."""
    columns = dict(zip(schema.names, zip(*rows, strict=True), strict=True))
    return pa.Table.from_pydict(columns, schema=schema)
