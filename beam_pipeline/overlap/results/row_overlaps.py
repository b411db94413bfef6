"""What an evaluation row shares with the whole training data: its n-grams, and what they cover.

  Counts of a bucket of rows, and the rows' texts
  → lines of overlap_ngrams and overlap_coverage, and HITS for stats and clean lists

Counts identify an n-gram only by where it begins. The text is cut into tokens once more to tell
which n-gram that is, and where else it occurs in the row.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.documents.evaluation import EvaluationRows
from beam_pipeline.overlap.ngrams.matching import TokenizedText
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer
from beam_pipeline.overlap.results.counts import Counts
from beam_pipeline.overlap.results.match_files import crc_of
from beam_pipeline.overlap.results.output_files import GzipMember, json_line, write_lines
from beam_pipeline.storage.files import atomic_write

# An evaluation row that has an n-gram of that length in common with the training data.
HITS = np.dtype([("number", "<u4"), ("n", "<u4"), ("num_tokens", "<i8")])
Span = tuple[int, int]


class NgramCount(NamedTuple):
    """An n-gram of a row, in the training data."""

    ngram: str
    occurrences: int
    documents: int


class RowNgrams(NamedTuple):
    """The n-grams of one length that a row has in common with the training data."""

    number: int  # of the evaluation row
    n: int
    ngrams: list[NgramCount]  # in the order of their first places
    spans: list[Span]  # [start, end) in code points, merged where they meet
    num_tokens: int
    num_covered_tokens: int


class BucketFiles(NamedTuple):
    """What was written of a bucket of evaluation rows."""

    ngrams_path: str  # a gzip member
    coverage_path: str
    hits: bytes  # HITS


def find_row_ngrams(
    counts: np.ndarray, rows: EvaluationRows, tokenizer: Tokenizer
) -> Iterator[RowNgrams]:
    """Yields what each row has in common with the training data, by n, from sorted NGRAM_COUNTS.

    Raises:
      ProbelineError: the counts are not of these rows.
    """
    at_number, text = -1, TokenizedText("", tokenizer)
    for (number, n), group in groupby(counts.tolist(), key=lambda count: count[:2]):
        if number != at_number:
            at_number, text = number, TokenizedText(rows.text(number), tokenizer)
        # Occurrences and documents by first place and checksum of the n-gram.
        counted = {(start, crc): numbers for _, _, start, crc, *numbers in group}
        starts = {start for start, _ in counted}
        found: dict[str, NgramCount | None] = {}
        places = []
        num_covered = covered_to = 0
        for token, (start, ngram) in enumerate(zip(text.starts, text.ngrams(n))):
            if ngram not in found:
                count = counted.pop((start, crc_of(ngram)), None) if start in starts else None
                found[ngram] = NgramCount(ngram, *count) if count else None
            if found[ngram]:
                places.append(text.place(token, n))
                num_covered += token + n - max(token, covered_to)
                covered_to = token + n
        if counted:
            raise ProbelineError(
                f"the match files have {len(counted)} n-grams of evaluation row {number} that it "
                "does not have: they are of other evaluation sets; remove the output and run again"
            )
        shared = [count for count in found.values() if count]
        yield RowNgrams(number, n, shared, merge_spans(places), len(text), num_covered)


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


def write_bucket(
    prefix: str, temp_folder: str, counts: Counts, rows: EvaluationRows, tokenizer: Tokenizer
) -> BucketFiles:
    """Writes the lines of a bucket to `prefix`.ngrams.gz and `prefix`.coverage.jsonl."""
    ngrams_path, coverage_path = f"{prefix}.ngrams.gz", f"{prefix}.coverage.jsonl"
    hits = []
    with (
        atomic_write(ngrams_path, temp_folder) as ngrams_stream,
        atomic_write(coverage_path, temp_folder) as coverage_stream,
        GzipMember(ngrams_stream) as ngrams_member,
    ):
        found = find_row_ngrams(counts.ngrams, rows, tokenizer)
        of_rows = counts.rows.tolist(), rows.some(counts.rows["number"])
        for shared, (*key, num_documents), row in zip(found, *of_rows, strict=True):
            assert key == [shared.number, shared.n]
            head = {**row._asdict(), "n": shared.n}
            ngrams_member.write(
                json_line({**head, "overlapping_ngram_counts": list(map(list, shared.ngrams))})
            )
            coverage = {
                **head,
                "num_train_documents": num_documents,
                "spans": shared.spans,
                "longest_span": max(end - start for start, end in shared.spans),
                "num_tokens": shared.num_tokens,
                "num_covered_tokens": shared.num_covered_tokens,
                "coverage": shared.num_covered_tokens / shared.num_tokens,
            }
            coverage_stream.write(json_line(coverage))
            hits.append((shared.number, shared.n, shared.num_tokens))
    return BucketFiles(ngrams_path, coverage_path, np.array(hits, HITS).tobytes())


def write_boilerplate_lines(
    path: str, temp_folder: str, boilerplate: np.ndarray, rows: EvaluationRows, tokenizer: Tokenizer
) -> None:
    """Writes lines {ngram, n, documents} of a bucket, each once, ordered by n and n-gram."""
    found = {
        (shared.n, count.ngram, count.documents)
        for shared in find_row_ngrams(boilerplate, rows, tokenizer)
        for count in shared.ngrams
    }
    records = ({"ngram": ngram, "n": n, "documents": num} for n, ngram, num in sorted(found))
    write_lines(path, temp_folder, records)
