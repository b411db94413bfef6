"""How often each n-gram of the evaluation side stands in the training data, and in which share.

  parts of a unit → unit_counts → NGRAM_COUNTS and ROW_COUNTS, sorted
                  → cut_by_bucket → bytes, grouped by bucket of evaluation rows
                  → add_counts → the sum over all units

An n-gram of an evaluation row counts once, however often it stands there. N-grams in more than
`k` documents may be taken for boilerplate: found by a first count, they are left out of a second
one (`Boilerplate.keep`), so that documents that have nothing else in common no longer count.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from beam_pipeline.kernels import kernel
from beam_pipeline.overlap.results.match_files import Keep, PartColumns, unit_columns
from beam_pipeline.storage.files import atomic_write, open_file

ROWS_PER_BUCKET = 1 << 13
# Keys are uint32, what is counted is int64. `start` and `crc` stand for the n-gram: PartColumns.
NGRAM_COUNTS = np.dtype(
    [
        ("number", "<u4"),
        ("n", "<u4"),
        ("start", "<u4"),
        ("crc", "<u4"),
        ("occurrences", "<i8"),
        ("documents", "<i8"),
    ]
)
ROW_COUNTS = np.dtype([("number", "<u4"), ("n", "<u4"), ("documents", "<i8")])
_MIN_PENDING = 1 << 16


class UnitCounts(NamedTuple):
    """What the parts of a unit have, each array sorted by its keys."""

    ngrams: np.ndarray  # NGRAM_COUNTS
    rows: np.ndarray  # ROW_COUNTS: documents with an n-gram of that length in common


def unit_counts(part_paths: Sequence[str], keep: Keep | None = None) -> UnitCounts:
    """Counts the matches of a unit, a few row groups at a time."""
    ngrams, rows = _Sum(NGRAM_COUNTS), _Sum(ROW_COUNTS)
    for columns in unit_columns(part_paths, keep):
        found = np.empty(len(columns.rows), NGRAM_COUNTS)
        found["number"], found["n"] = columns.numbers, columns.lengths
        found["start"], found["crc"] = columns.starts, columns.crcs
        found["occurrences"], found["documents"] = columns.occurrences, 1
        ngrams.add(found)
        rows.add(_documents_of(columns))
    return UnitCounts(ngrams.total(), rows.total())


def _documents_of(columns: PartColumns) -> np.ndarray:
    """Returns a ROW_COUNTS of 1 for each (document, evaluation row, n)."""
    keys = (columns.lengths, columns.numbers, columns.rows)
    order = np.lexsort(keys)
    first = np.flatnonzero(_differs([key[order] for key in keys]))
    found = np.empty(len(first), ROW_COUNTS)
    found["number"], found["n"] = columns.numbers[order][first], columns.lengths[order][first]
    found["documents"] = 1
    return found


def _differs(keys: Sequence[np.ndarray]) -> np.ndarray:
    """Tells for each place in sorted keys whether the key is another than the one before."""
    differs = np.zeros(len(keys[0]), bool)
    differs[:1] = True
    for key in keys:
        differs[1:] |= key[1:] != key[:-1]
    return differs


class _Sum:
    """Adds up arrays of counts; holds some three times what the sum has."""

    def __init__(self, dtype: np.dtype):
        self._total = np.empty(0, dtype)
        self._pending: list[np.ndarray] = []
        self._num_pending = 0

    def add(self, counts: np.ndarray) -> None:
        self._pending.append(counts)
        self._num_pending += len(counts)
        if self._num_pending >= max(len(self._total), _MIN_PENDING):
            self.total()

    def total(self) -> np.ndarray:
        self._total = _summed(np.concatenate([self._total, *self._pending]))
        self._pending, self._num_pending = [], 0
        return self._total


def _summed(counts: np.ndarray) -> np.ndarray:
    """Returns one entry for each key, in the order of the keys."""
    if len(counts) == 0:
        return counts
    names = counts.dtype.names or ()
    keys = [
        _joined(counts[names[at]], counts[names[at + 1]]) for at in range(0, _num_keys(counts), 2)
    ]
    order = np.lexsort(keys[::-1])
    first = np.flatnonzero(_differs([key[order] for key in keys]))
    total = counts[order[first]]
    for name in names[_num_keys(counts) :]:
        total[name] = np.add.reduceat(counts[name][order], first)
    return total


def _num_keys(counts: np.ndarray) -> int:
    return 4 if counts.dtype == NGRAM_COUNTS else 2


def _joined(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Returns two uint32 as one uint64, which sorts in the same way."""
    return high.astype(np.uint64) << np.uint64(32) | low


