"""The index of the evaluation side: which n-grams it has, and where, in one memory-mapped file.

  keys      hash of each n-gram, once, sorted          bounds   where a key's places begin
  rows      of each place: the evaluation row, ascending within a key, `tokens` the number of its
            first token there, and `place_lengths` its n, since n-grams of two lengths may share a
            hash
  slots     open-addressed table: part of a hash → the key's number
  bloom     three bits a key, in one word: rejects almost every hash without a key
  filters   the same for windows, shorter n-grams within the n-grams: see Level

Hashes only filter: `matching` compares the texts. An index larger than memory is made as several
index shards, each with the keys of one range of hashes, and the training text is read once for
each.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.errors import ProbelineError
from beam_pipeline.kernels import kernel
from beam_pipeline.overlap.ngrams.token_kernels import (
    TokenBatch,
    empty_token,
    ngram_hash,
    power_of,
    token_batches,
)
from beam_pipeline.overlap.ngrams.tokenizers import (
    MULTILINGUAL,
    TOKENIZERS,
    Tokenizer,
    effective_lengths,
)
from beam_pipeline.storage.lines import explained_damage

Texts = tuple[np.ndarray, np.ndarray]  # UTF-8 of some texts, and where each begins, as in batches

NO_KEY = np.uint32(0xFFFF_FFFF)
BYTES_PER_PLACE = 96  # of memory while an index is made, about; half of it later
_FINGERPRINT = b"fingerprint"
# A row is in a script without spaces if MULTILINGUAL makes that many tokens of it, and so many
# times those of another tokenizer. With 0xE2, of quotation marks, no such character begins.
_MANY, _TIMES_AS_MANY = 16, 3
_UNSPACED_BYTES = np.array([0xE0, 0xE1, *range(0xE3, 0xF5)], np.uint8)
_FILTER_BITS = 16  # a hash, at least
_MIN_WINDOW_TOKENS = 4  # where the n-grams have as many: three are too common
_ONE, _BIT_NUMBERS = np.uint64(1), np.uint64(63)  # 63: a mask of the number of a bit
_SECOND_BIT, _THIRD_BIT, _WORD = np.uint64(6), np.uint64(12), np.uint64(32)  # shifts of a hash


class IndexShard(NamedTuple):
    """The part of the index in one of `total` equal ranges of hashes."""

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
    """How n-grams of some lengths are found: by windows of `width` tokens.

    Of any `stride` neighbouring windows one begins at a multiple of `stride`, and the first
    `stride` windows of an n-gram lie within it. So only the windows at multiples of `stride` are
    checked against the level's filter, which has the windows of the n-grams:

      tokens    0 1 2 3 4 5 6 7 8        n = 5, width = 4, stride = 2
      windows  [0 1 2 3]  [4 5 6 7]      the 5-gram from 1 on is found by the window at 2,
                  [2 3 4 5]              that from 2 on, too
    """

    first_length: int  # places in `lengths`
    stop_length: int
    width: int
    stride: int
    filter_start: int  # in words of `filters`
    filter_stop: int


@dataclass(frozen=True)
class Index:
    """The arrays of one index shard; `lengths` are the effective n in use."""

    keys: np.ndarray  # uint64 [m]
    bounds: np.ndarray  # int64 [m + 1]
    rows: np.ndarray  # uint32 [p]
    tokens: np.ndarray  # uint32 [p]
    place_lengths: np.ndarray  # uint32 [p]
    slots: np.ndarray  # uint32 [a power of two]
    bloom: np.ndarray  # uint64 [a power of two]
    filters: np.ndarray  # uint64 [a power of two for each level]
    level_numbers: np.ndarray  # int64 [6 for each level]
    lengths: np.ndarray  # int64 [l], ascending

    @property
    def levels(self) -> list[Level]:
        """The levels; together they have all lengths."""
        return [Level(*numbers) for numbers in self.level_numbers.reshape(-1, 6).tolist()]

    def places(self, key: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the evaluation rows that have an n-gram, and the numbers of its first tokens."""
        place = slice(self.bounds[key], self.bounds[key + 1])
        is_it = self.place_lengths[place] == n
        return self.rows[place][is_it], self.tokens[place][is_it]


