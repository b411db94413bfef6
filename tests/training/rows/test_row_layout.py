"""Measurements are read out of a record's bytes as the codec decodes them, whoever wrote them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.layout import src_id
from beam_pipeline.dataset.row_codec import MEASUREMENT_SCHEMA, RowKey, decode_record
from beam_pipeline.dataset.row_encoder import encode_compact, encode_row
from tests.support.codec_rows import both_encodings
from tests.support.helpers import (
    MAPPED_IPV4,
    canonical,
    ipc_stream,
    make_run,
    run_of_tuples,
    runs_strategy,
)
from tests.support.properties import num_examples
from tests.support.row_readings import (
    KEY,
    Reading,
    decoded,
    reading_of,
    record_around,
    run_of_families,
    written,
)
from training.rows import row_layout
from training.rows.row_layout import (
    COMPACT,
    Columns,
    Layout,
    Located,
    compact_layout,
    locate,
    with_ranks,
)


def read_own(record: bytes) -> Reading | None:
    located = row_layout._locate_own(record)
    assert located is not None, "a record as the codec writes it went the slow way"
    return reading_of(located)


def short_span(run: np.ndarray) -> np.ndarray:
    """The same run with its times within the 136 years that compact bytes can hold."""
    run = run.copy()
    run["event_time"] = run["event_time"] % 10**15 + 10**15
    run.sort(order=list(run.dtype.names or ()))
    return run


# --- as the codec says --------------------------------------------------------------------------


@both_encodings
@settings(max_examples=num_examples(150))
@given(run=runs_strategy())
def test_a_row_is_read_as_the_codec_decodes_it(encoding, run):
    run = run if encoding == "arrow" else short_span(run)
    record = encode_row(run, KEY, encoding)
    expected = decoded(record)
    assert read_own(record) == expected
    assert expected[:2] == (src_id(KEY.src_addr), 3)


@both_encodings
@settings(max_examples=num_examples(80))
@given(run=runs_strategy().map(short_span))
def test_the_slow_way_reads_the_same(encoding, run):
    record = encode_row(run, KEY, encoding)
    located = row_layout._locate_any(record)
    assert located.columns.layout.kind == COMPACT
    assert reading_of(located) == decoded(record)


@both_encodings
def test_the_slow_way_reads_a_row_of_any_span_or_refuses_it(encoding):
    """Compact bytes hold 2**32 s, an arrow row may span more."""
    largest = 2**32 - 1 if encoding == "compact" else 2**32 + 5
    run = run_of_tuples([(0, MAPPED_IPV4, 1.0), (largest * 1_000_000, MAPPED_IPV4, 1.0)])
    record = encode_row(run, KEY, encoding)
    assert read_own(record) == decoded(record)
    try:
        located = row_layout._locate_any(record)
    except ValueError:
        return
    assert reading_of(located) == decoded(record)


sizes = st.one_of(
    st.integers(1, 40),
    st.builds(
        lambda blocks, step: max(1, 512 * blocks + step), st.integers(1, 5), st.integers(-9, 9)
    ),
    st.integers(1, 3000),
)


@both_encodings
@settings(max_examples=num_examples(80))
@given(n=sizes, ipv6_share=st.sampled_from([0.0, 0.002, 0.1, 0.5, 0.9, 0.998, 1.0]), data=st.data())
def test_rows_of_one_or_both_families_around_the_borders_of_blocks(encoding, n, ipv6_share, data):
    seed = data.draw(st.integers(0, 2**32))
    is_ipv6 = np.random.default_rng(seed).random(n) < ipv6_share
    record = encode_row(run_of_families(is_ipv6, seed), KEY, encoding)
    reading = read_own(record)
    assert reading == decoded(record)
    assert reading is not None
    assert [dst >> 32 != 0xFFFF for _, _, dst in reading.measurements] == is_ipv6.tolist()


@both_encodings
@settings(max_examples=num_examples(150))
@given(n=st.integers(1, 70), number=st.integers(0, 2**128 - 1), wide=st.booleans())
def test_every_padding_and_length_of_address_takes_the_fast_way(encoding, n, number, wide):
    src_addr = canonical(number if number >> 48 else number | MAPPED_IPV4)
    record = encode_row(make_run(n, seed=n, wide=wide), RowKey(src_addr, n), encoding)
    assert read_own(record) == decoded(record)


@both_encodings
@pytest.mark.parametrize("but_one_is_ipv6", [False, True])
def test_one_destination_of_another_family(encoding, but_one_is_ipv6):
    for at in (0, 7, 8, 511, 512, 513, 1023, 1024, 1535, 1599):
        is_ipv6 = np.full(1600, but_one_is_ipv6)
        is_ipv6[at] = not but_one_is_ipv6
        record = encode_row(run_of_families(is_ipv6, at), KEY, encoding)
        assert read_own(record) == decoded(record)


@pytest.mark.parametrize("code", [0, 1, 2047, 2048 + 1024, 0xFFFE, 0xFFFF])
def test_rtt_codes_of_compact_rows_are_read_as_they_are(code):
    run = make_run(4, seed=3)
    raw = bytearray(encode_compact(run))
    raw[36:38] = code.to_bytes(2, "little")
    reading = reading_of(Located(0, 0, with_ranks(bytes(raw))))
    assert reading is not None
    assert reading.measurements[0][1] == code


@pytest.mark.parametrize("start", [0, 1, 8, 12345])
def test_a_row_at_another_place_reads_the_same(start):
    columns = with_ranks(encode_compact(run_of_families(np.arange(700) % 3 == 0, 4)))
    raw, layout = columns
    cells = np.full(40_000, 255, np.uint8)
    cells[start : start + len(raw)] = raw
    moved = compact_layout(start, layout.num_measurements, layout.num_ipv6, layout.first_second)
    assert moved.times == layout.times + start
    there = Located(0, 0, Columns(cells, Layout._make(moved)))
    assert reading_of(there) == reading_of(Located(0, 0, columns))


# --- what others wrote --------------------------------------------------------------------------


OPTIONS = [
    pytest.param({"compression": "zstd"}, id="zstd"),
    pytest.param({"compression": "lz4"}, id="lz4"),
    pytest.param({"use_legacy_format": True}, id="legacy"),
    pytest.param({"metadata_version": pa.ipc.MetadataVersion.V4}, id="V4"),
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("inside", [True, False])
@settings(max_examples=num_examples(20))
@given(run=runs_strategy(max_size=60).map(short_span))
def test_arrow_of_other_options_goes_the_slow_way_and_is_read_right(options, inside, run):
    own = encode_row(run, KEY, "arrow")
    row = decode_record(own)
    if inside:
        record = record_around(written(row.to_arrow(), **options), run)
    else:
        with pa.ipc.open_stream(own) as reader:
            record = written(reader.read_next_batch(), **options)
    assert row_layout._locate_own(record) is None
    assert reading_of(locate(record)) == decoded(own)


def test_a_slice_written_with_its_offset_is_read_right():
    own = encode_row(make_run(50, seed=7, wide=True), KEY, "arrow")
    batch = decode_record(own).to_arrow().slice(13, 20)
    record = record_around(ipc_stream(batch), decode_record(own).run[13:33])
    reading = reading_of(locate(record))
    assert reading is not None
    assert reading.measurements == decoded(own).measurements[13:33]


@pytest.mark.parametrize(
    "text", ["2001:DB8::1", "2001:0db8:0::1", "::ffff:8.8.8.8", "2001:db8::0.0.0.1"]
)
def test_other_spellings_of_a_destination_are_read_right_or_refused(text):
    values = {"event_time": 7_000_000, "dst_addr": text, "ip_version": 6, "rtt": 1.0}
    batch = pa.RecordBatch.from_pylist([values], schema=MEASUREMENT_SCHEMA)
    record = record_around(ipc_stream(batch), make_run(1, seed=8))
    assert reading_of(locate(record)) in (None, decoded(record))


@pytest.mark.parametrize("text", ["nowhere", "", "1.2.3", "1.2.3.4.5", "fe80::1%eth0", "1:2:3"])
@pytest.mark.parametrize("ip_version", [4, 6])
def test_a_destination_that_is_none_is_marked_as_damaged(text, ip_version):
    values = {"event_time": 0, "dst_addr": text, "ip_version": ip_version, "rtt": 1.0}
    batch = pa.RecordBatch.from_pylist([values], schema=MEASUREMENT_SCHEMA)
    assert reading_of(locate(record_around(ipc_stream(batch), make_run(1, seed=8)))) is None
