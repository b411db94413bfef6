"""The order of matches, and where blocks are cut."""

import itertools

import numpy as np

from beam_pipeline.overlap.ngrams.token_texts import TokenTexts
from beam_pipeline.overlap.results import matches
from beam_pipeline.overlap.results.matches import Matches

# Tokens of a custom tokenizer, with their places in one text. Three begin at one place.
TOKENS = [(b"ab", 0, 2), (b"x", 0, 1), (b"a", 0, 1), (b"b", 1, 2), (b"a", 3, 4)]


def texts_of(tokens: list[tuple[bytes, int, int]]) -> TokenTexts:
    words, starts, ends = zip(*tokens, strict=True)
    return TokenTexts(
        np.array([0, len(tokens)]),
        np.array(starts, np.uint32),
        np.array(ends, np.uint32),
        np.cumsum([0, *(len(word) + 1 for word in words)]),
        np.frombuffer(b" ".join(words) + b" ", np.uint8),
    )


def test_n_grams_that_begin_at_one_place_are_in_order_of_all_places_and_of_their_texts() -> None:
    texts = texts_of(TOKENS)
    # Of each 1-gram: its places, as tokens.
    ngrams = {"ab": [0], "x": [1], "a": [2, 4], "b": [3]}
    for order in itertools.permutations(ngrams):
        places = [ngrams[name] for name in order]
        zeros = np.zeros(len(order), np.int64)
        found = Matches(
            np.arange(len(order)),
            zeros,
            zeros,
            zeros + 1,
            np.cumsum([0, *map(len, places)]),
            np.array(list(itertools.chain(*places))),
        )
        ordered = matches._sorted(found, texts)
        # [[0, 1]] < [[0, 1], [3, 4]] < [[0, 2]]; "b" begins behind them.
        assert [order[at] for at in ordered.shared] == ["x", "a", "ab", "b"]
        assert ordered.tokens.tolist() == [1, 2, 4, 0, 3]
        assert ordered.bounds.tolist() == [0, 1, 3, 4, 5]


def test_two_n_grams_of_the_same_places_are_in_order_of_their_texts() -> None:
    texts = texts_of([(b"y", 0, 1), (b"x", 0, 1)])
    for order in ([0, 1], [1, 0]):
        zeros = np.zeros(2, np.int64)
        found = Matches(np.arange(2), zeros, zeros, zeros + 1, np.arange(3), np.array(order))
        assert matches._sorted(found, texts).tokens.tolist() == [1, 0]
