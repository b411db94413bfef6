"""Counts are those of a plain loop, whatever order they are added up in."""

import random
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.ngrams.matching import Match
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from beam_pipeline.overlap.results import counts, match_files
from beam_pipeline.overlap.results.counts import (
    NGRAM_COUNTS,
    NGRAM_KEYS,
    ROW_COUNTS,
    Counts,
    add_counts,
    count_unit,
    cut_by_bucket,
    find_boilerplate,
    read_boilerplate,
    write_boilerplate,
)
from beam_pipeline.overlap.results.match_files import MatchColumns, crc_of, write_match_file
from beam_pipeline.overlap.results.row_overlaps import RowNgrams, find_row_ngrams
from tests.support.overlap_gathering import batch_of, rows_of
from tests.support.overlap_reference import EvalRow, TrainRow

DEFAULT = TOKENIZERS["default"]


def some_matches(seed: int, num_documents: int) -> list[Match]:
    """Returns matches of few n-grams, in order: at place `start` of a row stands n-gram `start`."""
    rng = random.Random(seed)
    keys = {
        (document, rng.randrange(9), rng.randrange(1, 4), rng.randrange(6))
        for document in range(num_documents)
        for _ in range(rng.randrange(20))
    }
    return [
        Match(
            document, number, n, f"{start} {n}", [(start, 9)], [(0, 1)] * rng.randrange(1, 4)
        )
        for document, number, n, start in sorted(keys)
    ]  # fmt: skip


def match_files_of(
    folder: Path, name: str, matches: list[Match], num_index_shards: int
) -> list[str]:
    batch = batch_of([TrainRow("/c", row, None, "x") for row in range(40)])
    paths = []
    for number in range(num_index_shards):
        paths.append(str(folder / f"{name}-{number}"))
        of_shard = [match for match in matches if crc_of(match.ngram) % num_index_shards == number]
        write_match_file(paths[-1], str(folder / "t"), [(batch, of_shard)])
    return paths


def key_of(match: Match) -> tuple[int, int, int, int]:
    return match.row, match.n, match.eval_places[0][0], crc_of(match.ngram)


def by_loop(matches: list[Match]) -> tuple[list[tuple], list[tuple]]:
    """Returns what NGRAM_COUNTS and ROW_COUNTS hold."""
    occurrences, documents, sharing = Counter(), Counter(), defaultdict(set)
    for match in matches:
        occurrences[key_of(match)] += len(match.train_places)
        documents[key_of(match)] += 1
        sharing[match.row, match.n].add(match.document)
    ngrams = [(*key, occurrences[key], documents[key]) for key in sorted(documents)]
    return ngrams, [(*key, len(found)) for key, found in sorted(sharing.items())]


@pytest.mark.parametrize("num_index_shards", [1, 3])
@pytest.mark.parametrize("group", [2, 1 << 14])
def test_a_unit_is_counted_as_by_a_loop(
    tmp_path: Path, monkeypatch, num_index_shards: int, group: int
) -> None:
    monkeypatch.setattr(match_files, "_GROUP_MATCHES", group)
    monkeypatch.setattr(counts, "_MIN_PENDING", 5)
    for seed in range(6):
        matches = some_matches(seed, 40)
        paths = match_files_of(tmp_path, str(seed), matches, num_index_shards)
        found = count_unit(paths)
        assert found.ngrams.dtype == NGRAM_COUNTS and found.rows.dtype == ROW_COUNTS
        assert (found.ngrams.tolist(), found.rows.tolist()) == by_loop(matches)


def test_nothing_is_counted_in_empty_match_files(tmp_path: Path) -> None:
    found = count_unit(match_files_of(tmp_path, "empty", [], 2))
    assert len(found.ngrams) == len(found.rows) == 0
    assert list(cut_by_bucket(found)) == []
    assert [each.tolist() for each in add_counts([])] == [[], []]


