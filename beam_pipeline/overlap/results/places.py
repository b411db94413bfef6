"""Where n-grams are in a text: ranges of code points, from the tokens at which they begin."""

from typing import NamedTuple

import numpy as np

from beam_pipeline.overlap.ngrams.token_texts import TokenTexts


class Places(NamedTuple):
    """The places of n-grams in a text: [start, end) in code points, a list for each n-gram."""

    bounds: np.ndarray  # int64 [m + 1]
    starts: np.ndarray  # uint32
    ends: np.ndarray  # uint32


def places_of(
    texts: TokenTexts,
    which: np.ndarray,
    lengths: np.ndarray,
    bounds: np.ndarray,
    tokens: np.ndarray,
) -> Places:
    """Returns the places of n-grams that begin with tokens of texts.

    Args:
      which: int64 [m], the text of each n-gram.
      lengths: int64 [m], n.
      bounds: int64 [m + 1], of its places in `tokens`.
      tokens: int64, counted in the text.
    """
    sizes = np.diff(bounds)
    at = np.repeat(texts.firsts[which], sizes) + tokens
    return Places(bounds, texts.starts[at], texts.ends[at + np.repeat(lengths, sizes) - 1])
