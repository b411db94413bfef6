"""Match files: the n-grams that a work unit's documents share with one index shard, in Parquet.

  (DocumentBatch, its SharedNgrams) → rows of SCHEMA, a summary of the scan as metadata; dead
                                      letters in a file beside it

A row is an n-gram of a document, ordered by (document's row, n-gram), however many evaluation rows
have it. A row group holds whole documents; a document's text is written with its first n-gram only.
A work unit's match files have no n-gram in common, and `read_blocks` merges them. All strings are
UTF-8 encoded with `surrogatepass`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from beam_pipeline.dataset import dead_letters
from beam_pipeline.documents.batch import DocumentBatch, encode
from beam_pipeline.documents.files import WorkUnit
from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.ngrams.matching import SharedNgrams
from beam_pipeline.overlap.ngrams.sections import count_code_points
from beam_pipeline.overlap.results.output_files import LazyFiles, parquet_writer, place_lists
from beam_pipeline.storage.files import atomic_write
from beam_pipeline.storage.lines import explained_damage
from beam_pipeline.storage.parquet import open_parquet, read_row_groups

SCHEMA = pa.schema(
    [
        ("row", pa.int64()),  # as numbered in the work unit
        ("doc_id", pa.large_binary()),  # like the text, only with a document's first n-gram
        ("text", pa.large_binary()),
        ("ngram", pa.int64()),  # number in the index shard, see Postings
        ("starts", pa.large_list(pa.uint32())),  # places in the document, in code points
        ("ends", pa.large_list(pa.uint32())),
    ]
)
FORMAT = "counted_chars"  # changes with the contents of match files
_PLACES = ["starts", "ends"]
_COUNTED = ["row", "ngram", "starts"]
_LETTERS = "letters.parquet"
_SUMMARY_KEY = "probeline_scan"
_GROUP_BYTES = 4 << 20
_BYTES_PER_NGRAM = 32


class ScanSummary(NamedTuple):
    """Totals of a scan of a work unit."""

    num_rows: int
    num_texts: int
    num_without_text: int
    text_bytes: int
    num_matches: int
    letters: dict[str, int]  # dead letters by reason
    num_ngrams: int = 0  # of the texts, compared
    num_text_chars: int = 0


class ScannedUnit(NamedTuple):
    """A work unit that has been scanned with all index shards."""

    unit: WorkUnit
    paths: tuple[str, ...]  # match files, by index shard
    summary: ScanSummary  # over all match files
    row_offset: int = 0  # to add to rows in the match files

    @property
    def order(self) -> tuple[int, int]:
        """The sort key of the work unit in the output."""
        return self.unit.file.number, self.unit.number

    @property
    def name(self) -> str:
        """A file name that is unique in a job run."""
        return f"{self.unit.file.number:06d}-{self.unit.number:06d}"


class Block(NamedTuple):
    """Whole documents of a work unit, and the n-grams that they share with all index shards."""

    rows: np.ndarray  # int64 [d], of the documents, as numbered in the work unit
    texts: pa.LargeBinaryArray | None  # d; None if only counts are read
    ids: pa.LargeBinaryArray | None  # d
    documents: np.ndarray  # int64 [s], index of each shared n-gram's document, ascending
    index_shards: np.ndarray  # int32 [s]
    ngrams: np.ndarray  # int64 [s], numbers in the index shard
    num_places: np.ndarray  # int64 [s], in the document
    places: pa.ListArray | None  # PLACES [s]; None if only counts are read


Keep = Callable[[int, np.ndarray], np.ndarray]  # (index shard, n-grams) → whether each counts


# --- writing ------------------------------------------------------------------------------------


def letters_path(path: str) -> str:
    """Returns the path of a match file's dead letters, a file that exists only if there are any."""
    return f"{path}.{_LETTERS}"


def write_match_file(
    path: str, temp_folder: str, scanned: Iterable[tuple[DocumentBatch, SharedNgrams]]
) -> ScanSummary:
    """Writes the results of a scan, a few MiB at a time; the match file appears last, complete."""
    totals = Counter(dict.fromkeys(set(ScanSummary._fields) - {"letters"}, 0))
    letters: Counter[str] = Counter()
    options = {"use_dictionary": False, "write_statistics": False}
    with atomic_write(path, temp_folder) as stream, LazyFiles(path, temp_folder) as files:
        writer = files.enter_context(parquet_writer(stream, SCHEMA, **options))
        for table in _row_groups(_tables(scanned, totals, letters, files)):
            writer.write_table(table, row_group_size=len(table))
        summary = ScanSummary(**totals, letters=dict(sorted(letters.items())))
        metadata = {_SUMMARY_KEY: orjson.dumps(summary._asdict()).decode()}
        writer.add_key_value_metadata(metadata)
    return summary


def _tables(
    scanned: Iterable[tuple[DocumentBatch, SharedNgrams]],
    totals: Counter[str],
    letters: Counter[str],
    files: LazyFiles,
) -> Iterator[pa.Table]:
    """Yields the rows of each batch, while counting and writing the dead letters."""
    for batch, shared in scanned:
        if batch.letters:
            writer = files.get(_LETTERS, parquet_writer, schema=dead_letters.SCHEMA)
            writer.write_table(dead_letters.to_table(batch.letters))
            letters.update(dead_letters.count_by_reason(batch.letters))
        totals.update(
            num_rows=batch.num_rows,
            num_texts=len(batch.rows),
            num_without_text=batch.num_without_text,
            text_bytes=len(batch.utf8),
            num_matches=shared.num_matches,
            num_ngrams=shared.num_ngrams,
            num_text_chars=count_code_points(batch.utf8),
        )
        if len(shared.ngrams):
            yield _table(batch, shared)


