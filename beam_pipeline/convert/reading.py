"""Work units to batches of records, in the order of their files.

A batch counts what it read before anything is converted, so that the counts prove that no record
is lost. Memory: some MiB, or a few times a record if it is larger.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import pyarrow.parquet as pq

from beam_pipeline.convert.examples import bytes_of_rows, examples_of_rows
from beam_pipeline.convert.json_records import BadRecordError, example_of_line, parse
from beam_pipeline.convert.options import RecordOptions
from beam_pipeline.convert.units import WorkUnit
from beam_pipeline.dataset.dead_letters import DeadLetter, excerpt
from beam_pipeline.dataset.tfrecord import DamagedRecordError, read_records
from beam_pipeline.errors import ProbelineError, one_line
from beam_pipeline.sources.reading import UnreadableInputError
from beam_pipeline.storage.files import open_file
from beam_pipeline.storage.lines import (
    DAMAGE,
    decompressed,
    read_blocks,
    read_blocks_of_range,
    split_lines,
)
from beam_pipeline.storage.matching import unchanged
from beam_pipeline.storage.parquet import PIECE_BYTES, open_parquet

MAX_RECORD_BYTES = 256 << 20  # ArrayRecord's writer takes six times as much memory
_BATCH_BYTES = 4 << 20
_MAX_BATCH_ROWS = 4096


class Batch(NamedTuple):
    """`num_read` records of the input: some for the output, the others dead letters."""

    num_read: int
    records: Sequence[bytes]
    letters: list[DeadLetter]
    num_blank: int = 0  # lines of nothing but whitespace, which are no records
    num_bytes: int = 0  # of plain JSON lines, as they are in the file


def read_unit(unit: WorkUnit, options: RecordOptions) -> Iterator[Batch]:
    """Yields all records of a work unit.

    Raises:
      UnreadableInputError: the file is damaged; the batches before remain valid.
      ProbelineError: it is not the file that was planned.
    """
    file = unit.file
    path, row = file.file.path, unit.first_row
    if file.problem is not None:
        raise UnreadableInputError(path, 0, file.problem)
    readers: dict[str, Callable[..., Iterator[Batch]]] = {
        "jsonl": _read_lines,
        "parquet": _read_parquet,
        "tfrecord": _read_tfrecord,
    }
    try:
        with unchanged(file.file):
            for batch in readers[file.format](unit, options):
                yield batch
                row += batch.num_read + batch.num_blank
    except (*DAMAGE, DamagedRecordError) as error:
        raise UnreadableInputError(path, row, one_line(error), row - unit.first_row) from error
    if unit.num_rows is not None and row - unit.first_row != unit.num_rows:
        raise ProbelineError(
            f"{path} has {row - unit.first_row} rows from row {unit.first_row} on where its footer "
            f"said {unit.num_rows}: it is damaged; repair or remove it"
        )


# --- JSON lines -----------------------------------------------------------------------------------


def _read_lines(unit: WorkUnit, options: RecordOptions) -> Iterator[Batch]:
    path, num_bytes, version = unit.file.file
    convert = {
        "bytes": None,
        "json": _checked_line,
        "tf_example": lambda line: example_of_line(line, options.fields),
    }[options.record_of("jsonl")]
    with open_file(path, version=version) as stream:
        if unit.file.is_compressed or num_bytes == 0:
            blocks = read_blocks(decompressed(stream))
        else:
            blocks = read_blocks_of_range(stream, unit.start, unit.end)
        row = 0
        for lines, size in _lines_and_bytes(blocks):
            yield _batch_of_lines(path, lines, row, convert)._replace(num_bytes=size)
            row += len(lines)


def _lines_and_bytes(blocks: Iterable[bytes]) -> Iterator[tuple[list[bytes], int]]:
    """Yields the lines that end in some blocks, and the bytes of these blocks."""
    size = 0

    def counted() -> Iterator[bytes]:
        nonlocal size
        for block in blocks:
            size += len(block)
            yield block

    for lines in split_lines(counted(), MAX_RECORD_BYTES):
        yield lines, size
        size = 0
    if size:
        yield [], size


def _checked_line(line: bytes) -> bytes:
    parse(line)
    return line


def _batch_of_lines(
    path: str, lines: list[bytes], row: int, convert: Callable[[bytes], bytes] | None
) -> Batch:
    is_record = [bool(line) and not line.isspace() for line in lines]
    num_read = sum(is_record)
    if convert is None and max(map(len, lines), default=0) <= MAX_RECORD_BYTES:
        records = lines if num_read == len(lines) else [*_only(lines, is_record)]
        return Batch(num_read, records, [], len(lines) - num_read)
    records, letters = [], []
    for number, (line, is_one) in enumerate(zip(lines, is_record, strict=True)):
        if not is_one:
            continue
        try:
            if len(line) > MAX_RECORD_BYTES:
                raise BadRecordError("record_too_long")
            records.append(convert(line) if convert else line)
        except BadRecordError as bad:
            letters.append(DeadLetter(path, row + number, str(bad), excerpt(line)))
    return Batch(num_read, records, letters, len(lines) - num_read)


def _only(lines: list[bytes], is_record: list[bool]) -> Iterator[bytes]:
    return (line for line, is_one in zip(lines, is_record, strict=True) if is_one)


# --- Parquet --------------------------------------------------------------------------------------


def _read_parquet(unit: WorkUnit, options: RecordOptions) -> Iterator[Batch]:
    path, _, version = unit.file.file
    convert, reason = examples_of_rows, "value_unsuited"
    if options.record_of("parquet") == "bytes":
        convert, reason = bytes_of_rows, "value_null"
    row = unit.first_row
    with open_parquet(path, buffer_bytes=PIECE_BYTES, version=version) as parquet:
        for group in unit.row_groups:
            names = list(options.fields) or parquet.schema_arrow.names
            batches = parquet.iter_batches(
                _batch_rows(parquet.metadata.row_group(group)),
                row_groups=[group],
                columns=names,
                use_threads=False,
            )
            for batch in batches:
                records = convert(batch.select(names))
                yield _batch_of_rows(path, row, records, reason)
                row += batch.num_rows


def _batch_rows(group: pq.RowGroupMetaData) -> int:
    """Returns how many rows are converted at once."""
    return max(
        1, min(_MAX_BATCH_ROWS, _BATCH_BYTES * group.num_rows // max(1, group.total_byte_size))
    )


def _batch_of_rows(path: str, row: int, records: list[bytes | None], reason: str) -> Batch:
    letters = [
        DeadLetter(path, row + at, reason if record is None else "record_too_long", "")
        for at, record in enumerate(records)
        if record is None or len(record) > MAX_RECORD_BYTES
    ]
    if letters:
        good = [each for each in records if each is not None and len(each) <= MAX_RECORD_BYTES]
        return Batch(len(records), good, letters)
    return Batch(len(records), cast(list[bytes], records), [])


# --- TFRecord -------------------------------------------------------------------------------------


def _read_tfrecord(unit: WorkUnit, _options: RecordOptions) -> Iterator[Batch]:
    path, _, version = unit.file.file
    row = 0
    with open_file(path, version=version) as stream:
        found = read_records(cast(Any, decompressed(stream)), MAX_RECORD_BYTES)
        failure: Exception | None = None
        while failure is None:
            records: list[bytes] = []
            letters: list[DeadLetter] = []
            size = 0
            try:
                while size < _BATCH_BYTES and len(records) < _MAX_BATCH_ROWS:
                    record = next(found)
                    if isinstance(record, bytes):
                        records.append(record)
                        size += len(record)
                    else:
                        letters.append(DeadLetter(path, row, "record_damaged", one_line(record)))
                    row += 1
            except (StopIteration, *DAMAGE, DamagedRecordError) as error:
                failure = error
            yield Batch(len(records) + len(letters), records, letters)
        if not isinstance(failure, StopIteration):  # what precedes it is whole
            raise failure
