"""The text of an evaluation row in columns: where its tokens are, and where some n-grams occur.

Tokens are joined by single spaces into one string, so that an n-gram is a slice of it. Places of
an n-gram are found by its hash and compared as text; a place that is not asked for costs no Python.
"""

from itertools import accumulate

import numpy as np

from beam_pipeline.kernels import kernel
from beam_pipeline.overlap.ngrams.token_kernels import (
    ngram_hash,
    power_of,
    prefix_hashes,
    tokens_of,
)
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer

_SPACE = ord(" ")


@kernel
def _ngram_hashes(prefixes, n, power):
    hashes = np.empty(prefixes.size - n, np.uint64)
    for at in range(hashes.size):
        hashes[at] = ngram_hash(prefixes, at, n, power)
    return hashes


class RowText:
    """A tokenized text.

    Attributes:
      starts, ends: int64 [tokens], ranges [start, end) in code points; starts ascend.
    """

    def __init__(self, text: str, tokenizer: Tokenizer):
        tokens = tokens_of(text, tokenizer)
        self.starts, self.ends = tokens.starts, tokens.ends
        self._prefixes = prefix_hashes(tokens.hashes)
        lowered = text.lower() if tokenizer.lowercase else text
        if tokenizer.function is not None or len(lowered) != len(text):
            # Places in the text and in its lower case differ: the plain tokenizer knows them.
            words = [token.text for token in tokenizer.tokenize(text)]
            self._joined = " ".join(words)
            sizes = (len(word) + 1 for word in words)
            self._firsts = np.fromiter(accumulate(sizes, initial=0), np.int64, len(words) + 1)
        else:
            self._joined, self._firsts = _join(lowered, self.starts, self.ends)

    def __len__(self) -> int:
        return len(self.starts)

    def ngram(self, token: int, n: int) -> str:
        """Returns the n-gram that begins with a token."""
        return self._joined[self._firsts[token] : self._firsts[token + n] - 1]

    def first_places(self, n: int, tokens: np.ndarray) -> dict[str, int]:
        """Returns the n-grams that begin with tokens; one that is not there is left out."""
        there = tokens[tokens.astype(np.int64) + n <= len(self)].tolist()
        return {self.ngram(token, n): token for token in there}

    def all_places(self, n: int, firsts: dict[str, int]) -> np.ndarray:
        """Returns the first tokens of all places of n-grams, given one of each, ascending."""
        if not firsts:
            return np.empty(0, np.int64)
        hashes = _ngram_hashes(self._prefixes, n, power_of(n))
        known = np.sort(np.fromiter(firsts.values(), np.int64, len(firsts)))
        wanted = np.sort(hashes[known])
        at = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
        places = np.flatnonzero(wanted[at] == hashes)
        if len(places) == len(known):
            return known
        others = places[~np.isin(places, known)].tolist()
        colliding = [token for token in others if self.ngram(token, n) not in firsts]
        return np.setdiff1d(places, colliding) if colliding else places


def _join(lowered: str, starts: np.ndarray, ends: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns the tokens joined by spaces, and where each begins there, int64 [tokens + 1]."""
    sizes = ends - starts + 1
    firsts = np.append(0, np.cumsum(sizes))
    codes = np.frombuffer(lowered.encode("utf-32-le", "surrogatepass") + bytes(4), np.uint32)
    joined = codes[np.arange(firsts[-1]) + np.repeat(starts - firsts[:-1], sizes)]
    joined[firsts[1:] - 1] = _SPACE
    return joined.tobytes().decode("utf-32-le", "surrogatepass"), firsts
