"""Damaged bytes of a record: read as the codec decodes them or refused, never past the end."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset import row_codec
from beam_pipeline.dataset.layout import ENCODINGS
from beam_pipeline.dataset.row_codec import (
    COMPACT_HEADER,
    COMPACT_MAGIC,
    MEASUREMENT_SCHEMA,
    RECORD_SCHEMA,
    decode_record,
)
from beam_pipeline.dataset.row_encoder import encode_compact, encode_row
from beam_pipeline.dataset.rtt import decode_rtt, encode_rtt
from tests.support.helpers import MAPPED_IPV4, ipc_stream, make_run, quick_and_slow, run_of_tuples
from tests.support.properties import num_examples
from tests.support.row_readings import (
    KEY,
    decoded,
    reading_of,
    record_around,
    run_of_families,
    written,
)
from training.rows.row_layout import locate, with_ranks

ROWS = {
    f"{encoding}-{name}": encode_row(run, KEY, encoding)
    for encoding in ENCODINGS
    for name, run in {
        "ipv4": make_run(12, seed=11),
        "mixed": run_of_families(np.arange(20) % 3 == 0, 12),
        "ipv6": run_of_families(np.ones(6, bool), 13),
    }.items()
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
@pytest.mark.parametrize("width", quick_and_slow([1, 4, 8], [4]))
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


MIXED = run_of_families(np.arange(40) % 3 == 0, 14)


@pytest.mark.parametrize("n", [0, 1, 39, 41, 2**31, 2**32 - 1])
def test_another_number_of_measurements_is_refused(n):
    with pytest.raises(ValueError):
        locate(compact_with(MIXED, n=n))


@pytest.mark.parametrize("num_ipv6", [0, 1, 13, 15, 40, 41, 2**31, 2**32 - 1])
def test_another_number_of_ipv6_destinations_is_refused(num_ipv6):
    with pytest.raises(ValueError):
        locate(compact_with(MIXED, num_ipv6=num_ipv6))


@pytest.mark.parametrize("first_second", [2**63 // 10**6, 2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("run", [MIXED, make_run(9, seed=15)], ids=["mixed", "ipv4"])
def test_compact_times_past_the_end_of_time_are_refused(run, first_second):
    record = compact_with(run, first_second=first_second)
    with pytest.raises(ValueError):
        decoded(record)
    with pytest.raises(ValueError):
        locate(record)


@pytest.mark.parametrize("bits", [0x00, 0x4B, 0xFF])
def test_families_that_contradict_their_number_are_refused(bits):
    """Else destinations are read from where none are, up to 16 bytes each behind the end."""
    record = bytearray(encode_row(MIXED, KEY, "compact"))
    record[measurements_start(bytes(record)) + COMPACT_HEADER.size + 6 * len(MIXED)] = bits
    with pytest.raises(ValueError, match="contradict"):
        decoded(bytes(record))
    with pytest.raises(ValueError):
        locate(bytes(record))


@pytest.mark.parametrize(
    "compact",
    [
        b"",
        b"PLc1",
        COMPACT_HEADER.pack(b"PLc2", 0, 0, 0),
        COMPACT_HEADER.pack(COMPACT_MAGIC, 1, 0, 0),
        COMPACT_HEADER.pack(COMPACT_MAGIC, 0, 1, 0) + bytes(16),
    ],
)
def test_with_ranks_refuses_what_is_not_compact(compact):
    with pytest.raises(ValueError, match="no compact measurements"):
        with_ranks(compact)


@settings(max_examples=num_examples(100))
@given(st.binary(max_size=600))
def test_bytes_that_are_no_record_are_refused(data):
    for start in (b"", row_codec.RECORD_HEAD):
        with pytest.raises(ValueError):
            locate(start + data)


def test_arrow_that_is_no_record_is_refused():
    with pytest.raises(ValueError, match="schema"):
        locate(ipc_stream(decode_record(ROWS["arrow-ipv4"]).to_arrow()))


def test_rows_that_hold_nothing_are_read_so_or_refused():
    none = pa.RecordBatch.from_pylist([], schema=MEASUREMENT_SCHEMA)
    with pa.ipc.open_stream(ROWS["arrow-ipv4"]) as reader:
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
