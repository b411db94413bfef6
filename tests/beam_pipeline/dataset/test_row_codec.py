"""The bytes of a row: their size, what they keep, what they lose, and that they never change."""

import contextlib
import hashlib
import struct
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset import addresses, arrow_record, row_codec
from beam_pipeline.dataset.options import ENCODINGS, RECORD_ENCODINGS, RowFormat
from beam_pipeline.dataset.row_codec import (
    COMPACT_MAX_SPAN_SECONDS,
    MEASUREMENT_SCHEMA,
    RECORD_SCHEMA,
    RowKey,
    compact_measurements_bytes,
    content_bytes,
    decode_record,
    fit,
    is_ipv6,
    record_bytes,
    surely_fit,
)
from beam_pipeline.dataset.row_encoder import encode_compact, encode_row, encode_rows
from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt, encode_rtt
from beam_pipeline.dataset.sorted_run import NARROW, WIDE
from beam_pipeline.errors import ProbelineError
from tests.support.helpers import (
    MAPPED_IPV4,
    YEAR_2024_US,
    arrow_record_bytes,
    canonical,
    ipc_stream,
    make_run,
    records_as_tuples,
    run_of_tuples,
    runs_strategy,
)
from tests.support.properties import num_examples

KEY = RowKey("192.0.2.1", 0)
IPV4 = MAPPED_IPV4 | 0xC0000201
IPV6 = 0x2001_0DB8 << 96 | 1
both_encodings = pytest.mark.parametrize("encoding", ENCODINGS)
both_records = pytest.mark.parametrize("record_encoding", RECORD_ENCODINGS)


def encoded_size(run: np.ndarray, encoding, src_addr: str = KEY.src_addr) -> int:
    return len(encode_row(run, RowKey(src_addr, 0), encoding))


def short_span(run: np.ndarray) -> np.ndarray:
    """The same run in which times stay so near that only bytes can end a compact row."""
    run = run.copy()
    run["event_time"] %= 1000
    run.sort(order=list(run.dtype.names or ()))
    return run


class SideBySide(NamedTuple):
    """Sorted runs that lie side by side."""

    run: np.ndarray
    bounds: np.ndarray

    @property
    def rows(self) -> list[np.ndarray]:
        return [self.run[start:end] for start, end in pairwise(self.bounds.tolist())]


@st.composite
def side_by_side(draw, max_rows: int, max_size: int = 40) -> SideBySide:
    """Some rows, all narrow or all wide; of wide ones any part may be IPv6, also all or none."""
    wide = draw(st.booleans())
    kinds = st.booleans() if wide else st.just(False)
    rows = [
        run_of_tuples(records_as_tuples(draw(runs_strategy(max_size=max_size, wide=each))), wide)
        for each in draw(st.lists(kinds, min_size=1, max_size=max_rows))
    ]
    return SideBySide(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))


# --- sizes --------------------------------------------------------------------------------------


@both_encodings
@settings(max_examples=num_examples(60))
@given(run=runs_strategy(max_size=40), src_addr=st.sampled_from(["1.1.1.1", "192.0.2.123", "::"]))
def test_sizes_are_known_before_anything_is_encoded(encoding, run, src_addr):
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
def test_sizes_hold_for_every_count_up_to_many_paddings(encoding, wide):
    run = short_span(make_run(130, seed=4, wide=wide))
    for n in range(1, len(run) + 1):
        size = encoded_size(run[:n], encoding)
        assert fit(run[:n], KEY, RowFormat(encoding, size)) == (n, False)
        if n > 1:
            assert fit(run[:n], KEY, RowFormat(encoding, size - 1)).count < n


