"""The index of the evaluation rows' n-grams and their places, in one memory-mapped file.

  keys       the distinct hashes of n-grams, sorted     bounds   where each key's places begin
  rows       the evaluation row of each place, ascending within a key; `tokens` is the index of
             its first token there, `place_lengths` its n, since two lengths may share a hash
  directory  of keys: hashes spread evenly, so few keys share their leading bits
  bloom      three bits per key, in one word: rejects almost every hash without a key
  filters    the same for windows, shorter n-grams within the n-grams: see Level

Hashes only filter: `matching` compares the texts. An index larger than memory is built as several
index shards by ranges of hashes, and the training text is read once per shard.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.errors import ProbelineError
from beam_pipeline.kernels import kernel, subkernel
from beam_pipeline.overlap.ngrams.arrays import Column, map_file
from beam_pipeline.overlap.ngrams.token_batches import Texts, count_places, count_tokens, rows_of
from beam_pipeline.overlap.ngrams.token_kernels import ngram_hash, power_of
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer, effective_lengths
from beam_pipeline.storage.lines import explained_damage

BYTES_PER_PLACE = 48  # max memory while an index is built
INDEX_BYTES_PER_PLACE = 30  # approximate size of a finished index
FORMAT = "directory"  # changes with the arrays of an index
_FINGERPRINT = b"fingerprint"
_FILTER_BITS = 16  # min per hash
_KEYS_PER_BUCKET = 4  # of the directory: max average
_MIN_WINDOW_TOKENS = 4  # for n-grams of that length; three tokens are too common
_ONE, _BIT_NUMBERS = np.uint64(1), np.uint64(63)  # 63 masks a bit number
_SECOND_BIT, _THIRD_BIT, _WORD = np.uint64(6), np.uint64(12), np.uint64(32)  # shifts of a hash


class IndexShard(NamedTuple):
    """The part of the index with one of `total` equal ranges of hashes."""

    number: int = 0
    total: int = 1

    @property
    def first_hash(self) -> int:
        """The lowest hash of the range."""
        return -((-self.number << 64) // self.total)

    @property
    def last_hash(self) -> int:
        """The highest hash of the range."""
        return IndexShard(self.number + 1, self.total).first_hash - 1


class Level(NamedTuple):
    """A group of lengths whose n-grams are found by windows of `width` tokens.

    One of any `stride` consecutive windows begins at a multiple of `stride`, and the first `stride`
    windows of an n-gram lie within it. So only windows at multiples of `stride` are checked against
    the level's filter, which holds the windows of the n-grams:

      tokens    0 1 2 3 4 5 6 7 8        n = 5, width = 4, stride = 2
      windows  [0 1 2 3]  [4 5 6 7]      the 5-grams at 1 and at 2 are found by the
                  [2 3 4 5]              window at 2
    """

    first_length: int  # indices into `lengths`
    stop_length: int
    width: int
    stride: int
    filter_start: int  # in words of `filters`
    filter_stop: int


@dataclass(frozen=True)
class Index:
    """The arrays of one index shard; `lengths` are the effective n in use."""

    keys: np.ndarray  # uint64 [m]
    bounds: np.ndarray  # uint32 [m + 1]
    rows: np.ndarray  # uint32 [p]
    tokens: np.ndarray  # uint32 [p]
    place_lengths: np.ndarray  # unsigned [p], the smallest type for the longest n
    directory: np.ndarray  # uint32 [a power of two, + 1], the first key of each bucket
    bloom: np.ndarray  # uint64 [a power of two]
    filters: np.ndarray  # uint64 [a power of two for each level]
    level_numbers: np.ndarray  # int64 [6 for each level]
    lengths: np.ndarray  # int64 [l], ascending

    @property
    def bucket_shift(self) -> np.uint64:
        """The shift from a hash's distance to the first key to its bucket."""
        return _bucket_shift(self.keys, len(self.directory) - 1)

    @property
    def levels(self) -> list[Level]:
        """The levels, which together cover all lengths."""
        return [Level(*numbers) for numbers in self.level_numbers.reshape(-1, 6).tolist()]


def count_index_shards(num_places: int, memory_bytes: int) -> int:
    """Returns the number of index shards such that each fits in memory."""
    return max(1, math.ceil(num_places * BYTES_PER_PLACE / memory_bytes))


