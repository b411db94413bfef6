"""The n-grams of an index shard, distinguished by text, and the places of each.

A key of the index is a hash. Nearly always all its places have the same n-gram; otherwise their
texts distinguish the n-grams. An n-gram's number is that of its first place in the shard.

  candidates → numbers of their n-grams, -1 where the texts differ (`identify`)
  n-grams    → their evaluation rows, and places there (`locate`, `expand`)
"""

from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.kernels import kernel, subkernel
from beam_pipeline.overlap.ngrams.index import Index
from beam_pipeline.overlap.ngrams.token_texts import TokenTexts, is_same_ngram

# The n-grams of a key: not yet known, one or several.
_UNKNOWN, _ONE, _SEVERAL = (np.uint8(kind) for kind in range(3))


class _Places(NamedTuple):
    bounds: np.ndarray  # of the index: uint32 [m + 1]
    rows: np.ndarray  # uint32 [p]
    tokens: np.ndarray  # uint32 [p]
    lengths: np.ndarray  # unsigned [p]


class RowPlaces(NamedTuple):
    """The places of n-grams in evaluation rows: an entry for each n-gram and row."""

    which: np.ndarray  # int64 [e], index of the n-gram among those given
    rows: np.ndarray  # int64 [e], evaluation rows
    bounds: np.ndarray  # int64 [e + 1], of the entries' tokens
    tokens: np.ndarray  # int64, first tokens of the places, as indices in the evaluation row


class Located(NamedTuple):
    """N-grams of an index shard, with their keys and rows; see `Postings.locate`."""

    ngrams: np.ndarray  # int64 [m]
    keys: np.ndarray  # int64 [m]
    first_rows: np.ndarray  # uint32 [m], evaluation row of the n-gram's first place
    last_rows: np.ndarray  # uint32 [m], evaluation row of its key's last place

    def some(self, which: slice) -> "Located":
        """Returns some of the n-grams."""
        return Located(*(each[which] for each in self))


