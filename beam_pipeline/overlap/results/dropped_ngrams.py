"""The n-grams of files of the user, as --drop_ngrams names them, found in the index.

  lines {ngram}, also {ngram, n, …} of `boilerplate` → (index shard, n-gram) of those that an
                                                       evaluation row has

A line is looked up as a document of its own, whose tokens are what is between spaces.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from beam_pipeline.documents.batch import text_buffers
from beam_pipeline.errors import ProbelineError, one_line
from beam_pipeline.overlap.ngrams.index import Index
from beam_pipeline.overlap.ngrams.matching import find_candidates
from beam_pipeline.overlap.ngrams.postings import Postings
from beam_pipeline.overlap.ngrams.token_texts import token_texts
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer
from beam_pipeline.overlap.results.output_files import read_lines
from beam_pipeline.storage.matching import FileVersion, unchanged

_LINES_AT_A_TIME = 1 << 16
_JOINED = Tokenizer("n-grams", " ", lowercase=False)


def read_ngrams(file: FileVersion) -> Iterator[str]:
    """Yields the n-grams of a file of JSON lines.

    Raises:
      ProbelineError: a line is no record with an n-gram, or its tokens cannot be told apart.
    """
    lines = read_lines(file.path)
    with unchanged(file):
        for number in itertools.count(1):
            try:
                record = next(lines, None)
                if record is None:
                    return
                ngram = _ngram_of(record)
            except ValueError as error:
                is_text = isinstance(error, (json.JSONDecodeError, UnicodeError))
                reason = "it is no JSON" if is_text else one_line(error)
                raise ProbelineError(
                    f"--drop_ngrams={file.path}: line {number}: {reason}; give lines such as "
                    '{"ngram": "all rights reserved"}'
                ) from error
            yield ngram


def check_ngrams(file: FileVersion) -> None:
    """Raises the error of `read_ngrams`, if there is one, before a run begins."""
    for _ in read_ngrams(file):
        pass


def _ngram_of(record: Any) -> str:
    if not isinstance(record, dict) or not isinstance(ngram := record.get("ngram"), str):
        raise ValueError("it is no record with an ngram")
    num_tokens = ngram.count(" ") + 1
    if record.get("n", num_tokens) != num_tokens:
        raise ValueError(f"n is {record['n']}, and {ngram!r} has {num_tokens} tokens")
    return ngram


def find_ngrams(
    ngrams: Iterable[str], indexes: Sequence[Index], postings: Sequence[Postings]
) -> list[np.ndarray]:
    """Returns the n-grams of each index shard that are among some texts, sorted, int64.

    Args:
      ngrams: tokens with a space between them.
      indexes, postings: of each index shard.
    """
    found: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in postings]
    for some in itertools.batched(ngrams, _LINES_AT_A_TIME):
        utf8, bounds = text_buffers(list(some))
        texts = token_texts(utf8, bounds, _JOINED)
        num_tokens = np.diff(texts.firsts)
        for of_shard, index, posting in zip(found, indexes, postings, strict=True):
            _, tokens, lengths, keys, *_ = candidates = find_candidates(
                index, _JOINED, utf8, bounds
            )
            is_whole = (tokens == 0) & (lengths == num_tokens[candidates.documents])
            first = texts.firsts[candidates.documents[is_whole]]
            numbers = posting.identify(keys[is_whole], texts, first, lengths[is_whole])
            of_shard.append(numbers[numbers >= 0])
    return [np.unique(np.concatenate(parts)) for parts in found]
