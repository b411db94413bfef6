"""Counts are those of a plain loop, whatever order they are added up in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from beam_pipeline.overlap.results import counts
from beam_pipeline.overlap.results.counts import (
    NGRAM_COUNTS,
    NGRAM_KEYS,
    ROW_COUNTS,
    Counts,
    PackedCounts,
    add_counts,
    pack,
)
from beam_pipeline.overlap.results.row_overlaps import RowNgrams, find_row_ngrams
from tests.support.overlap_gathering import rows_of
from tests.support.overlap_reference import EvalRow
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
    first_of_each = counts._first_of_each
    monkeypatch.setattr(
        counts, "_first_of_each", lambda keys: sizes.append(len(keys[0])) or first_of_each(keys)
    )
    part = np.zeros(20, ROW_COUNTS)
    part["number"], part["documents"] = np.arange(20), 2**40
    total = add_counts([Counts(np.empty(0, NGRAM_COUNTS), part)] * 500).rows
    assert total["documents"].tolist() == [500 * 2**40] * 20  # no counter overflows
    assert max(sizes) <= 60


def test_a_count_and_a_key_may_be_large() -> None:
    part = np.array([(2**32 - 1, 2**31, 2**32 - 1, 2**62, 1)], NGRAM_COUNTS)
    low = np.array([(2**32 - 1, 2**31, 0, 3, 1)], NGRAM_COUNTS)
    no_rows = np.empty(0, ROW_COUNTS)
    total = add_counts([Counts(part, no_rows), Counts(low, no_rows), Counts(low, no_rows)]).ngrams
    assert [row[2:] for row in total.tolist()] == [(0, 6, 2), (2**32 - 1, 2**62, 1)]


# --- evaluation rows ----------------------------------------------------------------------------


def shared_in(text: str, ngrams: list[tuple[str, int]], n: int) -> list[RowNgrams]:
    rows = rows_of([EvalRow("arc", "/e", 0, "1", text)])
    found = [(0, n, token, 3, 2) for _, token in ngrams]
    return list(find_row_ngrams(np.array(found, NGRAM_COUNTS), rows, DEFAULT))


def test_all_places_of_a_shared_n_gram_are_covered() -> None:
    """Counts know the first one alone."""
    (overlap,) = shared_in("A b, a B - x a b y", [("a b", 0)], 2)
    assert overlap.spans == [(0, 3), (5, 8), (13, 16)]
    assert overlap.ngrams == [("a b", 3, 2)]
    assert (overlap.num_tokens, overlap.num_covered_tokens) == (8, 6)


def test_spans_that_overlap_or_meet_are_one() -> None:
    (overlap,) = shared_in("a b c d e", [("a b c", 0), ("b c d", 1)], 3)
    assert overlap.spans == [(0, 7)]
    assert overlap.num_covered_tokens == 4
    assert [count.ngram for count in overlap.ngrams] == ["a b c", "b c d"]


def test_match_files_of_other_evaluation_sets_are_noticed() -> None:
    with pytest.raises(ProbelineError, match="of other evaluation sets; remove the output"):
        shared_in("a b c", [("c d", 2)], 2)


def test_scores_of_a_row_with_boilerplate() -> None:
    # Twelve tokens, eleven 2-grams: "a b" is common, begins at three of them.
    text = "a b c d a b e f g h a b"
    rows = rows_of([EvalRow("arc", "/e", 0, "1", text)])
    found = [(0, 2, 2, 1, 1), (0, 2, 3, 1, 1), (0, 2, 6, 2, 1), (0, 2, 8, 1, 3)]
    keys = np.array([(0, 2, 0)], NGRAM_KEYS)
    (row,) = find_row_ngrams(np.array(found, NGRAM_COUNTS), rows, DEFAULT, keys)
    assert (row.num_tokens, row.num_covered_tokens, row.longest_run) == (12, 7, 4)
    assert (row.num_shared_places, row.num_informative_places) == (4, 8)
    assert row.spans == [(4, 9), (12, 15), (16, 19)]
