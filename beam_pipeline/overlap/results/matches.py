"""Expands shared n-grams to matches: an n-gram of a document and an evaluation row that has it.

  Block → Matches in pieces, in the order of (document, evaluation row, n, first place)

A template in thousands of evaluation rows, or repeated thousands of times in a document, makes
millions of matches and places of a small block. So blocks are cut by the number of both, and the
matches of one document are cut between evaluation rows.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from beam_pipeline.overlap.ngrams.postings import Located, Postings
from beam_pipeline.overlap.ngrams.token_texts import TokenTexts, ngrams_of
from beam_pipeline.overlap.results.match_files import Block, Keep, read_blocks
from beam_pipeline.overlap.results.output_files import place_lists

_PLACES_AT_A_TIME = 1 << 18  # on both sides, for each match
_TOKENS_PER_PLACE = 8  # tokens of n-gram text that take the memory of a place
_WORD_BITS = 64
_MAX_RANGE_PER_VALUE = 8  # for a lookup table over the range of values


class Matches(NamedTuple):
    """Some matches of a block, with all those of any document and evaluation row in it.

    Sorted by document, evaluation row, n, the places there and n-gram.
    """

    shared: np.ndarray  # int64 [m], index of the n-gram in the block
    documents: np.ndarray  # int64 [m], index in the block
    rows: np.ndarray  # int64 [m], evaluation rows
    lengths: np.ndarray  # int64 [m], n
    bounds: np.ndarray  # int64 [m + 1], of the places in `tokens`
    tokens: np.ndarray  # int64, first tokens of the places, as indices in the evaluation row


class BlockMatches(NamedTuple):
    """Some matches of a block, and their n-grams."""

    block: Block
    matches: Matches
    texts: TokenTexts  # the tokens of all evaluation rows
    shared: np.ndarray  # int64 [u], distinct n-grams of the matches, as indices in the block
    of_match: np.ndarray  # int64 [m], index of each match's n-gram in `shared`

    def eval_places(self) -> pa.ListArray:
        """Returns the PLACES of the m matches in evaluation rows."""
        found, texts = self.matches, self.texts
        sizes = np.diff(found.bounds)
        at = np.repeat(texts.firsts[found.rows], sizes) + found.tokens
        ends = texts.ends[at + np.repeat(found.lengths, sizes) - 1]
        return place_lists(found.bounds, texts.starts[at], ends)

    def train_places(self) -> pa.ListArray:
        """Returns the PLACES of the u n-grams in their documents."""
        assert self.block.places is not None
        return self.block.places.take(pa.array(self.shared))

    def lengths(self) -> np.ndarray:
        """Returns the n of the u n-grams."""
        lengths = np.empty(len(self.shared), np.int64)
        lengths[self.of_match] = self.matches.lengths
        return lengths

    def ngrams(self) -> pa.LargeBinaryArray:
        """Returns the u n-grams as UTF-8, taken from evaluation rows."""
        found = self.matches
        first = np.empty(len(self.shared), np.int64)
        first[self.of_match] = self.texts.firsts[found.rows] + found.tokens[found.bounds[:-1]]
        return ngrams_of(self.texts, first, self.lengths())

    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the distinct (document, evaluation row, n) of matches in order, as columns."""
        columns = self.matches.documents, self.matches.rows, self.matches.lengths
        firsts = first_of_each(columns)
        documents, rows, lengths = (column[firsts] for column in columns)
        return documents, rows, lengths

    def pair_starts(self) -> np.ndarray:
        """Returns the first match of each document and evaluation row."""
        return first_of_each((self.matches.documents, self.matches.rows))

    def is_in_first(self, most: int | None) -> np.ndarray:
        """Returns whether each match is among the first `most` of its document and row."""
        if most is None:
            return np.ones(len(self.matches.rows), bool)
        starts = self.pair_starts()
        sizes = np.diff(np.append(starts, len(self.matches.rows)))
        return np.arange(len(self.matches.rows)) - np.repeat(starts, sizes) < most


def read_matches(
    paths: Sequence[str],
    postings: Sequence[Postings],
    keep: Keep | None = None,
    only_counts: bool = False,
) -> Iterator[BlockMatches]:
    """Yields all matches in a work unit's match files, in bounded memory.

    With `only_counts`, omits texts and the order of `Matches`.
    """
    for block in read_blocks(paths, keep, not only_counts):
        for matches in expand_block(block, postings, not only_counts):
            shared = (matches.shared,) * 2 if only_counts else distinct(matches.shared)
            yield BlockMatches(block, matches, postings[0].texts, *shared)


# --- expansion ----------------------------------------------------------------------------------


class _OfShard(NamedTuple):
    """A block's shared n-grams in one index shard."""

    postings: Postings
    which: np.ndarray  # int64 [s], indices in the block, ascending
    located: Located  # [s]

    def some(self, here: slice) -> "_OfShard":
        """Returns those in a range of the block's n-grams."""
        ends = slice(*np.searchsorted(self.which, (here.start, here.stop)))
        return _OfShard(self.postings, self.which[ends], self.located.some(ends))


def _by_shard(block: Block, postings: Sequence[Postings]) -> Iterator[_OfShard]:
    for shard, of_shard in enumerate(postings):
        which = np.flatnonzero(block.index_shards == shard)
        if len(which):
            yield _OfShard(of_shard, which, of_shard.locate(block.ngrams[which]))


