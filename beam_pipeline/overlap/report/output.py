"""Reads the files of a finished overlap job, local or on any filesystem of Beam.

Files are read in blocks, so a file of many GB needs little memory: as records, as columns, or only
the lines with certain numbers. A missing or damaged file is an error of one line that names it.
"""

from __future__ import annotations

import functools
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json

from beam_pipeline.errors import UsageError, explained
from beam_pipeline.overlap.results.layout import (
    BOILERPLATE,
    DETAILS_LEFT_OUT,
    FIELD_HITS,
    RULES,
    SUCCESS_NAME,
)
from beam_pipeline.overlap.results.output_files import escape_surrogates
from beam_pipeline.storage import files
from beam_pipeline.storage.lines import decompressed, explained_damage, read_blocks, split_lines
from beam_pipeline.storage.parquet import open_parquet

# Of some runs alone.
_OPTIONAL = (
    *(BOILERPLATE, DETAILS_LEFT_OUT),
    *(FIELD_HITS, RULES),
)

Advance = Callable[[float], None]
_CURE = "it is damaged or of another version: run the overlap job again with --overwrite"
reading = functools.partial(explained_damage, cure=_CURE, more=(ValueError,))


class Output:
    """The output folder of a finished overlap job.

    Raises:
      UsageError: there is no such folder, or the job has not finished.
    """

    def __init__(self, path: str):
        self.path = path.rstrip("/") or "/"
        marker = self.file(SUCCESS_NAME)
        try:
            is_finished = files.exists(marker)
        except (ValueError, OSError) as error:
            raise UsageError(str(explained("look for", marker, error))) from error
        if not is_finished:
            raise UsageError(
                f"{self.path} is not a finished output of the overlap job: it has no "
                f"{SUCCESS_NAME}; give the job's --output_path, or wait until it has ended"
            )

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
        """Returns the one record of a JSON file."""
        with reading(self.file(name)), files.open_file(self.file(name)) as stream:
            return msgspec.json.decode(stream.read(), type=record_type)

    def records[T](
        self, name: str, record_type: type[T], advance: Advance = lambda num_bytes: None
    ) -> Iterator[T]:
        """Yields the records of a file of JSON lines, compressed or not.

        Args:
          record_type: the msgspec.Struct of a record; other fields of a line are skipped.
          advance: called now and then with the number of bytes read since, as stored.
        """
        decoder = msgspec.json.Decoder(record_type)
        with reading(self.file(name)):
            for lines in split_lines(self._blocks(name, advance), sys.maxsize):
                yield from (decoded(line, decoder) for line in lines)

    def tables(self, name: str, schema: pa.Schema) -> Iterator[pa.Table]:
        """Yields the records of a file of JSON lines as tables of about 1 MiB of lines.

        Lone surrogates are escapes, as in the Parquet files of the output.

        Args:
          schema: the fields that each record has; others are skipped.
        """
        with reading(self.file(name)):
            for lines in split_lines(self._blocks(name), sys.maxsize):
                yield _table(lines, schema)

    def lines(
        self, name: str, numbers: Iterable[int], advance: Advance = lambda num_bytes: None
    ) -> Iterator[bytes]:
        """Yields some lines of a file, by their numbers, which ascend; reads no further.

        Only blocks that have one of the lines are cut into lines.
        """
        wanted = iter(numbers)
        next_wanted = next(wanted, None)
        number, head = 0, []  # of the line that a block goes on with; its pieces if it is wanted
        with reading(self.file(name)):
            for block in self._blocks(name, advance):
                if next_wanted is None:
                    return
                stop = number + block.count(b"\n")
                if number <= next_wanted < stop:
                    *ended, block = b"".join((*head, block)).split(b"\n")
                    head = []
                    while next_wanted is not None and next_wanted < stop:
                        yield ended[next_wanted - number]
                        next_wanted = next(wanted, None)
                elif stop > number:
                    block = block[block.rfind(b"\n") + 1 :]
                number = stop
                if next_wanted == number:
                    head.append(block)
            if next_wanted is not None:
                raise ValueError(f"line {next_wanted} is missing")

    def _blocks(self, name: str, advance: Advance = lambda num_bytes: None) -> Iterator[bytes]:
        """Yields the bytes of a file, decompressed; none of one that only some runs write."""
        path = self.file(name)
        if name in _OPTIONAL and not files.exists(path):
            return
        with files.open_file(path) as stored:
            num_read = 0
            for block in read_blocks(decompressed(stored)):
                advance(stored.tell() - num_read)
                num_read = stored.tell()
                yield block


def _table(lines: list[bytes], schema: pa.Schema) -> pa.Table:
    data = b"\n".join(lines)
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(data),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:  # lone surrogates, which Arrow refuses; or damage, as json will tell
        records = msgspec.convert(list(map(json.loads, lines)), list[dict[str, Any]])
        escaped = [{name: _escaped(one.get(name)) for name in schema.names} for one in records]
        table = pa.Table.from_pylist(escaped, schema)
    for column, values in zip(table.column_names, table.columns, strict=True):
        if values.null_count:
            raise ValueError(f"a record has no {column}")
    return table.select(schema.names)


def _escaped(value: object) -> object:
    return escape_surrogates(value) if isinstance(value, str) else value


def decoded[T](line: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Returns the record of a line, which may hold lone surrogates: msgspec refuses them."""
    try:
        return decoder.decode(line)
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(line), decoder.type)