def build_index(
    texts: Sequence[Texts],
    lengths: tuple[int, ...],
    tokenizer: Tokenizer,
    shard: IndexShard = IndexShard(),  # noqa: B008
    skip_degenerate: bool = False,  # skips rows with only empty tokens
    min_tokens: int = 0,
) -> Index:
    """Returns an index shard of the n-grams of evaluation rows, given batches of their texts."""
    counts, is_degenerate = count_tokens(texts, tokenizer)
    if skip_degenerate:
        counts[is_degenerate] = 0
    counts[counts < min_tokens] = 0
    asked = np.array(sorted(set(lengths)), np.int64)
    used = {n for count in np.unique(counts).tolist() for n in effective_lengths(lengths, count)}
    in_use = np.array(sorted(used), np.int64)
    levels = _levels(in_use, int(asked[0]))
    powers = np.array([power_of(n) for n in in_use.tolist()], np.uint64)
    room = count_places(counts, lengths) // shard.total * 9 // 8  # usually enough; columns grow
    kinds = np.uint64, np.uint32, np.uint32, np.min_scalar_type(int(in_use.max(initial=0)))
    places = [Column(kind, room) for kind in kinds]
    most = int(counts.sum())
    windows = [Column(np.uint64, min(most, room * level.stride)) for level in levels]
    for first_row, batch in rows_of(texts, tokenizer):
        prefixes, firsts = batch.prefixes, batch.firsts
        *found, starts = _places(
            prefixes, firsts, first_row, counts, asked, in_use, powers,
            np.uint64(shard.first_hash), np.uint64(shard.last_hash),
        )  # fmt: skip
        for level, kept in zip(levels, windows, strict=True):
            is_in_level = np.isin(found[3], in_use[level.first_length : level.stop_length])
            width = level.width
            here = _windows(prefixes, starts[is_in_level], width, level.stride, power_of(width))
            kept.add(distinct(here))
        for column, values in zip(places, found, strict=True):
            column.add(values)
    return _index_of(places, levels, windows, in_use)


