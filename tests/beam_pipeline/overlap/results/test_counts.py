"""Counts are those of a plain loop, whatever order they are added up in."""

import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from beam_pipeline.overlap.results import counts, row_overlaps
from beam_pipeline.overlap.results.counts import (
    NGRAM_COUNTS,
    NGRAM_KEYS,
    ROW_COUNTS,
    SHARED_COUNTS,
    Counts,
    PackedCounts,
    add_counts,
    add_shared,
    pack,
    unpack,
)
from beam_pipeline.overlap.results.output_files import json_floats, json_value
from beam_pipeline.overlap.results.row_overlaps import write_bucket
from tests.support.overlap_gathering import read_bytes, read_records, rows_of, tokens_of_rows
from tests.support.overlap_hits import EvalRow
from tests.support.properties import num_examples

DEFAULT = TOKENIZERS["default"]


@settings(max_examples=num_examples(50))
@given(
    ngrams=st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 3, *[st.integers(0, 2**63 - 1)] * 2)),
    rows=st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 2, st.integers(0, 2**63 - 1))),
)
def test_counts_survive_their_travel(ngrams: list[tuple], rows: list[tuple]) -> None:
    before = Counts(np.array(ngrams, NGRAM_COUNTS), np.array(rows, ROW_COUNTS))
    for was, now in zip(before, PackedCounts.of(before).counts(), strict=True):
        assert now.dtype == was.dtype and np.array_equal(now, was)


def test_counts_travel_in_a_few_bytes() -> None:
    counts = np.ones(8192 * 28, NGRAM_COUNTS)
    counts["number"], counts["token"] = np.divmod(np.arange(len(counts)), 28)
    assert len(pack(counts)) < len(counts) / 10


def test_adding_up_many_units_holds_little_more_than_the_sum(monkeypatch) -> None:
    monkeypatch.setattr(counts, "_MIN_PENDING", 10)
    sizes = []
    first_of_each = counts.first_of_each
    monkeypatch.setattr(
        counts, "first_of_each", lambda keys: sizes.append(len(keys[0])) or first_of_each(keys)
    )
    part = np.zeros(20, ROW_COUNTS)
    part["number"], part["documents"] = np.arange(20), 2**40
    total = add_counts([Counts(np.empty(0, NGRAM_COUNTS), part)] * 500).rows
    assert total["documents"].tolist() == [500 * 2**40] * 20  # no counter overflows
    assert max(sizes) <= 60


def ngram_counts(dtype: np.dtype, keys: tuple[str, str]) -> np.ndarray:
    part = np.ones(20_000, dtype)
    part[keys[0]], part[keys[1]] = np.divmod(np.arange(len(part)), 100)
    return part


