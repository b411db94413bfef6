"""The tokens of evaluation rows, counted: how many n-grams rows have, and which are degenerate.

Rows are numbered through all batches of texts.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from beam_pipeline.overlap.ngrams.token_batches import TokenBatch, token_batches
from beam_pipeline.overlap.ngrams.token_kernels import empty_token
from beam_pipeline.overlap.ngrams.tokenizers import (
    MULTILINGUAL,
    TOKENIZERS,
    Tokenizer,
    effective_lengths,
)

Texts = tuple[np.ndarray, np.ndarray]  # UTF-8 of some texts, and where each begins, as in batches

# A row is in a script without spaces if MULTILINGUAL makes that many tokens of it, and so many
# times those of another tokenizer. With 0xE2, of quotation marks, no such character begins.
_MANY, _TIMES_AS_MANY = 16, 3
MAX_TOKEN_BYTES = 40  # more than words have in any script
_UNSPACED_BYTES = np.array([0xE0, 0xE1, *range(0xE3, 0xF5)], np.uint8)


def rows_of(texts: Sequence[Texts], tokenizer: Tokenizer) -> Iterator[tuple[int, TokenBatch]]:
    """Yields the number of the first row of each batch of `token_batches`, and the batch."""
    first_row = 0
    for utf8, bounds in texts:
        for batch in token_batches(utf8, bounds, tokenizer):
            yield first_row + batch.first, batch
        first_row += len(bounds) - 1


class RowTokens(NamedTuple):
    """What determines how many n-grams the evaluation rows have."""

    counts: np.ndarray  # int64 [rows], tokens
    is_degenerate: np.ndarray  # bool [rows]: all tokens are empty, so that nearly anything matches


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
    """Returns of how many rows MULTILINGUAL makes many more tokens than a built-in tokenizer.

    Args:
      counts: int64 [rows], the tokens of each row.
    """
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
    """Returns of how many rows the tokens are longer than words are, on average.

    Args:
      counts: int64 [rows], the tokens of each row.
    """
    num_bytes = np.concatenate([np.empty(0, np.int64), *(np.diff(bounds) for _, bounds in texts)])
    return int((num_bytes > MAX_TOKEN_BYTES * np.maximum(counts, 1)).sum())


def count_places(num_tokens: Sequence[int] | np.ndarray, lengths: tuple[int, ...]) -> int:
    """Returns the total number of n-grams of texts with these numbers of tokens."""
    values, times = np.unique(np.asarray(num_tokens, np.int64), return_counts=True)
    return sum(
        (count - n + 1) * many
        for count, many in zip(values.tolist(), times.tolist(), strict=True)
        for n in effective_lengths(lengths, count)
    )
