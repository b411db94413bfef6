"""From training texts to matches: candidates by their hashes, then a comparison of both texts.

  UTF-8 → hashes of the tokens of many documents, and of all prefixes → for each level of the
  index: every `stride`-th window through its filter → the n-grams around the windows that pass,
  through the bloom filter → slots → candidate → match

All steps to a candidate but the first are loops without branches that depend on the text:
processors run them at a few cycles a token. Only documents with candidates become strings, so the
comparison is plain Python. A match is one (evaluation row, training row, n-gram) with all places
of the n-gram on both sides.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from beam_pipeline.kernels import kernel
from beam_pipeline.overlap.ngrams.index import NO_KEY, Index, Level, passes
from beam_pipeline.overlap.ngrams.token_kernels import (
    ngram_hash,
    power_of,
    token_batches,
    tokens_of,
)
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer

Places = list[tuple[int, int]]  # [start, end) in code points of the original text, ascending
_KEYS_IN_MEMORY = 100_000
_TEXTS_IN_MEMORY = 1_000
_CANDIDATES_AT_A_TIME = 1 << 14
_ONE = np.uint64(1)


# --- candidates ---------------------------------------------------------------------------------


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


def find_candidates(
    index: Index, tokenizer: Tokenizer, utf8: np.ndarray, bounds: np.ndarray
) -> Candidates:
    """Returns the candidates of the documents utf8[bounds[i]:bounds[i + 1]].

    Args:
      utf8: uint8, lone surrogates as their three bytes.
      bounds: int64 [documents + 1], ascending.
    """
    parts = [np.empty((4, 0), np.int64)]
    if len(index.keys):
        for first, _, prefixes, firsts in token_batches(utf8, bounds, tokenizer):
            for level in index.levels:
                for tokens, lengths, keys in _find_in_level(prefixes, index, level):
                    documents = np.searchsorted(firsts, tokens, "right") - 1
                    is_within = tokens + lengths <= firsts[documents + 1]  # not into the next one
                    places = tokens - firsts[documents]
                    found = np.stack([first + documents, places, lengths, keys])
                    parts.append(found[:, is_within])
    found = np.concatenate(parts, axis=1)
    return Candidates(*found[:, np.lexsort(found[2::-1])])


def _find_in_level(prefixes: np.ndarray, index: Index, level: Level) -> Iterator[np.ndarray]:
    words = index.filters[level.filter_start : level.filter_stop]
    windows = _passing_windows(prefixes, level.width, level.stride, power_of(level.width), words)
    lengths = index.lengths[level.first_length : level.stop_length]
    powers = np.array([power_of(n) for n in lengths.tolist()], np.uint64)
    room = max(_CANDIDATES_AT_A_TIME, level.stride * len(lengths))
    while len(windows):
        found = np.empty((3, room), np.int64)
        num_found, num_windows = _candidates(
            prefixes, windows, level.stride, lengths, powers, index.bloom, index.slots,
            index.keys, found,
        )  # fmt: skip
        yield found[:, :num_found]
        windows = windows[num_windows:]


# --- matches ------------------------------------------------------------------------------------


class Match(NamedTuple):
    """One n-gram that an evaluation row and a document share."""

    document: int
    row: int
    n: int
    ngram: str
    eval_places: Places
    train_places: Places


class TokenizedText:
    """A text with the places of its tokens, and their texts where they are asked for."""

    def __init__(self, text: str, tokenizer: Tokenizer):
        tokens = tokens_of(text, tokenizer)
        self.starts, self.ends = tokens.starts.tolist(), tokens.ends.tolist()
        self._words = None
        if tokenizer.function is not None or len(text.lower()) != len(text):
            # Places in the text and in its lower case differ: the plain tokenizer knows them.
            self._words = [token.text for token in tokenizer.tokenize(text)]
        self._lowered = text.lower() if tokenizer.lowercase else text

    def __len__(self) -> int:
        return len(self.starts)

    def ngram(self, token: int, n: int) -> str:
        """Returns the n-gram that begins with a token."""
        if self._words is not None:
            return " ".join(self._words[token : token + n])
        return " ".join(
            self._lowered[self.starts[at] : self.ends[at]] for at in range(token, token + n)
        )

    def ngrams(self, n: int) -> list[str]:
        """Returns the n-grams that begin with each token, slices of all tokens joined."""
        words = self._words
        if words is None:
            places = zip(self.starts, self.ends, strict=True)
            words = [self._lowered[start:end] for start, end in places]
        joined = " ".join(words)
        firsts = list(accumulate((len(word) + 1 for word in words), initial=0))
        return [joined[first : end - 1] for first, end in zip(firsts, firsts[n:])]

    def place(self, token: int, n: int) -> tuple[int, int]:
        """Returns the place of the n-gram that begins with a token."""
        return self.starts[token], self.ends[token + n - 1]


class Matcher:
    """Finds the matches of batches of documents with the texts of one index; for one thread.

    Args:
      text_of: returns the text of an evaluation row by its number in the index.
    """

    def __init__(self, index: Index, text_of: Callable[[int], str], tokenizer: Tokenizer):
        self._index = index
        self._tokenizer = tokenizer
        self._rows_with = functools.lru_cache(_KEYS_IN_MEMORY)(self._find_rows_with)
        self._row_text = functools.lru_cache(_TEXTS_IN_MEMORY)(
            lambda row: TokenizedText(text_of(row), tokenizer)
        )

    def matches(self, utf8: np.ndarray, bounds: np.ndarray) -> Iterator[Match]:
        """Yields the matches of the documents utf8[bounds[i]:bounds[i + 1]], in their order.

        Those of one document are in the order of (row, n, first place).
        """
        candidates = find_candidates(self._index, self._tokenizer, utf8, bounds)
        starts = np.flatnonzero(np.diff(candidates.documents, prepend=-1))
        for start, stop in pairwise([*starts.tolist(), len(candidates.documents)]):
            document = int(candidates.documents[start])
            data = utf8[bounds[document] : bounds[document + 1]]
            text = data.tobytes().decode("utf-8", "surrogatepass")
            found = [column[start:stop].tolist() for column in candidates[1:]]
            yield from self._in_document(document, text, *found)

    def _in_document(
        self, document: int, text: str, tokens: list[int], lengths: list[int], keys: list[int]
    ) -> Iterator[Match]:
        tokenized = TokenizedText(text, self._tokenizer)
        places: dict[tuple[int, int, str], Places] = defaultdict(list)
        for token, n, key in zip(tokens, lengths, keys, strict=True):
            places[key, n, tokenized.ngram(token, n)].append(tokenized.place(token, n))
        found = [
            Match(document, row, n, ngram, eval_places, train_places)
            for (key, n, ngram), train_places in places.items()
            for row, eval_places in self._rows_with(key, n).get(ngram, {}).items()
        ]
        yield from sorted(found, key=lambda match: (match.row, match.n, match.eval_places))

    def _find_rows_with(self, key: int, n: int) -> dict[str, dict[int, Places]]:
        """Returns the n-grams with a key and a length: by n-gram and row, their places there."""
        found: dict[str, dict[int, Places]] = defaultdict(lambda: defaultdict(list))
        rows, tokens = self._index.places(key, n)
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            text = self._row_text(row)
            found[text.ngram(token, n)][row].append(text.place(token, n))
        return found
