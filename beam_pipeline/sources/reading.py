"""Reads a piece of input: batches of checked measurements, and dead letters.

  container -> RawBatch: Arrow batches with the columns of COLUMNS, one reader per format
            -> CheckedBatch: rules, window, anonymisation and sample, the same for all formats

Arrow reads Parquet in batches, with the address columns as dictionaries, and large row groups in
pieces, so that memory does not depend on the size of a row group. With `ReadOptions.anonymize`, no
input address leaves this module: blocks have replaced addresses, dead letters no values.

A row with a valid time outside the window of `ReadOptions.sample` is left out regardless of its
other values, so that row groups can be skipped by their statistics. All other rows are checked;
those that break a rule become dead letters. The rest is sampled by the addresses of the dataset.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.dataset.end_names import address_of
from beam_pipeline.documents.json_records import ArrayError
from beam_pipeline.errors import ProbelineError
from beam_pipeline.sources import atlas, inputs, mapping, stored_rows, tables
from beam_pipeline.sources.anonymize import WITHHELD, anonymizer_of
from beam_pipeline.sources.inputs import Piece
from beam_pipeline.sources.measurements import (
    Block,
    Faults,
    as_text,
    check,
    check_encoding,
    valid_times,
)
from beam_pipeline.sources.options import Mapping as ColumnMapping
from beam_pipeline.sources.options import ReadOptions, Sample
from beam_pipeline.sources.sampling import in_window, sampled
from beam_pipeline.sources.spans import read_span, row_in_file
from beam_pipeline.sources.tables import Rows
from beam_pipeline.storage.files import open_file
from beam_pipeline.storage.lines import DAMAGE
from beam_pipeline.storage.matching import FileVersion, unchanged
from beam_pipeline.storage.parquet import PIECE_BYTES, column_chunks, open_parquet

BATCH_ROWS = 131_072
_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_LARGE_GROUP_BYTES = 64 << 20  # from this size on, memory matters more than requests
_DELTA = frozenset(("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"))


class RawBatch(NamedTuple):
    """Measurements as a container has them."""

    measurements: pa.RecordBatch | None  # the columns of COLUMNS, n rows; None if there are none
    rows: np.ndarray  # int64 [n], the row of the file, or line, of each measurement
    next_row: int  # the row of the file, or line, after the batch
    letters: Sequence[DeadLetter] = ()  # rows without a measurement
    num_left_out: int = 0  # rows skipped because they are outside the window
    unreadable: Mapping[str, np.ndarray] = MappingProxyType({})  # as `measurements.check` takes it
    originals: pa.RecordBatch | None = None  # n rows: the columns as the input has them
    names: tuple[str, ...] = ()  # of ends, distinct


class CheckedBatch(NamedTuple):
    """`num_rows` measurements of the input: in `block`, dead letters, or not in the sample."""

    num_rows: int
    block: Block | None
    letters: list[DeadLetter]
    next_row: int  # the row of the file, or line, after the batch
    num_left_out: int = 0
    names: tuple[str, ...] = ()  # of ends in `block`, distinct; none if they are anonymised


class UnreadableInputError(Exception):
    """A file cannot be read from `row` on; the `num_kept` rows before it were read."""

    def __init__(self, path: str, row: int, reason: str, num_kept: int = 0):
        super().__init__(f"cannot read {path} from row {row} on: {reason}")
        self.path, self.row, self.reason, self.num_kept = path, row, reason, num_kept

    def as_error(self) -> ProbelineError:
        """Returns the error that ends the job."""
        return ProbelineError(
            f"cannot read {self.path} (row {self.row}): {self.reason}; repair or remove the "
            "file, or pass --on_bad_file=dead_letter to continue without it"
        )

    def as_letter(self) -> DeadLetter:
        """Returns the dead letter for all rows that were not read."""
        kept = f"; {self.num_kept} rows or lines before it were read" if self.num_kept else ""
        return DeadLetter(self.path, self.row, "file_unreadable", f"{self.reason}{kept}")


def read_piece(piece: Piece, options: ReadOptions) -> Iterator[CheckedBatch]:
    """Yields all batches of a piece.

    Raises UnreadableInputError if the file is damaged, which leaves earlier batches valid, and
    ProbelineError if it was changed.
    """
    if piece.shard and piece.shard.is_of_output:  # already sampled
        options = replace(options, sample=Sample())
    if piece.problem:
        raise UnreadableInputError(piece.path, 0, piece.problem)
    row = piece.first_row
    try:
        with unchanged(piece.file):
            for batch in _checked_batches(piece, options):
                yield _in_sample(batch, options)
                row = batch.next_row
    except (*DAMAGE, ArrayError) as error:
        shown = None if options.anonymize else error  # a traceback would show its text
        if piece.span:
            row = row_in_file(piece.file, piece.span, row)
        reason, num_kept = inputs.reason_of(piece.path, error, options), row - piece.first_row
        raise UnreadableInputError(piece.path, row, reason, num_kept) from shown
    num_rows = row - piece.first_row
    if piece.row_groups and num_rows != piece.num_rows:
        raise ProbelineError(
            f"{piece.path} has {num_rows} rows from row {piece.first_row} on, its footer said "
            f"{piece.num_rows}: it was changed while the job ran, or it is damaged; run the job "
            "again when its input no longer changes"
        )


def _checked_batches(piece: Piece, options: ReadOptions) -> Iterator[CheckedBatch]:
    if piece.input_format == "probe_rows":  # checked when they were written
        yield from _read_probe_rows(piece, options)
        return
    readers = {
        "parquet": _read_parquet,
        "arrow": partial(_read_table, tables.read_arrow),
        "csv": partial(_read_table, tables.read_csv),
        "json": partial(_read_table, tables.read_json),
        "scamper_json": _read_scamper,
        "fping_json": _read_fping,
        "atlas_json": _read_atlas_json,
        "atlas_bigquery": _read_atlas_bigquery,
    }
    for raw in readers[piece.input_format](piece, options):
        yield _checked(piece.path, raw, options)


def _in_sample(batch: CheckedBatch, options: ReadOptions) -> CheckedBatch:
    if batch.block is None:
        return batch._replace(names=())
    block = sampled(batch.block, options.sample)
    num_left_out = batch.num_left_out + len(batch.block) - len(block)
    return batch._replace(
        block=block if len(block) else None,
        num_left_out=num_left_out,
        names=_names_in(block, batch.names),
    )


def _names_in(block: Block, names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names whose addresses are in a block."""
    if not names:
        return ()
    _, lo, _ = addresses.parse(pa.array(map(address_of, names), pa.string()))
    used = [column.lo[np.unique(column.codes)] for column in (block.src, block.dst)]
    return tuple(itertools.compress(names, np.isin(lo, np.concatenate(used)).tolist()))


