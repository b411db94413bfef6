"""Tables in text and Arrow files: batches of rows with the columns that a mapping wants.

  delimited text, by pyarrow: every column is text; a row with too many or too few values is bad
  JSON objects, as lines, an array or one after the other, by pyarrow: types as Arrow infers them;
    a block with a bad object, or with values of several types, is read object by object, as text
  lines of `fping -J`: a row of each reply and timeout
  lines of scamper, as `sc_warts2json` writes them: measurements
  Arrow IPC files

Parquet is read in `reading`, which skips row groups and bounds memory.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from beam_pipeline.dataset.dead_letters import MAX_VALUE_CHARS, excerpt
from beam_pipeline.documents.json import BadRecordError
from beam_pipeline.documents.json_records import ArrayError, split_objects, split_records
from beam_pipeline.sources.mapping import family_of, find_value
from beam_pipeline.sources.options import COLUMNS, Mapping
from beam_pipeline.storage.files import open_file
from beam_pipeline.storage.lines import DAMAGE, decompressed, read_blocks
from beam_pipeline.storage.matching import FileVersion

MAX_OBJECT_BYTES = 1 << 20
_BLOCK_BYTES = 8 << 20
_MAX_HEADER_CHARS = 1 << 17  # longer fields are errors of `csv`
_DELIMITERS = ",\t;|"
FPING_COLUMNS = ("event_time", "dst_addr", "rtt")
_SCAMPER_MARKS = ("cycle-start", "cycle-stop")  # records without measurements, of its lists


class BadRow(NamedTuple):
    """A row that is not a row of the table."""

    row: int
    reason: str
    text: str


class TableBatch[B: pa.RecordBatch | None](NamedTuple):
    """Consecutive rows of a table, or the measurements in them."""

    batch: B  # n rows, None without any; of measurements, with COLUMNS
    rows: np.ndarray  # int64 [n], the number of each in the file
    bad_rows: Sequence[BadRow]
    next_row: int


Rows = TableBatch[pa.RecordBatch | None]


@contextmanager
def opened(file: FileVersion) -> Iterator[BinaryIO]:
    """Opens a file, decompressed."""
    with open_file(file.path, version=file.version) as stream:
        yield decompressed(stream)


# --- delimited text -------------------------------------------------------------------------------


class Dialect(NamedTuple):
    """How a file of delimited text is read."""

    delimiter: str
    names: tuple[str, ...]  # of all columns: from the header, or "1", "2", … without one
    has_header: bool

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, pa.string()) for name in self.names])


def find_dialect(line: bytes, mapping: Mapping) -> Dialect:
    """Returns the delimiter that finds the most wanted columns in the first line of a file."""
    text = b"".join(line.splitlines()[:1]).decode("utf-8", "replace")[:_MAX_HEADER_CHARS]
    wanted = {name for source in mapping.sources for name in source.names}

    def split(delimiter: str) -> tuple[str, ...]:
        fields = next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), [])
        if mapping.is_positional:
            return tuple(str(number) for number in range(1, len(fields) + 1))
        return tuple(name.strip() for name in fields)

    def score(delimiter: str) -> tuple[int, int]:
        names = split(delimiter)
        return len(wanted.intersection(names)), len(names)

    delimiter = max(_DELIMITERS, key=score)
    return Dialect(delimiter, split(delimiter), not mapping.is_positional)


def split_text(blocks: Iterable[bytes], max_line_bytes: int) -> Iterator[list[bytes]]:
    """Yields text without blank lines, in pieces of whole lines.

    A longer line is a piece of its own, cut after `max_line_bytes` + 1 bytes.
    """
    blocks = (each if b"\n" in each else each.replace(b"\r", b"\n") for each in blocks)
    for lines in split_records(blocks, False, max_line_bytes, may_be_sequence=False):
        if lines.num_blank or lines.max_bytes > max_line_bytes:
            yield lines.each()
        elif lines.count:
            yield [lines.data[lines.starts[0] : lines.stops[-1]]]


def read_csv(file: FileVersion, mapping: Mapping) -> Iterator[Rows]:
    """Yields the rows of delimited text, counted from 0 after the header, without blank lines.

    Arrow's own reader of files would read 32 blocks ahead, in a thread that outlives an error.
    """
    dialect: Dialect | None = None
    first = 0
    for _, pieces in gathered(file, split_text):
        if dialect is None:
            line = pieces[0].splitlines(keepends=True)[0]
            dialect = find_dialect(line, mapping)
            if dialect.has_header:
                pieces[0] = pieces[0].removeprefix(line)
        for is_long, group in groupby(filter(None, pieces), _is_long_line):
            batch, bad = None, list[BadRow]()
            if is_long:
                letters = enumerate(map(excerpt, group), first)
                bad += [BadRow(row, "line_too_long", text) for row, text in letters]
            else:
                batch, bad = _parse_text(b"\n".join(group), dialect, mapping, first)
            next_row = first + len(bad) + (batch.num_rows if batch else 0)
            rows = np.delete(np.arange(first, next_row), [each.row - first for each in bad])
            yield TableBatch(batch, rows, bad, next_row)
            first = next_row


def _is_long_line(piece: bytes) -> bool:
    return len(piece) > MAX_OBJECT_BYTES and b"\n" not in piece


def _parse_text(
    text: bytes, dialect: Dialect, mapping: Mapping, first_row: int
) -> tuple[pa.RecordBatch | None, list[BadRow]]:
    """Returns the wanted columns of rows as trimmed text, and the rows of other columns."""
    bad: list[BadRow] = []

    def keep(row: Any) -> str:
        shown = (row.text or "")[:MAX_VALUE_CHARS]
        bad.append(BadRow(first_row + row.number - 1, "csv_columns", shown))
        return "skip"

    names = dialect.names
    wanted = {name for source in mapping.sources for name in source.names}.intersection(names)
    try:
        text.decode()
    except UnicodeDecodeError:  # Arrow could not show a row of other columns
        text = text.decode(errors="backslashreplace").encode()
    table = pa_csv.read_csv(
        pa.BufferReader(text),
        pa_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=list(names)),
        pa_csv.ParseOptions(delimiter=dialect.delimiter, invalid_row_handler=keep),
        pa_csv.ConvertOptions(
            check_utf8=False,
            column_types={name: pa.string() for name in wanted},
            include_columns=sorted(wanted),
            strings_can_be_null=False,
        ),
    )
    batch = next(iter(table.combine_chunks().to_batches()), None)
    if batch is not None:
        columns = [pc.ascii_trim_whitespace(column) for column in batch.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    return batch, bad


# --- JSON -----------------------------------------------------------------------------------------


def read_json(file: FileVersion, mapping: Mapping) -> Iterator[Rows]:
    """Yields JSON objects as rows; lines, or elements of an array, are counted from 0."""
    names = [name for source in mapping.sources for name in source.names]
    for first, records in gathered(file):
        rows = [row for row, record in enumerate(records, first) if record and not record.isspace()]
        texts = [records[row - first].replace(b"\n", b" ") for row in rows]
        batch = parse_together(texts)
        if batch is None:
            yield _parse_each(texts, rows, names, first + len(records))
        else:
            yield TableBatch(batch, np.array(rows, np.int64), (), first + len(records))


def gathered(
    file: FileVersion, split: Callable[..., Iterator[list[bytes]]] = split_objects
) -> Iterator[tuple[int, list[bytes]]]:
    """Yields records of about _BLOCK_BYTES, with the number of the first, up to any damage."""
    damage: list[Exception] = []
    with opened(file) as stream:

        def pieces() -> Iterator[list[bytes]]:
            try:
                yield from split(read_blocks(stream), MAX_OBJECT_BYTES)
            except (*DAMAGE, ArrayError) as error:
                damage.append(error)

        first, held, num_bytes = 0, list[bytes](), 0
        for records in chain(pieces(), [None]):
            held += records or ()
            num_bytes += sum(map(len, records or ())) + len(records or ())  # blank ones
            if held and (num_bytes >= _BLOCK_BYTES or records is None):
                yield first, held
                first, held, num_bytes = first + len(held), [], 0
    if damage:
        raise damage[0]


def parse_together(texts: Sequence[bytes]) -> pa.RecordBatch | None:
    """Returns a block of objects as Arrow reads them; None if it does not, or not all of them."""
    data = b"\n".join(texts)
    if not data or max(map(len, texts)) > MAX_OBJECT_BYTES:
        return None
    options = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        table = pa_json.read_json(pa.BufferReader(data), options).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
        return None
    if table.num_rows != len(texts):
        return None
    return next(iter(table.to_batches()), None)


def _parse_each(
    texts: Sequence[bytes], rows: Sequence[int], names: Sequence[str], next_row: int
) -> Rows:
    kept, objects, bad = parse_records(zip(rows, texts, strict=True), lambda found: [found])
    found_values = {name: [find_value(each, name) for each in objects] for name in names}
    columns = {
        name: _as_column(values)
        for name, values in found_values.items()
        if any(value is not None for value in values)
    }
    columns = columns or {"": pa.nulls(len(objects))}
    batch = pa.RecordBatch.from_pydict(columns) if objects else None
    return TableBatch(batch, np.array(kept, np.int64), bad, next_row)


def parse_records[T](
    records: Iterable[tuple[int, bytes]], parse: Callable[[dict[str, Any]], Iterable[T]]
) -> tuple[list[int], list[T], list[BadRow]]:
    """Returns what `parse` finds in each JSON object, with its row, and the bad ones.

    `parse` raises BadRecordError for a bad object. Blank records are left out.
    """
    rows: list[int] = []
    found: list[T] = []
    bad: list[BadRow] = []
    for row, text in records:
        if text and not text.isspace():
            try:
                found += parse(_parse_object(text))
                rows += [row] * (len(found) - len(rows))
            except BadRecordError as error:
                bad.append(BadRow(row, str(error), excerpt(text)))
    return rows, found, bad


def _parse_object(text: bytes) -> dict[str, Any]:
    """Returns the object of a record, or raises BadRecordError."""
    if len(text) > MAX_OBJECT_BYTES:
        raise BadRecordError("line_too_long")
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise BadRecordError("json_invalid") from None
    if type(found) is not dict:
        raise BadRecordError("json_not_an_object")
    return found


def _as_column(values: list[Any]) -> pa.Array:
    """Returns values as text, lists of values as lists of text."""
    if any(type(value) is list for value in values):
        lists = [value if type(value) is list else [value] for value in values]
        return pa.array([list(map(_as_text, each)) for each in lists], pa.list_(pa.string()))
    return pa.array(list(map(_as_text, values)), pa.string())


def _as_text(value: Any) -> str | None:
    return value if value is None or type(value) is str else orjson.dumps(value).decode()


def read_fping(file: FileVersion, mapping: Mapping) -> Iterator[Rows]:
    """Yields the pings of `fping -J`, as text; lines are counted from 0. A timeout's RTT is -1."""
    for first, records in gathered(file):
        rows, pings, bad = parse_records(enumerate(records, first), parse_fping)
        batch = None
        if pings:
            columns = map(_as_column, map(list, zip(*pings, strict=True)))
            batch = pa.RecordBatch.from_arrays(list(columns), names=list(FPING_COLUMNS))
        yield TableBatch(batch, np.array(rows, np.int64), bad, first + len(records))


