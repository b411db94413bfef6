"""Orders of matches and values, and the distinct tokens of evaluation rows."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.documents.batch import text_buffers
from beam_pipeline.overlap.ngrams.token_batches import token_batches
from beam_pipeline.overlap.ngrams.token_texts import TokenTexts
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from beam_pipeline.overlap.results import contaminated, matches
from beam_pipeline.overlap.results.matches import Matches, distinct, order_of
from tests.support.properties import num_examples

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


KEYS = st.tuples(*[st.integers(0, 9) | st.integers(0, 2**32 - 1)] * 2, st.integers(0, 2**40))


@settings(max_examples=num_examples(50))
@given(st.lists(KEYS))
def test_records_are_in_the_order_of_their_keys(records: list[tuple[int, int, int]]) -> None:
    columns = [np.array(column, np.int64) for column in zip(*records, strict=True)]
    for keys in (columns, columns[:2], columns[:1]) if records else ():
        in_order = np.stack(keys)[:, order_of(keys)]
        assert np.array_equal(in_order, np.stack(keys)[:, np.lexsort(keys[::-1])])


@settings(max_examples=num_examples(50))
@given(st.lists(st.integers(0, 20) | st.integers(-(2**62), 2**62)))
def test_distinct_values_are_those_of_numpy(values: list[int]) -> None:
    given_values = np.array(values, np.int64)
    expected = np.unique(given_values, return_inverse=True)
    for found, wanted in zip(distinct(given_values), expected, strict=True):
        assert np.array_equal(found, wanted)


# --- tokens -------------------------------------------------------------------------------------


DEFAULT = TOKENIZERS["default"]
TEXTS = [
    text_buffers([f"w{number % 13} w{number} again" for number in range(start, start + 20)])
    for start in range(0, 200, 20)
]


@pytest.mark.parametrize("min_waiting", [1, 30, 1 << 20])
def test_each_token_is_there_once_in_order(tmp_path: Path, monkeypatch, min_waiting: int) -> None:
    monkeypatch.setattr(contaminated, "_MIN_WAITING", min_waiting)
    path = str(tmp_path / "tokens.parquet")
    contaminated.write_eval_tokens(path, str(tmp_path), TEXTS, DEFAULT)
    hashes = [batch.hashes for text in TEXTS for batch in token_batches(*text, DEFAULT)]
    wanted = np.unique(np.concatenate(hashes))
    assert len(wanted) == 201
    assert contaminated.read_eval_tokens(path).tolist() == wanted.tolist()


def test_no_texts_have_no_tokens(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens.parquet")
    contaminated.write_eval_tokens(path, str(tmp_path), [], DEFAULT)
    assert contaminated.read_eval_tokens(path).tolist() == []
