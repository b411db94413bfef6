"""Where n-grams are in evaluation rows, by the rows' tokens: a list of places for each row and n.

  NGRAM_KEYS, one place of each n-gram in its row → RowLists → all places of these n-grams, RowLists
                                                             → how much of each row they cover

Counts know an n-gram by where it begins first. Its other places in the row have its hash, and are
compared as text.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from beam_pipeline.kernels import kernel
from beam_pipeline.overlap.ngrams.token_kernels import BASE, ngram_hash, power_of
from beam_pipeline.overlap.ngrams.token_texts import TokenTexts, is_same_ngram
from beam_pipeline.overlap.results.matches import cut_by_weight

_TOKENS_AT_A_TIME = 1 << 16
_HALF = np.uint64(32)
_START, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # of FNV-1a


class RowLists(NamedTuple):
    """Tokens at which n-grams of evaluation rows begin: a list for each row and n, ascending."""

    numbers: np.ndarray  # int64 [g], evaluation rows
    lengths: np.ndarray  # int64 [g], n
    bounds: np.ndarray  # int64 [g + 1], of each list in `tokens`
    tokens: np.ndarray  # int64, counted in the row

    @classmethod
    def of(cls, keys: np.ndarray) -> "RowLists":
        """Returns the lists of sorted NGRAM_KEYS, or of records that have their fields."""
        lists = _lists_of(keys)
        firsts = np.flatnonzero(np.append(True, lists[1:] != lists[:-1])[: len(keys)])
        numbers, lengths = (keys[name][firsts].astype(np.int64) for name in ("number", "n"))
        return cls(numbers, lengths, np.append(firsts, len(keys)), keys["token"].astype(np.int64))

    def of_same(self, keys: np.ndarray) -> "RowLists":
        """Returns lists for the same rows and n of other sorted records."""
        lists = self.numbers.astype(np.uint64) << _HALF | self.lengths.astype(np.uint64)
        found = _lists_of(keys)
        is_there = np.isin(found, lists)
        bounds = np.searchsorted(found[is_there], lists)
        tokens = keys["token"][is_there].astype(np.int64)
        return self._replace(bounds=np.append(bounds, len(tokens)), tokens=tokens)

    def pieces(self, texts: TokenTexts) -> Iterator["RowLists"]:
        """Yields all lists, some at a time."""
        weights = self.num_tokens(texts) + np.diff(self.bounds) * self.lengths // 8
        for start, stop in cut_by_weight(weights, _TOKENS_AT_A_TIME):
            bounds = self.bounds[start : stop + 1]
            tokens = self.tokens[bounds[0] : bounds[-1]]
            here = self.numbers[start:stop], self.lengths[start:stop]
            yield RowLists(*here, bounds - bounds[0], tokens)

    @property
    def sizes(self) -> np.ndarray:
        """How many tokens each list has, int64 [g]."""
        return np.diff(self.bounds)

    @property
    def of_tokens(self) -> np.ndarray:
        """The list of each token, int64."""
        return np.repeat(np.arange(len(self.numbers)), self.sizes)

    def num_tokens(self, texts: TokenTexts) -> np.ndarray:
        """Returns how many tokens each row has, int64 [g]."""
        return texts.firsts[self.numbers + 1] - texts.firsts[self.numbers]

    def all_places(self, texts: TokenTexts) -> "RowLists":
        """Returns all places of the n-grams that begin with the tokens."""
        powers = np.array([power_of(n) for n in self.lengths.tolist()], np.uint64)
        bounds, tokens = _all_places(texts, *self, powers, int(self.num_tokens(texts).sum()))
        return self._replace(bounds=bounds, tokens=tokens)

    def cover(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns how many tokens of each row the n-grams cover, and the longest run of these."""
        of_tokens = self.of_tokens
        begins = np.ones(len(of_tokens), bool)
        begins[1:] = np.diff(self.tokens) > self.lengths[of_tokens[1:]]
        begins[1:] |= of_tokens[1:] != of_tokens[:-1]
        of_runs, firsts = of_tokens[begins], self.tokens[begins]
        sizes = self.tokens[np.append(begins[1:], True)[: len(begins)]] - firsts
        sizes += self.lengths[of_runs]
        covered, longest = np.zeros((2, len(self.numbers)), np.int64)
        np.add.at(covered, of_runs, sizes)
        np.maximum.at(longest, of_runs, sizes)
        return covered, longest


def _lists_of(keys: np.ndarray) -> np.ndarray:
    """Returns a number for each row and n, uint64, in their order."""
    return keys["number"].astype(np.uint64) << _HALF | keys["n"].astype(np.uint64)


@kernel
def _all_places(texts, rows, lengths, bounds, tokens, powers, room):
    """Returns the bounds of all places of each list, and the places."""
    max_tokens = max_keys = 0
    for at in range(rows.size):
        max_tokens = max(max_tokens, texts.firsts[rows[at] + 1] - texts.firsts[rows[at]])
        max_keys = max(max_keys, bounds[at + 1] - bounds[at])
    prefixes = np.zeros(max_tokens + 1, np.uint64)
    slots = np.empty(4 * max_keys + 2, np.int64)
    found_bounds, found = np.empty(rows.size + 1, np.int64), np.empty(room, np.int64)
    num_found = 0
    for at in range(rows.size):
        found_bounds[at] = num_found
        first, n = texts.firsts[rows[at]], lengths[at]
        count = texts.firsts[rows[at] + 1] - first
        if at == 0 or rows[at] != rows[at - 1]:
            for token in range(count):
                value = _START
                for byte in range(texts.bounds[first + token], texts.bounds[first + token + 1]):
                    value = (value ^ texts.words[byte]) * _PRIME
                prefixes[token + 1] = prefixes[token] * BASE + value
        mask = 1
        while mask < 2 * (bounds[at + 1] - bounds[at]):
            mask *= 2
        slots[:mask] = -1
        mask = np.uint64(mask - 1)
        for key in range(bounds[at], bounds[at + 1]):
            slot = ngram_hash(prefixes, tokens[key], n, powers[at]) & mask
            while slots[slot] >= 0:
                slot = slot + np.uint64(1) & mask
            slots[slot] = tokens[key]
        for token in range(count - n + 1):
            slot = ngram_hash(prefixes, token, n, powers[at]) & mask
            while slots[slot] >= 0:
                key = slots[slot]
                if key == token or is_same_ngram(texts, first + key, texts, first + token, n):
                    found[num_found] = token
                    num_found += 1
                    break
                slot = slot + np.uint64(1) & mask
    found_bounds[rows.size] = num_found
    return found_bounds, found[:num_found].copy()
