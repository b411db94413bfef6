"""Input files: matched, recognised by their content, inspected, and cut into work units.

A work unit is several small files, one file, or some row groups of a large one, with up to about
UNIT_ROWS rows. Work units do not affect the dataset. The schema is in the footer of a Parquet file,
so a missing column ends the job before any row is read.
"""

import contextlib
import itertools
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import BinaryIO, NamedTuple

from beam_pipeline.dataset.layout import OutputFormat
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.sources import atlas, detection, mapping, tables
from beam_pipeline.sources.anonymize import WITHHELD
from beam_pipeline.sources.options import InputFormat, ReadOptions
from beam_pipeline.sources.spans import Span, spans_of
from beam_pipeline.storage.files import check_path, check_regular, is_local, open_file
from beam_pipeline.storage.lines import (
    BYTE_ORDER_MARK,
    DAMAGE,
    SMALLER_WINDOW,
    compression_of,
    damage_reason,
    decompressed,
    needs_large_window,
)
from beam_pipeline.storage.matching import FileVersion, match, match_below, match_input, unchanged
from beam_pipeline.storage.parquet import open_parquet, pack_row_groups

UNIT_ROWS = 2_000_000
UNIT_JSON_BYTES = 64 << 20
_EVEN_WORKERS = 4
_MAGIC_BYTES = 4096
# Below the folder of a Delta or Iceberg table.
_TABLE_MARKS = ("_delta_log/*", "metadata/version-hint.text", "metadata/*.metadata.json")
# The rows of the others are counted only when they are read.
_COUNTED = ("parquet", "atlas_bigquery", "probe_rows")


class StoredShard(NamedTuple):
    """The entry of an input shard in the manifest of its dataset."""

    output_format: OutputFormat
    num_records: int
    crc32c: str
    anonymized_by: str  # the fingerprint of the key of its addresses; "" if they are real
    is_of_output: bool = False  # of the dataset that the run appends to


class MeasurementFile(NamedTuple):
    """An inspected file; `problem` is why it cannot be read, if it cannot."""

    file: FileVersion
    input_format: InputFormat
    row_group_rows: tuple[int, ...]  # empty for JSON, whose lines are not counted
    problem: str | None = None
    shard: StoredShard | None = None  # of probe_rows, whose measurements are one row group
    spans: tuple[Span, ...] = ()  # of JSON lines that can be cut


class Piece(NamedTuple):
    """Row groups of a Parquet file, a span of lines or a whole file.

    `first_row` is counted in the file, but 0 for a span.
    """

    file: FileVersion
    input_format: InputFormat
    row_groups: tuple[int, ...]
    first_row: int
    num_rows: int
    num_bytes: int
    problem: str | None = None
    shard: StoredShard | None = None
    span: Span | None = None  # None is the whole file

    @property
    def path(self) -> str:
        return self.file.path


class MeasurementUnit(NamedTuple):
    """Pieces that are read and pre-grouped together; `index` counts from 0."""

    index: int
    pieces: tuple[Piece, ...]
    rows_in_all: int = 0  # total of all units, estimated for JSON

    @property
    def num_rows(self) -> int:
        """Rows of its Parquet files, which are known in advance."""
        return sum(piece.num_rows for piece in self.pieces)


def match_files(patterns: Sequence[str]) -> list[FileVersion]:
    """Returns all matching files in order; UsageError if a pattern has none, or one is a pipe.

    Below a pattern's fixed part, names that begin with `_` or `.` are no data. A file with two
    names is listed once; stderr says so.
    """
    found: dict[str, FileVersion] = {}
    for pattern in patterns:
        folder, files = match_input(pattern, "--input", "*")
        if folder is not None:
            glob = pattern.removeprefix(folder)
            _refuse_table_formats(folder, glob, files)
            files = [file for file in files if not _is_hidden(file.path[len(folder) :], glob)]
        if not files:
            deeper = f"{folder}**/*" if folder == f"{pattern.rstrip('/')}/" else ""
            hint = f"; for the files of its folders, give {deeper!r}" if deeper else ""
            raise UsageError(
                f"--input={pattern} matches no file{hint}: check the pattern, and quote it so that "
                "the shell does not expand it"
            )
        found.update((_one_spelling(file.path), file) for file in files)
    files = sorted(found.values())
    for file in files:
        check_path("input", file.path)
    check_regular(file.path for file in files)
    return _without_links(files)


def _one_spelling(path: str) -> str:
    """Returns the same path for a/x, a//x and ./a/x, so that no file is read twice."""
    return os.path.abspath(path) if is_local(path) else path