class RowTokens(NamedTuple):
    """What determines how many n-grams the evaluation rows have."""

    counts: np.ndarray  # int64 [rows], tokens
    is_degenerate: np.ndarray  # bool [rows]: all tokens are empty, so that nearly anything matches


def count_tokens(texts: Sequence[Texts], tokenizer: Tokenizer) -> RowTokens:
    """Counts the tokens of each evaluation row."""
    num_rows = sum(len(bounds) - 1 for _, bounds in texts)
    counts, words = np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64)
    for first_row, batch in _rows_of(texts, tokenizer):
        firsts = batch.firsts
        here = slice(first_row, first_row + len(firsts) - 1)
        counts[here] += np.diff(firsts)
        words[here] += np.diff(np.append(0, np.cumsum(batch.hashes != empty_token()))[firsts])
    return RowTokens(counts, (counts > 0) & (words == 0))


def count_unspaced(texts: Sequence[Texts], counts: np.ndarray, tokenizer: Tokenizer) -> int:
    """Returns of how many rows MULTILINGUAL makes many more tokens than a built-in tokenizer.

    Args:
      counts: int64 [rows], the tokens of each row.
    """
    if tokenizer.characters or tokenizer.function is not None:
        return 0
    found = first_row = 0
    for utf8, bounds in texts:
        here = slice(first_row, first_row := first_row + len(bounds) - 1)
        if np.isin(utf8, _UNSPACED_BYTES).any():
            better = count_tokens([(utf8, bounds)], TOKENIZERS[MULTILINGUAL]).counts
            found += int(((better >= _MANY) & (better > _TIMES_AS_MANY * counts[here])).sum())
    return found


def _rows_of(texts: Sequence[Texts], tokenizer: Tokenizer) -> Iterator[tuple[int, TokenBatch]]:
    """Yields the number of the first row of each batch of `token_batches`, and the batch."""
    first_row = 0
    for utf8, bounds in texts:
        for batch in token_batches(utf8, bounds, tokenizer):
            yield first_row + batch.first, batch
        first_row += len(bounds) - 1


def count_places(num_tokens: Sequence[int] | np.ndarray, lengths: tuple[int, ...]) -> int:
    """Returns the total number of n-grams of texts with these numbers of tokens."""
    values, times = np.unique(np.asarray(num_tokens, np.int64), return_counts=True)
    return sum(
        (count - n + 1) * many
        for count, many in zip(values.tolist(), times.tolist(), strict=True)
        for n in effective_lengths(lengths, count)
    )


def count_index_shards(num_places: int, memory_bytes: int) -> int:
    """Returns the number of index shards, each of which fits in memory."""
    return max(1, math.ceil(num_places * BYTES_PER_PLACE / memory_bytes))


