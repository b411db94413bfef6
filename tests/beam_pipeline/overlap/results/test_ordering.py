"""Orders and distinct values are those of numpy."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.overlap.results.matches import distinct, order_of
from tests.support.properties import num_examples

KEYS = st.tuples(*[st.integers(0, 9) | st.integers(0, 2**32 - 1)] * 2, st.integers(0, 2**40))


@settings(max_examples=num_examples(50))
@given(st.lists(KEYS))
def test_records_are_in_the_order_of_their_keys(records: list[tuple[int, int, int]]) -> None:
    columns = [np.array(column, np.int64) for column in zip(*records, strict=True)]
    for keys in (columns, columns[:2], columns[:1]) if records else ():
        in_order = np.stack(keys)[:, order_of(keys)]
        assert np.array_equal(in_order, np.stack(keys)[:, np.lexsort(keys[::-1])])


@settings(max_examples=num_examples(50))
@given(st.lists(st.integers(0, 20) | st.integers(-(2**62), 2**62)))
def test_distinct_values_are_those_of_numpy(values: list[int]) -> None:
    given_values = np.array(values, np.int64)
    expected = np.unique(given_values, return_inverse=True)
    for found, wanted in zip(distinct(given_values), expected, strict=True):
        assert np.array_equal(found, wanted)
