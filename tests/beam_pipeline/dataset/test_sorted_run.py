"""Runs against sorted() over plain tuples: the order of a probe row is that of its tuples."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.sorted_run import NARROW, WIDE, count_up_to, join, merge, sort_groups
from tests.support.helpers import (
    MAPPED_IPV4,
    make_run,
    records_as_tuples,
    records_strategy,
    run_of_tuples,
)
from tests.support.properties import num_examples


def sort_one(records: np.ndarray) -> list[tuple]:
    records = records.copy()
    sort_groups(records, np.array([0, len(records)]))
    return records_as_tuples(records)


# --- sort_groups --------------------------------------------------------------------------------


@settings(max_examples=num_examples(150))
@given(st.booleans(), st.data())
def test_groups_are_sorted_like_tuples(wide, data):
    groups = data.draw(st.lists(st.lists(records_strategy(wide), max_size=12), max_size=8))
    records = run_of_tuples([record for group in groups for record in group], wide)
    sort_groups(records, np.cumsum([0] + [len(group) for group in groups]))
    assert records_as_tuples(records) == [record for group in groups for record in sorted(group)]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("n", [48, 49, 1000])  # insertion sort up to 48, radix above
@pytest.mark.parametrize("span", [1, 255, 256, 2**62])
def test_sort_at_the_limits_of_sizes_and_spans(n, span, wide):
    records = make_run(n, seed=n, wide=wide, ties=True)
    records["event_time"] = np.random.default_rng(span % 1000).integers(0, span + 1, n)
    records["event_time"][[0, n // 2]] = span, 0
    assert sort_one(records) == sorted(records_as_tuples(records))


def test_times_before_1970_sort_before_those_after():
    records = run_of_tuples([(time, MAPPED_IPV4, 1.0) for time in (5, -(2**61), 0, -1, 2**61)])
    assert [time for time, _, _ in sort_one(records)] == [-(2**61), -1, 0, 5, 2**61]
    many = make_run(500, seed=1)
    many["event_time"] = np.random.default_rng(1).integers(-(2**61), 2**61, 500)
    assert sort_one(many) == sorted(records_as_tuples(many))


# --- merge, join, widen -------------------------------------------------------------------------


@settings(max_examples=num_examples(150))
@given(st.lists(st.lists(records_strategy(), min_size=1, max_size=12), min_size=1, max_size=6))
def test_merge_equals_sort(groups):
    merged = merge([run_of_tuples(sorted(group)) for group in groups])
    assert records_as_tuples(merged) == sorted(record for group in groups for record in group)


@settings(max_examples=num_examples(100))
@given(
    times=st.lists(st.integers(0, 12), min_size=1, max_size=60),
    borders=st.sets(st.integers(1, 59), max_size=6),
    longer=st.lists(st.integers(0, 12), min_size=7, max_size=7),
    random=st.randoms(use_true_random=False),
)
def test_merge_of_adjacent_and_overlapping_runs(times, borders, longer, random):
    """Only where runs overlap is anything sorted; times are few, so that borders are ties."""
    history = sorted((time, random.randint(0, 3), 1.0) for time in times)
    bounds = [0, *sorted(border for border in borders if border < len(times)), len(times)]
    groups = [
        history[start : end + more]
        for (start, end), more in zip(pairwise(bounds), longer, strict=False)
    ]
    random.shuffle(groups)
    merged = merge([run_of_tuples(group) for group in groups])
    assert records_as_tuples(merged) == sorted(record for group in groups for record in group)


def test_merge_does_not_modify_its_input():
    run = make_run(10, seed=1)
    other = make_run(10, seed=2)
    before = run.tobytes(), other.tobytes()
    merge([run, other])["rtt"] = 0
    merge([run])["rtt"] = 0
    assert (run.tobytes(), other.tobytes()) == before


def test_join_widens_only_mixed_runs():
    narrow, wide = make_run(5, seed=1), make_run(5, seed=2, wide=True)
    assert join([narrow, narrow]).dtype == NARROW
    assert join([wide, wide]).dtype == WIDE
    for runs in ([narrow, wide], [wide, narrow], [narrow, wide, narrow]):
        joined = join(runs)
        assert joined.dtype == WIDE
        assert records_as_tuples(joined) == [r for run in runs for r in records_as_tuples(run)]


# --- count_up_to --------------------------------------------------------------------------------


@settings(max_examples=num_examples(200))
@given(st.booleans(), st.data())
def test_count_up_to(wide, data):
    records = sorted(data.draw(st.lists(records_strategy(wide), max_size=30)))
    candidates = records_strategy(wide)
    last = data.draw(st.sampled_from(records) | candidates if records else candidates)
    counted = count_up_to(run_of_tuples(records, wide), run_of_tuples([last], wide)[0])
    assert counted == sum(record <= last for record in records)
