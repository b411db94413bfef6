"""From shared n-grams to matches: one of each n-gram of a document and evaluation row that has it.

  Block → Matches, some at a time, in the order of (document, evaluation row, n, first place)

A template that thousands of evaluation rows have, or that a document repeats thousands of times,
makes millions of matches and places of a small block: both are counted where a block is cut, and
the matches of one document are cut between evaluation rows.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from beam_pipeline.overlap.ngrams.postings import Postings
from beam_pipeline.overlap.ngrams.token_texts import ngrams_of
from beam_pipeline.overlap.results.match_files import Block

_PLACES_AT_A_TIME = 1 << 18  # on both sides, each match with all its places
_TOKENS_PER_PLACE = 8  # of an n-gram's text, in memory


class Matches(NamedTuple):
    """Some matches of a block; those of a document and an evaluation row are all in one of these.

    Sorted by document, evaluation row, n, the places there and n-gram.
    """

    shared: np.ndarray  # int64 [m], the n-gram among those of the block
    documents: np.ndarray  # int64 [m], of the block
    rows: np.ndarray  # int64 [m], evaluation rows
    lengths: np.ndarray  # int64 [m], n
    bounds: np.ndarray  # int64 [m + 1], of the places in `tokens`
    tokens: np.ndarray  # int64, first tokens of the places, counted in the evaluation row


def lengths_of(block: Block, postings: Sequence[Postings]) -> np.ndarray:
    """Returns n of each shared n-gram of a block."""
    lengths = np.empty(len(block.ngrams), np.int64)
    for shard, which in _by_shard(block, slice(None)):
        lengths[which] = postings[shard].lengths(block.ngrams[which])
    return lengths


def _by_shard(block: Block, here: slice) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each index shard, and which n-grams of the block are of it."""
    shards = block.index_shards[here]
    for shard in np.unique(shards).tolist():
        yield shard, np.flatnonzero(shards == shard) + (here.start or 0)


def expand_block(block: Block, postings: Sequence[Postings]) -> Iterator[Matches]:
    """Yields all matches of a block in bounded memory.

    Args:
      postings: of each index shard.
    """
    lengths = lengths_of(block, postings)
    weights = np.empty(len(block.ngrams), np.int64)
    own = 1 + np.diff(block.bounds) + lengths // _TOKENS_PER_PLACE
    for shard, which in _by_shard(block, slice(None)):
        num_rows, num_places = postings[shard].num_rows(block.ngrams[which])
        weights[which] = num_rows * own[which] + num_places
    firsts = np.searchsorted(block.documents, np.arange(len(block.rows) + 1))
    num_eval_rows = len(postings[0].texts.firsts) - 1
    of_document = np.add.reduceat(weights, firsts[:-1])
    for first, stop in cut_by_weight(of_document, _PLACES_AT_A_TIME):
        here = slice(int(firsts[first]), int(firsts[stop]))
        ranges = [(0, num_eval_rows)]
        if of_document[first:stop].sum() > _PLACES_AT_A_TIME:  # one document
            of_row = np.zeros(num_eval_rows, np.int64)
            for shard, which in _by_shard(block, here):
                postings[shard].add_row_weights(block.ngrams[which], own[which], of_row)
            ranges = cut_by_weight(of_row, _PLACES_AT_A_TIME)
        for first_row, stop_row in ranges:
            matches = _expand(block, here, lengths, postings, first_row, stop_row)
            if len(matches.rows):
                yield matches


def cut_by_weight(weights: np.ndarray, limit: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of things that weigh no more than a limit together, or of one thing.

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
    here: slice,
    lengths: np.ndarray,
    postings: Sequence[Postings],
    first_row: int,
    stop_row: int,
) -> Matches:
    shared, rows, counts, tokens = ([np.empty(0, np.int64)] for _ in range(4))
    for shard, which in _by_shard(block, here):
        found = postings[shard].expand(block.ngrams[which], first_row, stop_row)
        shared.append(which[found.which])
        rows.append(found.rows)
        counts.append(np.diff(found.bounds))
        tokens.append(found.tokens)
    joined = [np.concatenate(each) for each in (shared, rows, counts, tokens)]
    return _in_order(block, lengths, postings, *joined)


def _in_order(
    block: Block,
    lengths: np.ndarray,
    postings: Sequence[Postings],
    shared: np.ndarray,
    rows: np.ndarray,
    counts: np.ndarray,
    tokens: np.ndarray,
) -> Matches:
    bounds = np.append(0, np.cumsum(counts))
    firsts = tokens[bounds[:-1]]
    keys = firsts, lengths[shared], rows, block.documents[shared]
    order = np.lexsort(keys)
    texts = postings[0].texts
    starts = texts.starts[texts.firsts[rows] + firsts]
    is_tied = np.ones(max(0, len(order) - 1), bool)
    for key in (starts, *keys[1:]):
        is_tied &= key[order[1:]] == key[order[:-1]]
    if is_tied.any():
        _settle_ties(order, is_tied, block, lengths, postings, shared, rows, bounds, tokens)
    bounds, tokens = take_lists(bounds, tokens, order)
    shared = shared[order]
    return Matches(shared, block.documents[shared], rows[order], lengths[shared], bounds, tokens)


def _settle_ties(
    order: np.ndarray,
    is_tied: np.ndarray,
    block: Block,
    lengths: np.ndarray,
    postings: Sequence[Postings],
    shared: np.ndarray,
    rows: np.ndarray,
    bounds: np.ndarray,
    tokens: np.ndarray,
) -> None:
    """Orders matches that begin at one place, as tokens of a custom tokenizer may."""
    texts = postings[0].texts

    def key(match: int) -> tuple[list[tuple[int, int]], bytes]:
        at = texts.firsts[rows[match]] + tokens[bounds[match] : bounds[match + 1]]
        n = lengths[shared[match]]
        (ngram,) = ngrams_of(texts, at[:1], np.array([n])).to_pylist()
        ends = texts.ends[at + n - 1]
        return list(zip(texts.starts[at].tolist(), ends.tolist(), strict=True)), ngram

    edges = np.flatnonzero(np.diff(is_tied, prepend=False, append=False)).reshape(-1, 2)
    for first, last in edges.tolist():
        order[first : last + 1] = sorted(order[first : last + 1].tolist(), key=key)


def take_lists(
    bounds: np.ndarray, values: np.ndarray, which: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds and values of some of the lists values[bounds[i]:bounds[i + 1]]."""
    sizes = bounds[which + 1] - bounds[which]
    taken = np.append(0, np.cumsum(sizes))
    return taken, values[np.repeat(bounds[which] - taken[:-1], sizes) + np.arange(taken[-1])]