def _read_parquet(piece: Piece, options: ReadOptions) -> Iterator[RawBatch]:
    sources = options.mapping.names
    names = [name for source in sources.values() for name in source.names]
    partitions = mapping.partitions_of(piece.path)
    ends = {*sources["src_addr"].names, *sources["dst_addr"].names}
    dictionaries = sorted(ends.difference(partitions))
    row = piece.first_row
    with _open(piece, dictionaries) as file:
        is_outside = [_is_outside(file, group, options) for group in piece.row_groups]
        by_place = itertools.groupby(
            zip(piece.row_groups, is_outside, strict=True), lambda pair: pair[1]
        )
        for outside, pairs in by_place:
            groups = [group for group, _ in pairs]
            if outside:
                num_rows = sum(file.metadata.row_group(group).num_rows for group in groups)
                row += num_rows
                yield RawBatch(None, np.zeros(0, np.int64), row, num_left_out=num_rows)
                continue
            for batch in _batches(file, groups, names):
                rows = np.arange(row, row + batch.num_rows)
                row += batch.num_rows
                yield _converted(batch, rows, row, options, partitions)


def _read_table(
    read: Callable[[FileVersion, ColumnMapping], Iterator[Rows]],
    piece: Piece,
    options: ReadOptions,
) -> Iterator[RawBatch]:
    partitions = mapping.partitions_of(piece.path)
    for found in read(piece.file, options.mapping):
        raw = _raw(piece, found, options)
        if found.batch is not None:
            converted = _converted(found.batch, found.rows, found.next_row, options, partitions)
            raw = converted._replace(letters=raw.letters)
        yield raw


