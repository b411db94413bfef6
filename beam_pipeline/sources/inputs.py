"""Input files: matched, recognised by their content, looked at, and cut into units of work.

A unit is what one worker reads and pre-groups at a time: several small files, one file, or some
row groups of a large one, of about UNIT_ROWS rows. How the input is cut never shows in the
dataset. A Parquet file's footer tells its schema and rows, so a missing column ends the run
before any row is read.
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
    """How input is understood.

    Attributes:
      input_format: what the files hold, or "auto" to see from their content.
      columns: the input's name of each of measurements.COLUMNS.
      atlas_source: which address of a RIPE Atlas result is the probe's.
      anonymize: the key with which addresses are replaced; None leaves them as they are.
      skip_bad_files: whether an unreadable file becomes a dead letter instead of ending the job.
    """

    input_format: InputFormat | Literal["auto"] = "auto"
    columns: tuple[tuple[str, str], ...] = tuple((name, name) for name in measurements.COLUMNS)
    atlas_source: Literal["from", "src_addr"] = "from"
    anonymize: KeyReference | None = None
    skip_bad_files: bool = False

    @property
    def names(self) -> dict[str, str]:
        return dict(self.columns)


class _UnknownContentError(Exception):
    """A file is none of INPUT_FORMATS; the message says what was seen."""


class InputFile(NamedTuple):
    """A file and what its head or footer tells; `problem` is why it cannot be read, if so."""

    path: str
    num_bytes: int
    input_format: InputFormat
    row_group_rows: tuple[int, ...]  # empty for JSON, whose rows nobody knows yet
    problem: str | None = None


class Piece(NamedTuple):
    """Some row groups of a Parquet file (`first_row`: the first one's), or a whole JSON file."""

    path: str
    input_format: InputFormat
    row_groups: tuple[int, ...]
    first_row: int
    num_rows: int
    num_bytes: int
    problem: str | None = None


class WorkUnit(NamedTuple):
    """What is read and pre-grouped together; `index` counts units from 0."""

    index: int
    pieces: tuple[Piece, ...]

    @property
    def num_rows(self) -> int:
        return sum(piece.num_rows for piece in self.pieces)


def match_files(patterns: Sequence[str]) -> list[tuple[str, int]]:
    """Returns (path, bytes) of all files that match, in order of path, each once.

    Raises:
      UsageError: a pattern matches nothing.
    """
    found: dict[str, int] = {}
    for pattern in patterns:
        glob, files = match_input(pattern, "--input", "*")
        if glob != pattern:  # engines leave _SUCCESS and .crc files beside their data
            files = [file for file in files if FileSystems.split(file.path)[1][0] not in "._"]
        if not files:
            raise UsageError(
                f"--input={pattern} matches no file: check the pattern, and quote it so that the "
                "shell does not expand it"
            )
        found.update((file.path, file.num_bytes) for file in files)
    return sorted(found.items())


def inspect(path: str, num_bytes: int, options: ReadOptions) -> InputFile:
    """Looks at a file's head and footer; an unreadable one comes back with its `problem`.

    Raises:
      ProbelineError: a readable file that cannot be taken: a missing column, a wrong type.
    """
    wanted = "parquet" if options.input_format == "auto" else options.input_format
    try:
        input_format = _recognise(path, options)
        if input_format == "atlas_json":
            return InputFile(path, num_bytes, "atlas_json", ())
        with open_parquet(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
    except _UnknownContentError as error:
        return InputFile(path, num_bytes, wanted, (), problem=str(error))
    except DAMAGE as error:
        return InputFile(path, num_bytes, wanted, (), problem=reason_of(error, options))
    if input_format == "parquet" and options.input_format == "auto":
        input_format = "atlas_bigquery" if atlas.is_bigquery_export(schema) else "parquet"
    if input_format == "atlas_bigquery":
        problem = atlas.bigquery_schema_problem(schema, options.atlas_source)
    else:
        problem = measurements.schema_problem(schema, options.names)
    if problem:
        raise ProbelineError(f"{path} {problem}")
    rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    return InputFile(path, num_bytes, input_format, rows)


def _recognise(path: str, options: ReadOptions) -> InputFormat:
    if options.input_format != "auto":
        return options.input_format
    with open_file(path) as stream:
        head = stream.read(4096)
    if head.startswith(_PARQUET_MAGIC):
        return "parquet"
    is_compressed = head.startswith((GZIP_MAGIC, BZIP2_MAGIC))
    if is_compressed or head.lstrip()[:1] in (b"{", b"["):
        return "atlas_json"
    seen = "" if options.anonymize else f" ({head[:8]!r})"
    raise _UnknownContentError(
        f"neither Parquet nor JSON lines by its first bytes{seen}; name what it is with "
        "--input_format"
    )


def reason_of(error: Exception, options: ReadOptions) -> str:
    """Returns why a file cannot be read; with --anonymize nothing that may stand in the file."""
    if options.anonymize is None:
        return one_line(error)
    if isinstance(error, OSError) and error.errno:
        return error.strerror or type(error).__name__
    return f"{type(error).__name__}, what it says is {WITHHELD}"


def plan_units(files: Iterable[InputFile]) -> list[WorkUnit]:
    """Cuts files into units of about UNIT_ROWS rows or UNIT_JSON_BYTES of JSON."""
    units: list[WorkUnit] = []
    pieces: list[Piece] = []
    share = 0.0
    for piece in _pieces(files):
        weight = piece.num_rows / UNIT_ROWS
        if piece.input_format == "atlas_json":
            weight = piece.num_bytes / UNIT_JSON_BYTES
        if pieces and share + weight > 1:
            units.append(WorkUnit(len(units), tuple(pieces)))
            pieces, share = [], 0.0
        pieces.append(piece)
        share += weight
    if pieces:
        units.append(WorkUnit(len(units), tuple(pieces)))
    return units


def _pieces(files: Iterable[InputFile]) -> Iterator[Piece]:
    """Yields runs of row groups of up to UNIT_ROWS rows; a larger row group stays whole."""
    for file in files:
        if file.problem or not file.row_group_rows:
            yield Piece(file.path, file.input_format, (), 0, 0, file.num_bytes, file.problem)
            continue
        bytes_per_row = file.num_bytes / max(1, sum(file.row_group_rows))
        for groups in pack_row_groups(file.row_group_rows, UNIT_ROWS):
            num_bytes = int(groups.num_rows * bytes_per_row)
            yield Piece(file.path, file.input_format, *groups, num_bytes)