def _is_hidden(path: str, glob: str) -> bool:
    """Returns whether part of a relative path is hidden and the glob does not name it."""
    named = [part for part in glob.split("/") if part.startswith(("_", "."))]
    hidden = [part for part in path.split("/") if part.startswith(("_", "."))]
    return any(not any(fnmatchcase(part, name) for name in named) for part in hidden)


def _refuse_table_formats(folder: str, glob: str, files: Sequence[FileVersion]) -> None:
    """Raises UsageError if the files are those of a table, which may have removed some of them."""
    roots = [folder]  # and the folders above, up from a table's inner ones
    while "=" in (name := os.path.basename(roots[-1].rstrip("/"))) or name == "data":
        if roots[-1].endswith(f"://{name}/"):  # a bucket
            break
        roots.append(roots[-1].rstrip("/").removesuffix(name))
    marks = [mark for root in roots for each in _TABLE_MARKS for mark in match(f"{root}{each}")]
    if any("/" in file.path[len(folder) :] for file in files):
        start = re.split(r"[*?[]", glob, maxsplit=1)[0]
        marks += match_below(folder, [f"{start}**/{each}" for each in _TABLE_MARKS])
    searched = {root.rstrip("/") for root in roots}
    for mark in marks:
        inner = os.path.dirname(mark.path)
        root = os.path.dirname(inner)
        if root in searched or any(file.path.startswith(f"{root}/") for file in files):
            kind = "Delta" if inner.endswith("_delta_log") else "Iceberg"
            root = root or "."
            raise UsageError(
                f"--input={root} is a {kind} table, whose files may have removed rows: export the "
                f"live ones, duckdb -c \"COPY (FROM {kind.lower()}_scan('{root}')) TO "
                "'pings.parquet'\""
            )


def _without_links(files: Sequence[FileVersion]) -> list[FileVersion]:
    """Leaves out further names of a local file, by links or hard links, and reports them."""
    first: dict[tuple[int, int] | str, FileVersion] = {}
    again: list[str] = []
    for file in files:
        key: tuple[int, int] | str = file.path
        if is_local(file.path):
            with contextlib.suppress(OSError):  # a link without a target
                found = os.stat(file.path)
                key = (found.st_dev, found.st_ino)
        if (other := first.setdefault(key, file)) is not file:
            again.append(f"{file.path} is {other.path}")
    if again:
        more = f" and {len(again) - 1} more like it" if len(again) > 1 else ""
        print(f"warning: {again[0]}{more}: a file with two names is read once", file=sys.stderr)
    return list(first.values())


def inspect(file: FileVersion, options: ReadOptions) -> MeasurementFile:
    """Inspects head and footer; `problem` if the file is unreadable, ProbelineError if unsuited."""
    with unchanged(file):
        found = _inspect(file, options)
        # Where a damaged file is to be read up to the damage, later spans would not notice it.
        if found.input_format == "atlas_json" and not found.problem and not options.skip_bad_files:
            with contextlib.suppress(*DAMAGE):  # the reader reports it
                found = found._replace(spans=spans_of(file))
        return found


def _inspect(file: FileVersion, options: ReadOptions) -> MeasurementFile:
    path, _, version = file
    input_format: InputFormat = (
        "parquet" if options.input_format == "auto" else options.input_format
    )
    try:
        input_format, problem = _detect(file, options)
        if problem is None and input_format == "arrow":
            with tables.opened_arrow(file) as (schema, _):
                problem = mapping.problem_of(schema, options.mapping, mapping.partitions_of(path))
        _refuse(path, problem, options)
        if problem is not None or input_format not in ("parquet", "atlas_bigquery"):
            return MeasurementFile(file, input_format, (), problem)
        with open_parquet(path, version=version) as parquet:
            schema, metadata = parquet.schema_arrow, parquet.metadata
    except (*DAMAGE, UnicodeDecodeError) as error:  # Arrow decodes names of columns
        return MeasurementFile(file, input_format, (), reason_of(path, error, options))
    if options.input_format == "auto" and atlas.is_bigquery_export(schema):
        input_format = "atlas_bigquery"
    if input_format == "atlas_bigquery":
        problem = atlas.bigquery_schema_problem(schema, options.atlas_source)
    else:
        problem = mapping.problem_of(schema, options.mapping, mapping.partitions_of(path))
    _refuse(path, problem, options)
    rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    return MeasurementFile(file, input_format, () if problem else rows, problem)


def _refuse(path: str, problem: str | None, options: ReadOptions) -> None:
    if problem is not None and not options.skip_bad_files:
        raise ProbelineError(f"{path} {problem} (--on_bad_file=dead_letter goes on without it)")