# --- between units and evaluation rows ----------------------------------------------------------


def cut_by_bucket(counts: np.ndarray) -> Iterator[tuple[int, bytes]]:
    """Yields the counts of each bucket of evaluation rows that has any, with its number."""
    buckets = counts["number"] // ROWS_PER_BUCKET
    starts = np.flatnonzero(_differs([buckets]))
    for start, stop in pairwise([*starts.tolist(), len(counts)]):
        yield int(buckets[start]), counts[start:stop].tobytes()


def add_counts(parts: Iterable[bytes], dtype: np.dtype) -> np.ndarray:
    """Returns the sum of what `cut_by_bucket` gave for one bucket, in any order."""
    total = _Sum(dtype)
    for part in parts:
        total.add(np.frombuffer(part, dtype))
    return total.total()


def count_pairs(part_paths: Sequence[str], keep: Keep | None, most: int | None) -> tuple[int, int]:
    """Returns how many matches a unit has, and how many with no more than `most` of a pair.

    A pair is a document and an evaluation row.
    """
    num_matches = num_kept = 0
    for columns in unit_columns(part_paths, keep):
        keys = (columns.numbers, columns.rows)
        order = np.lexsort(keys)
        first = np.flatnonzero(_differs([key[order] for key in keys]))
        sizes = np.diff(np.append(first, len(order)))
        num_matches += len(order)
        num_kept += int((sizes if most is None else np.minimum(sizes, most)).sum())
    return num_matches, num_kept


# --- boilerplate --------------------------------------------------------------------------------


def boilerplate_of(counts: np.ndarray, max_document_frequency: int) -> np.ndarray:
    """Returns those NGRAM_COUNTS that are of more documents than that."""
    return counts[counts["documents"] > max_document_frequency]


def write_boilerplate(path: str, temp_folder: str, counts: Iterable[np.ndarray]) -> None:
    """Writes which n-grams are boilerplate, given bucket by bucket, for `Boilerplate.open`."""
    with atomic_write(path, temp_folder) as stream:
        for part in counts:
            keys = np.empty((len(part), 2), "<u8")
            keys[:, 0] = _joined(part["number"], part["n"])
            keys[:, 1] = _joined(part["start"], part["crc"])
            stream.write(keys.tobytes())


class Boilerplate:
    """The n-grams of evaluation rows that do not count."""

    def __init__(self, keys: np.ndarray):
        self._keys = keys  # uint64 [b, 2], sorted

    @staticmethod
    def open(path: str) -> "Boilerplate":
        """Reads the file that `write_boilerplate` made."""
        with open_file(path) as stream:
            return Boilerplate(np.frombuffer(stream.read(), "<u8").reshape(-1, 2))

    def keep(self, columns: PartColumns) -> np.ndarray:
        """Tells which matches are of other n-grams, bool."""
        return ~_are_among(
            _joined(columns.numbers, columns.lengths),
            _joined(columns.starts, columns.crcs),
            self._keys,
        )


@kernel
def _are_among(firsts, seconds, keys):
    """Tells which pairs are in a sorted list of pairs."""
    found = np.zeros(firsts.size, np.bool_)
    for at in range(firsts.size):
        low, high = 0, keys.shape[0]
        while low < high:
            middle = (low + high) // 2
            first, second = keys[middle, 0], keys[middle, 1]
            if first < firsts[at] or (first == firsts[at] and second < seconds[at]):
                low = middle + 1
            else:
                high = middle
        if low < keys.shape[0]:
            found[at] = keys[low, 0] == firsts[at] and keys[low, 1] == seconds[at]
    return found
