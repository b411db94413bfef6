"""Documents: files found by pattern, cut into units of work, read as batches of texts.

JSON lines, JSON arrays and Parquet, the JSON plain, gzip or Zstandard, local or on `gs://`. A
unit is a run of row groups, a range of bytes of a plain file of lines, or a whole file. Rows
count from 0 in their file, records without a text and dead letters included. A unit that begins
within a file of lines counts from its own first line: whoever adds up the records of the units
before it knows its `first_row`.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import BinaryIO, Literal, NamedTuple, cast

import pyarrow as pa
from isal import igzip, igzip_lib

from beam_pipeline.errors import ProbelineError, UsageError, explained, one_line
from beam_pipeline.overlap.documents import json as document_json
from beam_pipeline.overlap.documents import json_records
from beam_pipeline.overlap.documents import parquet as document_parquet
from beam_pipeline.overlap.documents.batch import DocumentBatch
from beam_pipeline.overlap.documents.json import BadRecordError, Fields
from beam_pipeline.overlap.documents.record_ids import DOCUMENT_NAME
from beam_pipeline.storage.files import FileVersion, is_folder, is_local, match_versions, open_file

Format = Literal["jsonl", "json", "parquet"]
UNIT_BYTES = 64 << 20
_FOOTERS_AT_A_TIME = 16
_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
_HIDDEN = ("_", ".")
_DAMAGE: tuple[type[Exception], ...] = (
    OSError,
    EOFError,
    pa.ArrowException,
    cast(type[Exception], igzip_lib.IsalError),  # which its stub takes for an instance
    json_records.ArrayError,
)
_WILDCARDS = "*?["


class DocumentFile(NamedTuple):
    """A file of documents; its name tells what it holds."""

    path: str
    num_bytes: int
    format: Format
    compressed: bool
    version: int = 0  # another one if it is written again: `files.FileVersion`


class DocumentUnit(NamedTuple):
    """What is read at a time: [start, end) of a file of lines, some row groups, or a whole file."""

    path: str
    num_bytes: int  # of the whole file
    format: Format
    start: int
    end: int
    row_groups: tuple[int, ...]
    first_row: int | None  # None: nobody has counted the rows before it
    version: int = 0

    @property
    def name(self) -> str:
        """A name that the same part of the same file always has: 32 hex digits."""
        part = "\n".join(map(str, self._replace(first_row=None)))
        digest = hashlib.blake2b(part.encode("utf-8", "surrogateescape"), digest_size=16)
        return digest.hexdigest()


def match_documents(patterns: Sequence[str], option: str = "--input_path") -> list[DocumentFile]:
    """Returns all files of documents below folders, of globs and by path, in order, each once.

    In folders and globs only files called *.jsonl, *.json or *.parquet count, JSON also with .gz
    or .zst, and nothing whose name, or the name of a folder on the way, starts with `.` or `_`.

    Args:
      patterns: folders, globs or files; `**` stands for any folders, or none.
      option: what the user calls them, for messages.

    Raises:
      UsageError: a pattern matches no such file.
    """
    found: dict[str, DocumentFile] = {}
    for pattern in patterns:
        files = _matches(pattern, option)
        if not files:
            raise UsageError(
                f"{option}={pattern} matches no file of documents: .jsonl, .json (both plain, .gz "
                "or .zst) or .parquet; check the path, and quote a pattern so that the shell does "
                "not expand it"
            )
        found.update((file.path, file) for file in files)
    return [found[path] for path in sorted(found)]


def _matches(pattern: str, option: str) -> list[DocumentFile]:
    is_glob = any(char in pattern for char in _WILDCARDS)
    try:
        if not is_glob and is_folder(pattern):
            pattern, is_glob = pattern.rstrip("/") + "/**", True
        found = {file.path: file for file in _matching(pattern)}
    except (ValueError, OSError) as error:
        raise UsageError(str(explained("look for", f"{option}={pattern}", error))) from error
    base = re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0] if is_glob else None
    files = []
    for path, num_bytes, version in found.values():
        name = DOCUMENT_NAME.search(path)
        if name and (base is None or not _is_hidden(path[len(base) :])):
            suffix = name[0].removeprefix(".")
            kind, _, compression = suffix.partition(".")
            files.append(
                DocumentFile(path, num_bytes, cast(Format, kind), bool(compression), version)
            )
    return files


def _matching(pattern: str) -> Iterator[FileVersion]:
    """Yields what `match_versions` finds, for patterns too that it does not take as shells do."""
    # Beam finds nothing for a glob without a folder, and `**/` wants one folder at least.
    added = "./" if is_local(pattern) and not pattern.startswith(("/", "./")) else ""
    pattern = added + pattern
    for glob in {pattern, pattern.replace("/**/", "/")}:
        for file in match_versions(glob):
            yield file._replace(path=file.path.removeprefix(added))


def _is_hidden(path: str) -> bool:
    return any(part.startswith(_HIDDEN) for part in path.split("/"))


def plan_units(
    files: Sequence[DocumentFile], text_field: str = "text", unit_bytes: int = UNIT_BYTES
) -> list[DocumentUnit]:
    """Cuts files into units of about so many bytes, in order; the same ones each time.

    Raises:
      ProbelineError: the footer of a Parquet file cannot be read, or has no such text field.
    """
    with ThreadPoolExecutor(_FOOTERS_AT_A_TIME) as pool:
        units = pool.map(lambda file: units_of(file, text_field, unit_bytes), files)
        return list(chain.from_iterable(units))


def units_of(file: DocumentFile, text_field: str, unit_bytes: int) -> list[DocumentUnit]:
    """Cuts one file as `plan_units` does."""
    path, num_bytes, kind, compressed, version = file
    if kind == "parquet":
        return list(_runs_of_row_groups(file, text_field, unit_bytes))
    if kind == "json" or compressed or num_bytes <= unit_bytes:
        return [DocumentUnit(path, num_bytes, kind, 0, num_bytes, (), 0, version)]
    return [
        DocumentUnit(
            path,
            num_bytes,
            kind,
            start,
            min(start + unit_bytes, num_bytes),
            (),
            None if start else 0,
            version,
        )
        for start in range(0, num_bytes, unit_bytes)
    ]


def _runs_of_row_groups(
    file: DocumentFile, text_field: str, unit_bytes: int
) -> Iterator[DocumentUnit]:
    with _explained_damage(file.path, 0), document_parquet.open_parquet(file.path) as parquet:
        document_parquet.check_text_column(file.path, parquet.schema_arrow, text_field)
        metadata = parquet.metadata
    bytes_of_a_row = file.num_bytes / max(1, metadata.num_rows)
    groups: list[int] = []
    first_row = rows = 0
    for group in range(metadata.num_row_groups):
        num_rows = metadata.row_group(group).num_rows
        if groups and (rows + num_rows) * bytes_of_a_row > unit_bytes:
            yield _parquet_unit(file, groups, first_row)
            groups, first_row, rows = [], first_row + rows, 0
        groups.append(group)
        rows += num_rows
    yield _parquet_unit(file, groups, first_row)


def _parquet_unit(file: DocumentFile, groups: Iterable[int], first_row: int) -> DocumentUnit:
    return DocumentUnit(
        file.path,
        file.num_bytes,
        "parquet",
        0,
        file.num_bytes,
        tuple(groups),
        first_row,
        file.version,
    )


def read_unit(
    unit: DocumentUnit, text_field: str = "text", id_field: str = "id", hash_ids: bool = False
) -> Iterator[DocumentBatch]:
    """Yields all records of a unit, some MiB at a time.

    A line of nothing but whitespace is no record and has no row. A file called .json is one array
    if its first character is `[`, and lines if not.

    Args:
      unit: one of `plan_units`.
      text_field: the field with the text, at the top of a record.
      id_field: the field with the id.
      hash_ids: gives a record without an id the hash of all its fields (`record_hash`), at the
        cost of reading them all.

    Raises:
      ProbelineError: the file cannot be read (on), or its Parquet has no such text field.
    """
    fields = Fields(text_field, id_field, hash_ids)
    row = unit.first_row or 0
    batches = _batches_of(unit, row, fields)
    while True:
        with _explained_damage(unit.path, row):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
        row += batch.num_rows


def _batches_of(unit: DocumentUnit, first_row: int, fields: Fields) -> Iterator[DocumentBatch]:
    if unit.format == "parquet":
        yield from document_parquet.batches_of(unit.path, unit.row_groups, first_row, fields)
        return
    with open_file(unit.path) as stream:
        records = _records_of(unit, stream)
        yield from document_json.batches_of(unit.path, records, first_row, fields)


def _records_of(unit: DocumentUnit, stream: BinaryIO) -> Iterator[list[bytes]]:
    is_part = (unit.start, unit.end) != (0, unit.num_bytes)
    decompressed = _decompressed(stream) if unit.start == 0 else stream
    if is_part and decompressed is not stream:
        raise ProbelineError(
            f"{unit.path} is compressed, which its name does not tell: add .gz or .zst to the name"
        )
    if is_part:
        blocks = json_records.blocks_of_range(stream, unit.start, unit.end)
        return json_records.lines_of(blocks)
    blocks = json_records.blocks_of(decompressed)
    if unit.format == "jsonl":
        return json_records.lines_of(blocks)
    first = next(blocks, b"")
    cut = json_records.elements_of if json_records.is_array(first) else json_records.lines_of
    return cut(chain([first], blocks))


def _decompressed(stream: BinaryIO) -> BinaryIO:
    """Returns a stream of what a gzip or Zstandard stream holds; any other stream as it is.

    ISA-L takes a quarter of the time of zlib. Arrow tells where a Zstandard stream is cut short,
    which python-zstandard does not.
    """
    magic = stream.read(4)
    stream.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        return cast(BinaryIO, igzip.IGzipFile(fileobj=stream, mode="rb"))
    if magic == _ZSTD_MAGIC or _ZSTD_SKIPPABLE.match(magic):
        return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd"))
    return stream


def field_names(unit: DocumentUnit) -> list[str]:
    """Returns the names of the fields of the first record of a unit that can be read."""
    with _explained_damage(unit.path, 0):
        if unit.format == "parquet":
            with document_parquet.open_parquet(unit.path) as file:
                return file.schema_arrow.names
        with open_file(unit.path) as stream:
            for record in chain.from_iterable(_records_of(unit, stream)):
                try:
                    document = document_json.parse(record)
                except BadRecordError:
                    continue
                if isinstance(document, dict):
                    return list(document)
    return []


@contextmanager
def _explained_damage(path: str, row: int) -> Iterator[None]:
    """Raises what a damaged file raises inside as one line that names it."""
    try:
        yield
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno:
            raise explained("read", path, error) from error
        reason = one_line(error)
        cure = "repair or remove the file"
        if "too much memory" in reason:
            cure = "compress it again without --long, whose window is too large for a worker"
        raise ProbelineError(f"cannot read {path} (row {row}): {reason}; {cure}") from error
