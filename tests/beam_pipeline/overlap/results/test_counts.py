"""Counts, their order, tokens of evaluation rows, and damaged match files."""

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.dead_letters import DeadLetter
from beam_pipeline.documents.batch import DocumentBatch, text_buffers
from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.ngrams.matching import SharedNgrams
from beam_pipeline.overlap.ngrams.token_batches import token_batches
from beam_pipeline.overlap.ngrams.tokenizers import TOKENIZERS
from beam_pipeline.overlap.results import contaminated
from beam_pipeline.overlap.results.counts import (
    NGRAM_COUNTS,
    ROW_COUNTS,
    SHARED_COUNTS,
    BucketCounts,
    PackedCounts,
    add_counts,
    add_shared,
    pack,
    unpack,
)
from beam_pipeline.overlap.results.match_files import read_blocks, read_summary, write_match_file
from beam_pipeline.overlap.results.matches import distinct, order_of
from beam_pipeline.overlap.results.output_files import json_floats, json_value
from tests.support.properties import num_examples

DEFAULT = TOKENIZERS["default"]


@settings(max_examples=num_examples(50))
@given(
    ngrams=st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 3, *[st.integers(0, 2**63 - 1)] * 2)),
    rows=st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 2, st.integers(0, 2**63 - 1))),
)
def test_counts_survive_their_travel(ngrams: list[tuple], rows: list[tuple]) -> None:
    before = BucketCounts(np.array(ngrams, NGRAM_COUNTS), np.array(rows, ROW_COUNTS))
    for was, now in zip(before, PackedCounts.of(before).counts(), strict=True):
        assert now.dtype == was.dtype and np.array_equal(now, was)


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
    packed = PackedCounts.of(BucketCounts(ngrams, np.empty(0, ROW_COUNTS)))
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
    total = add_counts(
        [BucketCounts(part, no_rows), BucketCounts(low, no_rows), BucketCounts(low, no_rows)]
    ).ngrams
    assert [row[2:] for row in total.tolist()] == [(0, 6, 2), (2**32 - 1, 2**62, 1)]


@given(st.lists(st.floats(0, 1) | st.floats(allow_nan=False, allow_infinity=False), min_size=1))
@settings(max_examples=num_examples(50))
def test_floats_in_columns_are_those_of_a_record(values: list[float]) -> None:
    pieces = json_floats(np.array(values, np.float64)).to_pylist()
    assert pieces == list(map(json_value, values))


# --- orders and tokens ------------------------------------------------------------


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


TEXTS = [
    text_buffers([f"w{number % 13} w{number} again" for number in range(start, start + 20)])
    for start in range(0, 200, 20)
]


@pytest.mark.parametrize(("min_waiting", "num_texts"), [(30, 10), (1, 0)])
def test_each_token_is_there_once_in_order(
    tmp_path: Path, monkeypatch, min_waiting: int, num_texts: int
) -> None:
    monkeypatch.setattr(contaminated, "_MIN_WAITING", min_waiting)
    path, texts = str(tmp_path / "tokens.parquet"), TEXTS[:num_texts]
    contaminated.write_eval_tokens(path, str(tmp_path), texts, DEFAULT)
    hashes = {h for text in texts for b in token_batches(*text, DEFAULT) for h in b.hashes.tolist()}
    assert len(hashes) == (201 if texts else 0)
    assert contaminated.read_eval_tokens(path).tolist() == sorted(hashes)


def test_a_scan_that_fails_leaves_no_match_file(tmp_path: Path) -> None:
    nothing = np.empty(0, np.int64)
    shared = SharedNgrams(nothing, nothing, np.zeros(1, np.int64), nothing, nothing, 0)
    letters = [DeadLetter("/c", 0, "a", "{")]

    def scanned():
        yield DocumentBatch(1, nothing, *text_buffers([]), [], 0, letters), shared
        raise ProbelineError("cannot read /c")

    with pytest.raises(ProbelineError, match=r"^cannot read /c$"):
        write_match_file(str(tmp_path / "matches"), str(tmp_path / "t"), scanned())
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_damaged_match_file(tmp_path: Path) -> None:
    damaged, other = tmp_path / "damaged", tmp_path / "other"
    damaged.write_bytes(b"PAR1")
    pq.write_table(pa.table({"a": [1]}), other)
    message = r"cannot read the match file .*damaged: .*; remove it"
    with pytest.raises(ProbelineError, match=message):
        list(read_blocks([str(damaged)]))
    with pytest.raises(ProbelineError, match="other is not a match file of this version"):
        read_summary(str(other))