@pytest.mark.parametrize("n", [1, 7, 8, 9, 64])
@pytest.mark.parametrize("num_ipv6", [0, 1, 5, 64])
def test_compact_takes_10_bytes_12_more_for_ipv6_and_a_bitmap_where_families_mix(n, num_ipv6):
    num_ipv6 = min(n, num_ipv6)
    run = run_of_tuples([(0, IPV6 if row < num_ipv6 else IPV4, 1.0) for row in range(n)])
    bitmap = (n + 7) // 8 if 0 < num_ipv6 < n else 0
    row = decode_record(encode_row(run, KEY, "compact"))
    assert len(row.measurements) == 20 + 10 * n + 12 * num_ipv6 + bitmap


@both_encodings
@settings(max_examples=num_examples(80))
@given(run=runs_strategy(max_size=60), share=st.floats(0, 1))
def test_fit_takes_as_many_as_fit_and_not_one_more(encoding, run, share):
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
def test_fit_looks_at_nothing_behind_the_row(encoding, run, limit, data):
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
def test_a_row_may_fill_the_limit_to_the_last_byte(encoding, wide):
    run = make_run(300, seed=5, wide=wide)
    limit = encoded_size(run[:200], encoding)
    count, is_full = fit(run, KEY, RowFormat(encoding, limit))
    assert is_full
    assert encoded_size(run[:count], encoding) == limit


@both_encodings
@pytest.mark.parametrize("wide", [False, True])
def test_full_rows_of_a_mebibyte_are_at_least_98_percent_full(encoding, wide):
    run = make_run(120_000, seed=6, wide=wide)
    limit = 1 << 20
    count, is_full = fit(run, KEY, RowFormat(encoding, limit))
    assert is_full
    assert 0.98 * limit <= encoded_size(run[:count], encoding) <= limit


@both_encodings
def test_one_measurement_over_the_limit_is_an_error_that_names_the_flag(encoding):
    run = make_run(3, seed=1)
    size = encoded_size(run[:1], encoding)
    assert fit(run, KEY, RowFormat(encoding, size)).count == 1
    message = f"192.0.2.1 takes {size} bytes, over the limit of {size - 1} .*--max_row_size_mb"
    with pytest.raises(ProbelineError, match=message):
        fit(run, KEY, RowFormat(encoding, size - 1))


def test_a_compact_row_ends_where_its_seconds_would_overflow():
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
def test_surely_fit_is_never_wrong(encoding, runs, limit):
    row_format = RowFormat(encoding, limit)
    for row, sure in zip(runs.rows, surely_fit(runs.run, runs.bounds, row_format), strict=True):
        if sure:
            assert fit(row, KEY, row_format) == (len(row), False)


@both_encodings
@pytest.mark.parametrize("dtype", [NARROW, WIDE])
def test_surely_fit_says_yes_to_a_small_row_and_no_to_a_long_one_or_a_long_span(encoding, dtype):
    """Each row is judged by its own length and ends."""
    run = np.zeros(3 + 100 + 30_000 + 1, dtype)
    bounds = np.array([0, 3, 103, 30_103, 30_104])
    row_format = RowFormat(encoding, 1 << 18)
    assert surely_fit(run, bounds, row_format).tolist() == [True, True, False, True]
    run[102]["event_time"] = 2**32 * 1_000_000
    assert surely_fit(run, bounds, row_format).tolist() == [True, encoding == "arrow", False, True]


@both_encodings
@settings(max_examples=num_examples(40))
@given(run=runs_strategy(max_size=60))
def test_content_bytes_leaves_out_framing_only(encoding, run):
    run = short_span(run)
    framing = encoded_size(run, encoding) - content_bytes(run, encoding)
    bitmap, paddings = 8, 6 * 8
    assert (
        0 < framing <= encoded_size(run_of_tuples([(0, IPV4, 1.0)]), encoding) + bitmap + paddings
    )


@settings(max_examples=num_examples(50))
@given(runs_strategy())
def test_is_ipv6_what_is_not_ipv4_mapped(run):
    expected = [address >> 32 != 0xFFFF for _, address, _ in records_as_tuples(run)]
    assert is_ipv6(run).tolist() == expected


