"""What an evaluation row shares with the whole training data: its n-grams, and what they cover.

  NGRAM_COUNTS and ROW_COUNTS of a bucket of rows, and the rows' texts
  → lines of overlap_ngrams and overlap_coverage, and HITS for stats and clean lists

Counts know an n-gram only by where it begins. The text is cut into tokens once more to tell which
n-gram that is, and where else it stands in the row.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import numpy as np

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.ngrams.matching import TokenizedText
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer
from beam_pipeline.overlap.results.match_files import crc_of
from beam_pipeline.overlap.results.output_files import GzipMember, json_line, write_lines
from beam_pipeline.storage.files import atomic_write

# An evaluation row that has an n-gram of that length in common with the training data.
HITS = np.dtype([("number", "<u4"), ("n", "<u4"), ("num_tokens", "<i8")])
Span = tuple[int, int]
_Counts = dict[tuple[int, int], tuple[int, int]]  # by start and crc: occurrences, documents


class Rows(Protocol):
    """The evaluation rows that have a text, by their numbers."""

    @property
    def datasets(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, number: int) -> str: ...
    def dataset(self, number: int) -> str: ...
    def path(self, number: int) -> str: ...
    def row(self, number: int) -> int: ...
    def id(self, number: int) -> str: ...


class NgramCount(NamedTuple):
    """An n-gram of a row, in the training data."""

    ngram: str
    occurrences: int
    documents: int


class RowOverlap(NamedTuple):
    """What a row has in common with the training data at one n."""

    number: int
    n: int
    ngrams: list[NgramCount]  # in the order of their first places
    spans: list[Span]  # [start, end) in code points, merged where they meet
    num_tokens: int
    num_covered_tokens: int
    num_train_documents: int


def row_overlaps(
    ngrams: np.ndarray, documents: np.ndarray, rows: Rows, tokenizer: Tokenizer
) -> Iterator[RowOverlap]:
    """Yields what each row of a bucket has in common with the training data, by n.

    Args:
      ngrams: NGRAM_COUNTS, sorted.
      documents: ROW_COUNTS of the same rows and n, sorted.
    """
    for (number, n, text, counts), (*of, num_documents) in zip(
        _by_row(ngrams, rows, tokenizer), documents.tolist(), strict=True
    ):
        assert of == [number, n]
        yield _overlap(number, n, text, counts, num_documents)


def _by_row(
    ngrams: np.ndarray, rows: Rows, tokenizer: Tokenizer
) -> Iterator[tuple[int, int, TokenizedText, _Counts]]:
    """Yields each evaluation row and n, the row's tokens, and what was counted."""
    at_number, text = -1, None
    for (number, n), group in groupby(ngrams.tolist(), key=lambda count: count[:2]):
        if text is None or number != at_number:
            at_number, text = number, TokenizedText(rows[number], tokenizer)
        yield (
            number,
            n,
            text,
            {(start, crc): (times, num) for _, _, start, crc, times, num in group},
        )


def _overlap(
    number: int, n: int, text: TokenizedText, counts: _Counts, num_documents: int
) -> RowOverlap:
    found: dict[str, NgramCount | None] = {}
    places = []
    num_covered = covered_to = 0
    for token in range(len(text) - n + 1):
        ngram, place = text.ngram(token, n), text.place(token, n)
        if ngram not in found:
            count = counts.pop((place[0], crc_of(ngram)), None)
            found[ngram] = NgramCount(ngram, *count) if count else None
        if found[ngram]:
            places.append(place)
            num_covered += token + n - max(token, covered_to)
            covered_to = token + n
    if counts:
        raise ProbelineError(
            f"the parts know {len(counts)} n-grams of evaluation row {number} that it does not "
            "have: they are of other evaluation sets; remove the output and run again"
        )
    shared = [count for count in found.values() if count]
    spans = merge_spans(places)
    return RowOverlap(number, n, shared, spans, len(text), num_covered, num_documents)


def merge_spans(spans: Iterable[Span], max_gap: int = 0) -> list[Span]:
    """Returns ranges [start, end) in order, those at most `max_gap` apart as one.

    >>> merge_spans([(4, 9), (0, 2), (2, 3)])
    [(0, 3), (4, 9)]
    """
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + max_gap:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def head_of(rows: Rows, number: int) -> dict[str, Any]:
    """Returns how records name an evaluation row."""
    return {
        "eval_dataset": rows.dataset(number),
        "instance_id": rows.id(number),
        "eval_path": rows.path(number),
        "eval_row": rows.row(number),
    }


def ngrams_record(rows: Rows, overlap: RowOverlap) -> dict[str, Any]:
    """Returns a line of overlap_ngrams.jsonl.gz."""
    head = {**head_of(rows, overlap.number), "n": overlap.n}
    return {**head, "overlapping_ngram_counts": [list(count) for count in overlap.ngrams]}


def coverage_record(rows: Rows, overlap: RowOverlap) -> dict[str, Any]:
    """Returns a line of overlap_coverage.jsonl."""
    return {
        **head_of(rows, overlap.number),
        "n": overlap.n,
        "num_train_documents": overlap.num_train_documents,
        "spans": overlap.spans,
        "longest_span": max(end - start for start, end in overlap.spans),
        "num_tokens": overlap.num_tokens,
        "num_covered_tokens": overlap.num_covered_tokens,
        "coverage": overlap.num_covered_tokens / overlap.num_tokens,
    }


class BucketFiles(NamedTuple):
    """What was written of a bucket of evaluation rows."""

    ngrams_path: str  # a gzip member
    coverage_path: str
    hits: bytes  # HITS


def write_bucket(
    prefix: str,
    temp_folder: str,
    ngrams: np.ndarray,
    documents: np.ndarray,
    rows: Rows,
    tokenizer: Tokenizer,
) -> BucketFiles:
    """Writes the lines of a bucket to `prefix`.ngrams.gz and `prefix`.coverage.jsonl."""
    ngrams_path, coverage_path = f"{prefix}.ngrams.gz", f"{prefix}.coverage.jsonl"
    hits = []
    with (
        atomic_write(ngrams_path, temp_folder) as ngrams_stream,
        atomic_write(coverage_path, temp_folder) as coverage_stream,
        GzipMember(ngrams_stream) as ngrams_member,
    ):
        for overlap in row_overlaps(ngrams, documents, rows, tokenizer):
            ngrams_member.write(json_line(ngrams_record(rows, overlap)))
            coverage_stream.write(json_line(coverage_record(rows, overlap)))
            hits.append((overlap.number, overlap.n, overlap.num_tokens))
    return BucketFiles(ngrams_path, coverage_path, np.array(hits, HITS).tobytes())


def write_boilerplate_lines(
    path: str,
    temp_folder: str,
    boilerplate: np.ndarray,
    rows: Rows,
    tokenizer: Tokenizer,
) -> None:
    """Writes the boilerplate n-grams of a bucket, each once, ordered by n and n-gram.

    Args:
      path: of the lines {ngram, n, documents}, to be merged with those of other buckets.
      boilerplate: NGRAM_COUNTS, sorted.
    """
    found = {
        (n, count.ngram, count.documents)
        for number, n, text, counts in _by_row(boilerplate, rows, tokenizer)
        for count in _overlap(number, n, text, counts, 0).ngrams
    }
    records = ({"ngram": ngram, "n": n, "documents": num} for n, ngram, num in sorted(found))
    write_lines(path, temp_folder, records)