def parse_fping(record: dict[str, Any]) -> list[tuple[Any, Any, Any]]:
    """Returns the values of FPING_COLUMNS of a line; none for summaries and unknown kinds."""
    kind, fields = next(iter(record.items()), ("", None))
    if len(record) != 1 or type(fields) is not dict:
        raise BadRecordError("not_a_ping")
    if kind not in ("resp", "timeout"):
        return []
    rtt = fields.get("rtt") if kind == "resp" else -1
    return [(fields.get("timestamp"), fields.get("host"), rtt)]


def read_scamper(file: FileVersion) -> Iterator[Rows]:
    """Yields the measurements of scamper's ping records; lines are counted from 0.

    Each probe is one, at the time it was sent, or, in versions that do not report it, at the
    record's start. A probe without a reply is a failed ping.
    """
    for first, records in gathered(file):
        lines, pings, bad = parse_records(enumerate(records, first), _parse_scamper)
        batch = None
        if pings:
            times, srcs, dsts, rtts = zip(*pings, strict=True)
            src, dst = (pa.array(each, pa.string()).dictionary_encode() for each in (srcs, dsts))
            times, rtts = pa.array(times, pa.timestamp("us")), pa.array(rtts, pa.float64())
            columns = [times, src, dst, family_of(dst), rtts]
            batch = pa.RecordBatch.from_arrays(columns, names=list(COLUMNS))
        yield TableBatch(batch, np.array(lines, np.int64), bad, first + len(records))