def peak_bytes(add: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        add()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_work_units_that_share_rows() -> None:
    """As the steps that write evaluation rows, and that find boilerplate, take them: packed."""
    ngrams = ngram_counts(NGRAM_COUNTS, ("number", "token"))
    packed = PackedCounts.of(Counts(ngrams, np.empty(0, ROW_COUNTS)))
    shared = pack(ngram_counts(SHARED_COUNTS, ("shard", "ngram")))
    for add in (
        lambda num: add_counts(packed.counts() for _ in range(num)),
        lambda num: add_shared(unpack(shared, SHARED_COUNTS) for _ in range(num)),
    ):
        few, many = (peak_bytes(partial(add, num)) for num in (40, 160))
        assert many < 1.1 * few


def test_a_count_and_a_key_may_be_large() -> None:
    part = np.array([(2**32 - 1, 2**31, 2**32 - 1, 2**62, 1)], NGRAM_COUNTS)
    low = np.array([(2**32 - 1, 2**31, 0, 3, 1)], NGRAM_COUNTS)
    no_rows = np.empty(0, ROW_COUNTS)
    total = add_counts([Counts(part, no_rows), Counts(low, no_rows), Counts(low, no_rows)]).ngrams
    assert [row[2:] for row in total.tolist()] == [(0, 6, 2), (2**32 - 1, 2**62, 1)]


# --- evaluation rows ----------------------------------------------------------------------------


def lines_of(
    folder: Path, text: str, ngrams: list[tuple[int, int, int]], n: int, dropped: Sequence[int] = ()
) -> tuple[dict, dict]:
    """Returns the lines of overlap_ngrams and overlap_coverage of a row.

    Args:
      ngrams: first token, occurrences and documents of each shared n-gram.
      dropped: first tokens of n-grams that are not counted.
    """
    rows = rows_of([EvalRow("arc", "/e", 0, "1", text)])
    found = Counts(
        np.array([(0, n, *each) for each in ngrams], NGRAM_COUNTS),
        np.array([(0, n, 3)], ROW_COUNTS),
    )
    keys = np.array([(0, n, token) for token in dropped], NGRAM_KEYS)
    texts = tokens_of_rows(rows, DEFAULT)
    files = write_bucket(f"{folder}/bucket", str(folder), found, rows, texts, keys)
    (line,), (coverage,) = (read_records(path) for path in files[:2])
    return line, coverage


def test_all_places_of_a_shared_n_gram_are_covered(tmp_path: Path) -> None:
    """Counts know the first one alone."""
    ngrams, coverage = lines_of(tmp_path, "A b, a B - x a b y", [(0, 3, 2)], 2)
    assert coverage["spans"] == [[0, 3], [5, 8], [13, 16]]
    assert ngrams["overlapping_ngram_counts"] == [["a b", 3, 2]]
    assert (coverage["num_tokens"], coverage["num_covered_tokens"]) == (8, 6)


def test_spans_that_overlap_or_meet_are_one(tmp_path: Path) -> None:
    ngrams, coverage = lines_of(tmp_path, "a b c d e", [(0, 3, 2), (1, 3, 2)], 3)
    assert coverage["spans"] == [[0, 7]]
    assert coverage["num_covered_tokens"] == 4
    assert [ngram for ngram, *_ in ngrams["overlapping_ngram_counts"]] == ["a b c", "b c d"]


def test_match_files_of_other_evaluation_sets_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(ProbelineError, match="of other evaluation sets; remove the output"):
        lines_of(tmp_path, "a b c", [(1, 1, 1), (2, 1, 1)], 2)


def test_scores_of_a_row_with_boilerplate(tmp_path: Path) -> None:
    # Twelve tokens, eleven 2-grams: "a b" is common, begins at three of them.
    text = "a b c d a b e f g h a b"
    shared = [(2, 1, 1), (3, 1, 1), (6, 2, 1), (8, 1, 3)]
    _, row = lines_of(tmp_path, text, shared, 2, dropped=[0])
    assert (row["num_tokens"], row["num_covered_tokens"], row["longest_run"]) == (12, 7, 4)
    assert (row["num_shared_ngrams"], row["num_informative_ngrams"]) == (4, 8)
    assert row["spans"] == [[4, 9], [12, 15], [16, 19]]


def test_cutting_the_rows_of_a_bucket_changes_no_line(tmp_path: Path, monkeypatch) -> None:
    rows = rows_of([EvalRow("arc", "/e", at, str(at), "a b c " * (at + 1)) for at in range(9)])
    keys = [(at, n, token) for at in range(9) for n in (1, 2) for token in range(3 if at else 2)]
    of_rows = [(at, n, at + 1) for at in range(9) for n in (1, 2)]
    found = Counts(
        np.array([(*key, 2, 1) for key in keys], NGRAM_COUNTS), np.array(of_rows, ROW_COUNTS)
    )
    texts = tokens_of_rows(rows, DEFAULT)
    files = [write_bucket(f"{tmp_path}/whole", str(tmp_path), found, rows, texts)]
    monkeypatch.setattr(row_overlaps, "_TOKENS_AT_A_TIME", 1)
    files.append(write_bucket(f"{tmp_path}/cut", str(tmp_path), found, rows, texts))
    one, other = ([read_bytes(path) for path in each[:2]] + [each.hits] for each in files)
    assert one == other


@given(st.lists(st.floats(0, 1) | st.floats(allow_nan=False, allow_infinity=False), min_size=1))
@settings(max_examples=num_examples(50))
def test_floats_in_columns_are_those_of_a_record(values: list[float]) -> None:
    pieces = json_floats(np.array(values, np.float64)).to_pylist()
    assert pieces == list(map(json_value, values))
