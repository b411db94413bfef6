"""Matches are exact: equal to brute force on made-up corpora, even if all hashes collide."""

import random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.documents.batch import decode, text_buffers
from beam_pipeline.overlap.ngrams import matching
from beam_pipeline.overlap.ngrams.index import build_index
from beam_pipeline.overlap.ngrams.matching import Matcher
from beam_pipeline.overlap.ngrams.postings import Postings
from beam_pipeline.overlap.ngrams.token_texts import ngrams_of, token_texts, tokens_of
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS, Tokenizer, effective_lengths
from tests.support.overlap_hits import LENGTH, colliding_texts, ngrams
from tests.support.properties import num_examples

DEFAULT = TOKENIZERS["default"]
WORDS = ["a", "b", "Σας", "İx", "é", "\U0001f600", "long-word", "", ".", "\ud800", "x\u0307"]


class Match(NamedTuple):
    """One n-gram that an evaluation row and a document share."""

    document: int
    row: int
    n: int
    ngram: str
    eval_places: list[tuple[int, int]]
    train_places: list[tuple[int, int]]


def by_brute_force(
    texts: list[str], training: list[str], lengths: tuple[int, ...], tokenizer: Tokenizer
) -> list[Match]:
    found = []
    for document, other in enumerate(training):
        words = tokenizer.tokenize(other)
        for row, text in enumerate(texts):
            own = tokenizer.tokenize(text)
            for n in effective_lengths(lengths, len(own)):
                there = ngrams(words, n)
                for ngram, places in ngrams(own, n).items():
                    if ngram in there:
                        ranges = [[(a, b) for a, b in p] for p in (places, there[ngram])]
                        found.append(Match(document, row, n, ngram, *ranges))
    return sorted(found, key=lambda match: (match.document, match.row, match.n, match.eval_places))


def matches(
    texts: list[str], training: list[str], lengths: tuple[int, ...], tokenizer: Tokenizer
) -> list[Match]:
    own = token_texts(*text_buffers(texts), tokenizer)
    index = build_index([text_buffers(texts)], lengths, tokenizer)
    postings = Postings(index, own)
    shared = Matcher(index, postings, tokenizer).shared(*text_buffers(training))
    found = postings.expand(postings.locate(shared.ngrams), 0, len(texts))
    lengths_of = postings.lengths(shared.ngrams)
    assert len(found.rows) == shared.num_matches

    made = []
    for entry, which in enumerate(found.which.tolist()):
        document, n = int(shared.documents[which]), int(lengths_of[which])
        row, here = int(found.rows[entry]), slice(*shared.bounds[which : which + 2])
        at = own.firsts[row] + found.tokens[slice(*found.bounds[entry : entry + 2])]
        (ngram,) = ngrams_of(own, at[:1], np.array([n])).to_pylist()
        ends = (own.starts[at], own.ends[at + n - 1]), (shared.starts[here], shared.ends[here])
        sides = (list(zip(*(each.tolist() for each in of), strict=True)) for of in ends)
        made.append(Match(document, row, n, ngram.decode("utf-8", "surrogatepass"), *sides))
    return sorted(made, key=lambda match: (match.document, match.row, match.n, match.eval_places))


def corpus(seed: int) -> tuple[list[str], list[str]]:
    """Returns texts of few words, so that much is shared, and a copied passage."""
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=rng.randrange(15))) for _ in range(5)]
    training = [" ".join(rng.choices(WORDS, k=rng.randrange(40))) for _ in range(5)]
    training[0] += " " + texts[0].upper() + "\u2028" + texts[1]
    return texts, training


texts_of_words = st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(
    st.lists(st.text(max_size=12) | texts_of_words, max_size=5),
    st.lists(st.text(max_size=25) | texts_of_words, max_size=5),
    st.sampled_from([(1,), (2,), (2, 5), (3, 8, 13), tuple(range(1, 80))]),
)
@settings(max_examples=num_examples(300, 20))
def test_matches_equal_brute_force(
    name: str, texts: list[str], training: list[str], lengths: tuple[int, ...]
) -> None:
    training = [*training, " ".join(training[:1] + texts[:2]).swapcase()]
    found = matches(texts, training, lengths, TOKENIZERS[name])
    assert found == by_brute_force(texts, training, lengths, TOKENIZERS[name])


def test_false_candidates_do_not_match(monkeypatch) -> None:
    """Every n-gram of a document is a candidate for every key."""

    def everything(index, _tokenizer, utf8, bounds):
        found = []
        for document in range(len(bounds) - 1):
            text = utf8[bounds[document] : bounds[document + 1]].tobytes()
            count = len(tokens_of(decode(text), DEFAULT).starts)
            for n in index.lengths.tolist():
                for token in range(count - n + 1):
                    found += [(document, token, n, key) for key in range(len(index.keys))]
        documents, tokens, n, keys = np.array(found, np.int64).reshape(-1, 4).T
        return matching.Candidates(documents, tokens, n, keys, np.zeros(len(bounds) - 1, np.int64))

    monkeypatch.setattr(matching, "find_candidates", everything)
    for seed in range(10):
        texts, training = corpus(seed)
        found = matches(texts, training, (1, 3, 4), DEFAULT)
        assert found == by_brute_force(texts, training, (1, 3, 4), DEFAULT)


@pytest.mark.slow
def test_hash_collisions_do_not_match() -> None:
    one, other = colliding_texts()
    assert matches([one], [other], (LENGTH,), DEFAULT) == []
    texts, training = [one, other], [one, other, f"{other} {one}"]
    found = matches(texts, training, (LENGTH,), DEFAULT)
    assert found == by_brute_force(texts, training, (LENGTH,), DEFAULT)
    assert len(found) >= 4
