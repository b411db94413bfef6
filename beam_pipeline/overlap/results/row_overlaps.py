"""What an evaluation row shares with the whole training data: its n-grams, and what they cover.

  Counts of a bucket of rows, and the rows' tokens
  → lines of overlap_ngrams and overlap_coverage, and HITS for stats and clean lists

Lines are made in columns, some rows at a time: the tokens, as they are compared, are mapped from a
file.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.evaluation import EvaluationRow, EvaluationRows
from beam_pipeline.overlap.ngrams.token_texts import TokenTexts, ngrams_of
from beam_pipeline.overlap.results.contaminated import merge_spans_of
from beam_pipeline.overlap.results.counts import NGRAM_KEYS, Counts
from beam_pipeline.overlap.results.json_columns import (
    column_of,
    data_of,
    join_pieces,
    json_fields,
    json_floats,
    json_numbers,
    json_places,
    json_strings,
    piece,
    record_lines,
)
from beam_pipeline.overlap.results.output_files import GzipMember
from beam_pipeline.overlap.results.row_places import RowLists
from beam_pipeline.storage.files import atomic_write

# An evaluation row that has an n-gram of that length in common with the training data.
HITS = np.dtype(
    [
        ("number", "<u4"),
        ("n", "<u4"),
        ("num_tokens", "<i8"),
        ("num_covered_tokens", "<i8"),
        ("longest_run", "<i8"),
        ("num_shared_places", "<i8"),
        ("num_informative_places", "<i8"),
    ]
)
Span = tuple[int, int]
_TEXTS_AT_A_TIME = 256


class BucketFiles(NamedTuple):
    """What was written of a bucket of evaluation rows."""

    ngrams_path: str  # a gzip member
    coverage_path: str
    hits: bytes  # HITS
    texts_path: str | None = None  # of `write_eval_texts`, a gzip member


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
    prefix: str,
    temp_folder: str,
    counts: Counts,
    rows: EvaluationRows,
    texts: TokenTexts,
    boilerplate: np.ndarray | None = None,
) -> BucketFiles:
    """Writes the lines of a bucket to `prefix`.ngrams.gz and `prefix`.coverage.jsonl.

    Args:
      texts: the tokens of all evaluation rows.
      boilerplate: NGRAM_KEYS of the bucket that are not counted, sorted.

    Raises:
      ProbelineError: the counts are not of these rows.
    """
    ngrams_path, coverage_path = f"{prefix}.ngrams.gz", f"{prefix}.coverage.jsonl"
    dropped = np.empty(0, NGRAM_KEYS) if boilerplate is None else boilerplate
    lists = RowLists.of(counts.ngrams)
    assert np.array_equal(lists.numbers, counts.rows["number"])
    assert np.array_equal(lists.lengths, counts.rows["n"])
    hits = [np.empty(0, HITS)]
    row = ngram = 0
    with (
        atomic_write(ngrams_path, temp_folder) as ngrams_stream,
        atomic_write(coverage_path, temp_folder) as coverage_stream,
        GzipMember(ngrams_stream) as ngrams_member,
    ):
        for firsts in lists.pieces(texts):
            _check(firsts, texts)
            fields = row_fields(firsts, rows)
            of_ngrams = counts.ngrams[ngram : ngram + len(firsts.tokens)]
            ngrams = {"overlapping_ngram_counts": _ngram_lists(firsts, of_ngrams, texts)}
            ngrams_member.write(data_of(record_lines({**fields, **ngrams})))
            places = firsts.all_places(texts)
            hits.append(_hits_of(places, firsts.of_same(dropped).all_places(texts), texts))
            documents = counts.rows["documents"][row : row + len(firsts.numbers)]
            coverage = {"num_train_documents": json_numbers(documents)}
            coverage |= _coverage_fields(places, hits[-1], texts)
            coverage_stream.write(data_of(record_lines({**fields, **coverage})))
            row, ngram = row + len(firsts.numbers), ngram + len(firsts.tokens)
    return BucketFiles(ngrams_path, coverage_path, np.concatenate(hits).tobytes())


def _check(firsts: RowLists, texts: TokenTexts) -> None:
    of_tokens = firsts.of_tokens
    ends = firsts.tokens + firsts.lengths[of_tokens]
    missing = of_tokens[ends > firsts.num_tokens(texts)[of_tokens]]
    if len(missing):
        raise ProbelineError(
            f"the match files have {np.sum(missing == missing[0])} n-grams of evaluation row "
            f"{firsts.numbers[missing[0]]} that it does not have: they are of other evaluation "
            "sets; remove the output and run again"
        )


def _hits_of(places: RowLists, dropped: RowLists, texts: TokenTexts) -> np.ndarray:
    """Returns HITS.

    Args:
      places: all places of shared n-grams.
      dropped: all places of n-grams that are not counted.
    """
    hits = np.empty(len(places.numbers), HITS)
    num_tokens = places.num_tokens(texts)
    hits["number"], hits["n"], hits["num_tokens"] = places.numbers, places.lengths, num_tokens
    hits["num_covered_tokens"], hits["longest_run"] = places.cover()
    hits["num_shared_places"] = places.sizes
    hits["num_informative_places"] = num_tokens - places.lengths + 1 - dropped.sizes
    return hits


# --- lines --------------------------------------------------------------------------------------


def row_fields(lists: RowLists, rows: EvaluationRows) -> dict[str, pa.LargeBinaryArray]:
    """Returns the fields that tell an evaluation row and n, as JSON."""
    table = rows.take(lists.numbers, with_texts=False)
    return {**json_fields(table, *EvaluationRow._fields), "n": json_numbers(lists.lengths)}


def _ngram_lists(firsts: RowLists, counts: np.ndarray, texts: TokenTexts) -> pa.LargeBinaryArray:
    """Returns the n-grams of each list as JSON, with their NGRAM_COUNTS."""
    of_tokens = firsts.of_tokens
    tokens = texts.firsts[firsts.numbers[of_tokens]] + firsts.tokens
    ngrams = [
        piece(b"["),
        json_strings(ngrams_of(texts, tokens, firsts.lengths[of_tokens])),
        piece(b","),
        json_numbers(counts["occurrences"]),
        piece(b","),
        json_numbers(counts["documents"]),
        piece(b"]"),
    ]
    lists = pa.LargeListArray.from_arrays(firsts.bounds, join_pieces(ngrams))
    joined = pc.binary_join(lists, piece(b","))  # pyright: ignore[reportAttributeAccessIssue]
    return join_pieces([piece(b"["), joined, piece(b"]")])


def _coverage_fields(
    places: RowLists, hits: np.ndarray, texts: TokenTexts
) -> dict[str, pa.LargeBinaryArray]:
    """Returns what places and HITS tell of each row, as JSON."""
    of_places = places.of_tokens
    at = texts.firsts[places.numbers[of_places]] + places.tokens
    starts, ends = texts.starts[at], texts.ends[at + places.lengths[of_places] - 1]
    spans = merge_spans_of(of_places, starts.astype(np.int64), ends.astype(np.int64))
    bounds = np.searchsorted(spans.documents, np.arange(len(hits) + 1))
    return {
        "spans": json_places(bounds, spans.starts, spans.ends),
        "longest_span": json_numbers(np.maximum.reduceat(spans.ends - spans.starts, bounds[:-1])),
        "num_tokens": json_numbers(hits["num_tokens"]),
        "num_covered_tokens": json_numbers(hits["num_covered_tokens"]),
        "coverage": json_floats(hits["num_covered_tokens"] / hits["num_tokens"]),
        "longest_run": json_numbers(hits["longest_run"]),
        "num_informative_ngrams": json_numbers(hits["num_informative_places"]),
        "num_shared_ngrams": json_numbers(hits["num_shared_places"]),
        "ngram_coverage": json_floats(hits["num_shared_places"] / hits["num_informative_places"]),
    }


def write_eval_texts(
    path: str, temp_folder: str, numbers: np.ndarray, rows: EvaluationRows
) -> None:
    """Writes the texts of some evaluation rows, whose numbers ascend, as a gzip member."""
    with atomic_write(path, temp_folder) as stream, GzipMember(stream) as member:
        for at in range(0, len(numbers), _TEXTS_AT_A_TIME):
            table = rows.take(numbers[at : at + _TEXTS_AT_A_TIME])
            texts = {"eval_text": json_strings(column_of(table, "text"))}
            places = json_fields(table, "eval_dataset", "eval_path", "eval_row")
            member.write(data_of(record_lines({**places, **texts})))
