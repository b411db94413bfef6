"""Match files: the matches of one work unit with one index shard, in Parquet.

  (DocumentBatch, its Matches) → rows of SCHEMA, a summary of the scan as metadata; dead letters
                                 in a file beside it

Rows are in the order of (document's row, evaluation row, n, places there, n-gram). A row group
holds whole documents; the text of a document is written with its first match only. The match files
of a work unit have no n-gram in common: `read_matches` and `read_columns` read them as one file.
All strings are UTF-8 as `surrogatepass` writes it.
"""

import heapq
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from beam_pipeline.dataset import dead_letters
from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.documents.batch import DocumentBatch, decode, encode
from beam_pipeline.overlap.documents.reading import WorkUnit
from beam_pipeline.overlap.ngrams.matching import Match, Places
from beam_pipeline.overlap.results.output_files import LazyFiles, make_table, parquet_writer
from beam_pipeline.storage.files import atomic_write
from beam_pipeline.storage.lines import explained_damage
from beam_pipeline.storage.parquet import open_parquet, read_row_groups

_PLACES = pa.list_(pa.uint32())  # start, end, start, end, …
SCHEMA = pa.schema(
    [
        ("row", pa.int64()),  # counted as the work unit counts
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
_LETTERS = "letters.parquet"
_SUMMARY_KEY = "probeline_scan"
_GROUP_BYTES, _GROUP_MATCHES = 4 << 20, 1 << 14


class ScanSummary(NamedTuple):
    """What one scan of a work unit read and found."""

    num_rows: int
    num_texts: int
    num_without_text: int
    text_bytes: int
    num_matches: int
    letters: dict[str, int]  # dead letters by reason


class ScannedUnit(NamedTuple):
    """A work unit that has been scanned with all index shards."""

    unit: WorkUnit
    paths: tuple[str, ...]  # of the match file of each index shard
    summary: ScanSummary  # with the matches of all match files
    row_offset: int = 0  # added to the rows in the match files

    @property
    def order(self) -> tuple[int, int]:
        """The place of the work unit in the output."""
        return self.unit.file_number, self.unit.number

    @property
    def name(self) -> str:
        """A name for files; unique in a job run."""
        return f"{self.unit.file_number:06d}-{self.unit.number:06d}"


class UnitMatch(NamedTuple):
    """One n-gram that a document and an evaluation row share."""

    row: int
    doc_id: str | None
    text: str
    number: int
    n: int
    ngram: str
    eval_places: Places
    train_places: Places


class MatchColumns(NamedTuple):
    """The columns of some matches that counting needs, as arrays of one length.

    The n-gram of an evaluation row is identified by where it first begins there. Tokens of a custom
    tokenizer may begin at one place: the checksum of the n-gram tells those apart.
    """

    rows: np.ndarray  # int64
    numbers: np.ndarray  # uint32
    lengths: np.ndarray  # uint32, n
    starts: np.ndarray  # uint32, where the n-gram first begins in the evaluation row
    crcs: np.ndarray  # uint32, ngram_crc
    occurrences: np.ndarray  # int64, of the n-gram in the document


Keep = Callable[[MatchColumns], np.ndarray]  # returns which matches count, bool


def crc_of(ngram: str) -> int:
    """Returns the checksum of an n-gram in match files."""
    return zlib.crc32(encode(ngram))


# --- writing ------------------------------------------------------------------------------------


def letters_path(path: str) -> str:
    """Returns the path of the dead letters of a match file, which exists if there are any."""
    return f"{path}.{_LETTERS}"


def write_match_file(
    path: str, temp_folder: str, scanned: Iterable[tuple[DocumentBatch, Iterable[Match]]]
) -> ScanSummary:
    """Writes what a scan found, some MiB at a time; the match file appears last, complete.

    Args:
      scanned: batches of one work unit, and their matches, document by document.
    """
    totals = Counter(num_rows=0, num_texts=0, num_without_text=0, text_bytes=0, num_matches=0)
    letters: Counter[str] = Counter()
    options = {"use_dictionary": ["doc_id", "ngram"], "write_statistics": False}
    with atomic_write(path, temp_folder) as stream, LazyFiles(path, temp_folder) as files:
        writer = files.enter_context(parquet_writer(stream, SCHEMA, **options))
        for group in _row_groups(_documents(scanned, totals, letters, files)):
            writer.write_table(make_table(group, SCHEMA))
            totals["num_matches"] += len(group)
        summary = ScanSummary(**totals, letters=dict(sorted(letters.items())))
        metadata = {_SUMMARY_KEY: orjson.dumps(summary._asdict()).decode()}
        writer.add_key_value_metadata(metadata)
    return summary


def _documents(
    scanned: Iterable[tuple[DocumentBatch, Iterable[Match]]],
    totals: Counter[str],
    letters: Counter[str],
    files: LazyFiles,
) -> Iterator[list[tuple]]:
    """Yields the rows of each document that has any; counts, and writes the dead letters."""
    for batch, matches in scanned:
        if batch.letters:
            writer = files.get(_LETTERS, parquet_writer, schema=dead_letters.SCHEMA)
            writer.write_table(dead_letters.to_table(batch.letters))
            letters.update(dead_letters.count_by_reason(batch.letters))
        totals.update(
            num_rows=batch.num_rows,
            num_texts=len(batch.rows),
            num_without_text=batch.num_without_text,
            text_bytes=len(batch.utf8),
        )
        for index, found in groupby(matches, key=lambda match: match.document):
            yield list(_document_rows(batch, index, found))


def _document_rows(batch: DocumentBatch, index: int, matches: Iterable[Match]) -> Iterator[tuple]:
    text: bytes | None = batch.text_bytes(index)
    row, doc_id = int(batch.rows[index]), batch.ids[index]
    encoded_id = None if doc_id is None else encode(doc_id)
    for match in sorted(matches, key=lambda m: (m.row, m.n, m.eval_places, m.ngram)):
        ngram = encode(match.ngram)
        places = (list(chain.from_iterable(p)) for p in (match.eval_places, match.train_places))
        yield row, encoded_id, text, match.row, match.n, ngram, zlib.crc32(ngram), *places
        text = None


def _row_groups(documents: Iterable[list[tuple]]) -> Iterator[list[tuple]]:
    """Yields the rows of several documents at a time."""
    group: list[tuple] = []
    num_bytes = 0
    for rows in documents:
        group += rows
        for _, _, text, _, _, ngram, _, *places in rows:
            num_bytes += len(text or b"") + len(ngram) + 4 * sum(map(len, places))
        if num_bytes >= _GROUP_BYTES or len(group) >= _GROUP_MATCHES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


# --- reading ------------------------------------------------------------------------------------


def _explained(path: str) -> AbstractContextManager[None]:
    return explained_damage(f"the match file {path}", "remove it and run the same command again")


def read_summary(path: str) -> ScanSummary:
    """Returns the summary of the scan that wrote a match file.

    Raises:
      ProbelineError: the file is not a match file.
    """
    with _explained(path), open_parquet(path) as file:
        text = (file.metadata.metadata or {}).get(_SUMMARY_KEY.encode())
    if text is None:
        raise ProbelineError(f"{path} is not a match file of this version: remove it and run again")
    return ScanSummary(**orjson.loads(text))


def read_matches(paths: Sequence[str], keep: Keep | None = None) -> Iterator[UnitMatch]:
    """Yields the matches in all match files of a work unit, in the order of one match file."""
    return heapq.merge(
        *(_read_file(path, keep) for path in paths),
        key=lambda match: (match.row, match.number, match.n, match.eval_places, match.ngram),
    )


def _read_tables(path: str, columns: list[str] | None = None) -> Iterator[pa.Table]:
    with _explained(path):
        yield from read_row_groups(path, columns)


def _read_file(path: str, keep: Keep | None) -> Iterator[UnitMatch]:
    text, at_row, doc_id = "", -1, None
    for table in _read_tables(path):
        is_kept = np.ones(len(table), bool) if keep is None else keep(_columns_of(table))
        columns = [table.column(name).to_pylist() for name in SCHEMA.names if name != "ngram_crc"]
        for kept, (row, id_bytes, data, number, n, ngram, eval_places, train_places) in zip(
            is_kept.tolist(), zip(*columns, strict=True), strict=True
        ):
            if row != at_row:
                text, at_row = decode(data), row
                doc_id = None if id_bytes is None else decode(id_bytes)
            if kept:
                places = _pairs(eval_places), _pairs(train_places)
                yield UnitMatch(row, doc_id, text, number, n, decode(ngram), *places)


def _pairs(flat: list[int]) -> Places:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _columns_of(table: pa.Table) -> MatchColumns:
    eval_places = table.column("eval_places").combine_chunks()
    train_places = table.column("train_places").combine_chunks()
    return MatchColumns(
        rows=table.column("row").to_numpy(),
        numbers=table.column("number").to_numpy(),
        lengths=table.column("n").to_numpy(),
        starts=eval_places.values.to_numpy()[eval_places.offsets.to_numpy()[:-1]],
        crcs=table.column("ngram_crc").to_numpy(),
        occurrences=np.diff(train_places.offsets.to_numpy()).astype(np.int64) // 2,
    )


def read_columns(paths: Sequence[str], keep: Keep | None = None) -> Iterator[MatchColumns]:
    """Yields the columns that counting needs, several whole documents at a time, without texts.

    A block of columns is a row group. The blocks of several match files are cut at one row:

      file 1  [0 0 2 5] [6 9]         → [0 0 2 5 | 0 1 5]  [6 | 6 8]  [9 | 9]
      file 2  [0 1 5 6 8] [9]
    """
    sources = [map(_columns_of, _read_tables(path, _COUNTED)) for path in paths]
    heads = [next(source, None) for source in sources]
    while any(head is not None for head in heads):
        last_row = min(head.rows[-1] for head in heads if head is not None)
        taken: list[MatchColumns] = []
        for at, head in enumerate(heads):
            if head is not None:
                stop = np.searchsorted(head.rows, last_row, "right")
                taken.append(_cut(head, slice(0, stop)))
                rest = _cut(head, slice(stop, None))
                heads[at] = rest if len(rest.rows) else next(sources[at], None)
        joined = MatchColumns(*[np.concatenate(column) for column in zip(*taken, strict=True)])
        yield _cut(joined, keep(joined)) if keep else joined


def _cut(columns: MatchColumns, which: Any) -> MatchColumns:
    return MatchColumns(*(column[which] for column in columns))