# --- round trip ---------------------------------------------------------------------------------


@settings(max_examples=num_examples(80))
@given(runs_strategy())
def test_arrow_keeps_every_measurement_exactly(run):
    row = decode_record(encode_row(run, KEY, "arrow"))
    assert row.encoding == "arrow"
    assert records_as_tuples(row.run) == records_as_tuples(run)


@settings(max_examples=num_examples(80))
@given(runs_strategy())
def test_compact_keeps_seconds_and_addresses_and_codes_rtt(run):
    run = run[: fit(run, KEY, RowFormat("compact", 1 << 20)).count]
    row = decode_record(encode_row(run, KEY, "compact"))
    assert row.encoding == "compact"
    decoded = records_as_tuples(row.run)
    rtts = decode_rtt(encode_rtt(run["rtt"])).tolist()
    expected = [
        (time // 1_000_000 * 1_000_000, address, rtt)
        for (time, address, _), rtt in zip(records_as_tuples(run), rtts, strict=True)
    ]
    assert decoded == expected


@both_encodings
@pytest.mark.parametrize("wide", [False, True])
def test_to_arrow_gives_what_a_person_reads(encoding, wide):
    run = make_run(20, seed=7, wide=wide)
    row = decode_record(encode_row(run, KEY, encoding))
    batch = row.to_arrow()
    assert batch.schema.equals(MEASUREMENT_SCHEMA)
    decoded = records_as_tuples(row.run)
    assert batch.column("event_time").cast(pa.int64()).to_pylist() == [
        time for time, _, _ in decoded
    ]
    assert batch.column("dst_addr").to_pylist() == [canonical(dst) for _, dst, _ in decoded]
    assert batch.column("rtt").to_pylist() == [rtt for _, _, rtt in decoded]
    families = [4 if dst >> 32 == 0xFFFF else 6 for _, dst, _ in decoded]
    assert batch.column("ip_version").to_pylist() == families
    assert len(set(families)) == 1 + wide


@both_encodings
def test_the_records_columns_say_what_the_measurements_are(encoding):
    times = [YEAR_2024_US + 1, YEAR_2024_US + 1_500_003]
    run = run_of_tuples([(time, IPV4, 1.0) for time in times])
    record = encode_row(run, RowKey("2001:db8::1", 7), encoding)
    row = decode_record(record)
    assert row.src_addr == "2001:db8::1"
    assert row.src_id == addresses.src_id("2001:db8::1")
    assert row.row_index == 7
    assert row.n_measurements == 2
    # Exact even where the measurements themselves keep whole seconds.
    assert (row.first_timestamp_us, row.last_timestamp_us) == tuple(times)
    assert row.time_span_seconds == 1.500002
    assert row.num_bytes == len(record)
    with pa.ipc.open_stream(record) as reader:
        assert reader.schema.equals(RECORD_SCHEMA)
        assert reader.read_all().num_rows == 1


def test_one_instant_spans_nothing():
    run = run_of_tuples([(YEAR_2024_US, IPV4, 1.0)])
    assert decode_record(encode_row(run, KEY, "arrow")).time_span_seconds == 0


# --- RTT ----------------------------------------------------------------------------------------

LARGEST_RTT_MS = (2046 << 31) / 1000


def test_rtt_below_2_ms_is_whole_microseconds():
    us = np.arange(2049)
    assert (decode_rtt(encode_rtt(us / 1000)) == (us / 1000).astype(np.float32)).all()
    between = np.linspace(0, 2.0475, 100_003)
    error_us = np.abs(decode_rtt(encode_rtt(between)).astype(np.float64) - between) * 1000
    assert error_us.max() <= 0.5 + 1e-4  # and what float32 adds


@pytest.mark.parametrize("lowest", [2.048, 4.096, 1000.0, 1e6, 4e9])
def test_rtt_above_2_ms_keeps_the_stated_relative_error(lowest):
    """0.049 %, as the docstring of `row_codec` states it."""
    rtt = np.concatenate(
        [
            np.linspace(lowest, lowest * 1.01, 50_001),
            np.geomspace(lowest, min(lowest * 1e4, LARGEST_RTT_MS), 50_001),
        ]
    )
    rtt = rtt[rtt <= LARGEST_RTT_MS]
    error = np.abs(decode_rtt(encode_rtt(rtt)).astype(np.float64) - rtt) / rtt
    assert error.max() <= 2**-11 + 1e-7  # and what float32 adds


def test_rtt_is_coded_in_order_over_its_whole_range():
    grid = np.concatenate(
        [np.linspace(0, 50, 200_001), np.geomspace(50, 2 * LARGEST_RTT_MS, 200_001)]
    )
    codes = encode_rtt(grid)
    assert (np.diff(codes.astype(np.int64)) >= 0).all()
    assert codes[0] == 0
    assert codes[-1] == FAILED_RTT - 1
    assert (np.diff(decode_rtt(codes)) >= 0).all()


def test_a_decoded_rtt_is_coded_as_itself():
    codes = np.arange(FAILED_RTT, dtype=np.uint16)
    canonical_codes = codes[(codes < 2048) | ((codes & 0x7FF) >= 1024)]
    assert (encode_rtt(decode_rtt(canonical_codes)) == canonical_codes).all()


def test_failed_stays_failed_and_nothing_else_becomes_failed():
    assert encode_rtt(np.array([-1.0, -0.5])).tolist() == [FAILED_RTT] * 2
    assert decode_rtt(np.array([FAILED_RTT], np.uint16)).tolist() == [-1.0]
    largest = np.array([LARGEST_RTT_MS, 2 * LARGEST_RTT_MS, 1e30, np.finfo(np.float32).max])
    assert (encode_rtt(largest) == FAILED_RTT - 1).all()
    assert (decode_rtt(np.arange(FAILED_RTT)) >= 0).all()


def test_rtt_codes_are_mantissa_times_a_power_of_two_in_microseconds():
    ms = [0.0, 0.001, 2.047, 2.048, 4.0, 4.094, 4.096, 1048.576]
    codes = [
        0,
        1,
        2047,
        1 << 11 | 1024,
        1 << 11 | 2000,
        1 << 11 | 2047,
        2 << 11 | 1024,
        10 << 11 | 1024,
    ]
    assert encode_rtt(np.array(ms)).tolist() == codes
    assert decode_rtt(np.array(codes, np.uint16)).tolist() == np.array(ms, np.float32).tolist()


def test_an_rtt_is_rounded_once_to_the_nearest_code():
    """Rounding to whole µs first would make it 2049 µs, and that 2048."""
    assert decode_rtt(encode_rtt(np.array([2.0491]))).tolist() == [np.float32(2.05)]


# --- bytes --------------------------------------------------------------------------------------


def golden_run() -> np.ndarray:
    return run_of_tuples(
        [
            (YEAR_2024_US, IPV4, 12.5),
            (YEAR_2024_US + 1_250_000, IPV6, -1.0),
            (YEAR_2024_US + 1_250_000, IPV6, 0.125),
            (YEAR_2024_US + 86_400_000_000, MAPPED_IPV4 | 0x08080808, 250.0),
        ]
    )


@pytest.mark.parametrize(
    ("encoding", "num_bytes", "digest"),
    [("arrow", 1856, "15aacaf09405d8d3"), ("compact", 1216, "1325d77be69a804f")],
)
def test_the_bytes_of_a_row_never_change(encoding, num_bytes, digest):
    """Another digest breaks the format: readers and checksums of existing datasets rely on it.

    Raise manifest.FORMAT_VERSION if it has to be. (Both hold with pyarrow 25.0.)
    """
    record = encode_row(golden_run(), RowKey("198.51.100.7", 2), encoding)
    assert (len(record), hashlib.blake2b(record, digest_size=8).hexdigest()) == (num_bytes, digest)


def test_the_bytes_of_compact_measurements_one_by_one():
    row = decode_record(encode_row(golden_run(), KEY, "compact"))
    assert bytes(row.measurements) == b"".join(
        [
            b"PLc1",
            bytes.fromhex("04000000 02000000 80009265 00000000"),  # n, IPv6, first second
            bytes.fromhex("00000000 01000000 01000000 80510100"),  # seconds since then
            bytes.fromhex("1a1e ffff 7d00 a13f"),  # RTT
            bytes.fromhex("06"),  # the second and third are IPv6
            bytes.fromhex("c0000201 08080808"),
            bytes.fromhex("20010db8000000000000000000000001") * 2,
        ]
    )


def plain_compact(run: np.ndarray) -> bytes:
    """Compact measurements, written as the docstring of `row_codec` states the format."""
    times, destinations, _ = zip(*records_as_tuples(run), strict=True)
    seconds = [time // 1_000_000 for time in times]
    is_wide = [destination >> 32 != 0xFFFF for destination in destinations]
    n, num_ipv6 = len(run), sum(is_wide)
    bits = sum(wide << row for row, wide in enumerate(is_wide))
    ipv4 = [d & 0xFFFF_FFFF for d, wide in zip(destinations, is_wide, strict=True) if not wide]
    ipv6 = [d for d, wide in zip(destinations, is_wide, strict=True) if wide]
    return b"".join(
        [
            struct.pack("<4sIIQ", b"PLc1", n, num_ipv6, seconds[0]),
            struct.pack(f"<{n}I", *(second - seconds[0] for second in seconds)),
            struct.pack(f"<{n}H", *encode_rtt(run["rtt"]).tolist()),
            bits.to_bytes((n + 7) // 8, "little") if 0 < num_ipv6 < n else b"",
            struct.pack(f">{len(ipv4)}I", *ipv4),
            *(address.to_bytes(16, "big") for address in ipv6),
        ]
    )


def compact_part(run: np.ndarray) -> np.ndarray:
    """Returns as much of a run as one compact row holds."""
    return run[: fit(run, KEY, RowFormat("compact", 1 << 20)).count]


@settings(max_examples=num_examples(150))
@given(runs_strategy())
def test_compact_bytes_are_those_of_the_docstring(run):
    run = compact_part(run)
    assert encode_compact(run) == plain_compact(run)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 40])
@pytest.mark.parametrize("ipv6", ["none", "one", "all but one", "all"])
def test_compact_bytes_of_wide_runs_whatever_their_share_of_ipv6(ipv6, n):
    numbers = {"none": range(0), "one": range(n // 2, n // 2 + 1), "all": range(n)}
    numbers["all but one"] = range(n - 1)
    run = run_of_tuples(
        [(at * 700_000, (IPV6 if at in numbers[ipv6] else IPV4) + at, at / 3) for at in range(n)],
        wide=True,
    )
    assert encode_compact(run) == plain_compact(run)


SRC_ADDRS = st.sampled_from(["1.1.1.1", "192.0.2.123", "::", "2001:db8:1234:5678:9abc:def0:1:2"])


@both_encodings
@both_records
@settings(max_examples=num_examples(60))
@given(runs=side_by_side(max_rows=8), data=st.data())
def test_rows_encoded_together_have_the_bytes_of_each_alone(encoding, record_encoding, runs, data):
    rows = [compact_part(row) if encoding == "compact" else row for row in runs.rows]
    keys = [RowKey(data.draw(SRC_ADDRS), data.draw(st.integers(0, 2**31 - 1))) for _ in rows]
    run, bounds = np.concatenate(rows), np.cumsum([0, *map(len, rows)])
    together = encode_rows(run, bounds, keys, RowFormat(encoding, 0, record_encoding))
    assert together == [
        encode_row(row, key, encoding, record_encoding) for row, key in zip(rows, keys, strict=True)
    ]
    measurements = [bytes(decode_record(record).measurements) for record in together]
    if encoding == "compact":
        assert measurements == list(map(plain_compact, rows))
    if record_encoding == "arrow_ipc":
        assert together == [
            arrow_record_bytes(row_codec.columns_of(inside, row, key))
            for inside, row, key in zip(measurements, rows, keys, strict=True)
        ]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("n", [1, 8, 100])
def test_arrow_bytes_are_those_of_pyarrows_own_writer(n, wide):
    run = make_run(n, seed=8, wide=wide)
    record = encode_row(run, KEY, "arrow")
    with pa.ipc.open_stream(record) as reader:
        outer = reader.read_next_batch()
    as_arrays = pa.RecordBatch.from_pylist(outer.to_pylist(), schema=RECORD_SCHEMA)
    assert record == ipc_stream(as_arrays)
    inner = decode_record(record).to_arrow()
    as_arrays = pa.RecordBatch.from_pydict(
        {
            "event_time": pa.array(run["event_time"], pa.timestamp("us")),
            "dst_addr": pa.array(inner.column("dst_addr").to_pylist(), pa.string()),
            "ip_version": pa.array(inner.column("ip_version").to_pylist(), pa.int8()),
            "rtt": pa.array(run["rtt"], pa.float32()),
        },
        schema=MEASUREMENT_SCHEMA,
    )
    assert bytes(decode_record(record).measurements) == ipc_stream(as_arrays)


@both_encodings
@pytest.mark.parametrize("wide", [False, True])
def test_bytes_do_not_depend_on_where_a_run_lies_in_memory(encoding, wide):
    run = make_run(50, seed=9, wide=wide)
    part = run[7:40]
    spread = np.zeros(len(part) * 3, part.dtype)
    spread[::3] = part
    read_only = np.frombuffer(part.tobytes(), part.dtype)
    wanted = encode_row(part.copy(), KEY, encoding)
    assert encode_row(part, KEY, encoding) == wanted
    assert encode_row(spread[::3], KEY, encoding) == wanted
    assert encode_row(read_only, KEY, encoding) == wanted


@both_encodings
def test_a_wide_run_of_ipv4_alone_has_the_bytes_of_a_narrow_one(encoding):
    """A probe's chunks may have been widened by a neighbour that lies in another row."""
    records = records_as_tuples(make_run(30, seed=10))
    narrow, wide = run_of_tuples(records, wide=False), run_of_tuples(records, wide=True)
    assert encode_row(wide, KEY, encoding) == encode_row(narrow, KEY, encoding)


# --- damaged bytes ------------------------------------------------------------------------------


def read_all(record: bytes) -> None:
    row = decode_record(record)
    assert len(row.run) == row.to_arrow().num_rows


RECORDS = [
    encode_row(make_run(12, seed=11, wide=wide), KEY, encoding)
    for encoding in ENCODINGS
    for wide in (False, True)
]


@settings(max_examples=num_examples(200))
@given(st.sampled_from(RECORDS), st.data())
def test_a_flipped_byte_is_read_or_refused_but_never_another_error(record, data):
    at = data.draw(st.integers(0, len(record) - 1))
    damaged = bytearray(record)
    damaged[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ValueError):  # pa.ArrowInvalid is one too
        read_all(bytes(damaged))


@pytest.mark.parametrize("record", RECORDS, ids=["arrow", "arrow-wide", "compact", "compact-wide"])
def test_a_cut_record_is_refused(record):
    end_of_stream = 8
    for length in range(0, len(record) - end_of_stream, 5):
        with pytest.raises(ValueError):
            decode_record(record[:length])


@settings(max_examples=num_examples(100))
@given(st.binary(max_size=300))
@example(b"")
@example(b"PLc1")
@example(b"\xff\xff\xff\xff\x00\x00\x00\x00")
@example(b"\xff\xff\xff\xff\xff\xff\xff\x7f")
def test_bytes_that_are_no_record_are_refused(data):
    with pytest.raises(ValueError):
        decode_record(data)


def record_around(measurements: bytes, n: int = 1) -> bytes:
    run = run_of_tuples([(0, IPV4, 1.0)] * n)
    return arrow_record.encode_record(row_codec.columns_of(measurements, run, KEY))


COMPACT = bytes(decode_record(encode_row(golden_run(), KEY, "compact")).measurements)


@pytest.mark.parametrize(
    "measurements",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"PLc", id="half a magic"),
        pytest.param(b"PLc1", id="magic alone"),
        pytest.param(COMPACT[:19], id="half a header"),
        pytest.param(COMPACT[:-1], id="cut"),
        pytest.param(COMPACT + b"\0", id="too long"),
        pytest.param(COMPACT[:4] + b"\xff" * 4 + COMPACT[8:], id="n"),
        pytest.param(COMPACT[:8] + b"\xff" * 4 + COMPACT[12:], id="number of IPv6 destinations"),
        pytest.param(COMPACT[:12] + b"\xff" * 8 + COMPACT[20:], id="past the end of time"),
        pytest.param(COMPACT[:44] + b"\x07" + COMPACT[45:], id="three bits for two IPv6"),
        pytest.param(b"not measurements at all", id="text"),
        pytest.param(ipc_stream(pa.RecordBatch.from_pydict({"rtt": [1.0]})), id="other columns"),
    ],
)
def test_measurements_that_are_none_are_refused(measurements):
    row = decode_record(record_around(measurements))
    with pytest.raises(ValueError):
        _ = row.run


def test_a_destination_that_is_no_address_is_refused():
    batch = pa.RecordBatch.from_pydict(
        {"event_time": [0], "dst_addr": ["nowhere"], "ip_version": [4], "rtt": [1.0]},
        schema=MEASUREMENT_SCHEMA,
    )
    row = decode_record(record_around(ipc_stream(batch)))
    with pytest.raises(ValueError, match="not an IP address"):
        _ = row.run


@pytest.mark.parametrize("column", ["event_time", "dst_addr", "rtt"])
def test_a_null_measurement_is_refused(column):
    values = {"event_time": 0, "dst_addr": "1.1.1.1", "ip_version": 4, "rtt": 1.0}
    batch = pa.RecordBatch.from_pylist([{**values, column: None}], schema=MEASUREMENT_SCHEMA)
    row = decode_record(record_around(ipc_stream(batch)))
    with pytest.raises(ValueError):
        _ = row.run


@pytest.mark.parametrize("num_rows", [0, 2])
def test_a_record_has_one_row(num_rows):
    with pa.ipc.open_stream(RECORDS[0]) as reader:
        batch = reader.read_next_batch()
    several = pa.RecordBatch.from_pylist(batch.to_pylist() * num_rows, schema=RECORD_SCHEMA)
    with pytest.raises(ValueError, match=f"{num_rows} rows"):
        decode_record(ipc_stream(several))


def test_a_record_without_a_source_is_refused():
    with pa.ipc.open_stream(RECORDS[0]) as reader:
        values = reader.read_next_batch().to_pylist()
    values[0]["src_addr"] = None
    with pytest.raises(ValueError, match="nulls"):
        decode_record(ipc_stream(pa.RecordBatch.from_pylist(values, schema=RECORD_SCHEMA)))


def test_another_schema_and_several_batches_are_refused():
    with pa.ipc.open_stream(RECORDS[0]) as reader:
        batch = reader.read_next_batch()
    with pytest.raises(ValueError, match="schema is"):
        decode_record(ipc_stream(batch.select(["src_id", "measurements"])))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    with pytest.raises(ValueError, match="2 batches"):
        decode_record(sink.getvalue().to_pybytes())
