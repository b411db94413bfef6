"""Finds shared n-grams in training texts: candidates by hash, then a comparison of both texts.

  UTF-8 → sections of long documents → hashes of tokens, and of all prefixes
        → for each level of the index: every `stride`-th window through its filter
        → the n-grams around the windows that pass, through the bloom filter → directory → candidate
        → shared n-gram

After the first step, all loops up to the candidates have no branches that depend on the text, and
take a few cycles per token. A shared n-gram belongs to a document, with all its places there,
however many evaluation rows have it. A match is a triple of evaluation row, document and n-gram;
`results.matches` expands shared n-grams to matches.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from beam_pipeline.kernels import kernel
from beam_pipeline.overlap.ngrams.arrays import Column
from beam_pipeline.overlap.ngrams.index import Index, Level, passes
from beam_pipeline.overlap.ngrams.postings import Postings
from beam_pipeline.overlap.ngrams.sections import Section, count_code_points, sections_of
from beam_pipeline.overlap.ngrams.token_batches import count_tokens, token_batches
from beam_pipeline.overlap.ngrams.token_kernels import ngram_hash, power_of
from beam_pipeline.overlap.ngrams.token_texts import token_texts
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer

_CANDIDATES_AT_A_TIME = 1 << 14
_ONE = np.uint64(1)


# --- candidates ---------------------------------------------------------------------------------


class Candidates(NamedTuple):
    """Possible n-grams of the index, by document, token and length."""

    documents: np.ndarray  # int64 [c], index in the batch
    tokens: np.ndarray  # int64 [c], index of the first token in its document
    lengths: np.ndarray  # int64 [c], n
    keys: np.ndarray  # int64 [c], key numbers in the index
    num_tokens: np.ndarray  # int64 [documents]


@kernel
def _passing_windows(prefixes, width, stride, power, words):
    """Returns the first tokens of the windows that pass a level's filter."""
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
def _candidates(prefixes, windows, stride, lengths, powers, bloom, directory, shift, keys, found):
    """Fills `found` with token, length and key of the n-grams around windows that have a key.

    Returns the number of n-grams, and the number of windows for which there was room.
    """
    num_found = 0
    num_buckets = np.uint64(directory.size - 1)
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
                bucket = value - keys[0] >> shift  # too large for hashes below the first key
                if bucket >= num_buckets:
                    continue
                for key in range(directory[bucket], directory[bucket + _ONE]):
                    if keys[key] == value:
                        found[0, num_found], found[1, num_found] = start, n
                        found[2, num_found] = key
                        num_found += 1
                        break
    return num_found, windows.size


def find_candidates(
    index: Index, tokenizer: Tokenizer, utf8: np.ndarray, bounds: np.ndarray
) -> Candidates:
    """Returns the candidates of the documents utf8[bounds[i]:bounds[i + 1]]."""
    parts = [np.empty((4, 0), np.int64)]
    num_tokens = np.zeros(len(bounds) - 1, np.int64)
    if len(index.lengths):
        for first, _, prefixes, firsts in token_batches(utf8, bounds, tokenizer):
            num_tokens[first : first + len(firsts) - 1] += np.diff(firsts)
            for level in index.levels if len(index.keys) else ():
                for tokens, lengths, keys in _find_in_level(prefixes, index, level):
                    documents = np.searchsorted(firsts, tokens, "right") - 1
                    is_within = tokens + lengths <= firsts[documents + 1]  # not across documents
                    places = tokens - firsts[documents]
                    found = np.stack([first + documents, places, lengths, keys])
                    parts.append(found[:, is_within])
    found = np.concatenate(parts, axis=1)
    documents, tokens, lengths, keys = found[:, np.lexsort(found[2::-1])]
    return Candidates(documents, tokens, lengths, keys, num_tokens)


def _find_in_level(prefixes: np.ndarray, index: Index, level: Level) -> Iterator[np.ndarray]:
    words = index.filters[level.filter_start : level.filter_stop]
    windows = _passing_windows(prefixes, level.width, level.stride, power_of(level.width), words)
    lengths = index.lengths[level.first_length : level.stop_length]
    powers = np.array([power_of(n) for n in lengths.tolist()], np.uint64)
    room = max(_CANDIDATES_AT_A_TIME, level.stride * len(lengths))
    while len(windows):
        found = np.empty((3, room), np.int64)
        num_found, num_windows = _candidates(
            prefixes, windows, level.stride, lengths, powers, index.bloom, index.directory,
            index.bucket_shift, index.keys, found,
        )  # fmt: skip
        yield found[:, :num_found]
        windows = windows[num_windows:]