def build_index(
    texts: Sequence[Texts],
    lengths: tuple[int, ...],
    tokenizer: Tokenizer,
    shard: IndexShard = IndexShard(),  # noqa: B008
    skip_degenerate: bool = False,
    min_tokens: int = 0,
) -> Index:
    """Returns an index shard of the evaluation rows' n-grams.

    Args:
      texts: batches of the rows' texts; rows are numbered through.
      lengths: the configured n.
      shard: the range of hashes; by default all.
      skip_degenerate: leaves out rows whose tokens are all empty.
      min_tokens: leaves out rows of fewer tokens.
    """
    counts, is_degenerate = count_tokens(texts, tokenizer)
    if skip_degenerate:
        counts[is_degenerate] = 0
    counts[counts < min_tokens] = 0
    asked = np.array(sorted(set(lengths)), np.int64)
    used = {n for count in np.unique(counts).tolist() for n in effective_lengths(lengths, count)}
    in_use = np.array(sorted(used), np.int64)
    levels = _levels(in_use, int(asked[0]))
    powers = np.array([power_of(n) for n in in_use.tolist()], np.uint64)
    places: list[np.ndarray] = []
    windows: list[list[np.ndarray]] = [[] for _ in levels]
    for first_row, batch in _rows_of(texts, tokenizer):
        prefixes, firsts = batch.prefixes, batch.firsts
        found, starts = _places(
            prefixes, firsts, first_row, counts, asked, in_use, powers,
            np.uint64(shard.first_hash), np.uint64(shard.last_hash),
        )  # fmt: skip
        places.append(found)
        for level, kept in zip(levels, windows, strict=True):
            is_in_level = np.isin(found["n"], in_use[level.first_length : level.stop_length])
            width = level.width
            here = _windows(prefixes, starts[is_in_level], width, level.stride, power_of(width))
            kept.append(_distinct(here))
    joined = np.concatenate([np.empty(0, _PLACE), *places])
    places.clear()
    rows = joined["row"]
    if (rows[1:] < rows[:-1]).any():  # texts that Python lower-cases come behind those of a batch
        joined = joined[np.argsort(rows, kind="stable")]
    return _index_of(joined, levels, windows, in_use)