class Postings:
    """The n-grams of one index shard, given the tokens of all evaluation rows."""

    def __init__(self, index: Index, texts: TokenTexts):
        self.texts = texts
        self._places = _Places(index.bounds, index.rows, index.tokens, index.place_lengths)
        self._kinds = np.zeros(len(index.keys), np.uint8)

    def identify(
        self, keys: np.ndarray, texts: TokenTexts, tokens: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """Returns the numbers of the n-grams at some tokens of `texts`, -1 if not in the shard."""
        known = self._places, self._kinds, self.texts
        return _identify(*known, keys, texts, tokens, lengths)

    def lengths(self, ngrams: np.ndarray) -> np.ndarray:
        """Returns the n of each n-gram, int64."""
        return self._places.lengths[ngrams].astype(np.int64)

    def first_tokens(self, ngrams: np.ndarray) -> np.ndarray:
        """Returns the first token of each n-gram's first place, as indices in `texts`."""
        return self.texts.firsts[self._places.rows[ngrams]] + self._places.tokens[ngrams]

    def locate(self, ngrams: np.ndarray) -> Located:
        """Returns n-grams with their keys and rows."""
        known = self._places, self._kinds, self.texts
        return Located(ngrams, *_locate(*known, np.ascontiguousarray(ngrams)))

    def num_rows(self, ngrams: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the numbers of evaluation rows and places of each n-gram, given their keys."""
        return _count(self._places, self._kinds, self.texts, ngrams, keys)

    def expand(self, found: Located, first_row: int, stop_row: int) -> RowPlaces:
        """Returns the places of n-grams in a range of evaluation rows, by n-gram, then by row."""
        here = np.flatnonzero((found.first_rows < stop_row) & (found.last_rows >= first_row))
        asked = found.ngrams[here], found.keys[here], first_row, stop_row
        arguments = self._places, self._kinds, self.texts, *asked
        none: Any = np.empty(0, np.int64)
        num_entries, num_tokens = _expand(*arguments, none, none, none, none)
        which, rows, bounds = (np.empty(num_entries + one, np.int64) for one in (0, 0, 1))
        tokens = np.empty(num_tokens, np.int64)
        _expand(*arguments, which, rows, bounds, tokens)
        return RowPlaces(here[which], rows, bounds, tokens)

    def add_row_weights(self, found: Located, own: np.ndarray, weights: np.ndarray) -> None:
        """Adds `own` and the number of places of each n-gram to the weights of its rows."""
        arguments = self._places, self._kinds, self.texts, found.ngrams, found.keys
        _add_weights(*arguments, own, weights)


@subkernel
def _token(places, texts, place):
    return texts.firsts[places.rows[place]] + np.int64(places.tokens[place])


@subkernel
def _are_one(places, texts, one, other):
    """Returns whether two places have the same n-gram."""
    n = np.int64(places.lengths[one])
    if n != places.lengths[other]:
        return False
    return is_same_ngram(texts, _token(places, texts, one), texts, _token(places, texts, other), n)


@subkernel
def _count_one(places, texts, is_alone, ngram, stop):
    """Returns the numbers of rows and places of an n-gram whose key's places end at `stop`."""
    num_rows, num_places, last_row = 0, 0, np.int64(-1)
    for place in range(ngram, stop):
        if is_alone or _are_one(places, texts, ngram, place):
            num_places += 1
            num_rows += places.rows[place] != last_row
            last_row = places.rows[place]
    return num_rows, num_places


@subkernel
def _kind_of(places, texts, key):
    start, stop = np.int64(places.bounds[key]), np.int64(places.bounds[key + 1])
    for place in range(start + 1, stop):
        if not _are_one(places, texts, start, place):
            return _SEVERAL
    return _ONE


@subkernel
def key_at(bounds, place):
    """Returns the key of a place.

    Most keys have one place, so the search starts at its share of the keys and doubles its steps.
    """
    place, last = np.int64(place), bounds.size - 2
    share = np.float64(place) / np.float64(bounds[last + 1])  # integers might overflow
    low = high = min(np.int64(share * (last + 1)), last)
    step = 1
    while np.int64(bounds[low]) > place:
        low, high = max(0, low - step), low
        step *= 2
    while np.int64(bounds[high + 1]) <= place:
        low, high = high + 1, min(last, high + step)
        step *= 2
    while low < high:
        middle = (low + high + 1) // 2
        if np.int64(bounds[middle]) <= place:
            low = middle
        else:
            high = middle - 1
    return low


@kernel
def _locate(places, kinds, texts, ngrams):
    """Returns the key of each n-gram, and the evaluation rows of Located."""
    keys = np.empty(ngrams.size, np.int64)
    first_rows, last_rows = np.empty(ngrams.size, np.uint32), np.empty(ngrams.size, np.uint32)
    for at in range(ngrams.size):
        key = keys[at] = key_at(places.bounds, ngrams[at])
        if kinds[key] == _UNKNOWN:
            kinds[key] = _kind_of(places, texts, key)
        first_rows[at] = places.rows[ngrams[at]]
        last_rows[at] = places.rows[np.int64(places.bounds[key + 1]) - 1]
    return keys, first_rows, last_rows


@kernel
def _identify(places, kinds, own, keys, texts, tokens, lengths):
    found = np.empty(keys.size, np.int64)
    for at in range(keys.size):
        key, n, found[at] = keys[at], lengths[at], -1
        if kinds[key] == _UNKNOWN:
            kinds[key] = _kind_of(places, own, key)
        start, stop = np.int64(places.bounds[key]), np.int64(places.bounds[key + 1])
        if kinds[key] == _ONE:
            stop = start + 1
        for place in range(start, stop):
            is_n = places.lengths[place] == n
            if is_n and is_same_ngram(own, _token(places, own, place), texts, tokens[at], n):
                found[at] = place
                break
    return found


@kernel
def _count(places, kinds, texts, ngrams, keys):
    num_rows, num_places = np.empty(ngrams.size, np.int64), np.empty(ngrams.size, np.int64)
    for at in range(ngrams.size):
        is_alone = kinds[keys[at]] != _SEVERAL
        stop = places.bounds[keys[at] + 1]
        num_rows[at], num_places[at] = _count_one(places, texts, is_alone, ngrams[at], stop)
    return num_rows, num_places


@subkernel
def _first_place(rows, start, stop, row):
    """Returns the first of some places, in ascending rows, that is in `row` or a later one."""
    while start < stop:
        middle = (start + stop) // 2
        if rows[middle] < row:
            start = middle + 1
        else:
            stop = middle
    return start


@kernel
def _expand(places, kinds, texts, ngrams, keys, first_row, stop_row, which, rows, bounds, tokens):
    """Counts the entries and places of n-grams; fills the arrays unless they are empty."""
    fills = bounds.size > 0
    num_entries, num_tokens = 0, 0
    for at in range(ngrams.size):
        ngram, stop, last_row = ngrams[at], places.bounds[keys[at] + 1], np.int64(-1)
        is_alone = kinds[keys[at]] != _SEVERAL
        for place in range(_first_place(places.rows, ngram, stop, first_row), stop):
            row = np.int64(places.rows[place])
            if row >= stop_row:
                break
            if not is_alone and not _are_one(places, texts, ngram, place):
                continue
            if row != last_row:
                if fills:
                    which[num_entries], rows[num_entries] = at, row
                    bounds[num_entries] = num_tokens
                num_entries, last_row = num_entries + 1, row
            if fills:
                tokens[num_tokens] = places.tokens[place]
            num_tokens += 1
    if fills:
        bounds[num_entries] = num_tokens
    return num_entries, num_tokens


@kernel
def _add_weights(places, kinds, texts, ngrams, keys, own, weights):
    for at in range(ngrams.size):
        ngram, last_row = ngrams[at], np.int64(-1)
        is_alone = kinds[keys[at]] != _SEVERAL
        for place in range(ngram, places.bounds[keys[at] + 1]):
            if is_alone or _are_one(places, texts, ngram, place):
                row = places.rows[place]
                weights[row] += 1 + (own[at] if row != last_row else 0)
                last_row = row
