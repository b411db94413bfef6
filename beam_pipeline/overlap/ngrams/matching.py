"""From candidates to matches: every candidate is compared in both texts, and offsets are found.

A match is one (evaluation row, training row, n-gram) with all places of the n-gram on both sides.
Only documents with candidates get here, so this is plain Python.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from beam_pipeline.overlap.ngrams.candidates import CandidateFinder
from beam_pipeline.overlap.ngrams.index import Index
from beam_pipeline.overlap.ngrams.token_kernels import tokens_of
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer

Places = list[tuple[int, int]]  # [start, end) in code points of the original text, ascending
_KEYS_IN_MEMORY = 100_000
_TEXTS_IN_MEMORY = 1_000


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
        self._text_of = text_of
        self._tokenizer = tokenizer
        self._finder = CandidateFinder(index, tokenizer)
        self._rows_with = functools.lru_cache(_KEYS_IN_MEMORY)(self._find_rows_with)
        self._row_text = functools.lru_cache(_TEXTS_IN_MEMORY)(self._tokenize_row)

    def matches(self, utf8: np.ndarray, bounds: np.ndarray) -> Iterator[Match]:
        """Yields the matches of the documents utf8[bounds[i]:bounds[i + 1]], in their order.

        Those of one document are in the order of (row, n, first place).
        """
        candidates = self._finder.find(utf8, bounds)
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

    def _tokenize_row(self, row: int) -> TokenizedText:
        return TokenizedText(self._text_of(row), self._tokenizer)
