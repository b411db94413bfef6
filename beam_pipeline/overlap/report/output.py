"""Reads the files of a finished overlap job, local or on any filesystem of Beam.

Files are read in blocks, so memory does not depend on their size. A missing or damaged file is a
one-line error with its path.
"""

from __future__ import annotations

import functools
import io
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json

from beam_pipeline.errors import UsageError, explained
from beam_pipeline.overlap.results.layout import BOILERPLATE, FIELD_HITS, RULES, SUCCESS_NAME
from beam_pipeline.overlap.results.output_files import escape_surrogates
from beam_pipeline.storage import files
from beam_pipeline.storage.lines import decompressed, explained_damage, read_blocks, split_lines
from beam_pipeline.storage.parquet import PIECE_BYTES, open_parquet

_OPTIONAL = (BOILERPLATE, FIELD_HITS, RULES)  # written by some runs only

Advance = Callable[[float], None]  # called with the bytes read since the last call
_CURE = "it is damaged or of another version: run the overlap job again with --overwrite"
_ANY_FIELDS = msgspec.json.Decoder(dict[str, Any])
reading = functools.partial(explained_damage, cure=_CURE, more=(ValueError, KeyError))


def _ignore(num_bytes: float) -> None:
    pass


def finished_output(path: str) -> Output:
    """Returns the output of a job; raises UsageError if the job has not finished."""
    output = Output(path)
    marker = output.file(SUCCESS_NAME)
    try:
        is_finished = files.exists(marker)
    except (ValueError, OSError) as error:
        raise UsageError(str(explained("look for", marker, error))) from error
    if not is_finished:
        raise UsageError(
            f"{output.path} is not a finished output of the overlap job: it has no "
            f"{SUCCESS_NAME}; give the job's --output_path, or wait until it has ended"
        )
    return output


class Output:
    """The output folder of an overlap job, or a folder with all files of one."""

    def __init__(self, path: str):
        self.path = path.rstrip("/") or "/"

    def file(self, name: str) -> str:
        """Returns the path of a file of the output."""
        return f"{self.path.rstrip('/')}/{name}"

    def num_bytes(self, name: str) -> int:
        """Returns the size of a file as stored."""
        with reading(self.file(name)), files.open_ranges(self.file(name)) as stream:
            return stream.seek(0, io.SEEK_END)

    def num_rows(self, name: str) -> int:
        """Returns the number of rows of a Parquet file."""
        with reading(self.file(name)), open_parquet(self.file(name)) as file:
            return file.metadata.num_rows

    def record[T](self, name: str, record_type: type[T]) -> T:
        """Returns the record of a JSON file."""
        with reading(self.file(name)), files.open_file(self.file(name)) as stream:
            return msgspec.json.decode(stream.read(), type=record_type)

    def lines(self, name: str, advance: Advance = _ignore) -> Iterator[list[bytes]]:
        """Yields the lines of a file, about 1 MiB at a time; an _OPTIONAL file may be missing."""
        path = self.file(name)
        if name in _OPTIONAL and not files.exists(path):
            return
        with reading(path), files.open_file(path) as stored:
            num_read = 0
            for lines in split_lines(read_blocks(decompressed(stored)), sys.maxsize):
                advance(stored.tell() - num_read)
                num_read = stored.tell()
                yield lines

    def records[T](self, name: str, record_type: type[T]) -> Iterator[T]:
        """Yields the records of a JSON lines file, ignoring fields that the type lacks."""
        decoder = msgspec.json.Decoder(record_type)
        with reading(self.file(name)):
            for lines in self.lines(name):
                yield from (decoded(line, decoder) for line in lines)

    def table(self, name: str, schema: pa.Schema) -> pa.Table:
        """Returns the records of a JSON lines file, with lone surrogates escaped, as a table."""
        with reading(self.file(name)):
            tables = [_parsed(lines, schema) for lines in self.lines(name)]
        return pa.concat_tables([schema.empty_table(), *tables])

    def row_groups(
        self, name: str, columns: list[str], advance: Advance = _ignore
    ) -> Iterator[pa.Table]:
        """Yields columns of a Parquet file, one row group at a time."""
        path, num_bytes = self.file(name), self.num_bytes(name)
        with reading(path), open_parquet(path, buffer_bytes=PIECE_BYTES) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns=columns)
                advance(num_bytes / file.num_row_groups)


def decoded[T](line: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Returns the record of a line, with lone surrogates, which msgspec rejects, escaped."""
    try:
        return decoder.decode(line)
    except msgspec.DecodeError:
        record = msgspec.convert(json.loads(line), dict[str, Any])
        for name, value in record.items():
            record[name] = escape_surrogates(value) if isinstance(value, str) else value
        return msgspec.convert(record, decoder.type)


def _parsed(lines: list[bytes], schema: pa.Schema) -> pa.Table:
    data = b"\n".join(lines)
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(data),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:  # lone surrogates, or damage, which `json` reports
        table = pa.Table.from_pylist([decoded(line, _ANY_FIELDS) for line in lines], schema)
    for column, values in zip(table.column_names, table.columns, strict=True):
        if values.null_count:
            raise ValueError(f"a record has no {column}")
    return table.select(schema.names)
