"""Many documents to the hashes of their tokens, some at a time, compiled or by Python.

A document with a capital sigma is lower-cased by Python, and comes behind those of its batch.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from beam_pipeline.overlap.ngrams.token_kernels import (
    ascii_separators,
    prefix_hashes,
    scratch_for,
    table_of,
    tokenize,
    tokens_of,
)
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer

_TOKENS_AT_A_TIME = 1 << 17  # their hashes and prefix hashes stay in the cache of a core


class TokenBatch(NamedTuple):
    """The tokens of d consecutive documents; a document of another batch has none here."""

    first: int  # the first document's number
    hashes: np.ndarray  # uint64 [k]
    prefixes: np.ndarray  # uint64 [k + 1], their prefix_hashes
    firsts: np.ndarray  # int64 [d + 1], each document's first token, and k


def token_batches(
    utf8: np.ndarray, bounds: np.ndarray, tokenizer: Tokenizer
) -> Iterator[TokenBatch]:
    """Yields the hashes of the tokens of the documents utf8[bounds[i]:bounds[i + 1]].

    A batch is valid until the next one is requested.

    Args:
      utf8: uint8, lone surrogates as their three bytes.
      bounds: int64 [documents + 1], ascending.
    """
    by_python = np.full(len(bounds) - 1, tokenizer.function is not None)
    if tokenizer.function is None:
        yield from _compiled_batches(utf8, bounds, tokenizer, by_python)
    for document in np.flatnonzero(by_python).tolist():
        data = utf8[bounds[document] : bounds[document + 1]].tobytes()
        hashes = tokens_of(data.decode("utf-8", "surrogatepass"), tokenizer).hashes
        yield TokenBatch(document, hashes, prefix_hashes(hashes), np.array([0, len(hashes)]))


def _compiled_batches(
    utf8: np.ndarray, bounds: np.ndarray, tokenizer: Tokenizer, unfinished: np.ndarray
) -> Iterator[TokenBatch]:
    room, documents = _TOKENS_AT_A_TIME, len(bounds) - 1
    hashes, prefixes = np.empty(room, np.uint64), np.empty(room + 1, np.uint64)
    firsts = np.empty(documents + 1, np.int64)
    no_places, no_edges, scratch = np.empty(0, np.int64), np.empty(0, np.uint32), scratch_for(room)
    first = 0
    while first < documents:
        stop = tokenize(
            utf8, bounds, first, table_of(tokenizer), ascii_separators(tokenizer),
            tokenizer.lowercase, tokenizer.keep_empty, *scratch, hashes, prefixes, firsts,
            unfinished, False, no_edges, no_places, no_places,
        )  # fmt: skip
        if stop == first:  # a document longer than any before
            room = int(bounds[first + 1] - bounds[first]) // 2 + 2
            hashes, prefixes = np.empty(room, np.uint64), np.empty(room + 1, np.uint64)
            scratch = scratch_for(room)
            continue
        count = firsts[stop - first]
        yield TokenBatch(first, hashes[:count], prefixes[: count + 1], firsts[: stop - first + 1])
        first = stop