def _read_scamper(piece: Piece, options: ReadOptions) -> Iterator[RawBatch]:
    for found in tables.read_scamper(piece.file):
        yield _raw(piece, found, options)


def _read_fping(piece: Piece, options: ReadOptions) -> Iterator[RawBatch]:
    mapping = options.mapping
    if mapping.names["event_time"].names:  # not a constant
        mapping = replace(mapping, time_unit=mapping.time_unit or "s")
    return _read_table(tables.read_fping, piece, replace(options, mapping=mapping))


def _raw(piece: Piece, found: Rows, options: ReadOptions) -> RawBatch:
    """Returns a batch that has the columns of COLUMNS, if any."""
    letters = [
        DeadLetter(piece.path, row, reason, WITHHELD if text and options.anonymize else text)
        for row, reason, text in found.bad_rows
    ]
    return RawBatch(found.batch, found.rows, found.next_row, letters)


def _converted(
    batch: pa.RecordBatch,
    rows: np.ndarray,
    next_row: int,
    options: ReadOptions,
    partitions: dict[str, str],
) -> RawBatch:
    found = mapping.convert(batch, options.mapping, partitions)
    if found.parents is not None:
        rows = rows[found.parents]
    return RawBatch(
        found.measurements,
        rows,
        next_row,
        unreadable=found.unreadable,
        originals=found.originals,
        names=() if options.anonymize else found.names,
    )


def _is_outside(file: pq.ParquetFile, group: int, options: ReadOptions) -> bool:
    """Returns whether all times of a row group are valid and outside the window, by statistics."""
    sample = options.sample
    if not sample.has_window:
        return False
    paths = [file.schema.column(index).path for index in range(len(file.schema))]
    names = options.mapping.names["event_time"].names
    if not set(names) <= set(paths) or not names:
        return False
    column = paths.index(names[0])
    (chunk,) = column_chunks(file.metadata, [group], [column])
    if chunk.physical_type != file.schema.column(column).physical_type:
        return False  # damage: Arrow's statistics would abort the process, its reader raises
    found = chunk.statistics
    logical_type = orjson.loads(file.schema.column(column).logical_type.to_json())
    unit = _UNITS.get(logical_type.get("timeUnit"))
    if found is None or not found.has_min_max or found.null_count != 0 or unit is None:
        return False
    ends = pa.array([found.min_raw, found.max_raw], pa.int64()).cast(pa.timestamp(unit))
    (first, last), is_valid = valid_times(ends, options.encoding)
    is_before = last < sample.since_us
    is_after = sample.until_us is not None and first >= sample.until_us
    return bool(is_valid.all()) and (is_before or is_after)


