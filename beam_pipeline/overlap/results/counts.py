"""How often n-grams of the evaluation side occur in the training data, and in how many documents.

  match files of a work unit → measure_unit → ROW_COUNTS, UnitSize
                             → pack_counts → PackedCounts by bucket of evaluation rows
                             → add_counts → the sum over all work units

An n-gram of an evaluation row counts once, however often it occurs there. A work unit counts its
n-grams first and looks up their evaluation rows last, so n-grams of many rows cost nothing until
then.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.overlap.ngrams.postings import Located, Postings
from beam_pipeline.overlap.results.details import (
    NONE,
    DetailsOptions,
    DetailsSize,
    Evaluation,
    UnitLines,
)
from beam_pipeline.overlap.results.match_files import Keep, ScannedUnit, count_ngrams, read_blocks
from beam_pipeline.overlap.results.matches import Matches, first_of_each, order_of, read_matches

ROWS_PER_BUCKET = 1 << 13
# Keys are uint32, counts int64. A row's n-gram is identified by its first token there.
_NGRAM_KEYS, _ROW_KEYS = ("number", "n", "token"), ("number", "n")
NGRAM_KEYS = np.dtype([(name, "<u4") for name in _NGRAM_KEYS])
NGRAM_COUNTS = np.dtype([*NGRAM_KEYS.descr, ("occurrences", "<i8"), ("documents", "<i8")])
ROW_COUNTS = np.dtype([*((name, "<u4") for name in _ROW_KEYS), ("documents", "<i8")])
SHARED_COUNTS = np.dtype(
    [("ngram", "<i8"), ("shard", "<u4"), ("occurrences", "<i8"), ("documents", "<i8")]
)
_MIN_PENDING = 1 << 16
_NGRAMS_AT_A_TIME = 1 << 19  # of documents, with their places
_NUM_BYTES = 8  # for the number of records


class BucketCounts(NamedTuple):
    """The counts of a bucket of evaluation rows, each array sorted by its keys."""

    ngrams: np.ndarray  # NGRAM_COUNTS
    rows: np.ndarray  # ROW_COUNTS: documents that share an n-gram of that length


class UnitSize(NamedTuple):
    """The amount to write of a work unit's matches."""

    num_matches: int = 0
    num_places: int = 0  # on both sides, for each match
    num_pairs: int = 0  # (document, evaluation row, n)
    details: DetailsSize = DetailsSize()


class PackedCounts(NamedTuple):
    """Counts as sent between steps: a few bytes per n-gram."""

    ngrams: bytes
    rows: bytes

    @classmethod
    def of(cls, counts: BucketCounts) -> "PackedCounts":
        """Packs counts."""
        return cls(*map(pack, counts))

    def counts(self) -> BucketCounts:
        """Inverts `of`."""
        return BucketCounts(unpack(self.ngrams, NGRAM_COUNTS), unpack(self.rows, ROW_COUNTS))


def pack(records: np.ndarray) -> bytes:
    """Returns records of integers, preferably sorted, as a number and compressed differences."""
    columns = (records[name] for name in records.dtype.names or ())
    data = b"".join(np.diff(each, prepend=each.dtype.type(0)).tobytes() for each in columns)
    return len(records).to_bytes(_NUM_BYTES, "little") + pa.compress(data, "zstd", asbytes=True)


def unpack(data: bytes, dtype: np.dtype) -> np.ndarray:
    """Inverts `pack`."""
    records = np.empty(int.from_bytes(data[:_NUM_BYTES], "little"), dtype)
    columns = pa.decompress(data[_NUM_BYTES:], records.nbytes, "zstd")
    at = 0
    for name in dtype.names or ():
        column = np.frombuffer(columns, dtype[name], len(records), at)
        np.cumsum(column, dtype=dtype[name], out=records[name])
        at += column.nbytes
    return records


