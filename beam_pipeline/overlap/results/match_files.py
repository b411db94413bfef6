"""Parts: the matches of one unit of documents with one pass of the index, as a Parquet file.

  (DocumentBatch, its Matches) → rows of SCHEMA, what was read as metadata; dead letters beside it

Rows are in the order of (document's row, evaluation row, n, places there, n-gram). A document's
text is written with its first match only. The n-grams of a unit's parts are disjoint: `merged` and
`unit_columns` read them as if they were one. All strings are UTF-8 as `surrogatepass` has it.
"""

import heapq
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, groupby
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from beam_pipeline.dataset import dead_letters
from beam_pipeline.errors import ProbelineError, one_line
from beam_pipeline.overlap.documents.batch import DocumentBatch
from beam_pipeline.overlap.documents.parquet import open_parquet
from beam_pipeline.overlap.ngrams.matching import Match, Places
from beam_pipeline.storage.files import atomic_write

_PLACES = pa.list_(pa.uint32())  # start, end, start, end, …
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),  # counted as the unit counts
        ("doc_id", pa.binary()),
        ("text", pa.large_binary()),
        ("number", pa.uint32()),  # of the evaluation row
        ("n", pa.uint32()),
        ("ngram", pa.large_binary()),
        ("ngram_crc", pa.uint32()),
        ("eval_places", _PLACES),
        ("train_places", _PLACES),
    ]
)
_COUNTED = ["row", "number", "n", "ngram_crc", "eval_places", "train_places"]
_METADATA_KEY = "probeline"
_GROUP_BYTES, _GROUP_MATCHES = 4 << 20, 1 << 14


class PartSummary(NamedTuple):
    """What one scan of a unit read and found."""

    num_rows: int
    num_texts: int
    num_without_text: int
    text_bytes: int
    letters: dict[str, int]  # dead letters by reason
    num_matches: int
    num_documents: int  # that have a match


class PartMatch(NamedTuple):
    """One n-gram that a document and an evaluation row share."""

    row: int
    doc_id: str | None
    text: str
    number: int
    n: int
    ngram: str
    eval_places: Places
    train_places: Places


class PartColumns(NamedTuple):
    """Some matches as far as counting needs them, as arrays of one length.

    The n-gram of an evaluation row is known by where it first begins there. Tokens of a tokeniser
    of the user's may begin at one place: the checksum of the n-gram tells those apart.
    """

    rows: np.ndarray  # int64
    numbers: np.ndarray  # uint32
    lengths: np.ndarray  # uint32, n
    starts: np.ndarray  # uint32, where the n-gram first begins in the evaluation row
    crcs: np.ndarray  # uint32, ngram_crc
    occurrences: np.ndarray  # int64, how often the n-gram stands in the document


Keep = Callable[[PartColumns], np.ndarray]  # tells which matches count, bool


def crc_of(ngram: str) -> int:
    """Returns the checksum of an n-gram that parts have."""
    return zlib.crc32(_encoded(ngram))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


# --- writing ------------------------------------------------------------------------------------


def letters_path(path: str) -> str:
    """Returns where the dead letters of a part are, if there are any."""
    return f"{path}.letters.parquet"


def write_part(
    path: str, temp_folder: str, scanned: Iterable[tuple[DocumentBatch, Iterable[Match]]]
) -> PartSummary:
    """Writes what a scan found, some MiB at a time; the part is there last, and whole.

    Args:
      path: of the part.
      temp_folder: where files are before they are whole.
      scanned: batches of one unit, and their matches, document by document.
    """
    summary = PartSummary(0, 0, 0, 0, {}, 0, 0)
    with atomic_write(path, temp_folder) as stream, ExitStack() as stack:
        with _MatchWriter(stream) as writer:
            letters = None
            for batch, matches in scanned:
                if batch.letters and letters is None:
                    file = stack.enter_context(atomic_write(letters_path(path), temp_folder))
                    letters = stack.enter_context(
                        pq.ParquetWriter(file, dead_letters.SCHEMA, compression="zstd")
                    )
                if batch.letters and letters is not None:
                    letters.write_table(dead_letters.to_table(batch.letters))
                num_documents, num_matches = writer.write(batch, matches)
                summary = _added(summary, batch, num_documents, num_matches)
            writer.describe(summary)
    return summary