def expand_block(
    block: Block, postings: Sequence[Postings], in_order: bool = True
) -> Iterator[Matches]:
    """Yields all matches of a block in bounded memory, given the postings of each index shard."""
    shards = list(_by_shard(block, postings))
    lengths, weights = (np.empty(len(block.ngrams), np.int64) for _ in range(2))
    for found in shards:
        lengths[found.which] = found.postings.lengths(found.located.ngrams)
    own = 1 + block.num_places + lengths // _TOKENS_PER_PLACE
    for found in shards:
        located = found.located
        num_rows, num_places = found.postings.num_rows(located.ngrams, located.keys)
        weights[found.which] = num_rows * own[found.which] + num_places
    firsts = np.searchsorted(block.documents, np.arange(len(block.rows) + 1))
    num_eval_rows = len(postings[0].texts.firsts) - 1
    of_document = np.add.reduceat(weights, firsts[:-1])
    for first, stop in cut_by_weight(of_document, _PLACES_AT_A_TIME):
        here = [each.some(slice(firsts[first], firsts[stop])) for each in shards]
        ranges = [(0, num_eval_rows)]
        if of_document[first:stop].sum() > _PLACES_AT_A_TIME:  # one document
            of_row = np.zeros(num_eval_rows, np.int64)
            for found in here:
                found.postings.add_row_weights(found.located, own[found.which], of_row)
            ranges = cut_by_weight(of_row, _PLACES_AT_A_TIME)
        for first_row, stop_row in ranges:
            matches = _expand(block, here, lengths, first_row, stop_row)
            if len(matches.rows):
                yield _sorted(matches, postings[0].texts) if in_order else matches


def cut_by_weight(weights: np.ndarray, limit: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of items that together weigh at most `limit`, or of one heavier item.

    >>> list(cut_by_weight(np.array([1, 2, 9, 1, 1]), 3))
    [(0, 2), (2, 3), (3, 5)]
    """
    total = np.cumsum(weights)
    start = before = 0
    while start < len(total):
        stop = max(start + 1, int(np.searchsorted(total, before + limit, "right")))
        yield start, stop
        start, before = stop, int(total[stop - 1])


def _expand(
    block: Block,
    here: Sequence[_OfShard],
    lengths: np.ndarray,
    first_row: int,
    stop_row: int,
) -> Matches:
    """Returns the matches of some n-grams with a range of evaluation rows, by n-gram."""
    parts = [[np.empty(0, np.int64)] for _ in range(4)]
    for each in here:
        found = each.postings.expand(each.located, first_row, stop_row)
        columns = each.which[found.which], found.rows, np.diff(found.bounds), found.tokens
        for part, column in zip(parts, columns, strict=True):
            part.append(column)
    shared, rows, counts, tokens = map(np.concatenate, parts)
    bounds = np.append(0, np.cumsum(counts))
    return Matches(shared, block.documents[shared], rows, lengths[shared], bounds, tokens)


def _sorted(found: Matches, texts: TokenTexts) -> Matches:
    firsts = found.tokens[found.bounds[:-1]]
    keys = found.documents, found.rows, found.lengths, firsts
    order = order_of(keys)
    starts = texts.starts[texts.firsts[found.rows] + firsts]
    is_tied = np.ones(max(0, len(order) - 1), bool)
    for key in (starts, *keys[:-1]):
        is_tied &= key[order[1:]] == key[order[:-1]]
    if is_tied.any():
        _settle_ties(order, is_tied, found, texts)
    tokens = pa.LargeListArray.from_arrays(found.bounds, found.tokens).take(pa.array(order))
    shared, documents, rows, lengths = (each[order] for each in found[:4])
    lists = tokens.offsets.to_numpy(), tokens.values.to_numpy()
    return Matches(shared, documents, rows, lengths, *lists)


def _settle_ties(order: np.ndarray, is_tied: np.ndarray, found: Matches, texts: TokenTexts) -> None:
    """Orders matches that begin at the same place, possible with a custom tokenizer."""

    def key(match: int) -> tuple[list[tuple[int, int]], bytes]:
        places = found.tokens[found.bounds[match] : found.bounds[match + 1]]
        at, n = texts.firsts[found.rows[match]] + places, found.lengths[match]
        (ngram,) = ngrams_of(texts, at[:1], np.array([n])).to_pylist()
        ends = texts.ends[at + n - 1]
        return list(zip(texts.starts[at].tolist(), ends.tolist(), strict=True)), ngram

    edges = np.flatnonzero(np.diff(is_tied, prepend=False, append=False)).reshape(-1, 2)
    for first, last in edges.tolist():
        order[first : last + 1] = sorted(order[first : last + 1].tolist(), key=key)


# --- orders -------------------------------------------------------------------------------------


def first_of_each(keys: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the indices in sorted keys at which a key differs from the previous one."""
    differs = np.zeros(len(keys[0]), bool)
    differs[:1] = True
    for key in keys:
        differs[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(differs)


def order_of(keys: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the order of records by keys of non-negative integers, most significant first.

    >>> order_of([np.array([1, 0, 1]), np.array([2, 9, 1])]).tolist()
    [1, 2, 0]
    """
    num_bits = [int(key.max(initial=0)).bit_length() for key in keys]
    if sum(num_bits) > _WORD_BITS:
        return np.lexsort(keys[::-1])
    packed = np.zeros(len(keys[0]), np.uint64)
    for key, bits in zip(keys, num_bits, strict=True):
        packed = packed << np.uint64(bits) | key.astype(np.uint64)
    return np.argsort(packed)


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns `np.unique(values, return_inverse=True)` for integers.

    >>> [each.tolist() for each in distinct(np.array([7, 5, 7]))]
    [[5, 7], [1, 0, 1]]
    """
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    size = high - low + 1
    if size > _MAX_RANGE_PER_VALUE * len(values):
        return np.unique(values, return_inverse=True)
    is_there = np.zeros(size, bool)
    is_there[values - low] = True
    found = np.flatnonzero(is_there)
    numbers = np.empty(size, np.int64)
    numbers[found] = np.arange(len(found))
    return found + low, numbers[values - low]