def _detect(file: FileVersion, options: ReadOptions) -> detection.Detected:
    """Detects the format by the first bytes; Parquet's are few, since its schema is at the end."""
    head, is_compressed = b"", False
    for num_bytes in (_MAGIC_BYTES, detection.HEAD_BYTES):
        with open_file(file.path, num_bytes, file.version) as stream:
            is_compressed = compression_of(stream) not in (None, "xz")  # xz is refused by its head
            head = _head(decompressed(stream) if is_compressed else stream, num_bytes)
        if len(head) < num_bytes or head.startswith(detection.BINARY_MAGIC):
            break
    head = head.removeprefix(BYTE_ORDER_MARK)
    return detection.detect(head, is_compressed, file.path, options)


def _head(stream: BinaryIO, num_bytes: int) -> bytes:
    """Returns the first bytes, up to any damage after the first read."""
    head = b""
    while len(head) < num_bytes:
        try:
            block = stream.read(num_bytes - len(head))
        except DAMAGE:
            if not head:
                raise
            break
        if not block:
            break
        head += block
    return head


def reason_of(path: str, error: Exception, options: ReadOptions) -> str:
    """Returns the damage of a file; with --anonymize, without content of the file.

    Raises as `damage_reason`.
    """
    reason = damage_reason(path, error)
    if needs_large_window(error):
        return f"its Zstandard window is too large: {SMALLER_WINDOW}"
    if options.anonymize is None:
        return reason
    if isinstance(error, OSError) and error.errno:
        return error.strerror or type(error).__name__
    return f"{type(error).__name__}, its message is {WITHHELD}"


def plan_units(files: Iterable[MeasurementFile]) -> list[MeasurementUnit]:
    """Cuts files into even work units of up to about UNIT_ROWS rows or UNIT_JSON_BYTES of JSON.

    Several units are rounded up to a multiple of _EVEN_WORKERS, for equal work of 2 or 4 workers.
    """
    files = list(files)
    rows_in_all = sum(
        _num_rows(file.input_format, sum(file.row_group_rows), file.file.num_bytes)
        for file in files
    )
    num_units = max(1, -(-rows_in_all // UNIT_ROWS), min(2, sum(len(file.spans) for file in files)))
    if num_units > 1:
        num_units = -(-num_units // _EVEN_WORKERS) * _EVEN_WORKERS
    unit_rows = max(1, -(-rows_in_all // num_units))
    units: dict[int, list[Piece]] = defaultdict(list)
    done = 0
    for piece in _pieces(files, unit_rows):
        num_rows = _num_rows(piece.input_format, piece.num_rows, piece.num_bytes)
        middle = min(done + num_rows // 2, rows_in_all - 1)
        units[middle * num_units // max(1, rows_in_all)].append(piece)
        done += num_rows
    return [
        MeasurementUnit(index, tuple(_joined(pieces)), rows_in_all)
        for index, pieces in enumerate(units.values())
    ]


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yields pieces, those with consecutive spans of a file joined: a unit has one of each file."""
    for _, of_file in itertools.groupby(pieces, key=lambda piece: piece.path):
        first, *more = of_file
        last = more[-1] if more else first
        if first.span is None or last.span is None:
            yield from (first, *more)
            continue
        start, end = first.span[0], last.span[1]
        is_whole = end - start == first.file.num_bytes
        yield first._replace(num_bytes=end - start, span=None if is_whole else (start, end))


def _num_rows(input_format: InputFormat, num_rows: int, num_bytes: int) -> int:
    """Returns the rows of a file or piece, estimated from its bytes for text."""
    if input_format not in _COUNTED:
        return num_bytes * UNIT_ROWS // UNIT_JSON_BYTES
    return num_rows


def _pieces(files: Iterable[MeasurementFile], unit_rows: int) -> Iterator[Piece]:
    """Yields runs of row groups, even within a file, up to `unit_rows` rows or one row group."""
    for file, input_format, row_group_rows, problem, shard, spans in files:
        if spans:
            for span in spans:
                yield Piece(file, input_format, (), 0, 0, span[1] - span[0], span=span)
            continue
        if problem or not row_group_rows:
            yield Piece(file, input_format, (), 0, 0, file.num_bytes, problem)
            continue
        num_rows = sum(row_group_rows)
        bytes_per_row = file.num_bytes / max(1, num_rows)
        even_rows = num_rows / max(1, -(-num_rows // unit_rows)) + max(row_group_rows)
        for groups in pack_row_groups(row_group_rows, min(unit_rows, even_rows)):
            num_bytes = int(groups.num_rows * bytes_per_row)
            yield Piece(file, input_format, *groups, num_bytes, shard=shard)