def _open(piece: Piece, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    """Opens a file, with some columns as dictionaries and large row groups in pieces.

    Arrow cannot read delta-encoded pages as dictionaries.
    """
    file = open_parquet(piece.path, list(dictionaries), version=piece.file.version)
    paths = [file.schema.column(index).path for index in range(len(file.schema))]
    columns = [index for index, path in enumerate(paths) if path in dictionaries]
    chunks = column_chunks(file.metadata, piece.row_groups, columns)
    plain = {each.path_in_schema for each in chunks if _DELTA.intersection(each.encodings)}
    groups = map(file.metadata.row_group, piece.row_groups)
    largest = max((group.total_byte_size for group in groups), default=0)
    if plain.isdisjoint(dictionaries) and largest < _LARGE_GROUP_BYTES:
        return file
    file.close()
    readable = [name for name in dictionaries if name not in plain]
    buffer_bytes = PIECE_BYTES if largest >= _LARGE_GROUP_BYTES else 0
    return open_parquet(piece.path, readable, buffer_bytes, piece.file.version)


def _batches(
    file: pq.ParquetFile, row_groups: Sequence[int], columns: list[str]
) -> Iterator[pa.RecordBatch]:
    for batch in file.iter_batches(
        BATCH_ROWS, row_groups=list(row_groups), columns=columns, use_threads=False
    ):
        for column in batch.columns:
            if pa.types.is_dictionary(column.type):
                _check_indices(column)
        yield batch


def _check_indices(column: pa.DictionaryArray) -> None:
    """Raises ArrowInvalid for an index that the dictionary lacks: Arrow does not look for them."""
    least, most = pc.min_max(column.indices).as_py().values()
    if most is not None and not 0 <= least <= most < len(column.dictionary):
        raise pa.ArrowInvalid("a dictionary lacks entries to which rows refer")


def _checked(path: str, raw: RawBatch, options: ReadOptions) -> CheckedBatch:
    letters, left_out = list(raw.letters), raw.num_left_out
    if raw.measurements is None:
        return CheckedBatch(len(letters) + left_out, None, letters, raw.next_row, left_out)
    batch, rows = raw.measurements, raw.rows
    num_rows = batch.num_rows + len(letters) + left_out
    unreadable, originals = raw.unreadable, raw.originals or batch
    if options.sample.has_window:
        times, is_valid = valid_times(batch.column("event_time"), options.encoding)
        kept = ~is_valid | in_window(times, options.sample)
        left_out += batch.num_rows - int(np.count_nonzero(kept))
        unreadable = {name: mask[kept] for name, mask in unreadable.items()}
        batch, originals = (each.filter(pa.array(kept)) for each in (batch, originals))
        rows = rows[kept]
    block, faults = check(batch, options.encoding, unreadable)
    if options.anonymize:
        block = anonymizer_of(options.anonymize).block(block)
    if len(faults.rows):
        letters += _letters(path, originals, faults, rows[faults.rows], options)
    return CheckedBatch(num_rows, block, letters, raw.next_row, left_out, raw.names)


def _letters(
    path: str, batch: pa.RecordBatch, faults: Faults, rows: np.ndarray, options: ReadOptions
) -> list[DeadLetter]:
    """Returns the dead letters of faults in a batch, whose rows in the file are `rows`."""
    if options.anonymize:  # an invalid address is mostly a misspelled one
        values = [WITHHELD] * len(rows)
    else:
        values = [orjson.dumps(text).decode() for text in as_text(batch, faults.rows)]
    bad = zip(rows.tolist(), faults.reasons, values, strict=True)
    return [DeadLetter(path, *letter) for letter in bad]


def _read_atlas_json(piece: Piece, options: ReadOptions) -> Iterator[RawBatch]:
    with open_file(piece.path, version=piece.file.version) as stream:
        blocks, is_span = read_span(stream, piece.span), piece.span is not None
        source, hops = options.atlas_source, options.hops
        for found in atlas.read_json(blocks, source, BATCH_ROWS, hops, is_span):
            yield _raw(piece, found, options)


def _read_atlas_bigquery(piece: Piece, options: ReadOptions) -> Iterator[RawBatch]:
    row = piece.first_row
    with _open(piece) as file:
        columns = atlas.bigquery_columns(file.schema, options.atlas_source)
        for raw in _batches(file, piece.row_groups, columns):
            found = atlas.explode_bigquery(raw, options.atlas_source, row)
            row = found.next_row
            yield _raw(piece, found, options)


def _read_probe_rows(piece: Piece, options: ReadOptions) -> Iterator[CheckedBatch]:
    assert piece.shard is not None
    if piece.shard.anonymized_by:  # already replaced
        options = replace(options, anonymize=None)
    row = piece.first_row
    for stored in stored_rows.read_blocks(piece, BATCH_ROWS):
        block, faults = check_encoding(stored, options.encoding)
        num_faults, faults = len(faults.rows), _within(faults, stored.event_time, options.sample)
        if options.anonymize:
            block = anonymizer_of(options.anonymize).block(block)
        letters = []
        if len(faults.rows):
            batch = stored_rows.as_batch(stored)
            letters = _letters(piece.path, batch, faults, row + faults.rows, options)
        row += len(stored)
        yield CheckedBatch(len(stored), block, letters, row, num_faults - len(letters))


def _within(faults: Faults, event_time: np.ndarray, sample: Sample) -> Faults:
    """Returns the faults of rows in the window of a sample, and of invalid times."""
    is_time = np.array([reason.startswith("event_time") for reason in faults.reasons], bool)
    kept = np.flatnonzero(is_time | in_window(event_time[faults.rows], sample))
    return Faults(faults.rows[kept], [faults.reasons[at] for at in kept])