def _levels(in_use: np.ndarray, shortest: int) -> list[Level]:
    """Groups lengths: the configured ones together, those of short rows by powers of two."""
    levels, stop = [], 0
    for _, group in groupby(in_use.tolist(), lambda n: n.bit_length() if n < shortest else 0):
        lengths = list(group)
        start, stop = stop, stop + len(lengths)
        width = max(min(lengths[0], _MIN_WINDOW_TOKENS), lengths[0] // 2 + 1)
        levels.append(Level(start, stop, width, lengths[0] - width + 1, 0, 0))
    return levels


@kernel
def _places(prefixes, firsts, first_row, counts, asked, in_use, powers, low, high):
    """Returns the n-grams of rows with hashes in a range: hashes and places in columns."""
    room = 0
    for row in range(firsts.size - 1):
        room += (firsts[row + 1] - firsts[row]) * asked.size
    hashes, starts = np.empty(room, np.uint64), np.empty(room, np.int64)
    rows, tokens = np.empty(room, np.uint32), np.empty(room, np.uint32)
    lengths = np.empty(room, np.uint32)
    size = 0
    for row in range(firsts.size - 1):
        count = firsts[row + 1] - firsts[row]
        if count == 0 or counts[first_row + row] == 0:
            continue
        last_n = 0
        for length in asked:
            n = min(length, count)
            if n == last_n:
                continue
            last_n = n
            used = 0
            while in_use[used] < n:
                used += 1
            power = powers[used]
            for token in range(count - n + 1):
                value = ngram_hash(prefixes, firsts[row] + token, n, power)
                if low <= value <= high:
                    hashes[size], starts[size] = value, firsts[row] + token
                    rows[size], tokens[size], lengths[size] = first_row + row, token, n
                    size += 1
    # `tokens` are counted in the row, `starts` in the batch.
    return hashes[:size], rows[:size], tokens[:size], lengths[:size], starts[:size]


@kernel
def _windows(prefixes, starts, width, stride, power):
    """Returns the hashes of the first `stride` windows of n-grams that begin at these tokens."""
    is_one = np.zeros(prefixes.size, np.bool_)
    for start in starts:
        is_one[start : start + stride] = True
    hashes, size = np.empty(prefixes.size, np.uint64), 0
    for at in range(prefixes.size):
        if is_one[at]:
            hashes[size] = ngram_hash(prefixes, at, width, power)
            size += 1
    return hashes[:size]


def _index_of(
    places: Sequence[Column], levels: list[Level], windows: list[Column], in_use: np.ndarray
) -> Index:
    """Returns the index of hashes, rows, first tokens and lengths."""
    filters: list[np.ndarray] = [np.empty(0, np.uint64)]
    placed, start = [], 0
    for level, of_level in zip(levels, windows, strict=True):
        filters.append(_filter_of(distinct(of_level.taken())))
        placed.append(level._replace(filter_start=start, filter_stop=start + len(filters[-1])))
        start += len(filters[-1])
    hashes, *columns = places
    ordered, rows = hashes.taken(), columns[0].taken()
    order = _order_of_places(rows, ordered)
    ordered = ordered[order]
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    keys = ordered[is_first]
    del ordered
    bounds = np.empty(len(keys) + 1, np.uint32)
    bounds[:-1], bounds[-1] = np.flatnonzero(is_first), len(order)
    tokens, place_lengths = (column.taken()[order] for column in columns[1:])
    return Index(
        keys,
        bounds,
        rows[order],
        tokens,
        place_lengths,
        _make_directory(keys),
        _filter_of(keys),
        np.concatenate(filters),
        np.array(placed, np.int64).reshape(-1),
        in_use,
    )


def _order_of_places(rows: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Returns the order of places by hash, then by row; stable."""
    if (rows[1:] >= rows[:-1]).all():
        return _order_of(hashes)
    # Within a batch, texts lower-cased in Python come last.
    by_row = np.argsort(rows, kind="stable")
    return by_row[_order_of(hashes[by_row])]


def _order_of(hashes: np.ndarray) -> np.ndarray:
    """Returns `np.argsort(hashes, kind="stable")` for up to 2**32 hashes, three times as fast."""
    order = np.argsort(hashes)
    ordered = hashes[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)[: len(hashes)]  # of equal hashes
    tied = np.flatnonzero(~(is_last & np.roll(is_last, 1)))
    group = (np.cumsum(is_last[tied]) - is_last[tied]).astype(np.uint64)
    order[tied] = np.sort(group << _WORD | order[tied].astype(np.uint64)) & np.uint64(0xFFFF_FFFF)
    return order


def distinct(hashes: np.ndarray) -> np.ndarray:
    """Returns the distinct hashes, sorting in place; five times as fast as `np.unique`."""
    hashes.sort()
    return hashes[np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]]


def _power_of_two(at_least: float) -> int:
    return 1 << max(1, math.ceil(math.log2(max(1.0, at_least))))


def _bucket_shift(keys: np.ndarray, num_buckets: int) -> np.uint64:
    span = int(keys[-1] - keys[0]) if len(keys) else 0
    return np.uint64(max(0, span.bit_length() - num_buckets.bit_length() + 1))


def _make_directory(keys: np.ndarray) -> np.ndarray:
    num_buckets = _power_of_two(len(keys) / _KEYS_PER_BUCKET)
    directory = np.empty(num_buckets + 1, np.uint32)
    _fill_directory(keys, _bucket_shift(keys, num_buckets), directory)
    return directory


@kernel
def _fill_directory(keys, shift, directory):
    bucket = 0
    for key in range(keys.size):
        while np.uint64(bucket) <= keys[key] - keys[0] >> shift:
            directory[bucket] = key
            bucket += 1
    directory[bucket:] = keys.size


def _filter_of(hashes: np.ndarray) -> np.ndarray:
    words = np.zeros(_power_of_two(len(hashes) * _FILTER_BITS / 64), np.uint64)
    _fill_filter(hashes, words)
    return words


@kernel
def _fill_filter(hashes, words):
    for value in hashes:
        words[value >> _WORD & np.uint64(words.size - 1)] |= filter_bits(value)


@subkernel
def filter_bits(value):
    """Returns the bits of a hash in its word of a filter."""
    first = _ONE << (value & _BIT_NUMBERS)
    second = _ONE << (value >> _SECOND_BIT & _BIT_NUMBERS)
    return first | second | _ONE << (value >> _THIRD_BIT & _BIT_NUMBERS)


@kernel
def passes(value, words):
    """Returns whether a hash may be in a filter."""
    bits = filter_bits(value)
    return words[value >> _WORD & np.uint64(words.size - 1)] & bits == bits


# --- the file -----------------------------------------------------------------------------------


def write_index(index: Index, file: BinaryIO, fingerprint: str) -> None:
    """Writes an index as an Arrow file of one row, with a list per array."""
    arrays = {item.name: pa.array(getattr(index, item.name)) for item in fields(index)}
    lists = [pa.LargeListArray.from_arrays([0, len(array)], array) for array in arrays.values()]
    batch = pa.record_batch(lists, list(arrays)).replace_schema_metadata(
        {_FINGERPRINT: fingerprint}
    )
    with pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def open_index(path: str, fingerprint: str) -> Index:
    """Maps an index file into memory.

    Raises ProbelineError if it is not an index, is truncated, or was made from other inputs.
    """
    with explained_damage(f"the index {path}", "remove it and run again"):
        batch = pa.ipc.open_file(map_file(path)).get_batch(0)
    if (batch.schema.metadata or {}).get(_FINGERPRINT) != fingerprint.encode():
        raise ProbelineError(
            f"{path} was made from other inputs or options; remove it and run again"
        )
    return Index(*(batch.column(item.name).values.to_numpy() for item in fields(Index)))