def test_the_sum_over_units_by_bucket_is_the_count_of_all(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(counts, "ROWS_PER_BUCKET", 4)
    monkeypatch.setattr(counts, "_MIN_PENDING", 30)
    rng, everything = random.Random(0), []
    buckets = defaultdict(list)
    for unit in range(7):
        matches = some_matches(unit, 40)
        found = count_unit(match_files_of(tmp_path, str(unit), matches, 2))
        for bucket, part in cut_by_bucket(found):
            buckets[bucket].append(part)
        everything += [match._replace(document=unit * 100 + match.document) for match in matches]
    assert sorted(buckets) == [0, 1, 2]
    total_ngrams, total_rows = [], []
    for bucket in sorted(buckets):
        rng.shuffle(buckets[bucket])
        total = add_counts(iter(buckets[bucket]))
        assert set(total.ngrams["number"].tolist()) <= set(range(4 * bucket, 4 * bucket + 4))
        total_ngrams += total.ngrams.tolist()
        total_rows += total.rows.tolist()
    assert (total_ngrams, total_rows) == by_loop(everything)


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
    part = np.array([(2**32 - 1, 2**31, 2**32 - 1, 2**32 - 1, 2**62, 1)], NGRAM_COUNTS)
    low = np.array([(2**32 - 1, 2**31, 2**32 - 1, 0, 3, 1)], NGRAM_COUNTS)
    no_rows = np.empty(0, ROW_COUNTS)
    total = add_counts([Counts(part, no_rows), Counts(low, no_rows), Counts(low, no_rows)]).ngrams
    assert [row[3:] for row in total.tolist()] == [(0, 6, 2), (2**32 - 1, 2**62, 1)]


# --- boilerplate --------------------------------------------------------------------------------


def test_boilerplate_is_told_from_all_else(tmp_path: Path) -> None:
    matches = some_matches(2, 40)
    paths = match_files_of(tmp_path, "unit", matches, 2)
    found_counts = count_unit(paths)
    documents = Counter(key_of(match) for match in matches)
    for most in (0, 1, 3, 1000):
        path = str(tmp_path / f"boilerplate-{most}")
        found = find_boilerplate(found_counts, most)
        write_boilerplate(path, str(tmp_path / "t"), [found[:5], found[5:]])
        keep = read_boilerplate(path)
        kept = [match for match in matches if documents[key_of(match)] <= most]
        assert 0 < len(kept) < len(matches) or most in (0, 1000)
        left = count_unit(paths, keep)
        assert (left.ngrams.tolist(), left.rows.tolist()) == by_loop(kept)


def test_keys_that_differ_in_one_part_are_not_boilerplate(tmp_path: Path) -> None:
    path = str(tmp_path / "boilerplate")
    found = np.array([(2, 3, 4, 5, 1, 9), (2, 3, 4, 7, 1, 9), (8, 3, 4, 5, 1, 9)], NGRAM_COUNTS)
    write_boilerplate(path, str(tmp_path / "t"), [found])
    keys = [(2, 3, 4, 5), (2, 3, 4, 6), (2, 3, 5, 5), (2, 4, 4, 5), (1, 3, 4, 5), (8, 3, 4, 5)]
    keys += [(9, 9, 9, 9)]
    number, n, start, crc = np.array(keys, np.uint32).T
    ones = np.ones(len(keys), np.int64)
    kept = read_boilerplate(path)(MatchColumns(ones, number, n, start, crc, ones))
    assert kept.tolist() == [False, True, True, True, True, False, True]


# --- evaluation rows ----------------------------------------------------------------------------


def shared_in(text: str, ngrams: list[tuple[str, int]], n: int) -> list[RowNgrams]:
    rows = rows_of([EvalRow("arc", "/e", 0, "1", text)])
    found = [(0, n, start, crc_of(ngram), 3, 2) for ngram, start in ngrams]
    return list(find_row_ngrams(np.array(found, NGRAM_COUNTS), rows, DEFAULT))


def test_all_places_of_a_shared_n_gram_are_covered() -> None:
    """Counts know the first one alone."""
    (overlap,) = shared_in("A b, a B - x a b y", [("a b", 0)], 2)
    assert overlap.spans == [(0, 3), (5, 8), (13, 16)]
    assert overlap.ngrams == [("a b", 3, 2)]
    assert (overlap.num_tokens, overlap.num_covered_tokens) == (8, 6)


def test_spans_that_overlap_or_meet_are_one() -> None:
    (overlap,) = shared_in("a b c d e", [("a b c", 0), ("b c d", 2)], 3)
    assert overlap.spans == [(0, 7)]
    assert overlap.num_covered_tokens == 4
    assert [count.ngram for count in overlap.ngrams] == ["a b c", "b c d"]


def test_match_files_of_other_evaluation_sets_are_noticed() -> None:
    for ngram, start in (("a c", 0), ("a b", 1)):
        with pytest.raises(ProbelineError, match="of other evaluation sets; remove the output"):
            shared_in("a b c", [(ngram, start)], 2)


def test_scores_of_a_row_with_boilerplate() -> None:
    # Twelve tokens, eleven 2-grams: "a b" is common, begins at three of them.
    text = "a b c d a b e f g h a b"
    rows = rows_of([EvalRow("arc", "/e", 0, "1", text)])
    shared = [("c d", 1, 1), ("d a", 1, 1), ("e f", 2, 1), ("g h", 1, 3)]
    found = [
        (0, 2, text.index(ngram), crc_of(ngram), occurrences, documents)
        for ngram, occurrences, documents in shared
    ]
    keys = np.array([(0, 2, 0, crc_of("a b"))], NGRAM_KEYS)
    (row,) = find_row_ngrams(np.array(found, NGRAM_COUNTS), rows, DEFAULT, keys)
    assert (row.num_tokens, row.num_covered_tokens, row.longest_run) == (12, 7, 4)
    assert (row.num_shared_places, row.num_informative_places) == (4, 8)
    assert row.spans == [(4, 9), (12, 15), (16, 19)]
