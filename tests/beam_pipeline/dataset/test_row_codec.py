"""The bytes of a row: what they keep, what they lose, and that they never change."""

import hashlib
import struct
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset import row_codec
from beam_pipeline.dataset.layout import RowFormat
from beam_pipeline.dataset.row_codec import (
    COMPACT_MAX_SPAN_SECONDS,
    MEASUREMENT_SCHEMA,
    RowKey,
    decode_record,
    fit,
    surely_fit,
)
from beam_pipeline.dataset.row_encoder import RowKeys, encode_compact, encode_row, encode_rows
from beam_pipeline.dataset.rtt import decode_rtt, encode_rtt
from tests.support.codec_rows import IPV4, KEY, both_encodings, both_records, golden_run
from tests.support.helpers import (
    arrow_record_bytes,
    canonical,
    ipc_stream,
    make_run,
    records_as_tuples,
    run_of_tuples,
    runs_strategy,
)
from tests.support.properties import num_examples


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


# --- round trip ---------------------------------------------------------------------------------


@settings(max_examples=num_examples(80))
@given(runs_strategy())
def test_arrow_round_trip(run):
    row = decode_record(encode_row(run, KEY, "arrow"))
    assert row.encoding == "arrow"
    assert records_as_tuples(row.run) == records_as_tuples(run)


@settings(max_examples=num_examples(80))
@given(runs_strategy())
def test_compact_round_trip(run):
    run = compact_part(run)
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
def test_to_arrow(encoding, wide):
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


# --- bytes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "num_bytes", "digest"),
    [("arrow", 1856, "15aacaf09405d8d3"), ("compact", 1216, "1325d77be69a804f")],
)
def test_golden_row_bytes(encoding, num_bytes, digest):
    """Another digest breaks the format: readers and checksums of existing datasets rely on it.

    Raise manifest.FORMAT_VERSION if it has to be. (Both hold with pyarrow 25.0.)
    """
    record = encode_row(golden_run(), RowKey("198.51.100.7", 2), encoding)
    assert (len(record), hashlib.blake2b(record, digest_size=8).hexdigest()) == (num_bytes, digest)


def test_golden_compact_bytes():
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
def test_compact_bytes_equal_the_specification(run):
    run = compact_part(run)
    assert encode_compact(run) == plain_compact(run)


SRC_ADDRS = st.sampled_from(["1.1.1.1", "192.0.2.123", "::", "2001:db8:1234:5678:9abc:def0:1:2"])


@both_encodings
@both_records
@settings(max_examples=num_examples(60))
@given(runs=side_by_side(max_rows=8), data=st.data())
def test_batch_encoding_equals_single_rows(encoding, record_encoding, runs, data):
    rows = [compact_part(row) if encoding == "compact" else row for row in runs.rows]
    keys = [RowKey(data.draw(SRC_ADDRS), data.draw(st.integers(0, 2**31 - 1))) for _ in rows]
    run, bounds = np.concatenate(rows), np.cumsum([0, *map(len, rows)])
    row_format = RowFormat(encoding, 0, record_encoding)
    together = encode_rows(run, bounds, RowKeys.of(keys), row_format)
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


@pytest.mark.parametrize(("n", "wide"), [(1, False), (8, True), (100, True)])
def test_arrow_bytes_equal_pyarrow(n, wide):
    run = make_run(n, seed=8, wide=wide)
    row = decode_record(encode_row(run, KEY, "arrow"))
    inner = row.to_arrow()
    as_arrays = pa.RecordBatch.from_pydict(
        {
            "event_time": pa.array(run["event_time"], pa.timestamp("us")),
            "dst_addr": pa.array(inner.column("dst_addr").to_pylist(), pa.string()),
            "ip_version": pa.array(inner.column("ip_version").to_pylist(), pa.int8()),
            "rtt": pa.array(run["rtt"], pa.float32()),
        },
        schema=MEASUREMENT_SCHEMA,
    )
    assert bytes(row.measurements) == ipc_stream(as_arrays)


@both_encodings
def test_wide_run_of_ipv4_encodes_like_narrow(encoding):
    """A probe's chunks may have been widened by a neighbour that lies in another row."""
    records = records_as_tuples(make_run(30, seed=10))
    narrow, wide = run_of_tuples(records, wide=False), run_of_tuples(records, wide=True)
    assert encode_row(wide, KEY, encoding) == encode_row(narrow, KEY, encoding)


# --- sizes of rows, and how many measurements fit -------------------------------------------------


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
