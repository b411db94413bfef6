"""Input files as inspected, and the work units that they are cut into.

  FileVersion → inspect, in the launcher → InputFile → cut_into_units, on a worker → WorkUnit

A work unit is a range of bytes of plain JSON lines, some row groups of Parquet, or a whole file.
Units depend on the files alone, so that the shards do, too.
"""

from collections.abc import Sequence
from typing import BinaryIO

import pyarrow as pa

from beam_pipeline.convert.examples import column_problem
from beam_pipeline.convert.json_records import is_json
from beam_pipeline.convert.options import RecordOptions
from beam_pipeline.dataset.tfrecord import begins_tfrecord
from beam_pipeline.errors import ProbelineError, UsageError, one_line
from beam_pipeline.jobs.messages import Message
from beam_pipeline.storage.files import open_file
from beam_pipeline.storage.lines import BYTE_ORDER_MARK, DAMAGE, decompressed
from beam_pipeline.storage.matching import FileVersion, unchanged
from beam_pipeline.storage.parquet import open_parquet, pack_row_groups

UNIT_BYTES = 64 << 20
_HEAD_BYTES = 64 << 10
_PARQUET_MAGIC = b"PAR1"


class InputFile(Message, frozen=True):
    """A file as inspected; `problem` is why it cannot be read, if so."""

    number: int  # in the order of the input
    file: FileVersion
    format: str = ""  # one of FORMATS
    is_compressed: bool = False
    num_rows: int | None = None  # of Parquet, by its footer
    problem: str | None = None


class WorkUnit(Message, frozen=True):
    """What one worker reads in one go."""

    file: InputFile
    number: int  # in the file
    num_units: int  # of the file
    start: int = 0  # [start, end) in bytes, of plain JSON lines
    end: int = 0
    row_groups: tuple[int, ...] = ()
    first_row: int = 0
    num_rows: int | None = None  # of Parquet, by its footer


def inspect(number: int, file: FileVersion, options: RecordOptions) -> InputFile:
    """Inspects a file's head and footer; an unreadable file is returned with its `problem`.

    Raises:
      ProbelineError: the file is readable, but --record or --fields do not suit it, or it was
        changed since it was matched.
    """
    with unchanged(file):
        try:
            return _inspect(number, file, options)
        except DAMAGE as error:
            return InputFile(number, file, options.input_format, problem=one_line(error))


def _inspect(number: int, file: FileVersion, options: RecordOptions) -> InputFile:
    with open_file(file.path, _HEAD_BYTES, file.version) as stream:
        plain = decompressed(stream)
        is_compressed = plain is not stream
        file_format = options.input_format
        if file_format == "auto":
            head = _read(plain, _HEAD_BYTES)
            file_format = format_of(head) or ""
    if not file_format:
        return InputFile(
            number,
            file,
            problem=f"neither Parquet nor TFRecord nor JSON lines by its first bytes ({head[:8]!r})"
            "; name what it is with --input_format",
        )
    _check_options(file.path, file_format, options)
    if file_format != "parquet":
        return InputFile(number, file, file_format, is_compressed)
    if is_compressed:
        problem = "Parquet within a compressed file; decompress it"
        return InputFile(number, file, file_format, problem=problem)
    with open_parquet(file.path, version=file.version) as parquet:
        _check_columns(file.path, parquet.schema_arrow, options)
        return InputFile(number, file, file_format, num_rows=parquet.metadata.num_rows)


def _read(stream: BinaryIO, num_bytes: int) -> bytes:
    read = getattr(stream, "read1", stream.read)  # `read` of a stream that is cut short raises
    head = b""
    while len(head) < num_bytes and (block := read(num_bytes - len(head))):
        head += block
    return head


def format_of(head: bytes) -> str | None:
    """Returns the format of a file by its first bytes, decompressed; None if it is none of ours."""
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
    if begins_tfrecord(head):
        return "tfrecord"
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    line, newline, _ = text.partition(b"\n")
    whole = bool(newline) or len(head) < _HEAD_BYTES
    is_lines = not text or (is_json(line) if whole else text.startswith((b"{", b"[")))
    return "jsonl" if is_lines else None


def _check_options(path: str, file_format: str, options: RecordOptions) -> None:
    """Raises UsageError for options that mean nothing for a file."""
    record = options.record_of(file_format)
    if file_format == "tfrecord" and record != "bytes":
        raise UsageError(
            f"--record={record}: records of TFRecord, such as {path}, are taken as they are: leave "
            "it out"
        )
    if file_format == "parquet" and record == "json":
        raise UsageError(
            f"--record=json is for JSON lines, and {path} is Parquet: give tf_example or bytes"
        )
    if options.fields and record == "bytes" and file_format != "parquet":
        raise UsageError(
            f"--fields={','.join(options.fields)} needs --record=tf_example for {path}, whose "
            "records are taken whole"
        )


def _check_columns(path: str, schema: pa.Schema, options: RecordOptions) -> None:
    """Raises ProbelineError unless the columns exist, once, and have types that suit."""
    shown = ", ".join(schema.names) or "no columns"
    names = options.fields or tuple(schema.names)
    for name in names:
        if (count := len(schema.get_all_field_indices(name))) != 1:
            raise ProbelineError(f"{path} has {count} columns named {name!r}; it has {shown}")
    if options.record_of("parquet") == "bytes":
        if len(names) != 1:
            raise UsageError(
                f"--record=bytes takes one column, and {path} has {shown}: name it with --fields"
            )
        if column_problem(schema.field(names[0]).type, is_bytes=True):
            raise ProbelineError(
                f"the column {names[0]!r} of {path} is of type {schema.field(names[0]).type}: "
                "--record=bytes takes strings or binary"
            )
        return
    for name in names:
        if problem := column_problem(schema.field(name).type):
            raise ProbelineError(
                f"the column {name!r} of {path} {problem}: choose others with --fields, or cast it"
            )


def cut_into_units(file: InputFile) -> list[WorkUnit]:
    """Cuts a file into work units of about UNIT_BYTES, in order; the same ones each time."""
    path, num_bytes, version = file.file
    if file.problem or file.format == "tfrecord" or file.is_compressed:
        return [WorkUnit(file, 0, 1)]
    if file.format == "jsonl":
        starts = range(0, max(1, num_bytes), UNIT_BYTES)
        return [
            WorkUnit(file, number, len(starts), start, min(start + UNIT_BYTES, num_bytes))
            for number, start in enumerate(starts)
        ]
    with unchanged(file.file), open_parquet(path, version=version) as parquet:
        metadata = parquet.metadata
    rows = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    groups = list(pack_row_groups(rows, UNIT_BYTES * max(1, sum(rows)) / num_bytes))
    return [
        WorkUnit(file, number, len(groups), 0, 0, *packed) for number, packed in enumerate(groups)
    ]


def estimated_units(files: Sequence[InputFile]) -> int:
    """Returns about how many work units there are, at least 1."""
    return max(1, sum(max(1, file.file.num_bytes // UNIT_BYTES) for file in files))