def measure_unit(
    scanned: ScannedUnit, evaluation: Evaluation, options: DetailsOptions, keep: Keep | None = None
) -> tuple[np.ndarray, UnitSize]:
    """Returns the sorted ROW_COUNTS of a work unit, and the amount to write."""
    total, details = Sum(ROW_COUNTS, _ROW_KEYS), UnitLines(scanned, evaluation, options)
    num_matches = num_places = 0
    with_details = options.mode != NONE
    for found in read_matches(scanned.paths, evaluation.postings, keep, not with_details):
        pairs = found.pairs()[1:] if with_details else _unordered_pairs(found.matches)
        total.add(_count_rows(*pairs))
        num_matches += len(found.matches.rows)
        in_documents = found.block.num_places[found.matches.shared]
        num_places += len(found.matches.tokens) + int(in_documents.sum())
        if with_details:
            details.measure(found)
    rows = total.records()
    num_pairs = int(rows["documents"].sum())
    return rows, UnitSize(num_matches, num_places, num_pairs, details.size)


def pack_counts(
    paths: Sequence[str], rows: np.ndarray, postings: Sequence[Postings], keep: Keep | None = None
) -> Iterator[tuple[int, PackedCounts]]:
    """Yields the counts of a work unit by bucket, in bounded memory, given its ROW_COUNTS."""
    for bucket, here in _by_bucket(rows["number"]):
        yield bucket, PackedCounts.of(BucketCounts(np.empty(0, NGRAM_COUNTS), rows[here]))
    for keep_part in _parts(paths, keep):
        shared = count_shared(paths, keep_part)
        of_shards: list[tuple[np.ndarray, Postings, Located]] = []
        for shard in np.unique(shared["shard"]).tolist():
            counts = shared[shared["shard"] == shard]
            of_shards.append((counts, postings[shard], postings[shard].locate(counts["ngram"])))
        for bucket, _ in _by_bucket(rows["number"]):
            ngrams = [np.empty(0, NGRAM_COUNTS), *(_by_row(*each, bucket) for each in of_shards)]
            counts = _sum_by_key(np.concatenate(ngrams), _NGRAM_KEYS)
            if len(counts):
                yield bucket, PackedCounts.of(BucketCounts(counts, np.empty(0, ROW_COUNTS)))


