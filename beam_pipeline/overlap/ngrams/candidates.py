"""Candidates: n-grams of training texts whose hashes are in the index, in few loops over arrays.

  UTF-8 → hashes of the tokens of many documents → hashes of all prefixes → for each level of the
  index: every `stride`-th window through its filter → the n-grams around the windows that pass,
  through the bloom filter → slots → candidate

A candidate is a document, the number of its first token, a length and a key. All steps but the
first are loops without branches that depend on the text: processors run them at a few cycles a
token. Strings are made later, for the few documents with candidates.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from beam_pipeline.kernels import kernel
from beam_pipeline.overlap.ngrams.index import NO_KEY, Index, Level, passes
from beam_pipeline.overlap.ngrams.token_kernels import (
    ngram_hash,
    power_of,
    prefix_hashes,
    token_batches,
)
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer

_CANDIDATES_AT_A_TIME = 1 << 14
_ONE = np.uint64(1)


class Candidates(NamedTuple):
    """Possible n-grams of the index, in the order of documents, tokens and lengths."""

    documents: np.ndarray  # int64 [c], numbers within the batch
    tokens: np.ndarray  # int64 [c], of the first token of each
    lengths: np.ndarray  # int64 [c], n
    keys: np.ndarray  # int64 [c], numbers of keys of the index


@kernel
def _passing_windows(prefixes, width, stride, power, words):
    """Returns the tokens at which windows begin that pass a level's filter."""
    count = np.uint64(prefixes.size - 1)
    width, stride = np.uint64(width), np.uint64(stride)
    if count < width:
        return np.empty(0, np.int64)
    found = np.empty((count - width) // stride + _ONE, np.int64)
    num_found = 0
    for at in range(np.uint64(0), count - width + _ONE, stride):
        found[num_found] = at
        num_found += passes(ngram_hash(prefixes, at, width, power), words)
    return found[:num_found]


@kernel
def _candidates(prefixes, windows, stride, lengths, powers, bloom, slots, keys, found):
    """Fills (token, length, key) of the n-grams around windows that have a key.

    Returns how many there are, and how many windows there was room for.
    """
    num_found = 0
    mask = np.uint64(slots.size - 1)
    for number in range(windows.size):
        if num_found + stride * lengths.size > found.shape[1]:
            return num_found, number
        for start in range(max(0, windows[number] - stride + 1), windows[number] + 1):
            for at in range(lengths.size):
                n = lengths[at]
                if start + n >= prefixes.size:
                    break
                value = ngram_hash(prefixes, start, n, powers[at])
                if not passes(value, bloom):
                    continue
                slot = value & mask
                while slots[slot] != NO_KEY:
                    if keys[slots[slot]] == value:
                        found[0, num_found], found[1, num_found] = start, n
                        found[2, num_found] = slots[slot]
                        num_found += 1
                        break
                    slot = slot + _ONE & mask
    return num_found, windows.size


class CandidateFinder:
    """Finds candidates for the n-grams of one index in batches of documents."""

    def __init__(self, index: Index, tokenizer: Tokenizer):
        self._index = index
        self._tokenizer = tokenizer
        self._levels = [
            (level, index.lengths[level.first_length : level.stop_length]) for level in index.levels
        ]
        self._powers = {int(n): power_of(int(n)) for n in index.lengths}

    def find(self, utf8: np.ndarray, bounds: np.ndarray) -> Candidates:
        """Returns the candidates of the documents utf8[bounds[i]:bounds[i + 1]].

        Args:
          utf8: uint8, lone surrogates as their three bytes.
          bounds: int64 [documents + 1], ascending.
        """
        parts = [np.empty((4, 0), np.int64)]
        if len(self._index.keys):
            for first, hashes, firsts in token_batches(utf8, bounds, self._tokenizer):
                prefixes = prefix_hashes(hashes)
                for level, lengths in self._levels:
                    for found in self._find_in_level(prefixes, level, lengths):
                        parts.append(_within_documents(found, first, firsts))
        found = np.concatenate(parts, axis=1)
        return Candidates(*found[:, np.lexsort(found[2::-1])])

    def _find_in_level(
        self, prefixes: np.ndarray, level: Level, lengths: np.ndarray
    ) -> Iterator[np.ndarray]:
        index = self._index
        words = index.filters[level.filter_start : level.filter_stop]
        windows = _passing_windows(
            prefixes, level.width, level.stride, power_of(level.width), words
        )
        powers = np.array([self._powers[n] for n in lengths.tolist()], np.uint64)
        room = max(_CANDIDATES_AT_A_TIME, level.stride * len(lengths))
        while len(windows):
            found = np.empty((3, room), np.int64)
            num_found, num_windows = _candidates(
                prefixes, windows, level.stride, lengths, powers, index.bloom, index.slots,
                index.keys, found,
            )  # fmt: skip
            yield found[:, :num_found]
            windows = windows[num_windows:]


def _within_documents(found: np.ndarray, first: int, firsts: np.ndarray) -> np.ndarray:
    """Returns candidates with their documents, without those that reach into the next one."""
    tokens, lengths, keys = found
    documents = np.searchsorted(firsts, tokens, "right") - 1
    is_within = tokens + lengths <= firsts[documents + 1]
    return np.stack([first + documents, tokens - firsts[documents], lengths, keys])[:, is_within]
