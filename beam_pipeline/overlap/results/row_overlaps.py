"""What an evaluation row shares with the whole training data: its n-grams, and what they cover.

  Counts of a bucket of rows, and the rows' texts
  → lines of overlap_ngrams and overlap_coverage, and HITS for stats and clean lists

Counts identify an n-gram only by where it begins. The text is cut into tokens once more to tell
which n-gram that is, and where else it occurs in the row.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.documents.evaluation import EvaluationRows
from beam_pipeline.overlap.ngrams.tokenizers import Tokenizer
from beam_pipeline.overlap.results.counts import NGRAM_KEYS, Counts
from beam_pipeline.overlap.results.output_files import GzipMember, json_line
from beam_pipeline.overlap.results.row_text import RowText
from beam_pipeline.storage.files import atomic_write

# An evaluation row that has an n-gram of that length in common with the training data.
HITS = np.dtype(
    [
        ("number", "<u4"),
        ("n", "<u4"),
        ("num_tokens", "<i8"),
        ("num_covered_tokens", "<i8"),
        ("num_shared_places", "<i8"),
        ("num_informative_places", "<i8"),
    ]
)
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
    longest_run: int  # of covered tokens
    num_shared_places: int  # at which an n-gram of `ngrams` begins
    num_informative_places: int  # at which an n-gram begins that is no boilerplate


class BucketFiles(NamedTuple):
    """What was written of a bucket of evaluation rows."""

    ngrams_path: str  # a gzip member
    coverage_path: str
    hits: bytes  # HITS
    texts_path: str | None = None  # of `write_eval_texts`, a gzip member
    effects_path: str | None = None  # of `write_effects`
    num_effects: tuple[int, int] = (0, 0)  # NumEffects


def find_row_ngrams(
    counts: np.ndarray,
    rows: EvaluationRows,
    tokenizer: Tokenizer,
    boilerplate: np.ndarray | None = None,
) -> Iterator[RowNgrams]:
    """Yields what each row has in common with the training data, by n, from sorted NGRAM_COUNTS.

    Args:
      boilerplate: NGRAM_KEYS of these rows, sorted, which `counts` does not have.

    Raises:
      ProbelineError: the counts are not of these rows.
    """
    at_number, text = -1, RowText("", tokenizer)
    dropped = np.empty(0, NGRAM_KEYS) if boilerplate is None else boilerplate
    is_cut = (np.diff(counts["number"]) != 0) | (np.diff(counts["n"]) != 0)
    for found in np.split(counts, np.flatnonzero(is_cut) + 1) if len(counts) else ():
        number, n = int(found["number"][0]), int(found["n"][0])
        if number != at_number:
            at_number, text = number, RowText(rows.text(number), tokenizer)
        shared = text.first_places(n, found["token"])
        if missing := len(found) - len(shared):
            raise ProbelineError(
                f"the match files have {missing} n-grams of evaluation row {number} that it "
                "does not have: they are of other evaluation sets; remove the output and run again"
            )
        numbers = zip(shared, found["occurrences"].tolist(), found["documents"].tolist())
        ngrams = [NgramCount(*each) for each in numbers]
        ngrams.sort(key=lambda count: shared[count.ngram])
        places = text.all_places(n, shared)
        num_dropped = _count_places(text, n, dropped[slice(*_range_of(dropped, number))])
        yield RowNgrams(
            number,
            n,
            ngrams,
            _spans_of(text.starts[places], text.ends[places + n - 1]),
            len(text),
            *cover(places, n),
            len(places),
            len(text) - n + 1 - num_dropped,
        )


def _range_of(keys: np.ndarray, number: int) -> np.ndarray:
    """Returns where the keys of a row begin and end."""
    return np.searchsorted(keys["number"], (number, number + 1))


def _count_places(text: RowText, n: int, keys: np.ndarray) -> int:
    """Returns at how many tokens of a row an n-gram of its NGRAM_KEYS begins."""
    keys = keys[keys["n"] == n]
    if not len(keys):
        return 0
    return len(text.all_places(n, text.first_places(n, keys["token"])))


def cover(places: np.ndarray, n: int) -> tuple[int, int]:
    """Returns how many tokens n-grams at ascending places cover, and the longest run of them."""
    cuts = np.flatnonzero(np.diff(places) > n)
    firsts, lasts = np.append(places[:1], places[cuts + 1]), np.append(places[cuts], places[-1:])
    sizes = lasts - firsts + n
    return int(sizes.sum()), int(sizes.max())


def _spans_of(starts: np.ndarray, ends: np.ndarray) -> list[Span]:
    """Returns `merge_spans` of ranges whose starts ascend."""
    ends = np.maximum.accumulate(ends)
    cuts = np.flatnonzero(starts[1:] > ends[:-1])
    firsts, lasts = np.append(starts[:1], starts[cuts + 1]), np.append(ends[cuts], ends[-1:])
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


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
    tokenizer: Tokenizer,
    boilerplate: np.ndarray | None = None,
) -> BucketFiles:
    """Writes the lines of a bucket to `prefix`.ngrams.gz and `prefix`.coverage.jsonl.

    Args:
      boilerplate: NGRAM_KEYS of the bucket that are not counted.
    """
    ngrams_path, coverage_path = f"{prefix}.ngrams.gz", f"{prefix}.coverage.jsonl"
    hits = []
    with (
        atomic_write(ngrams_path, temp_folder) as ngrams_stream,
        atomic_write(coverage_path, temp_folder) as coverage_stream,
        GzipMember(ngrams_stream) as ngrams_member,
    ):
        found = find_row_ngrams(counts.ngrams, rows, tokenizer, boilerplate)
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
                "longest_run": shared.longest_run,
                "num_informative_ngrams": shared.num_informative_places,
                "num_shared_ngrams": shared.num_shared_places,
                "ngram_coverage": shared.num_shared_places / shared.num_informative_places,
            }
            coverage_stream.write(json_line(coverage))
            hits.append(tuple(getattr(shared, name) for name in HITS.names or ()))
    return BucketFiles(ngrams_path, coverage_path, np.array(hits, HITS).tobytes())


def write_eval_texts(
    path: str, temp_folder: str, numbers: np.ndarray, rows: EvaluationRows
) -> None:
    """Writes the texts of some evaluation rows, whose numbers ascend, as a gzip member."""
    with atomic_write(path, temp_folder) as stream, GzipMember(stream) as member:
        for number, row in zip(numbers.tolist(), rows.some(numbers), strict=True):
            names = {"eval_dataset": row.eval_dataset, "eval_path": row.eval_path}
            text = {"eval_row": row.eval_row, "eval_text": rows.text(number)}
            member.write(json_line({**names, **text}))