def _parse_scamper(
    record: dict[str, Any],
) -> list[tuple[int | None, str | None, str | None, float | None]]:
    """Returns time in µs, source, destination and RTT of each probe of a record."""
    kind = record.get("type")
    if kind in _SCAMPER_MARKS:
        return []
    if kind != "ping":
        raise BadRecordError("not_a_ping")
    try:
        start = _scamper_time(record["start"])
        ends = _typed(record, "src", str), _typed(record, "dst", str)
        replies, silent = record.get("responses", []), record.get("no_responses", [])
        found = [
            (_scamper_time(each.get("tx"), start), *ends, _typed(each, "rtt", int, float))
            for each in replies
        ]
        num_lost = max(0, record["ping_sent"] - len({each["seq"] for each in replies}))
        lost = [_scamper_time(each.get("tx"), start) for each in silent[:num_lost]]
    except (KeyError, TypeError, AttributeError, OverflowError):
        raise BadRecordError("wrong_type") from None
    lost += [start] * (num_lost - len(lost))
    return found + [(time, *ends, -1.0) for time in lost]


def _scamper_time(value: Any, default: int | None = None) -> int | None:
    return default if value is None else int(value["sec"]) * 10**6 + int(value.get("usec", 0))


def _typed(record: dict[str, Any], name: str, *types: type) -> Any:
    value = record.get(name)
    if value is not None and type(value) not in types:
        raise TypeError
    return float(value) if type(value) is int else value


