"""Every type that a column of measurements may have, and the text of its values."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from beam_pipeline.sources.measurements import as_text, check, schema_problem
from beam_pipeline.sources.options import COLUMNS
from tests.support.checked_batches import (
    GOOD,
    TYPES,
    addresses_of,
    batch_of,
    reasons_of,
    times_of,
    with_column,
)

# --- event_time ---------------------------------------------------------------------------------

NOON = datetime.datetime(2024, 7, 1, 12, 0, 0, tzinfo=datetime.UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+05:30"])
def test_any_unit_and_zone_is_microseconds_utc(unit, zone):
    column = pa.array([NOON_US], pa.timestamp("us")).cast(pa.timestamp(unit)).cast(pa.int64())
    block, _ = check(with_column("event_time", column.cast(pa.timestamp(unit, zone))))
    assert times_of(block) == [NOON_US]


@pytest.mark.parametrize(
    ("ns", "us"), [(0, 0), (999, 0), (1000, 1), (1999, 1), (2**63 - 1, (2**63 - 1) // 1000)]
)
def test_nanoseconds_are_floored(ns, us):
    block, _ = check(with_column("event_time", pa.array([ns], pa.timestamp("ns"))))
    assert times_of(block) == [us]


@pytest.mark.parametrize(("unit", "factor"), [("s", 1_000_000), ("ms", 1000)])
def test_times_beyond_the_range_of_microseconds(unit, factor):
    limit = (2**63 - 1) // factor
    values = [limit, limit + 1, 2**63 - 1, -1, -limit - 2, -(2**63)]
    batch = with_column("event_time", pa.array(values, pa.timestamp(unit)))
    assert reasons_of(batch) == [
        None,
        "event_time_out_of_range",
        "event_time_out_of_range",
        "event_time_before_1970",
        "event_time_before_1970",
        "event_time_before_1970",
    ]
    assert times_of(check(batch)[0]) == [limit * factor]


def test_null_time_over_a_value():
    column = pa.Array.from_buffers(
        pa.timestamp("us"), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([-5, 7], np.int64))]
    )
    assert reasons_of(with_column("event_time", column)) == ["event_time_null", None]


# --- addresses ----------------------------------------------------------------------------------

TEXTS = ["192.0.2.1", "bad", None, "::FFFF:192.0.2.1", "::1%0"]
TEXT_REASONS = [None, "src_addr_invalid", "src_addr_null", None, "src_addr_zone_id"]


@pytest.mark.parametrize("dtype", [pa.string(), pa.large_string(), pa.string_view()])
def test_text_of_any_type(dtype):
    batch = with_column("src_addr", pa.array(TEXTS, dtype))
    assert reasons_of(batch) == TEXT_REASONS
    assert addresses_of(check(batch)[0].src) == ["192.0.2.1", "192.0.2.1"]


@pytest.mark.parametrize("index", [pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64()])
@pytest.mark.parametrize("dtype", [pa.string(), pa.large_string(), pa.string_view()])
def test_dictionaries_of_any_type(dtype, index):
    """With a null as an index, a null as an entry, and entries that nothing refers to."""
    entries = pa.array(["unused", *TEXTS, "also unused %"], dtype)
    codes = pa.array([1, 2, 3, 4, 5, None], index)
    column = pa.DictionaryArray.from_arrays(codes, entries)
    batch = with_column("src_addr", column)
    assert reasons_of(batch) == [*TEXT_REASONS, "src_addr_null"]
    assert addresses_of(check(batch)[0].src) == ["192.0.2.1", "192.0.2.1"]


@pytest.mark.parametrize("column", ["src_addr", "dst_addr"])
def test_slices_of_plain_and_dictionary_columns(column):
    texts = pa.array(["x", *TEXTS, "y"])
    wanted = [r and r.replace("src_addr", column) for r in TEXT_REASONS]
    for array in (texts, texts.dictionary_encode()):
        assert reasons_of(with_column(column, array.slice(1, 5))) == wanted


def test_invalid_utf8_is_a_dead_letter():
    """Nobody has checked the strings of a Parquet file."""
    data, offsets = b"192.0.2.1\xff\xfe", np.array([0, 9, 11], np.int32)
    column = pa.StringArray.from_buffers(2, pa.py_buffer(offsets), pa.py_buffer(data))
    batch = with_column("src_addr", column)
    assert reasons_of(batch) == [None, "src_addr_invalid"]
    (text,) = as_text(batch, np.array([1]))
    assert text["dst_addr"] == GOOD["dst_addr"]


# --- ip_version, rtt ----------------------------------------------------------------------------

INTEGERS = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(),
    pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
]  # fmt: skip


@pytest.mark.parametrize("dtype", INTEGERS)
def test_ip_version_of_any_integer_type(dtype):
    column = pa.array([4, 6, 5, None, 4], dtype)
    assert reasons_of(with_column("ip_version", column)) == [
        None,
        "ip_version_not_of_dst_addr",
        "ip_version_not_4_or_6",
        "ip_version_null",
        None,
    ]


@pytest.mark.parametrize("dtype", [dtype for dtype in INTEGERS if dtype.bit_width > 8])
def test_wide_ip_version(dtype):
    """256 + 4 is 4 in its lowest byte."""
    column = pa.array([260, 2 ** (dtype.bit_width - 2) + 4], dtype)
    assert reasons_of(with_column("ip_version", column)) == ["ip_version_not_4_or_6"] * 2


@pytest.mark.parametrize("dtype", [pa.float16(), pa.float32(), pa.float64()])
def test_rtt_of_any_float_type(dtype):
    values = [1.5, -3.5, 0.0, -0.0, np.nan, np.inf, -np.inf, None]
    batch = with_column("rtt", pa.array(values, pa.float64()).cast(dtype))
    assert reasons_of(batch) == [None] * 4 + ["rtt_not_finite"] * 3 + ["rtt_null"]
    block, _ = check(batch)
    assert block.rtt.dtype == np.float32
    assert block.rtt.tolist() == [1.5, -1.0, 0.0, 0.0]
    assert not np.signbit(block.rtt[2:]).any()


def test_float64_overflow():
    column = pa.array([3.5e38, -3.5e38, 3.4e38], pa.float64())
    assert reasons_of(with_column("rtt", column)) == ["rtt_not_finite", "rtt_not_finite", None]


def test_float64_underflow():
    """-1e-50 is negative, so the ping failed, though float32 would make it -0.0."""
    column = pa.array([1e-50, -1e-50], pa.float64())
    assert check(with_column("rtt", column))[0].rtt.tolist() == [0.0, -1.0]


# --- the schema ---------------------------------------------------------------------------------

NAMES = {name: name for name in COLUMNS}


@pytest.mark.parametrize(
    ("column", "dtype", "problem"),
    [
        ("event_time", pa.timestamp("ns", "Asia/Tokyo"), None),
        ("event_time", pa.int64(), "a timestamp"),
        ("event_time", pa.date32(), "a timestamp"),
        ("event_time", pa.string(), "a timestamp"),
        ("src_addr", pa.dictionary(pa.int32(), pa.large_string()), None),
        ("src_addr", pa.string_view(), None),
        ("src_addr", pa.binary(), "a string"),
        ("dst_addr", pa.dictionary(pa.int32(), pa.int64()), "a string"),
        ("ip_version", pa.uint64(), None),
        ("ip_version", pa.float32(), "an integer"),
        ("ip_version", pa.bool_(), "an integer"),
        ("rtt", pa.float16(), None),
        ("rtt", pa.int32(), "a floating-point number"),
        ("rtt", pa.decimal128(10, 3), "a floating-point number"),
    ],
)
def test_column_types(column, dtype, problem):
    schema = pa.schema({**TYPES, column: dtype})
    line = schema_problem(schema, NAMES)
    assert line == (
        None
        if problem is None
        else f"has column '{column}' of type {dtype}, which must be {problem}"
    )


def test_missing_column_message():
    schema = pa.schema({name: dtype for name, dtype in TYPES.items() if name != "rtt"})
    assert schema_problem(schema, NAMES) == (
        "has no column 'rtt' (only event_time, src_addr, dst_addr, ip_version); if rtt has "
        "another name there, pass --columns rtt=NAME"
    )


def test_duplicate_column():
    schema = pa.schema([*pa.schema(TYPES), pa.field("rtt", pa.float32())])
    assert schema_problem(schema, NAMES) == "has 2 columns named 'rtt'; it must be one"


# --- the text of dead letters -------------------------------------------------------------------


def test_text_of_bad_rows():
    batch = batch_of([{}, {"src_addr": "x y", "rtt": None, "ip_version": 7}])
    assert as_text(batch, np.array([1])) == [
        {
            "event_time": "2023-11-14 22:13:20.000000",
            "src_addr": "x y",
            "dst_addr": "198.51.100.7",
            "ip_version": "7",
            "rtt": None,
        }
    ]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("src_addr", pa.array(TEXTS, pa.large_string())),
        ("src_addr", pa.array(TEXTS, pa.string_view())),
        ("src_addr", pa.array(TEXTS).dictionary_encode()),
        ("src_addr", pa.array(TEXTS, pa.string_view()).dictionary_encode()),
        ("ip_version", pa.array([1, 2, None, 3, 4], pa.uint64())),
        ("rtt", pa.array([1.5, None, 2.5, float("inf"), -1.0], pa.float16())),
        ("event_time", pa.array([1, None, 2, 3, -4], pa.timestamp("s", "Europe/Berlin"))),
    ],
)
def test_text_of_every_type(name, column):
    batch = with_column(name, column)
    texts = as_text(batch, np.arange(5))
    assert [text[name] is None for text in texts] == column.is_null().to_pylist()
    if name == "src_addr":
        assert [text[name] for text in texts] == TEXTS


@pytest.mark.parametrize(
    ("unit", "value"), [("s", 2**62), ("s", -(2**62)), ("ms", 2**62), ("us", 2**63 - 1)]
)
def test_text_of_a_time_out_of_range(unit, value):
    batch = with_column("event_time", pa.array([value], pa.timestamp(unit)))
    (text,) = as_text(batch, np.array([0]))
    assert text["event_time"]
    assert text["src_addr"] == GOOD["src_addr"]
