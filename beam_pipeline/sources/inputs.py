"""Input files: matched, recognised by their content, inspected, and cut into work units.

A work unit is several small files, one file, or some row groups of a large one, of about UNIT_ROWS
rows. Work units do not change the dataset. A Parquet file's footer has its schema, so a missing
column ends the job before any row is read.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from apache_beam.io.filesystems import FileSystems

from beam_pipeline.errors import ProbelineError, UsageError, one_line
from beam_pipeline.sources import atlas, measurements
from beam_pipeline.sources.anonymize import WITHHELD
from beam_pipeline.sources.anonymize_key import KeyReference
from beam_pipeline.storage.files import match_input, open_file
from beam_pipeline.storage.lines import BZIP2_MAGIC, DAMAGE, GZIP_MAGIC
from beam_pipeline.storage.parquet import open_parquet, pack_row_groups

InputFormat = Literal["parquet", "atlas_json", "atlas_bigquery"]
INPUT_FORMATS: tuple[InputFormat, ...] = ("parquet", "atlas_json", "atlas_bigquery")

UNIT_ROWS = 2_000_000
UNIT_JSON_BYTES = 64 << 20
_PARQUET_MAGIC = b"PAR1"


@dataclass(frozen=True)
class ReadOptions:
    """How to read the input.

    Attributes:
      input_format: of all files, or "auto" to recognise each by its content.
      columns: the input's name of each of measurements.COLUMNS.
    """

    input_format: InputFormat | Literal["auto"] = "auto"
    columns: tuple[tuple[str, str], ...] = tuple((name, name) for name in measurements.COLUMNS)
    atlas_source: atlas.AtlasSource = "from"  # which address of a result is the probe's
    anonymize: KeyReference | None = None  # the key with which addresses are replaced
    skip_bad_files: bool = False  # an unreadable file becomes a dead letter

    @property
    def names(self) -> dict[str, str]:
        return dict(self.columns)


class InputFile(NamedTuple):
    """A file as inspected; `problem` is why it cannot be read, if so."""

    path: str
    num_bytes: int
    input_format: InputFormat
    row_group_rows: tuple[int, ...]  # empty for JSON, whose lines are not counted
    problem: str | None = None


class Piece(NamedTuple):
    """Row groups of a Parquet file, or a whole JSON file; `first_row` is that in the file."""

    path: str
    input_format: InputFormat
    row_groups: tuple[int, ...]
    first_row: int
    num_rows: int
    num_bytes: int
    problem: str | None = None


class WorkUnit(NamedTuple):
    """Pieces that are read and pre-grouped together; `index` counts from 0."""

    index: int
    pieces: tuple[Piece, ...]


def match_files(patterns: Sequence[str]) -> list[tuple[str, int]]:
    """Returns (path, bytes) of each matching file in order; UsageError if a pattern has none."""
    found: dict[str, int] = {}
    for pattern in patterns:
        glob, files = match_input(pattern, "--input", "*")
        if glob != pattern:  # other engines write _SUCCESS and .crc files beside their data
            files = [file for file in files if FileSystems.split(file.path)[1][0] not in "._"]
        if not files:
            raise UsageError(
                f"--input={pattern} matches no file: check the pattern, and quote it so that the "
                "shell does not expand it"
            )
        found.update((file.path, file.num_bytes) for file in files)
    return sorted(found.items())


def inspect(path: str, num_bytes: int, options: ReadOptions) -> InputFile:
    """Inspects a file's head and footer; an unreadable file is returned with its `problem`.

    Raises:
      ProbelineError: the file is readable, but a column is missing or has the wrong type.
    """
    input_format = "parquet" if options.input_format == "auto" else options.input_format
    try:
        if options.input_format == "auto":
            with open_file(path) as stream:
                head = stream.read(4096)
            is_compressed = head.startswith((GZIP_MAGIC, BZIP2_MAGIC))
            if is_compressed or head.lstrip()[:1] in (b"{", b"["):
                input_format = "atlas_json"
            elif not head.startswith(_PARQUET_MAGIC):
                seen = "" if options.anonymize else f" ({head[:8]!r})"
                problem = (
                    f"neither Parquet nor JSON lines by its first bytes{seen}; name what it is "
                    "with --input_format"
                )
                return InputFile(path, num_bytes, input_format, (), problem)
        if input_format == "atlas_json":
            return InputFile(path, num_bytes, input_format, ())
        with open_parquet(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
    except DAMAGE as error:
        return InputFile(path, num_bytes, input_format, (), reason_of(error, options))
    if options.input_format == "auto" and atlas.is_bigquery_export(schema):
        input_format = "atlas_bigquery"
    if input_format == "atlas_bigquery":
        problem = atlas.bigquery_schema_problem(schema, options.atlas_source)
    else:
        problem = measurements.schema_problem(schema, options.names)
    if problem:
        raise ProbelineError(f"{path} {problem}")
    rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    return InputFile(path, num_bytes, input_format, rows)


def reason_of(error: Exception, options: ReadOptions) -> str:
    """Returns why a file cannot be read; with --anonymize, without any content of the file."""
    if options.anonymize is None:
        return one_line(error)
    if isinstance(error, OSError) and error.errno:
        return error.strerror or type(error).__name__
    return f"{type(error).__name__}, what it says is {WITHHELD}"


def plan_units(files: Iterable[InputFile]) -> list[WorkUnit]:
    """Cuts files into work units of about UNIT_ROWS rows or UNIT_JSON_BYTES of JSON."""
    units: list[list[Piece]] = []
    share = 0.0
    for piece in _pieces(files):
        weight = piece.num_rows / UNIT_ROWS
        if piece.input_format == "atlas_json":
            weight = piece.num_bytes / UNIT_JSON_BYTES
        if not units or share + weight > 1:
            units.append([])
            share = 0.0
        units[-1].append(piece)
        share += weight
    return [WorkUnit(index, tuple(pieces)) for index, pieces in enumerate(units)]


def _pieces(files: Iterable[InputFile]) -> Iterator[Piece]:
    """Yields consecutive row groups of up to UNIT_ROWS rows; a larger row group stays whole."""
    for file in files:
        if file.problem or not file.row_group_rows:
            yield Piece(file.path, file.input_format, (), 0, 0, file.num_bytes, file.problem)
            continue
        bytes_per_row = file.num_bytes / max(1, sum(file.row_group_rows))
        for groups in pack_row_groups(file.row_group_rows, UNIT_ROWS):
            num_bytes = int(groups.num_rows * bytes_per_row)
            yield Piece(file.path, file.input_format, *groups, num_bytes)