# --- Arrow IPC ------------------------------------------------------------------------------------


def read_arrow(file: FileVersion, mapping: Mapping) -> Iterator[Rows]:
    """Yields the rows of an Arrow IPC file or stream."""
    next_row = 0
    with opened_arrow(file) as (schema, batches):
        heads = {name.partition(".")[0] for s in mapping.sources for name in s.names}
        heads |= {name for s in mapping.sources for name in s.names}
        wanted = [name for name in schema.names if name in heads]
        for batch in batches:
            first, next_row = next_row, next_row + batch.num_rows
            chosen = batch.select(wanted)
            chosen.validate(full=True)  # kernels trust offsets, which have no checksum
            yield TableBatch(chosen, np.arange(first, next_row), (), next_row)


@contextmanager
def opened_arrow(file: FileVersion) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Opens an Arrow IPC file or stream: its schema, and its batches."""
    with open_file(file.path, version=file.version) as stream:
        is_file = stream.read(6) == b"ARROW1"
        stream.seek(0)
        if is_file:
            found = pa.ipc.open_file(pa.PythonFile(stream, mode="r"))
            batches = (found.get_batch(number) for number in range(found.num_record_batches))
        else:
            found = pa.ipc.open_stream(pa.PythonFile(stream, mode="r"))
            batches = iter(found)
        try:
            found.schema.names  # noqa: B018
        except UnicodeDecodeError as error:
            raise pa.ArrowInvalid("the name of a column is not UTF-8") from error
        yield found.schema, batches
