"""Reading a piece of input: batches of checked measurements, and dead letters.

Arrow reads Parquet in batches with the address columns as dictionaries, so that memory does not
depend on the size of a row group. With `ReadOptions.anonymize`, no address of the input leaves this
module: a Block has replaced addresses, and a dead letter no values.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.errors import ProbelineError
from beam_pipeline.sources import atlas, inputs
from beam_pipeline.sources.anonymize import WITHHELD, anonymizer_of
from beam_pipeline.sources.inputs import Piece, ReadOptions
from beam_pipeline.sources.measurements import COLUMNS, Block, as_text, check
from beam_pipeline.storage.files import open_file
from beam_pipeline.storage.lines import DAMAGE, decompressed
from beam_pipeline.storage.parquet import open_parquet

BATCH_ROWS = 131_072


class CheckedBatch(NamedTuple):
    """`num_rows` input rows: measurements in `block`, the others as dead letters."""

    num_rows: int
    block: Block | None
    letters: list[DeadLetter]


class UnreadableInputError(Exception):
    """A file cannot be read; `row` is the first one not read."""

    def __init__(self, path: str, row: int, reason: str):
        super().__init__(f"cannot read {path} from row {row} on: {reason}")
        self.path, self.row, self.reason = path, row, reason

    def as_error(self) -> ProbelineError:
        """Returns the error that ends the job."""
        return ProbelineError(
            f"cannot read {self.path} (row {self.row}): {self.reason}; repair or remove the "
            "file, or say --on_bad_file=dead_letter to go on without it"
        )

    def as_letter(self) -> DeadLetter:
        """Returns the dead letter for all rows that were not read."""
        return DeadLetter(self.path, self.row, "file_unreadable", self.reason)


def read_piece(piece: Piece, options: ReadOptions) -> Iterator[CheckedBatch]:
    """Yields all batches of a piece.

    Raises:
      UnreadableInputError: the file is damaged; the batches before remain valid.
    """
    if piece.problem:
        raise UnreadableInputError(piece.path, 0, piece.problem)
    readers = {
        "parquet": _read_parquet,
        "atlas_json": _read_atlas_json,
        "atlas_bigquery": _read_atlas_bigquery,
    }
    row = piece.first_row
    try:
        for batch in readers[piece.input_format](piece, options):
            yield batch
            row += batch.num_rows
    except ProbelineError as error:
        raise ProbelineError(f"{piece.path}: {error}") from error
    except DAMAGE as error:
        shown = None if options.anonymize else error  # a traceback would show its text
        raise UnreadableInputError(piece.path, row, inputs.reason_of(error, options)) from shown


def _read_parquet(piece: Piece, options: ReadOptions) -> Iterator[CheckedBatch]:
    names = options.names
    dictionaries = [names["src_addr"], names["dst_addr"]]
    row = piece.first_row
    with open_parquet(piece.path, dictionaries) as file:
        for raw in _batches(file, piece, list(names.values())):
            batch = raw.select([names[column] for column in COLUMNS]).rename_columns(list(COLUMNS))
            rows = np.arange(row, row + batch.num_rows)
            yield _checked(piece.path, batch, rows, options)
            row += batch.num_rows


def _batches(file: pq.ParquetFile, piece: Piece, columns: list[str]) -> Iterator[pa.RecordBatch]:
    return file.iter_batches(
        BATCH_ROWS, row_groups=list(piece.row_groups), columns=columns, use_threads=False
    )


def _checked(
    path: str, batch: pa.RecordBatch, rows: np.ndarray, options: ReadOptions
) -> CheckedBatch:
    """Checks a batch; `rows`, int64 [n], are its rows in the file."""
    block, faults = check(batch)
    if options.anonymize:
        block = anonymizer_of(options.anonymize).block(block)
    if not len(faults.rows):
        return CheckedBatch(batch.num_rows, block, [])
    if options.anonymize:  # an address that is wrong is mostly one that is spelled wrong
        values = [WITHHELD] * len(faults.rows)
    else:
        values = [orjson.dumps(text).decode() for text in as_text(batch, faults.rows)]
    bad = zip(rows[faults.rows].tolist(), faults.reasons, values, strict=True)
    return CheckedBatch(batch.num_rows, block, [DeadLetter(path, *letter) for letter in bad])


def _read_atlas_json(piece: Piece, options: ReadOptions) -> Iterator[CheckedBatch]:
    with open_file(piece.path) as stream:
        for part in atlas.read_json(decompressed(stream), options.atlas_source, BATCH_ROWS):
            bad = [
                DeadLetter(piece.path, line, reason, WITHHELD if options.anonymize else text)
                for line, reason, text in part.bad_lines
            ]
            if part.measurements.num_rows == 0:
                yield CheckedBatch(len(bad), None, bad)
                continue
            batch = _checked(piece.path, part.measurements, part.lines, options)
            yield CheckedBatch(batch.num_rows + len(bad), batch.block, bad + batch.letters)


def _read_atlas_bigquery(piece: Piece, options: ReadOptions) -> Iterator[CheckedBatch]:
    row = piece.first_row
    with open_parquet(piece.path) as file:
        columns = atlas.bigquery_columns(file.schema, options.atlas_source)
        for raw in _batches(file, piece, columns):
            exploded = atlas.explode_bigquery(raw, options.atlas_source)
            numbers = (row + exploded.empty_rows).tolist()
            empty = [DeadLetter(piece.path, number, "no_results", "") for number in numbers]
            batch = _checked(piece.path, exploded.measurements, row + exploded.rows, options)
            yield CheckedBatch(batch.num_rows + len(empty), batch.block, empty + batch.letters)
            row += raw.num_rows
