"""Input files of records, and the work units cut from them.

  pattern → match_documents → InputFile, format and compression by its name
  FileVersion → inspect → InputFile, format and compression by its first bytes
  InputFile → cut_into_work_units → WorkUnit: row groups, a range of lines, or a whole file

Work units depend only on the files. Rows count from 0 in their file or, in a work unit that begins
within a file of lines, from its first line, since the lines before it have not been counted.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Literal, NamedTuple

import pyarrow as pa

from beam_pipeline.dataset.tfrecord import begins_tfrecord
from beam_pipeline.documents.fields import DOCUMENT_NAME
from beam_pipeline.documents.json import is_json
from beam_pipeline.documents.json_records import begins_sequence
from beam_pipeline.errors import UsageError
from beam_pipeline.storage.files import check_path, check_regular, open_file
from beam_pipeline.storage.lines import (
    BYTE_ORDER_MARK,
    DAMAGE,
    damage_reason,
    decompressed,
    explained_damage,
    read_blocks,
)
from beam_pipeline.storage.matching import FileVersion, match_input, unchanged
from beam_pipeline.storage.parquet import open_parquet, pack_row_groups

Format = Literal["jsonl", "json", "parquet", "tfrecord", "auto"]  # json: an array or lines
WORK_UNIT_BYTES = 64 << 20
CURE = "repair or remove the file"
_HEAD_BYTES = 64 << 10
_PARQUET_MAGIC = b"PAR1"
_OF_TABLE = (
    "python -c \"from pyarrow import csv, parquet; o = csv.ParseOptions(delimiter='{delimiter}', "
    "newlines_in_values=True); parquet.write_table(csv.read_csv('FILE', parse_options=o), "
    "'FILE.parquet')\", which takes the names of columns from the first line"
)
# By the suffix of a file that is not read, how to convert it.
_CONVERSIONS = {
    ".csv": _OF_TABLE.format(delimiter=","),
    ".tsv": _OF_TABLE.format(delimiter="\\t"),
    ".arrow": (
        'python -c "from pyarrow import ipc, parquet; '
        "parquet.write_table(ipc.open_stream('FILE').read_all(), 'FILE.parquet')\""
    ),
    ".txt": (
        "python -c \"import json; [print(json.dumps({'text': line.strip()})) for line in "
        "open('FILE')]\" > FILE.jsonl, for one document per line"
    ),
}


class InputFile(NamedTuple):
    """A file of records as found."""

    file: FileVersion
    format: Format = "auto"  # auto: no format fits, see `problem`
    is_compressed: bool = False
    source: int = 0  # the number of the first pattern that matches it
    number: int = 0  # in the order of the input
    num_rows: int | None = None  # of an inspected Parquet file
    problem: str | None = None  # why an inspected file cannot be read

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def num_bytes(self) -> int:
        return self.file.num_bytes


class WorkUnit(NamedTuple):
    """Part of a file for one worker: lines that begin in [start, end), row groups, or all."""

    file: InputFile
    number: int = 0  # in its file
    num_units: int = 1  # of the file
    start: int = 0
    end: int = 0
    row_groups: tuple[int, ...] = ()
    first_row: int | None = 0  # None: the rows before it have not been counted
    num_rows: int | None = None  # of Parquet, by its footer

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def is_range(self) -> bool:
        """Whether it is only a byte range of a file."""
        return (self.start, self.end) != (0, self.file.num_bytes)

    @property
    def name(self) -> str:
        """32 hex digits that depend only on the file and the part of it."""
        (path, num_bytes, version), kind = self.file[:2]
        content = path, num_bytes, kind, self.start, self.end, self.row_groups, None, version
        digest = hashlib.blake2b(
            "\n".join(map(str, content)).encode("utf-8", "surrogateescape"), digest_size=16
        )
        return digest.hexdigest()


# --- documents by name ----------------------------------------------------------------------------


def format_by_name(path: str) -> Format:
    """Returns the format of a file with the name of a document: jsonl, json or parquet."""
    name = DOCUMENT_NAME.search(path)
    assert name, path
    return "jsonl" if name["lines"] else "parquet" if name["parquet"] else "json"


def match_documents(
    patterns: Sequence[str], option: str = "--input_path", unread: list[str] | None = None
) -> list[InputFile]:
    """Returns all document files in folders, of globs and by path, in order, each once.

    In folders and globs only files named *.jsonl, *.ndjson, *.json or *.parquet count, in any case,
    JSON also compressed; hidden files and folders, which begin with `.` or `_`, do not. `**`
    matches any number of folders. Links to folders are followed. An existing path is not treated as
    a glob. `unread`, if given, receives the paths of the files that do not count.

    `option` is the user's flag, for messages. Raises UsageError if a pattern matches no such file,
    or one is a pipe.
    """
    found: dict[str, InputFile] = {}
    for source, pattern in enumerate(patterns):
        folder, matched = match_input(pattern, option, "**")
        files, others = {}, []
        for file in matched:
            if folder is not None and re.search("(^|/)[._]", file.path[len(folder) :]):
                continue
            if name := DOCUMENT_NAME.search(file.path):
                is_compressed = bool(name["compressed"])
                files[file.path] = InputFile(file, format_by_name(file.path), is_compressed, source)
            else:
                others.append(file.path)
        if unread is not None:
            unread += others
        if not files:
            cure = "check the path, and quote a pattern so that the shell does not expand it"
            if others:
                more = f" and {len(others) - 1} more" if len(others) > 1 else ""
                cure = f"convert {others[0]}{more} to one of these"
                if command := _CONVERSIONS.get(os.path.splitext(others[0])[1].lower()):
                    cure += f": {command}"
            raise UsageError(
                f"{option}={pattern} matches no file of documents: .jsonl, .ndjson, .json (plain, "
                f".gz, .zst, .bz2 or .xz) or .parquet; {cure}"
            )
        found = files | found
    check_regular(found)
    for path in found:
        check_path(option.removeprefix("--"), path)
    return [found[path] for path in sorted(found)]


def unread_warning(option: str, unread: Sequence[str]) -> Iterator[str]:
    """Yields the warning for files in folders that are not read, if any."""
    if unread:
        files = "1 file" if len(unread) == 1 else f"{len(unread):,} files"
        yield (
            f"Warning: {files} of {option} not read, since {min(unread)} has no name of a "
            "document: .jsonl, .ndjson, .json (plain, .gz, .zst, .bz2 or .xz) or .parquet"
        )


# --- records by content ---------------------------------------------------------------------------


def inspect(
    file: FileVersion,
    input_format: Format = "auto",
    check: Callable[[str, Format, pa.Schema | None], None] | None = None,
) -> InputFile:
    """Inspects a file's head and footer; an unreadable file is returned with its `problem`.

    `check` raises an error if path, format and columns do not suit the job. Raises ProbelineError
    if the file was changed since it was matched.
    """
    with unchanged(file):
        try:
            return _inspect(file, input_format, check or (lambda *_: None))
        except DAMAGE as error:
            return InputFile(file, input_format, problem=damage_reason(file.path, error))


def _inspect(
    file: FileVersion, kind: Format, check: Callable[[str, Format, pa.Schema | None], None]
) -> InputFile:
    with open_file(file.path, _HEAD_BYTES, file.version) as stream:
        plain = decompressed(stream)
        is_compressed = plain is not stream
        if kind == "auto":
            head = _read(plain, _HEAD_BYTES)
            kind = format_of(head)
            if kind == "auto":
                problem = (
                    f"neither Parquet nor TFRecord nor JSON lines by its first bytes ({head[:8]!r})"
                    "; name its format with --input_format"
                )
                return InputFile(file, kind, problem=problem)
    if kind != "parquet":
        check(file.path, kind, None)
        return InputFile(file, kind, is_compressed)
    if is_compressed:
        return InputFile(file, kind, problem="Parquet within a compressed file; decompress it")
    with open_parquet(file.path, version=file.version) as parquet:
        check(file.path, kind, parquet.schema_arrow)
        return InputFile(file, kind, num_rows=parquet.metadata.num_rows)


def _read(stream: BinaryIO, num_bytes: int) -> bytes:
    read = getattr(stream, "read1", stream.read)  # `read` of a truncated stream raises
    head = b""
    while len(head) < num_bytes and (block := read(num_bytes - len(head))):
        head += block
    return head


def format_of(head: bytes) -> Format:
    """Returns the format of a file by its first bytes, decompressed; "auto" if it is unknown."""
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
    if begins_tfrecord(head):
        return "tfrecord"
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    line, newline, _ = text.partition(b"\n")
    is_whole = bool(newline) or len(head) < _HEAD_BYTES
    is_lines = not text or (is_json(line) if is_whole else text.startswith((b"{", b"[")))
    return "jsonl" if is_lines else "auto"


# --- work units -----------------------------------------------------------------------------------


def cut_into_work_units(
    file: InputFile, unit_bytes: int = WORK_UNIT_BYTES, by_line: bool = False
) -> list[WorkUnit]:
    """Cuts a file into work units of about `unit_bytes`, in order and deterministically.

    A file of objects that are not one to a line is one unit, unless `by_line`.

    Raises ProbelineError if the file was changed since it was matched, or if the footer of a
    Parquet file cannot be read.
    """
    if file.format == "parquet" and not file.problem:
        return _cut_parquet(file, unit_bytes)
    num_bytes = file.num_bytes
    is_whole = file.problem or file.format != "jsonl" or file.is_compressed
    if is_whole or (not by_line and num_bytes > unit_bytes and _is_sequence(file)):
        unit_bytes = max(1, num_bytes)
    starts = range(0, max(1, num_bytes), unit_bytes)
    return [
        WorkUnit(
            file,
            number,
            len(starts),
            start,
            min(start + unit_bytes, num_bytes),
            first_row=None if start else 0,
        )
        for number, start in enumerate(starts)
    ]


def _is_sequence(file: InputFile) -> bool:
    """Returns whether the objects of a file of JSON lines are not one to a line."""
    with unchanged(file.file), open_file(file.path, version=file.file.version) as stream:
        return begins_sequence(next(read_blocks(stream), b""))


def _cut_parquet(file: InputFile, unit_bytes: int) -> list[WorkUnit]:
    path, num_bytes, version = file.file
    with (
        unchanged(file.file),
        explained_damage(path, CURE, row=0),
        open_parquet(path, version=version) as parquet,
    ):
        metadata = parquet.metadata
    rows = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    runs = list(pack_row_groups(rows, unit_bytes * max(1, sum(rows)) / num_bytes))
    return [
        WorkUnit(file, number, len(runs), 0, num_bytes, *groups)
        for number, groups in enumerate(runs)
    ]
