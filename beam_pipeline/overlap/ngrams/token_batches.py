"""Hashes of the tokens of many documents, in batches, and token counts of evaluation rows.

  UTF-8 of documents → TokenBatches → numbers of tokens and n-grams of each row

A document with a capital sigma is lower-cased in Python and follows the others of its batch. Rows
are numbered consecutively over all batches of texts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from beam_pipeline.documents.batch import decode
from beam_pipeline.overlap.ngrams.token_kernels import (
    ascii_separators,
    empty_token,
    prefix_hashes,
    scratch_for,
    table_of,
    tokenize,
)
from beam_pipeline.overlap.ngrams.token_texts import tokens_of
from beam_pipeline.overlap.ngrams.tokenizers import (
    MULTILINGUAL,
    TOKENIZERS,
    Tokenizer,
    effective_lengths,
)

_TOKENS_AT_A_TIME = 1 << 17  # hashes and prefix hashes stay in a core's cache
# UTF-8, with three bytes per lone surrogate, and int64 bounds of each text in it.
Texts = tuple[np.ndarray, np.ndarray]

# A row is in a script without spaces if MULTILINGUAL makes _MANY tokens of it, _TIMES_AS_MANY as
# another tokenizer. 0xE2, the first byte of quotation marks, does not begin such a character.
_MANY, _TIMES_AS_MANY = 16, 3
MAX_TOKEN_BYTES = 40  # longer than words of any script
_UNSPACED_BYTES = np.array([0xE0, 0xE1, *range(0xE3, 0xF5)], np.uint8)


class TokenBatch(NamedTuple):
    """The tokens of d consecutive documents; none for a document in another batch."""

    first: int  # number of the first document
    hashes: np.ndarray  # uint64 [k]
    prefixes: np.ndarray  # uint64 [k + 1], their prefix_hashes
    firsts: np.ndarray  # int64 [d + 1], first token of each document, and k


def token_batches(
    utf8: np.ndarray, bounds: np.ndarray, tokenizer: Tokenizer
) -> Iterator[TokenBatch]:
    """Yields the token hashes of the documents utf8[bounds[i]:bounds[i + 1]].

    A batch is valid until the next one is requested.
    """
    by_python = np.full(len(bounds) - 1, tokenizer.function is not None)
    if tokenizer.function is None:
        yield from _compiled_batches(utf8, bounds, tokenizer, by_python)
    for document in np.flatnonzero(by_python).tolist():
        data = utf8[bounds[document] : bounds[document + 1]].tobytes()
        hashes = tokens_of(decode(data), tokenizer).hashes
        yield TokenBatch(document, hashes, prefix_hashes(hashes), np.array([0, len(hashes)]))


def _compiled_batches(
    utf8: np.ndarray, bounds: np.ndarray, tokenizer: Tokenizer, unfinished: np.ndarray
) -> Iterator[TokenBatch]:
    room, documents = _TOKENS_AT_A_TIME, len(bounds) - 1
    hashes, prefixes = np.empty(room, np.uint64), np.empty(room + 1, np.uint64)
    firsts = np.empty(documents + 1, np.int64)
    scratch = scratch_for(room)
    first = 0
    while first < documents:
        stop = tokenize(
            utf8, bounds, first, table_of(tokenizer), ascii_separators(tokenizer),
            tokenizer.lowercase, tokenizer.keep_empty, *scratch, hashes, prefixes, firsts,
            unfinished,
        )  # fmt: skip
        if stop == first:  # the document needs more room
            room = int(bounds[first + 1] - bounds[first]) // 2 + 2
            hashes, prefixes = np.empty(room, np.uint64), np.empty(room + 1, np.uint64)
            scratch = scratch_for(room)
            continue
        count = firsts[stop - first]
        yield TokenBatch(first, hashes[:count], prefixes[: count + 1], firsts[: stop - first + 1])
        first = stop


# --- evaluation rows ------------------------------------------------------------------------------


def rows_of(texts: Sequence[Texts], tokenizer: Tokenizer) -> Iterator[tuple[int, TokenBatch]]:
    """Yields the first row number of each batch of `token_batches`, and the batch."""
    first_row = 0
    for utf8, bounds in texts:
        for batch in token_batches(utf8, bounds, tokenizer):
            yield first_row + batch.first, batch
        first_row += len(bounds) - 1


class RowTokens(NamedTuple):
    """The token counts of evaluation rows, which determine their numbers of n-grams."""

    counts: np.ndarray  # int64 [rows], tokens
    is_degenerate: np.ndarray  # bool [rows]: only empty tokens, so nearly any text matches


def count_tokens(texts: Sequence[Texts], tokenizer: Tokenizer) -> RowTokens:
    """Counts the tokens of each evaluation row."""
    num_rows = sum(len(bounds) - 1 for _, bounds in texts)
    counts, words = np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64)
    for first_row, batch in rows_of(texts, tokenizer):
        firsts = batch.firsts
        here = slice(first_row, first_row + len(firsts) - 1)
        counts[here] += np.diff(firsts)
        words[here] += np.diff(np.append(0, np.cumsum(batch.hashes != empty_token()))[firsts])
    return RowTokens(counts, (counts > 0) & (words == 0))


def count_unspaced(texts: Sequence[Texts], counts: np.ndarray, tokenizer: Tokenizer) -> int:
    """Counts the rows with many more tokens by MULTILINGUAL than by this built-in tokenizer."""
    if tokenizer.characters or tokenizer.function is not None:
        return 0
    found = first_row = 0
    for utf8, bounds in texts:
        here = slice(first_row, first_row := first_row + len(bounds) - 1)
        if np.isin(utf8, _UNSPACED_BYTES).any():
            better = count_tokens([(utf8, bounds)], TOKENIZERS[MULTILINGUAL]).counts
            found += int(((better >= _MANY) & (better > _TIMES_AS_MANY * counts[here])).sum())
    return found


def count_long_tokens(texts: Sequence[Texts], counts: np.ndarray) -> int:
    """Counts the rows with tokens that are, on average, longer than words, given their counts."""
    num_bytes = np.concatenate([np.empty(0, np.int64), *(np.diff(bounds) for _, bounds in texts)])
    return int((num_bytes > MAX_TOKEN_BYTES * np.maximum(counts, 1)).sum())


def count_places(num_tokens: Sequence[int] | np.ndarray, lengths: tuple[int, ...]) -> int:
    """Returns the total number of n-grams of texts with these token counts."""
    values, times = np.unique(np.asarray(num_tokens, np.int64), return_counts=True)
    return sum(
        (count - n + 1) * many
        for count, many in zip(values.tolist(), times.tolist(), strict=True)
        for n in effective_lengths(lengths, count)
    )
