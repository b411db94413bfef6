"""Bytes of a record are read as the codec decodes them, whoever wrote them, or refused."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from beam_pipeline.dataset import arrow_record, row_codec
from beam_pipeline.dataset.layout import ENCODINGS, src_id
from beam_pipeline.dataset.row_codec import (
    COMPACT_HEADER,
    COMPACT_MAGIC,
    MEASUREMENT_SCHEMA,
    RECORD_SCHEMA,
    RowKey,
    decode_record,
)
from beam_pipeline.dataset.row_encoder import encode_compact, encode_row
from beam_pipeline.dataset.rtt import decode_rtt, encode_rtt
from tests.support.codec_rows import both_encodings
from tests.support.helpers import (
    MAPPED_IPV4,
    canonical,
    ipc_stream,
    make_run,
    records_as_tuples,
    run_of_tuples,
    runs_strategy,
)
from tests.support.properties import num_examples
from training.rows import row_layout
from training.rows.measurement_at import dst_at, is_ipv6_at, rtt_code_at, second_at
from training.rows.row_layout import (
    COMPACT,
    Columns,
    Layout,
    Located,
    compact_layout,
    locate,
    with_ranks,
)

KEY = RowKey("192.0.2.1", 3)


class Reading(NamedTuple):
    """All that a row says: (second, RTT code, destination) of each measurement."""

    src_id: int
    row_index: int
    measurements: list[tuple[int, int, int]]


@njit
def read_all(raw, layout, seconds, codes, hi, lo, families):
    for i in range(layout.num_measurements):
        seconds[i] = second_at(raw, layout, i)
        codes[i] = rtt_code_at(raw, layout, i)
        hi[i], lo[i], family = dst_at(raw, layout, i)
        families[i] = family
        if family >= 0 and (family == 1) != is_ipv6_at(raw, layout, i):
            families[i] = -2


def assert_within(columns: Columns) -> None:
    """Reading past the end could end the process: so first what the kernels will rely on."""
    raw, layout = columns
    n, num_ipv6 = layout.num_measurements, layout.num_ipv6
    sizes = {"times": 8 * n, "rtts": 4 * n, "dst": 4 * (n + 1), "families": n}
    if layout.kind == COMPACT:
        sizes = {
            "times": 4 * n,
            "rtts": 2 * n,
            "dst": 4 * (n - num_ipv6),
            "dst_more": 16 * num_ipv6,
        }
        if 0 < num_ipv6 < n:
            sizes |= {"families": (n + 7) // 8, "ranks": (n + 511) // 512 * 4}
            bits = raw[layout.families :][: (n + 7) // 8]
            set_bits = int(np.unpackbits(bits, count=n, bitorder="little").sum())
            assert set_bits == num_ipv6, f"families say {set_bits} IPv6, the header {num_ipv6}"
    for name, size in sizes.items():
        assert 0 <= getattr(layout, name) <= len(raw) - size, f"{name} ends beyond the bytes"


def reading_of(located: Located) -> Reading | None:
    """Reads all measurements; None if a destination is marked as damaged."""
    assert_within(located.columns)
    n = located.columns.layout.num_measurements
    seconds, codes, families = (np.zeros(n, np.int64) for _ in range(3))
    hi, lo = np.zeros(n, np.uint64), np.zeros(n, np.uint64)
    read_all(*located.columns, seconds, codes, hi, lo, families)
    if (families == -1).any():
        return None
    assert (families >= 0).all()
    lo[families == 0] |= np.uint64(MAPPED_IPV4)
    addresses = [high << 64 | low for high, low in zip(hi.tolist(), lo.tolist(), strict=True)]
    measurements = list(zip(seconds.tolist(), (codes & 0xFFFF).tolist(), addresses, strict=True))
    return Reading(located.src_id, located.row_index, measurements)


def decoded(record: bytes) -> Reading:
    row = decode_record(record)
    codes = encode_rtt(row.run["rtt"]).tolist()
    measurements = [
        (time // 1_000_000, code, address)
        for (time, address, _), code in zip(records_as_tuples(row.run), codes, strict=True)
    ]
    return Reading(row.src_id, row.row_index, measurements)


def run_of_families(is_ipv6: np.ndarray, seed: int) -> np.ndarray:
    """Returns a WIDE run whose i-th destination is IPv6 where is_ipv6[i]."""
    run = make_run(len(is_ipv6), seed=seed, wide=True)
    rng = np.random.default_rng(seed)
    run["dst_hi"] = np.where(is_ipv6, rng.integers(1, 2**63, len(run)), 0)
    low = rng.integers(0, 2**32, len(run), np.uint64)
    run["dst_lo"] = np.where(is_ipv6, low << np.uint64(31), low | np.uint64(MAPPED_IPV4))
    return run


def record_around(measurements: bytes, run: np.ndarray) -> bytes:
    return arrow_record.encode_record(row_codec.columns_of(measurements, run, KEY))


def written(batch: pa.RecordBatch, **options) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


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


@both_encodings
@settings(max_examples=num_examples(150))
@given(run=runs_strategy(), number=st.integers(0, 2**128 - 1))
def test_a_row_is_read_as_the_codec_decodes_it(encoding, run, number):
    """Whatever padding follows the measurements and the address."""
    run = run if encoding == "arrow" else short_span(run)
    src_addr = canonical(number if number >> 48 else number | MAPPED_IPV4)
    record = encode_row(run, RowKey(src_addr, len(run)), encoding)
    expected = decoded(record)
    assert read_own(record) == expected
    assert expected[:2] == (src_id(src_addr), len(run))


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


def test_rtt_codes_of_compact_rows_are_read_as_they_are():
    raw = bytearray(encode_compact(make_run(4, seed=3)))
    raw[36:38] = (2048).to_bytes(2, "little")  # as no writer would write it
    reading = reading_of(Located(0, 0, with_ranks(bytes(raw))))
    assert reading is not None
    assert reading.measurements[0][1] == 2048


@pytest.mark.parametrize("start", [8, 12345])
def test_a_row_at_another_place_reads_the_same(start):
    columns = with_ranks(encode_compact(run_of_families(np.arange(700) % 3 == 0, 4)))
    raw, layout = columns
    cells = np.full(40_000, 255, np.uint8)
    cells[start : start + len(raw)] = raw
    cells.flags.writeable = False  # else numba compiles again
    moved = compact_layout(start, layout.num_measurements, layout.num_ipv6, layout.first_second)
    assert moved.times == layout.times + start
    there = Located(0, 0, Columns(cells, Layout._make(moved)))
    assert reading_of(there) == reading_of(Located(0, 0, columns))


@pytest.mark.parametrize(
    ("options", "inside"),
    [
        ({"compression": "zstd"}, True),
        ({"use_legacy_format": True}, True),
        ({"use_legacy_format": True}, False),
        ({"metadata_version": pa.ipc.MetadataVersion.V4}, False),
    ],
)
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


@pytest.mark.parametrize(
    "text", ["2001:DB8::1", "2001:0db8:0::1", "::ffff:8.8.8.8", "2001:db8::0.0.0.1"]
)
def test_other_spellings_of_a_destination_are_read_right_or_refused(text):
    values = {"event_time": 7_000_000, "dst_addr": text, "ip_version": 6, "rtt": 1.0}
    batch = pa.RecordBatch.from_pylist([values], schema=MEASUREMENT_SCHEMA)
    record = record_around(ipc_stream(batch), make_run(1, seed=8))
    assert reading_of(locate(record)) in (None, decoded(record))


@pytest.mark.parametrize(("text", "ip_version"), [("nowhere", 4), ("1.2.3.4.5", 4), ("1:2:3", 6)])
def test_a_destination_that_is_none_is_marked_as_damaged(text, ip_version):
    values = {"event_time": 0, "dst_addr": text, "ip_version": ip_version, "rtt": 1.0}
    batch = pa.RecordBatch.from_pylist([values], schema=MEASUREMENT_SCHEMA)
    assert reading_of(locate(record_around(ipc_stream(batch), make_run(1, seed=8)))) is None


MIXED = run_of_families(np.arange(20) % 3 == 0, 12)
ROWS = {
    "arrow": encode_row(MIXED, KEY, "arrow"),
    "compact": encode_row(MIXED, KEY, "compact"),
    "compact of one family": encode_row(make_run(12, seed=11), KEY, "compact"),
}
every_row = pytest.mark.parametrize("record", ROWS.values(), ids=ROWS.keys())


def assert_right_or_refused(damaged: bytes, original: bytes) -> None:
    """The damage may be where nothing is read from, then the original is right.

    src_id and row_index do not count: whoever reads a row holds them against rows.parquet.
    """
    try:
        located = locate(damaged)
    except ValueError:
        return
    reading = reading_of(located)
    if reading is None or reading.measurements == decoded(original).measurements:
        return
    codes = np.array([code for _, code, _ in reading.measurements], np.uint16)
    # Damaged RTT codes may be others for the same RTT.
    same = encode_rtt(decode_rtt(codes)).tolist()
    found = [(time, code, dst) for (time, _, dst), code in zip(reading.measurements, same)]
    assert found == decoded(damaged).measurements


def measurements_start(record: bytes) -> int:
    return record.index(bytes(decode_record(record).measurements))


@every_row
def test_a_cut_record_is_refused(record):
    end_of_stream = 8
    for length in range(len(record) - end_of_stream):
        with pytest.raises(ValueError):
            locate(record[:length])
    for length in range(len(record) - end_of_stream, len(record)):
        assert_right_or_refused(record[:length], record)


@every_row
@settings(max_examples=num_examples(100))
@given(data=st.data())
def test_a_flipped_byte_is_read_as_the_codec_does_or_refused(record, data):
    damaged = bytearray(record)
    damaged[data.draw(st.integers(0, len(record) - 1))] ^= data.draw(st.integers(1, 255))
    assert_right_or_refused(bytes(damaged), record)


@every_row
@pytest.mark.parametrize("width", [4, 8])
def test_no_size_or_offset_that_is_wrong_leads_past_the_end(record, width):
    """Every number of the framing, and the first ones of the measurements, in turn."""
    start = measurements_start(record)
    inside = len(decode_record(record).measurements)
    framing = [*range(len(row_codec.RECORD_HEAD), start), *range(start + inside, len(record))]
    head = 24 if record[start : start + 4] == COMPACT_MAGIC else inside
    places = [*framing, *range(start, start + head)]
    largest = 2 ** (8 * width) - 1
    for at in places[:: width if width > 1 else 3]:
        for value in (0, 1, largest // 2, largest // 2 + 1, largest):
            damaged = bytearray(record)
            damaged[at : at + width] = value.to_bytes(width, "little")
            assert_right_or_refused(bytes(damaged[: len(record)]), record)


def compact_with(run: np.ndarray, **changed: int) -> bytes:
    compact = encode_compact(run)
    _, n, num_ipv6, first_second = COMPACT_HEADER.unpack_from(compact)
    header = {"n": n, "num_ipv6": num_ipv6, "first_second": first_second} | changed
    packed = COMPACT_HEADER.pack(COMPACT_MAGIC, *header.values())
    return record_around(packed + compact[COMPACT_HEADER.size :], run)


@pytest.mark.parametrize(
    "changed",
    [
        *({"n": n} for n in (0, 19, 21, 2**32 - 1)),
        *({"num_ipv6": n} for n in (0, 6, 8, 20, 21)),
        *({"first_second": s} for s in (2**63 // 10**6, 2**64 - 1)),
    ],
    ids=str,
)
def test_header_that_contradicts_the_columns(changed):
    for read in (decoded, locate):
        with pytest.raises(ValueError):
            read(compact_with(MIXED, **changed))


@pytest.mark.parametrize("bits", [0x00, 0x4B, 0xFF])
def test_families_that_contradict_their_number_are_refused(bits):
    """Else destinations are read from where none are, up to 16 bytes each behind the end."""
    record = bytearray(ROWS["compact"])
    record[measurements_start(bytes(record)) + COMPACT_HEADER.size + 6 * len(MIXED)] = bits
    with pytest.raises(ValueError, match="contradict"):
        decoded(bytes(record))
    with pytest.raises(ValueError):
        locate(bytes(record))


@settings(max_examples=num_examples(100))
@given(st.binary(max_size=600))
def test_bytes_that_are_no_record_are_refused(data):
    for start in (b"", row_codec.RECORD_HEAD):
        with pytest.raises(ValueError):
            locate(start + data)


def test_arrow_that_is_no_record_is_refused():
    with pytest.raises(ValueError, match="schema"):
        locate(ipc_stream(decode_record(ROWS["arrow"]).to_arrow()))


def test_rows_that_hold_nothing_are_read_so_or_refused():
    none = pa.RecordBatch.from_pylist([], schema=MEASUREMENT_SCHEMA)
    with pa.ipc.open_stream(ROWS["arrow"]) as reader:
        (values,) = reader.read_next_batch().to_pylist()
    for options in ({}, {"compression": "zstd"}, {"use_legacy_format": True}):
        values |= {"n_measurements": 0, "measurements": written(none, **options)}
        record = ipc_stream(pa.RecordBatch.from_pylist([values], schema=RECORD_SCHEMA))
        assert_right_or_refused(record, record)


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}], ids=["fast", "slow"])
@pytest.mark.parametrize("seconds", [[-5, 3], [9, 3]], ids=["before 1970", "not in order"])
def test_times_that_break_the_rules_are_read_so_or_refused(seconds, options):
    """Rows of the pipeline never have them, those of others may."""
    run = run_of_tuples([(second * 1_000_000, MAPPED_IPV4, 1.0) for second in seconds])
    batch = decode_record(encode_row(run, KEY, "arrow")).to_arrow()
    record = record_around(written(batch, **options), run)
    assert_right_or_refused(record, record)


def test_the_row_says_how_many_measurements_it_has():
    for encoding in ENCODINGS:
        run = make_run(9, seed=16)
        measurements = bytes(decode_record(encode_row(run, KEY, encoding)).measurements)
        with pytest.raises(ValueError, match="9 measurements where n_measurements is 8"):
            locate(record_around(measurements, run[:8]))