# --- shared n-grams -----------------------------------------------------------------------------


class SharedNgrams(NamedTuple):
    """N-grams that documents share with evaluation rows, by document, then by n-gram."""

    documents: np.ndarray  # int64 [s], index in the batch
    ngrams: np.ndarray  # int64 [s], see Postings
    bounds: np.ndarray  # int64 [s + 1], of the places in `starts` and `ends`
    starts: np.ndarray  # uint32, places in the document in code points
    ends: np.ndarray  # uint32
    num_matches: int  # total evaluation rows of the n-grams
    num_ngrams: int = 0  # n-grams of the documents that were compared


class Matcher:
    """Finds the n-grams that batches of documents share with the texts of an index."""

    def __init__(self, index: Index, postings: Postings, tokenizer: Tokenizer):
        self._index = index
        self._postings = postings
        self._tokenizer = tokenizer

    def shared(self, utf8: np.ndarray, bounds: np.ndarray) -> SharedNgrams:
        """Returns the shared n-grams of the documents utf8[bounds[i]:bounds[i + 1]]."""
        columns = [Column(np.uint32, 0) for _ in range(4)]
        num_tokens = np.zeros(len(bounds) - 1, np.int64)
        lengths = self._index.lengths
        num_before = int(lengths.max(initial=1)) - 1
        for section in sections_of(utf8, bounds, self._tokenizer, num_before):
            for column, values in zip(columns, self._find(section, num_tokens), strict=True):
                column.add(values)
        documents, ngrams, starts, ends = (column.taken() for column in columns)
        # Places are ordered by document, then by token.
        order = np.lexsort((ngrams, documents))
        ngrams, documents = ngrams[order], documents[order]
        is_first = np.ones(len(order), bool)
        is_first[1:] = (ngrams[1:] != ngrams[:-1]) | (documents[1:] != documents[:-1])
        firsts = np.flatnonzero(is_first)
        documents, ngrams = documents[firsts].astype(np.int64), ngrams[firsts].astype(np.int64)
        found = self._postings.locate(ngrams)
        num_matches = int(self._postings.num_rows(ngrams, found.keys)[0].sum())
        num_ngrams = sum(int(np.maximum(num_tokens - n + 1, 0).sum()) for n in lengths.tolist())
        places = np.append(firsts, len(order)), starts[order], ends[order]
        return SharedNgrams(documents, ngrams, *places, num_matches, num_ngrams)

    def _find(self, section: Section, num_tokens: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns documents, n-grams, starts and ends of the places; adds to the token counts."""
        utf8, bounds = section.utf8, section.bounds
        candidates = find_candidates(self._index, self._tokenizer, utf8, bounds)
        num_tokens[section.first : section.first + len(bounds) - 1] += candidates.num_tokens
        documents, which = np.unique(candidates.documents, return_inverse=True)
        texts = token_texts(*_some(utf8, bounds, documents), self._tokenizer)
        first_tokens = texts.firsts[which] + candidates.tokens
        lengths = candidates.lengths
        ngrams = self._postings.identify(candidates.keys, texts, first_tokens, lengths)
        ends, is_found = texts.ends[first_tokens + lengths - 1], ngrams >= 0
        if section.known_bytes:
            known = utf8[: section.known_bytes]
            (num_known,) = count_tokens(
                [(known, np.array([0, len(known)]))], self._tokenizer
            ).counts
            num_tokens[section.first] -= num_known
            is_found &= ends > count_code_points(known)
        place = np.uint32(section.place)
        starts = texts.starts[first_tokens[is_found]] + place
        documents = candidates.documents[is_found] + section.first
        return documents, ngrams[is_found], starts, ends[is_found] + place


def _some(
    utf8: np.ndarray, bounds: np.ndarray, documents: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the texts of some documents in the form of a batch."""
    if len(documents) == len(bounds) - 1:
        return utf8, bounds
    texts = [utf8[bounds[at] : bounds[at + 1]] for at in documents.tolist()]
    joined = np.concatenate([np.empty(0, np.uint8), *texts])
    return joined, np.cumsum([0, *map(len, texts)], dtype=np.int64)