def _added(
    summary: PartSummary, batch: DocumentBatch, num_documents: int, num_matches: int
) -> PartSummary:
    letters = dict(summary.letters)
    for reason, count in dead_letters.count_by_reason(batch.letters).items():
        letters[reason] = letters.get(reason, 0) + count
    return PartSummary(
        num_rows=summary.num_rows + batch.num_rows,
        num_texts=summary.num_texts + len(batch.rows),
        num_without_text=summary.num_without_text + batch.num_without_text,
        text_bytes=summary.text_bytes + len(batch.utf8),
        letters=dict(sorted(letters.items())),
        num_matches=summary.num_matches + num_matches,
        num_documents=summary.num_documents + num_documents,
    )


class _MatchWriter:
    """Gathers matches and writes them as row groups of a few MiB."""

    def __init__(self, stream: BinaryIO):
        # Nothing asks for statistics; texts do not repeat.
        self._writer = pq.ParquetWriter(
            stream,
            SCHEMA,
            compression="zstd",
            use_dictionary=["doc_id", "ngram"],  # type: ignore[arg-type]
            write_statistics=False,
        )
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
        self._num_bytes = self._num_matches = 0

    def write(self, batch: DocumentBatch, matches: Iterable[Match]) -> tuple[int, int]:
        """Adds the matches of a batch; returns how many documents and matches these are."""
        num_documents = num_matches = 0
        for document, found in groupby(matches, key=lambda match: match.document):
            text: bytes | None = batch.utf8[
                batch.bounds[document] : batch.bounds[document + 1]
            ].tobytes()
            doc_id = batch.ids[document]
            head = (int(batch.rows[document]), None if doc_id is None else _encoded(doc_id))
            for match in sorted(found, key=_order_in_document):
                self._add(*head, text, match)
                text = None
                num_matches += 1
            num_documents += 1
        return num_documents, num_matches

    def _add(self, row: int, doc_id: bytes | None, text: bytes | None, match: Match) -> None:
        ngram = _encoded(match.ngram)
        values = (
            row, doc_id, text, match.row, match.n, ngram, zlib.crc32(ngram),
            list(chain.from_iterable(match.eval_places)),
            list(chain.from_iterable(match.train_places)),
        )  # fmt: skip
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        self._num_bytes += len(ngram) + (len(text) if text else 0)
        self._num_bytes += 4 * (len(values[-1]) + len(values[-2]))
        self._num_matches += 1
        if self._num_bytes >= _GROUP_BYTES or self._num_matches >= _GROUP_MATCHES:
            self._flush()

    def _flush(self) -> None:
        if self._num_matches:
            self._writer.write_table(pa.Table.from_pydict(self._columns, schema=SCHEMA))
        self._clear()

    def describe(self, summary: PartSummary) -> None:
        """Adds what was read as metadata."""
        text = orjson.dumps(summary._asdict()).decode()
        self._writer.add_key_value_metadata({_METADATA_KEY: text})

    def __enter__(self) -> "_MatchWriter":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is None:
            self._flush()
        self._writer.close()


def _order_in_document(match: Match) -> tuple:
    return match.row, match.n, match.eval_places, match.ngram


# --- reading ------------------------------------------------------------------------------------


def _open(path: str) -> pq.ParquetFile:
    try:
        return open_parquet(path)
    except (OSError, pa.ArrowException) as error:
        raise ProbelineError(
            f"cannot read the part {path}: {one_line(error)}; remove it and run the same command "
            "again"
        ) from error


def part_summary(path: str) -> PartSummary:
    """Returns what the scan that wrote a part read and found.

    Raises:
      ProbelineError: the file is no part.
    """
    with _open(path) as file:
        text = (file.metadata.metadata or {}).get(_METADATA_KEY.encode())
    if text is None:
        raise ProbelineError(f"{path} is not a part of an overlap run: remove it and run again")
    return PartSummary(**orjson.loads(text))


