"""How often each n-gram of the evaluation side occurs in the training data, and in which share.

  match files of a work unit → count_unit     → Counts of it
                             → cut_by_bucket  → Counts, grouped by bucket of evaluation rows
                             → add_counts     → the sum over all work units

An n-gram of an evaluation row counts once, however often it occurs there. N-grams in more than k
documents may be taken for boilerplate: a first count finds them, a second one leaves them out
(`read_boilerplate`), so that documents that have nothing else in common no longer count.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from beam_pipeline.overlap.results.match_files import Keep, MatchColumns, read_columns
from beam_pipeline.storage.files import atomic_write, open_file

ROWS_PER_BUCKET = 1 << 13
# Keys are uint32, counts int64. `start` and `crc` identify the n-gram: see MatchColumns.
_NGRAM_KEYS, _ROW_KEYS = ("number", "n", "start", "crc"), ("number", "n")
NGRAM_KEYS = np.dtype([(name, "<u4") for name in _NGRAM_KEYS])
NGRAM_COUNTS = np.dtype([*NGRAM_KEYS.descr, ("occurrences", "<i8"), ("documents", "<i8")])
ROW_COUNTS = np.dtype([*((name, "<u4") for name in _ROW_KEYS), ("documents", "<i8")])
_KEY = np.dtype("S16")  # the four keys of an n-gram; any order will do
_MIN_PENDING = 1 << 16


class Counts(NamedTuple):
    """The counts of some evaluation rows, each array sorted by its keys."""

    ngrams: np.ndarray  # NGRAM_COUNTS
    rows: np.ndarray  # ROW_COUNTS: documents with an n-gram of that length in common


def count_unit(paths: Sequence[str], keep: Keep | None = None) -> Counts:
    """Counts the matches in the match files of a work unit, a few row groups at a time."""
    return add_counts(map(_count_columns, read_columns(paths, keep)))


def _count_columns(columns: MatchColumns) -> Counts:
    ngrams = np.empty(len(columns.rows), NGRAM_COUNTS)
    ngrams["number"], ngrams["n"] = columns.numbers, columns.lengths
    ngrams["start"], ngrams["crc"] = columns.starts, columns.crcs
    ngrams["occurrences"], ngrams["documents"] = columns.occurrences, 1
    # A ROW_COUNTS of 1 for each document, evaluation row and n.
    keys = (columns.lengths, columns.numbers, columns.rows)
    order = np.lexsort(keys)
    first = order[_first_of_each([key[order] for key in keys])]
    rows = np.empty(len(first), ROW_COUNTS)
    rows["number"], rows["n"] = columns.numbers[first], columns.lengths[first]
    rows["documents"] = 1
    return Counts(ngrams, rows)


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
    # Two uint32 sort as one uint64.
    pairs = zip(names[::2], names[1::2], strict=True)
    keys = [counts[one].astype(np.uint64) << np.uint64(32) | counts[two] for one, two in pairs]
    order = np.lexsort(keys[::-1])
    first = _first_of_each([key[order] for key in keys])
    total = counts[order[first]]
    for name in set(counts.dtype.names or ()) - set(names):
        if len(counts):
            total[name] = np.add.reduceat(counts[name][order], first)
    return total


def cut_by_bucket(counts: Counts) -> Iterator[tuple[int, Counts]]:
    """Yields the counts of each bucket of evaluation rows that has any, with its number."""
    for bucket in np.unique(counts.rows["number"] // ROWS_PER_BUCKET).tolist():
        ends = bucket * ROWS_PER_BUCKET, (bucket + 1) * ROWS_PER_BUCKET
        ngrams, rows = (array[slice(*np.searchsorted(array["number"], ends))] for array in counts)
        yield bucket, Counts(ngrams, rows)


# --- boilerplate --------------------------------------------------------------------------------


def find_boilerplate(counts: Counts, max_document_frequency: int) -> np.ndarray:
    """Returns the NGRAM_COUNTS of n-grams that are in more documents than that."""
    return counts.ngrams[counts.ngrams["documents"] > max_document_frequency]


def write_boilerplate(path: str, temp_folder: str, boilerplate: Iterable[np.ndarray]) -> None:
    """Writes the keys of NGRAM_COUNTS, given bucket by bucket, for `read_boilerplate`."""
    with atomic_write(path, temp_folder) as stream:
        for counts in boilerplate:
            stream.write(_pack_keys([counts[name] for name in _NGRAM_KEYS]))


@functools.lru_cache(1)
def _boilerplate_keys(path: str) -> np.ndarray:
    with open_file(path) as stream:
        return np.sort(np.frombuffer(stream.read(), _KEY))


def boilerplate_of(path: str, bucket: int) -> np.ndarray:
    """Returns the NGRAM_KEYS of a bucket, sorted, from a file of `write_boilerplate`."""
    keys = _boilerplate_keys(path).view(NGRAM_KEYS)
    return np.sort(keys[keys["number"] // ROWS_PER_BUCKET == bucket])


def read_boilerplate(path: str) -> Keep:
    """Returns what tells which matches are not boilerplate, from a file of `write_boilerplate`."""
    boilerplate = _boilerplate_keys(path)

    def keep(columns: MatchColumns) -> np.ndarray:
        if not len(boilerplate):
            return np.ones(len(columns.rows), bool)
        keys = [columns.numbers, columns.lengths, columns.starts, columns.crcs]
        packed = np.frombuffer(_pack_keys(keys), _KEY)
        at = np.searchsorted(boilerplate, packed)
        return boilerplate[np.minimum(at, len(boilerplate) - 1)] != packed

    return keep


def _pack_keys(keys: list[np.ndarray]) -> bytes:
    return np.column_stack(keys).astype("<u4").tobytes()