def _levels(in_use: np.ndarray, shortest: int) -> list[Level]:
    """Groups lengths: those asked for together, those of short rows by powers of two."""
    levels, stop = [], 0
    for _, group in groupby(in_use.tolist(), lambda n: n.bit_length() if n < shortest else 0):
        lengths = list(group)
        start, stop = stop, stop + len(lengths)
        width = max(min(lengths[0], _MIN_WINDOW_TOKENS), lengths[0] // 2 + 1)
        levels.append(Level(start, stop, width, lengths[0] - width + 1, 0, 0))
    return levels


_PLACE = np.dtype([("hash", "<u8"), ("row", "<u4"), ("token", "<u4"), ("n", "<u4")])


@kernel
def _places(prefixes, firsts, first_row, counts, asked, in_use, powers, low, high):
    """Returns the n-grams of some rows whose hashes are in a range, and where each begins."""
    room = 0
    for row in range(firsts.size - 1):
        room += (firsts[row + 1] - firsts[row]) * asked.size
    found, starts = np.empty(room, _PLACE), np.empty(room, np.int64)
    num_found = 0
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
            power = powers[np.searchsorted(in_use, n)]
            for token in range(count - n + 1):
                value = ngram_hash(prefixes, firsts[row] + token, n, power)
                if low <= value <= high:
                    place = found[num_found]
                    place.hash, place.row, place.token, place.n = value, first_row + row, token, n
                    starts[num_found] = firsts[row] + token
                    num_found += 1
    return found[:num_found].copy(), starts[:num_found]


@kernel
def _windows(prefixes, starts, width, stride, power):
    """Returns the hashes of the first `stride` windows of n-grams that begin at these tokens."""
    is_one = np.zeros(prefixes.size, np.bool_)
    for start in starts:
        is_one[start : start + stride] = True
    at = np.flatnonzero(is_one)
    hashes = np.empty(at.size, np.uint64)
    for window in range(at.size):
        hashes[window] = ngram_hash(prefixes, at[window], width, power)
    return hashes


def _index_of(
    places: np.ndarray, levels: list[Level], windows: list[list[np.ndarray]], in_use: np.ndarray
) -> Index:
    order = _order_of(places["hash"])
    ordered = places["hash"][order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    keys = ordered[starts]
    del ordered
    filters: list[np.ndarray] = [np.empty(0, np.uint64)]
    placed, start = [], 0
    for level, hashes in zip(levels, windows, strict=True):
        filters.append(_filter_of(_distinct(np.concatenate(hashes))))
        placed.append(level._replace(filter_start=start, filter_stop=start + len(filters[-1])))
        start += len(filters[-1])
    return Index(
        keys,
        np.append(starts, len(order)).astype(np.int64),
        places["row"][order],
        places["token"][order],
        places["n"][order],
        _make_slots(keys, _power_of_two(len(keys) * 1.6)),
        _filter_of(keys),
        np.concatenate(filters),
        np.array(placed, np.int64).reshape(-1),
        in_use,
    )


def _order_of(hashes: np.ndarray) -> np.ndarray:
    """Returns `np.argsort(hashes, kind="stable")` of up to 2**32 hashes, in a third of the time."""
    order = np.argsort(hashes)
    ordered = hashes[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)[: len(hashes)]  # of its equals
    tied = np.flatnonzero(~(is_last & np.roll(is_last, 1)))
    group = (np.cumsum(is_last) - is_last)[tied].astype(np.uint64)
    order[tied] = np.sort(group << _WORD | order[tied].astype(np.uint64)) & np.uint64(0xFFFF_FFFF)
    return order


def _distinct(hashes: np.ndarray) -> np.ndarray:
    """Returns each hash once, sorted; `np.unique` takes five times as long for this."""
    hashes = np.sort(hashes)
    return hashes[np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]]


def _power_of_two(at_least: float) -> int:
    return 1 << max(1, math.ceil(math.log2(max(1.0, at_least))))


@kernel
def _make_slots(keys, num_slots):
    slots = np.full(num_slots, NO_KEY, np.uint32)
    mask = np.uint64(num_slots - 1)
    for key in range(keys.size):
        slot = keys[key] & mask
        while slots[slot] != NO_KEY:
            slot = slot + _ONE & mask
        slots[slot] = np.uint32(key)
    return slots


def _filter_of(hashes: np.ndarray) -> np.ndarray:
    words = np.zeros(_power_of_two(len(hashes) * _FILTER_BITS / 64), np.uint64)
    _fill_filter(hashes, words)
    return words


@kernel
def _fill_filter(hashes, words):
    for value in hashes:
        words[value >> _WORD & np.uint64(words.size - 1)] |= filter_bits(value)


@kernel
def filter_bits(value):
    """Returns the bits of a hash in its word of a filter."""
    first = _ONE << (value & _BIT_NUMBERS)
    second = _ONE << (value >> _SECOND_BIT & _BIT_NUMBERS)
    return first | second | _ONE << (value >> _THIRD_BIT & _BIT_NUMBERS)


@kernel
def passes(value, words):
    """Tells whether a hash may be in a filter."""
    bits = filter_bits(value)
    return words[value >> _WORD & np.uint64(words.size - 1)] & bits == bits


# --- the file -----------------------------------------------------------------------------------


def write_index(index: Index, file: BinaryIO, fingerprint: str) -> None:
    """Writes an index as an Arrow file of one row, a list for each array."""
    arrays = {item.name: pa.array(getattr(index, item.name)) for item in fields(index)}
    lists = [pa.LargeListArray.from_arrays([0, len(array)], array) for array in arrays.values()]
    batch = pa.record_batch(lists, list(arrays)).replace_schema_metadata(
        {_FINGERPRINT: fingerprint}
    )
    with pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def open_index(path: str, fingerprint: str) -> Index:
    """Maps the file of an index into memory.

    Raises:
      ProbelineError: the file is not an index, is cut off, or was made of something else.
    """
    with explained_damage(f"the index {path}", "remove it and run again"):
        batch = pa.ipc.open_file(pa.memory_map(path)).get_batch(0)
    if (batch.schema.metadata or {}).get(_FINGERPRINT) != fingerprint.encode():
        raise ProbelineError(f"{path} was made of other inputs or options: remove it and run again")
    return Index(*(batch.column(item.name).values.to_numpy() for item in fields(Index)))