def read_part(path: str, keep: Keep | None = None) -> Iterator[PartMatch]:
    """Yields the matches of a part, in order; of those left out by `keep`, nothing."""
    with _open(path) as file:
        text, at_row, known_id = "", -1, None
        for index in range(file.num_row_groups):
            table = file.read_row_group(index)
            kept = np.ones(len(table), bool) if keep is None else keep(_columns_of(table))
            columns = [table.column(name).to_pylist() for name in SCHEMA.names]
            for is_kept, (row, doc_id, data, number, n, ngram, _, own, places) in zip(
                kept.tolist(), zip(*columns, strict=True), strict=True
            ):
                if row != at_row:
                    text, at_row = _decoded(data), row
                    known_id = None if doc_id is None else _decoded(doc_id)
                if is_kept:
                    yield PartMatch(
                        row, known_id, text, number, n, _decoded(ngram), _pairs(own), _pairs(places)
                    )


def _pairs(flat: list[int]) -> Places:
    return list(zip(flat[::2], flat[1::2], strict=True))


def merged(paths: Sequence[str], keep: Keep | None = None) -> Iterator[PartMatch]:
    """Yields the matches of all parts of a unit in the order that one part has."""
    return heapq.merge(*(read_part(path, keep) for path in paths), key=order)


def order(match: PartMatch) -> tuple:
    """Orders the matches of a unit."""
    return match.row, match.number, match.n, match.eval_places, match.ngram


def read_part_columns(path: str) -> Iterator[PartColumns]:
    """Yields what counting needs of a part, a row group at a time; reads no texts."""
    with _open(path) as file:
        for index in range(file.num_row_groups):
            yield _columns_of(file.read_row_group(index, columns=_COUNTED))


def _columns_of(table: pa.Table) -> PartColumns:
    own = table.column("eval_places").combine_chunks()
    places = table.column("train_places").combine_chunks()
    return PartColumns(
        rows=table.column("row").to_numpy(),
        numbers=table.column("number").to_numpy(),
        lengths=table.column("n").to_numpy(),
        starts=own.values.to_numpy()[own.offsets.to_numpy()[:-1]],
        crcs=table.column("ngram_crc").to_numpy(),
        occurrences=np.diff(places.offsets.to_numpy()).astype(np.int64) // 2,
    )


def unit_columns(paths: Sequence[str], keep: Keep | None = None) -> Iterator[PartColumns]:
    """Yields what counting needs of all parts of a unit, each time of some whole documents."""
    heads = [_Head(path) for path in paths]
    while heads := [head for head in heads if head.fill()]:
        bound = min((head.last_row for head in heads if not head.is_at_end), default=None)
        taken = [columns for head in heads for columns in head.take_before(bound)]
        for head in heads:
            if not head.is_at_end and head.last_row == bound:
                head.read_on()
        if taken:
            joined = PartColumns(*[np.concatenate(column) for column in zip(*taken, strict=True)])
            yield _only(joined, keep(joined)) if keep else joined


def _only(columns: PartColumns, which: np.ndarray | slice) -> PartColumns:
    return PartColumns(*(column[which] for column in columns))


class _Head:
    """What is in memory of a part: some row groups, the last documents of which may go on."""

    def __init__(self, path: str):
        self._source = read_part_columns(path)
        self._blocks: list[PartColumns] = []
        self._next = next(self._source, None)

    @property
    def is_at_end(self) -> bool:
        return self._next is None

    @property
    def last_row(self) -> int:
        return int(self._blocks[-1].rows[-1])

    def fill(self) -> bool:
        """Reads on if nothing is in memory; False at the end of the part."""
        if not self._blocks and not self.is_at_end:
            self.read_on()
        return bool(self._blocks)

    def read_on(self) -> None:
        """Takes one row group more into memory."""
        assert self._next is not None
        self._blocks.append(self._next)
        self._next = next(self._source, None)

    def take_before(self, row: int | None) -> Iterator[PartColumns]:
        """Yields what there is of documents before a row (None: of all), which then is gone."""
        blocks, self._blocks = self._blocks, []
        for block in blocks:
            count = len(block.rows) if row is None else int(np.searchsorted(block.rows, row))
            if count:
                yield _only(block, slice(0, count))
            if count < len(block.rows):
                self._blocks.append(_only(block, slice(count, None)))
