"""Documents: files found by pattern, cut into work units, read as batches of texts.

JSON lines, JSON arrays and Parquet, the JSON plain, gzip or Zstandard, local or on `gs://`. A work
unit is a run of row groups, a range of bytes of a plain file of lines, or a whole file. Rows count
from 0 in their file, records without a text and dead letters included. A work unit that begins
within a file of lines counts from its own first line, since those before it have not been counted.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import BinaryIO, Literal, NamedTuple, cast

from beam_pipeline.documents import json as document_json
from beam_pipeline.documents import parquet as document_parquet
from beam_pipeline.documents.batch import DocumentBatch
from beam_pipeline.documents.fields import DOCUMENT_NAME
from beam_pipeline.documents.json import BadRecordError, Fields
from beam_pipeline.documents.json_text import Records
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.storage.files import check_regular, open_file
from beam_pipeline.storage.json_array import ArrayError
from beam_pipeline.storage.lines import (
    decompressed,
    explained_damage,
    read_blocks,
    read_blocks_of_range,
)
from beam_pipeline.storage.matching import FileVersion, match_input, unchanged
from beam_pipeline.storage.parquet import open_parquet, pack_row_groups

Format = Literal["jsonl", "json", "parquet"]
WORK_UNIT_BYTES = 64 << 20
_CURE = "repair or remove the file"


class DocumentFile(NamedTuple):
    """A file of documents; format and compression come from its name."""

    path: str
    num_bytes: int
    format: Format
    compressed: bool
    version: int = 0  # that of `FileVersion`

    @property
    def file(self) -> FileVersion:
        """The file as it was matched."""
        return FileVersion(self.path, self.num_bytes, self.version)


class WorkUnit(NamedTuple):
    """What one worker reads in one go: [start, end) of a file of lines, row groups, or a file."""

    path: str
    num_bytes: int  # of the whole file
    format: Format
    start: int
    end: int
    row_groups: tuple[int, ...] = ()
    first_row: int | None = 0  # None: the rows before it have not been counted
    version: int = 0
    file_number: int = 0  # of the training file, in the order of the output
    number: int = 0  # of the work unit in its file

    @property
    def file(self) -> FileVersion:
        """The file as it was matched."""
        return FileVersion(self.path, self.num_bytes, self.version)

    @property
    def name(self) -> str:
        """A name that depends on nothing but the file and the part of it: 32 hex digits."""
        content = self._replace(first_row=None)[:8]
        digest = hashlib.blake2b(
            "\n".join(map(str, content)).encode("utf-8", "surrogateescape"), digest_size=16
        )
        return digest.hexdigest()


def match_documents(patterns: Sequence[str], option: str = "--input_path") -> list[DocumentFile]:
    """Returns all files of documents below folders, of globs and by path, in order, each once.

    In folders and globs only files called *.jsonl, *.json or *.parquet count, JSON also with .gz
    or .zst, and nothing whose name, or the name of a folder on the way, starts with `.` or `_`.
    Links to folders are followed. A path that exists is no glob, whatever its name looks like.

    Args:
      patterns: folders, globs or files; `**` matches any number of folders.
      option: the flag that the user gave, for messages.

    Raises:
      UsageError: a pattern matches no such file, or one is a pipe.
    """
    found: dict[str, DocumentFile] = {}
    for pattern in patterns:
        folder, matched = match_input(pattern, option, "**")
        files = {}
        for path, num_bytes, version in matched:
            name = DOCUMENT_NAME.search(path)
            if name and (folder is None or not re.search("(^|/)[._]", path[len(folder) :])):
                kind, _, compression = name[0].removeprefix(".").partition(".")
                files[path] = DocumentFile(
                    path, num_bytes, cast(Format, kind), bool(compression), version
                )
        if not files:
            raise UsageError(
                f"{option}={pattern} matches no file of documents: .jsonl, .json (both plain, .gz "
                "or .zst) or .parquet; check the path, and quote a pattern so that the shell does "
                "not expand it"
            )
        found = files | found
    check_regular(found)
    return [found[path] for path in sorted(found)]


def cut_into_work_units(
    file: DocumentFile, text_field: str | None = "text", unit_bytes: int = WORK_UNIT_BYTES
) -> list[WorkUnit]:
    """Cuts a file into work units of about `unit_bytes`, in order; the same ones each time.

    Args:
      text_field: the column of texts that Parquet must have; None asks for none.

    Raises:
      ProbelineError: the footer of a Parquet file cannot be read, or has no such text field, or
        the file was changed since it was matched.
    """
    path, num_bytes, kind, compressed, version = file
    whole = WorkUnit(path, num_bytes, kind, 0, num_bytes, version=version)
    if kind == "parquet":
        with (
            unchanged(file.file),
            explained_damage(path, _CURE, row=0),
            open_parquet(path, version=version) as parquet,
        ):
            if text_field is not None:
                document_parquet.check_text_column(path, parquet.schema_arrow, text_field)
            metadata = parquet.metadata
        rows = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        max_rows = unit_bytes * max(1, sum(rows)) / num_bytes
        units = [
            whole._replace(row_groups=groups.numbers, first_row=groups.first_row)
            for groups in pack_row_groups(rows, max_rows)
        ]
    elif kind == "json" or compressed or num_bytes <= unit_bytes:
        units = [whole]
    else:
        units = [
            whole._replace(
                start=start,
                end=min(start + unit_bytes, num_bytes),
                first_row=None if start else 0,
            )
            for start in range(0, num_bytes, unit_bytes)
        ]
    return [unit._replace(number=number) for number, unit in enumerate(units)]


def read_work_unit(unit: WorkUnit, fields: Fields = Fields()) -> Iterator[DocumentBatch]:  # noqa: B008
    """Yields all records of a work unit, some MiB at a time.

    A line of nothing but whitespace is no record and has no row. A file called .json is one array
    if its first character is `[`, and lines if not.

    Args:
      unit: one of `cut_into_work_units`.
      fields: the fields that are read, at the top level of a record.

    Raises:
      ProbelineError: the file cannot be read (on), its Parquet has no such text field, or it was
        changed since it was matched.
    """
    row = unit.first_row or 0
    batches = _read_batches(unit, row, fields)
    with unchanged(unit.file):
        while True:
            with explained_damage(unit.path, _CURE, (ArrayError,), row=row):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch
            row += batch.num_rows


def _read_batches(unit: WorkUnit, row: int, fields: Fields) -> Iterator[DocumentBatch]:
    if unit.format == "parquet":
        yield from document_parquet.read_batches(unit.file, unit.row_groups, row, fields)
        return
    with open_file(unit.path, version=unit.version) as stream:
        split = _read_records(unit, stream)
        while (records := next(split, None)) is not None:
            batch = document_json.read_batch(unit.path, records, row, fields)
            row += records.count
            del records  # they take as much memory as the texts
            if batch.num_rows:
                yield batch


def _read_records(unit: WorkUnit, stream: BinaryIO) -> Iterator[Records]:
    is_range = (unit.start, unit.end) != (0, unit.num_bytes)
    if not is_range:
        blocks = read_blocks(decompressed(stream))
    elif unit.start == 0 and decompressed(stream) is not stream:
        raise ProbelineError(
            f"{unit.path} is compressed, which its name does not tell: add .gz or .zst to the name"
        )
    else:
        blocks = read_blocks_of_range(stream, unit.start, unit.end)
    return document_json.split_records(blocks, may_be_array=unit.format == "json")


def field_names(unit: WorkUnit) -> list[str]:
    """Returns the names of the fields of the first record of a work unit that can be read."""
    with explained_damage(unit.path, _CURE, (ArrayError,), row=0):
        if unit.format == "parquet":
            with open_parquet(unit.path) as file:
                return file.schema_arrow.names
        with open_file(unit.path) as stream:
            split = _read_records(unit, stream)
            for record in chain.from_iterable(records.each() for records in split):
                try:
                    document = document_json.parse(record)
                except BadRecordError:
                    continue
                if isinstance(document, dict):
                    return list(document)
    return []
