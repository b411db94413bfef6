"""Sizes of rows are known before they are encoded, and how many measurements fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset import row_codec
from beam_pipeline.dataset.layout import RowFormat
from beam_pipeline.dataset.row_codec import (
    COMPACT_MAX_SPAN_SECONDS,
    RowKey,
    compact_measurements_bytes,
    content_bytes,
    decode_record,
    fit,
    is_ipv6,
    record_bytes,
    surely_fit,
)
from beam_pipeline.dataset.row_encoder import encode_row
from beam_pipeline.errors import ProbelineError
from tests.support.codec_rows import (
    IPV4,
    KEY,
    both_encodings,
    encoded_size,
    short_span,
    side_by_side,
)
from tests.support.helpers import (
    canonical,
    make_run,
    records_as_tuples,
    run_of_tuples,
    runs_strategy,
)
from tests.support.properties import num_examples


@both_encodings
@settings(max_examples=num_examples(60))
@given(run=runs_strategy(max_size=40), src_addr=st.sampled_from(["1.1.1.1", "192.0.2.123", "::"]))
def test_predicted_sizes(encoding, run, src_addr):
    run = short_span(run)
    if encoding == "arrow":
        text_bytes = sum(len(canonical(address)) for _, address, _ in records_as_tuples(run))
        inside = row_codec.arrow_measurements_bytes(len(run), text_bytes)
    else:
        inside = compact_measurements_bytes(len(run), int(np.count_nonzero(is_ipv6(run))))
    record = encode_row(run, RowKey(src_addr, 3), encoding)
    assert len(decode_record(record).measurements) == inside
    assert len(record) == record_bytes(inside, len(src_addr))


@both_encodings
@pytest.mark.parametrize("wide", [False, True])
def test_predicted_sizes_across_paddings(encoding, wide):
    run = short_span(make_run(130, seed=4, wide=wide))
    for n in range(1, len(run) + 1):
        size = encoded_size(run[:n], encoding)
        assert fit(run[:n], KEY, RowFormat(encoding, size)) == (n, False)
        if n > 1:
            assert fit(run[:n], KEY, RowFormat(encoding, size - 1)).count < n


@both_encodings
@settings(max_examples=num_examples(80))
@given(run=runs_strategy(max_size=60), share=st.floats(0, 1))
def test_fit_is_maximal(encoding, run, share):
    run = short_span(run)
    smallest, largest = encoded_size(run[:1], encoding), encoded_size(run, encoding)
    limit = int(smallest + share * (largest - smallest))
    count, is_full = fit(run, KEY, RowFormat(encoding, limit))
    assert encoded_size(run[:count], encoding) <= limit
    assert is_full == (count < len(run))
    if is_full:
        assert encoded_size(run[: count + 1], encoding) > limit


@both_encodings
@settings(max_examples=num_examples(60))
@given(run=runs_strategy(min_size=2, max_size=60), limit=st.integers(0, 1500), data=st.data())
def test_fit_depends_only_on_the_prefix(encoding, run, limit, data):
    """So a row cut from a prefix of a history is the row cut from all of it."""
    run = short_span(run)
    limit += encoded_size(run[:1], encoding)
    whole = fit(run, KEY, RowFormat(encoding, limit))
    length = data.draw(st.integers(1, len(run)))
    part = fit(run[:length], KEY, RowFormat(encoding, limit))
    assert part.count == min(whole.count, length)
    assert part.is_full == (whole.count < length)


@both_encodings
@pytest.mark.parametrize("wide", [False, True])
def test_full_rows_are_98_percent_full(encoding, wide):
    run = make_run(120_000, seed=6, wide=wide)
    limit = 1 << 20
    count, is_full = fit(run, KEY, RowFormat(encoding, limit))
    assert is_full
    assert 0.98 * limit <= encoded_size(run[:count], encoding) <= limit


@both_encodings
def test_measurement_over_the_row_limit(encoding):
    run = make_run(3, seed=1)
    size = encoded_size(run[:1], encoding)
    assert fit(run, KEY, RowFormat(encoding, size)).count == 1
    message = f"192.0.2.1 takes {size} bytes, over the limit of {size - 1} .*--max_row_size_mb"
    with pytest.raises(ProbelineError, match=message):
        fit(run, KEY, RowFormat(encoding, size - 1))


def test_compact_row_span_limit():
    second = 1_000_000
    last = COMPACT_MAX_SPAN_SECONDS * second + 999_999
    times = [0, 5 * second, last, last + 1, last + 1]
    run = run_of_tuples([(time, IPV4, 1.0) for time in times])
    assert fit(run, KEY, RowFormat("compact", 1 << 20)) == (3, True)
    assert fit(run[:3], KEY, RowFormat("compact", 1 << 20)) == (3, False)
    assert fit(run, KEY, RowFormat("arrow", 1 << 20)) == (5, False)
    row = decode_record(encode_row(run[:3], KEY, "compact"))
    assert row.run["event_time"].tolist() == [0, 5 * second, COMPACT_MAX_SPAN_SECONDS * second]


@both_encodings
@settings(max_examples=num_examples(60))
@given(runs=side_by_side(max_rows=6, max_size=60), limit=st.integers(0, 8000))
def test_surely_fit_implies_fit(encoding, runs, limit):
    row_format = RowFormat(encoding, limit)
    for row, sure in zip(runs.rows, surely_fit(runs.run, runs.bounds, row_format), strict=True):
        if sure:
            assert fit(row, KEY, row_format) == (len(row), False)


@both_encodings
@settings(max_examples=num_examples(40))
@given(run=runs_strategy(max_size=60))
def test_content_bytes_excludes_framing(encoding, run):
    run = short_span(run)
    framing = encoded_size(run, encoding) - content_bytes(run, encoding)
    bitmap, paddings = 8, 6 * 8
    assert (
        0 < framing <= encoded_size(run_of_tuples([(0, IPV4, 1.0)]), encoding) + bitmap + paddings
    )


@settings(max_examples=num_examples(50))
@given(runs_strategy())
def test_is_ipv6(run):
    expected = [address >> 32 != 0xFFFF for _, address, _ in records_as_tuples(run)]
    assert is_ipv6(run).tolist() == expected