def _table(batch: DocumentBatch, shared: SharedNgrams) -> pa.Table:
    documents, firsts = np.unique(shared.documents, return_index=True)
    ids = (batch.ids[at] for at in documents.tolist())
    encoded_ids = [None if doc_id is None else encode(doc_id) for doc_id in ids]
    texts = [batch.text_bytes(at) for at in documents.tolist()]
    columns = [
        batch.rows[shared.documents],
        _sparse(encoded_ids, firsts, len(shared.ngrams)),
        _sparse(texts, firsts, len(shared.ngrams)),
        shared.ngrams,
        pa.LargeListArray.from_arrays(shared.bounds, shared.starts),
        pa.LargeListArray.from_arrays(shared.bounds, shared.ends),
    ]
    return pa.table(columns, SCHEMA)


def _sparse(values: Sequence[bytes | None], places: np.ndarray, size: int) -> pa.LargeBinaryArray:
    """Returns an array with values at ascending places, otherwise null."""
    # `take` would allocate as much for a null as for a value.
    sparse: list[bytes | None] = [None] * size
    for place, value in zip(places.tolist(), values, strict=True):
        sparse[place] = value
    return pa.array(sparse, pa.large_binary())


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Concatenates small tables."""
    group: list[pa.Table] = []
    num_bytes = 0
    for table in tables:
        group.append(table)
        num_bytes += table.nbytes
        if num_bytes >= _GROUP_BYTES:
            yield pa.concat_tables(group)
            group, num_bytes = [], 0
    if group:
        yield pa.concat_tables(group)


# --- reading ------------------------------------------------------------------------------------


def _explained(path: str) -> AbstractContextManager[None]:
    return explained_damage(f"the match file {path}", "remove it and run the same command again")


def read_summary(path: str) -> ScanSummary:
    """Returns the summary of the scan that wrote a match file."""
    with _explained(path), open_parquet(path) as file:
        text = (file.metadata.metadata or {}).get(_SUMMARY_KEY.encode())
    if text is None:
        raise ProbelineError(f"{path} is not a match file of this version: remove it and run again")
    return ScanSummary(**orjson.loads(text))


def count_ngrams(paths: Sequence[str]) -> int:
    """Returns the total number of n-grams of documents in match files."""
    count = 0
    for path in paths:
        with _explained(path), open_parquet(path) as file:
            count += file.metadata.num_rows
    return count


def read_blocks(
    paths: Sequence[str], keep: Keep | None = None, with_texts: bool = True
) -> Iterator[Block]:
    """Yields the contents of a work unit's match files, several whole documents at a time.

    A block is a row group. The row groups of several match files are cut at the same row:

      file 1  [0 0 2 5] [6 9]         → [0 0 2 5 | 0 1 5]  [6 | 6 8]  [9 | 9]
      file 2  [0 1 5 6 8] [9]
    """
    sources = [_read_tables(path, None if with_texts else _COUNTED) for path in paths]
    heads = [next(source, None) for source in sources]
    while any(head is not None for head in heads):
        last_row = min(_rows(head)[-1] for head in heads if head is not None)
        taken: list[tuple[int, pa.Table]] = []
        for at, head in enumerate(heads):
            if head is not None:
                stop = int(np.searchsorted(_rows(head), last_row, "right"))
                taken.append((at, head.slice(0, stop)))
                heads[at] = head.slice(stop) if stop < len(head) else next(sources[at], None)
        block = _block(taken, keep, with_texts)
        if len(block.rows):
            yield block


def _read_tables(path: str, columns: list[str] | None) -> Iterator[pa.Table]:
    with _explained(path):
        yield from (table.combine_chunks() for table in read_row_groups(path, columns))


def _rows(table: pa.Table) -> np.ndarray:
    return table.column("row").to_numpy()


def _block(tables: Sequence[tuple[int, pa.Table]], keep: Keep | None, with_texts: bool) -> Block:
    """Joins the tables of numbered index shards, ordered by document."""
    table = pa.concat_tables([table for _, table in tables]).combine_chunks()
    numbers = np.array([at for at, _ in tables], np.int32)
    shards = np.repeat(numbers, [len(table) for _, table in tables])
    all_rows, ngrams = _rows(table), table.column("ngram").to_numpy()
    is_kept = np.ones(len(table), bool)
    if keep is not None:
        for at, _ in tables:
            is_kept[shards == at] = keep(at, ngrams[shards == at])
    of_ngrams = all_rows
    lists = [table.column(name).combine_chunks() for name in _PLACES if name in table.column_names]
    if len(tables) > 1 or not is_kept.all():  # skipped if possible: documents may be huge
        order = np.flatnonzero(is_kept)
        order = order[np.argsort(all_rows[order], kind="stable")]
        of_ngrams, shards, ngrams = (each[order] for each in (all_rows, shards, ngrams))
        lists = [each.take(pa.array(order)) for each in lists]
    is_first = np.append(True, of_ngrams[1:] != of_ngrams[:-1])[: len(of_ngrams)]
    rows, documents = of_ngrams[is_first], np.cumsum(is_first) - 1
    texts = ids = None
    if with_texts and len(rows):
        column = table.column("text").chunk(0)
        with_text = np.flatnonzero(column.is_valid())
        of_each, firsts = np.unique(all_rows[with_text], return_index=True)
        which = pa.array(with_text[firsts[np.searchsorted(of_each, rows)]])
        texts, ids = column.take(which), table.column("doc_id").chunk(0).take(which)
    bounds, places = lists[0].offsets.to_numpy(), None
    if with_texts:
        places = place_lists(bounds, *(each.values.to_numpy() for each in lists))
    return Block(rows, texts, ids, documents, shards, ngrams, np.diff(bounds), places)