def _parts(paths: Sequence[str], keep: Keep | None) -> Iterator[Keep]:
    """Yields filters that together keep the n-grams of a work unit, in parts if there are many."""
    num_parts = -(-count_ngrams(paths) // _NGRAMS_AT_A_TIME) or 1
    for part in range(num_parts):

        def keep_part(shard: int, ngrams: np.ndarray, part: int = part) -> np.ndarray:
            is_here = ngrams % num_parts == part
            return is_here if keep is None else is_here & keep(shard, ngrams)

        yield keep_part


def count_buckets(num_rows: int) -> int:
    """Returns the number of buckets of evaluation rows."""
    return -(-num_rows // ROWS_PER_BUCKET)


def _by_bucket(numbers: np.ndarray) -> Iterator[tuple[int, slice]]:
    """Yields each bucket, and the slice of its evaluation rows in these ascending numbers."""
    for bucket in np.unique(numbers // ROWS_PER_BUCKET).tolist():
        ends = bucket * ROWS_PER_BUCKET, (bucket + 1) * ROWS_PER_BUCKET
        yield bucket, slice(*np.searchsorted(numbers, ends))


def _unordered_pairs(found: Matches) -> tuple[np.ndarray, np.ndarray]:
    """Returns the evaluation rows and n of matches, distinct per document, in any order."""
    num_rows, num_lengths = found.rows.max() + 1, found.lengths.max() + 1
    each = np.unique((found.documents * num_rows + found.rows) * num_lengths + found.lengths)
    rows, lengths = np.divmod(each % (num_rows * num_lengths), num_lengths)
    return rows, lengths


def _count_rows(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the ROW_COUNTS of evaluation rows and n, given once per document in any order."""
    num_lengths = lengths.max() + 1
    keys, documents = np.unique(rows * num_lengths + lengths, return_counts=True)
    counts = np.empty(len(keys), ROW_COUNTS)
    counts["number"], counts["n"] = np.divmod(keys, num_lengths)
    counts["documents"] = documents
    return counts


def count_shared(paths: Sequence[str], keep: Keep | None = None) -> np.ndarray:
    """Returns the SHARED_COUNTS of a work unit: counts by n-gram, over all evaluation rows."""
    return add_shared(_shared_of_blocks(paths, keep))


def _shared_of_blocks(paths: Sequence[str], keep: Keep | None) -> Iterator[np.ndarray]:
    for block in read_blocks(paths, keep, with_texts=False):
        counts = np.ones(len(block.ngrams), SHARED_COUNTS)
        counts["ngram"], counts["shard"] = block.ngrams, block.index_shards
        counts["occurrences"] = block.num_places
        yield counts


def add_shared(counts: Iterable[np.ndarray]) -> np.ndarray:
    """Returns the sum of SHARED_COUNTS, in any order."""
    total = Sum(SHARED_COUNTS, ("shard", "ngram"))
    for each in counts:
        total.add(each)
    return total.records()


def _by_row(counts: np.ndarray, postings: Postings, located: Located, bucket: int) -> np.ndarray:
    """Returns the NGRAM_COUNTS of a bucket of evaluation rows, from SHARED_COUNTS."""
    part, which = ngrams_of_rows(postings, located, bucket, NGRAM_COUNTS)
    for name in ("occurrences", "documents"):
        part[name] = counts[name][which]
    return part


def ngrams_of_rows(
    postings: Postings, located: Located, bucket: int, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
    """Returns records with the NGRAM_KEYS of n-grams in a bucket of rows, and their indices."""
    found = postings.expand(located, bucket * ROWS_PER_BUCKET, (bucket + 1) * ROWS_PER_BUCKET)
    part = np.empty(len(found.rows), dtype)
    part["number"], part["token"] = found.rows, found.tokens[found.bounds[:-1]]
    part["n"] = postings.lengths(located.ngrams[found.which])
    return part, found.which


class Sum:
    """A sum of records by key, with a memory of about three times the result.

    Parts are held until they have as many records as the sum, so that each is summed few times.
    """

    def __init__(self, dtype: np.dtype, keys: Sequence[str]):
        self._total, self._keys = np.empty(0, dtype), keys
        self._pending: list[np.ndarray] = []
        self._num_pending = 0

    def add(self, records: np.ndarray) -> None:
        """Adds some records, in any order."""
        self._pending.append(records)
        self._num_pending += len(records)
        if self._num_pending >= max(len(self._total), _MIN_PENDING):
            self.records()

    def records(self) -> np.ndarray:
        """Returns the sum so far, sorted by key."""
        self._total = _sum_by_key(np.concatenate([self._total, *self._pending]), self._keys)
        self._pending, self._num_pending = [], 0
        return self._total


def add_counts(counts: Iterable[BucketCounts]) -> BucketCounts:
    """Returns the sum of counts, in any order."""
    ngrams, rows = Sum(NGRAM_COUNTS, _NGRAM_KEYS), Sum(ROW_COUNTS, _ROW_KEYS)
    for each in counts:
        ngrams.add(each.ngrams)
        rows.add(each.rows)
    return BucketCounts(ngrams.records(), rows.records())


def add_sizes(sizes: Iterable[UnitSize]) -> UnitSize:
    """Returns the sum of sizes, without those of details."""
    totals = zip(UnitSize()[:3], *(size[:3] for size in sizes), strict=True)
    num_matches, num_places, num_pairs = map(sum, totals)
    return UnitSize(num_matches, num_places, num_pairs)


def _sum_by_key(counts: np.ndarray, names: Sequence[str]) -> np.ndarray:
    keys = [counts[name] for name in names]
    order = order_of(keys)
    first = first_of_each([key[order] for key in keys])
    total = counts[order[first]]
    for name in set(counts.dtype.names or ()) - set(names):
        if len(counts):
            total[name] = np.add.reduceat(counts[name][order], first)
    return total
