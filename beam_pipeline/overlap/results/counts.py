"""How often each n-gram of the evaluation side occurs in the training data, and in which share.

  match files of a work unit → count_unit → PackedCounts of it by bucket of evaluation rows
                             → add_counts → the sum over all work units

An n-gram of an evaluation row counts once, however often it occurs there. A work unit counts its
n-grams first and looks up the evaluation rows of each last, so rows that share one cost nothing
before that.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.overlap.ngrams.postings import Located, Postings
from beam_pipeline.overlap.results.match_files import Keep, read_blocks
from beam_pipeline.overlap.results.matches import Matches, expand_block

ROWS_PER_BUCKET = 1 << 13
# Keys are uint32, counts int64. An n-gram of a row is known by its first token there.
_NGRAM_KEYS, _ROW_KEYS = ("number", "n", "token"), ("number", "n")
NGRAM_KEYS = np.dtype([(name, "<u4") for name in _NGRAM_KEYS])
NGRAM_COUNTS = np.dtype([*NGRAM_KEYS.descr, ("occurrences", "<i8"), ("documents", "<i8")])
ROW_COUNTS = np.dtype([*((name, "<u4") for name in _ROW_KEYS), ("documents", "<i8")])
SHARED_COUNTS = np.dtype(
    [("ngram", "<i8"), ("shard", "<u4"), ("occurrences", "<i8"), ("documents", "<i8")]
)
_MIN_PENDING = 1 << 16
_NUM_BYTES = 8  # of the number of records


class Counts(NamedTuple):
    """The counts of some evaluation rows, each array sorted by its keys."""

    ngrams: np.ndarray  # NGRAM_COUNTS
    rows: np.ndarray  # ROW_COUNTS: documents with an n-gram of that length in common


class PackedCounts(NamedTuple):
    """Counts as they travel from step to step: a few bytes for each n-gram."""

    ngrams: bytes
    rows: bytes

    @classmethod
    def of(cls, counts: Counts) -> "PackedCounts":
        """Packs counts."""
        return cls(*map(pack, counts))

    def counts(self) -> Counts:
        """Inverts `of`."""
        return Counts(unpack(self.ngrams, NGRAM_COUNTS), unpack(self.rows, ROW_COUNTS))


def pack(records: np.ndarray) -> bytes:
    """Returns records of integers, best in order: their number, then columns of differences."""
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


def count_unit(
    paths: Sequence[str], postings: Sequence[Postings], keep: Keep | None = None
) -> Iterator[tuple[int, PackedCounts]]:
    """Yields the counts of a work unit by bucket of evaluation rows, in bounded memory.

    Args:
      postings: of each index shard.
    """
    rows = add_counts(
        Counts(np.empty(0, NGRAM_COUNTS), _count_rows(found))
        for block in read_blocks(paths, keep, with_texts=False)
        for found in expand_block(block, postings, in_order=False)
    ).rows
    shared = count_shared(paths, keep)
    of_shards: list[tuple[np.ndarray, Postings, Located]] = []
    for shard in np.unique(shared["shard"]).tolist():
        counts = shared[shared["shard"] == shard]
        of_shards.append((counts, postings[shard], postings[shard].locate(counts["ngram"])))
    for bucket in np.unique(rows["number"] // ROWS_PER_BUCKET).tolist():
        ends = bucket * ROWS_PER_BUCKET, (bucket + 1) * ROWS_PER_BUCKET
        ngrams = [_by_row(*each, bucket) for each in of_shards]
        here = slice(*np.searchsorted(rows["number"], ends))
        counts = Counts(_sum_by_key(np.concatenate(ngrams), _NGRAM_KEYS), rows[here])
        yield bucket, PackedCounts.of(counts)


def _count_rows(found: Matches) -> np.ndarray:
    """Returns the ROW_COUNTS of some matches, in any order."""
    # One number for each document, evaluation row and n.
    num_rows, num_lengths = found.rows.max() + 1, found.lengths.max() + 1
    each = np.unique((found.documents * num_rows + found.rows) * num_lengths + found.lengths)
    keys, documents = np.unique(each % (num_rows * num_lengths), return_counts=True)
    counts = np.empty(len(keys), ROW_COUNTS)
    counts["number"], counts["n"] = np.divmod(keys, num_lengths)
    counts["documents"] = documents
    return counts


def count_shared(paths: Sequence[str], keep: Keep | None = None) -> np.ndarray:
    """Returns the SHARED_COUNTS of a work unit: of each n-gram, whatever rows have it."""
    total, pending = np.empty(0, SHARED_COUNTS), []
    for block in read_blocks(paths, keep, with_texts=False):
        counts = np.ones(len(block.ngrams), SHARED_COUNTS)
        counts["ngram"], counts["shard"] = block.ngrams, block.index_shards
        counts["occurrences"] = np.diff(block.bounds)
        pending.append(counts)
        if sum(map(len, pending)) > max(len(total), _MIN_PENDING):
            total, pending = add_shared([total, *pending]), []
    return add_shared([total, *pending])


def add_shared(counts: Iterable[np.ndarray]) -> np.ndarray:
    """Returns the sum of SHARED_COUNTS, in any order."""
    return _sum_by_key(np.concatenate([np.empty(0, SHARED_COUNTS), *counts]), ("shard", "ngram"))


def _by_row(counts: np.ndarray, postings: Postings, located: Located, bucket: int) -> np.ndarray:
    """Returns the NGRAM_COUNTS of a bucket of evaluation rows, from SHARED_COUNTS."""
    found = postings.expand(located, bucket * ROWS_PER_BUCKET, (bucket + 1) * ROWS_PER_BUCKET)
    part = np.empty(len(found.rows), NGRAM_COUNTS)
    part["number"], part["token"] = found.rows, found.tokens[found.bounds[:-1]]
    part["n"] = postings.lengths(located.ngrams[found.which])
    for name in ("occurrences", "documents"):
        part[name] = counts[name][found.which]
    return part


def _first_of_each(keys: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the places in sorted keys at which a key differs from the one before."""
    differs = np.zeros(len(keys[0]), bool)
    differs[:1] = True
    for key in keys:
        differs[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(differs)


def add_counts(counts: Iterable[Counts]) -> Counts:
    """Returns the sum of counts, in any order; holds some three times what the sum has."""
    total = Counts(np.empty(0, NGRAM_COUNTS), np.empty(0, ROW_COUNTS))
    pending, num_pending = [], 0
    for each in counts:
        pending.append(each)
        num_pending += len(each.ngrams) + len(each.rows)
        if num_pending >= max(len(total.ngrams) + len(total.rows), _MIN_PENDING):
            total, pending, num_pending = _add([total, *pending]), [], 0
    return _add([total, *pending])


def _add(counts: Sequence[Counts]) -> Counts:
    ngrams, rows = map(np.concatenate, zip(*counts, strict=True))
    return Counts(_sum_by_key(ngrams, _NGRAM_KEYS), _sum_by_key(rows, _ROW_KEYS))


def _sum_by_key(counts: np.ndarray, names: Sequence[str]) -> np.ndarray:
    keys = [counts[name] for name in names]
    order = np.lexsort(keys[::-1])
    first = _first_of_each([key[order] for key in keys])
    total = counts[order[first]]
    for name in set(counts.dtype.names or ()) - set(names):
        if len(counts):
            total[name] = np.add.reduceat(counts[name][order], first)
    return total
