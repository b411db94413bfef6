"""Every rule that a measurement must keep, with its reason, for every type of column."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from beam_pipeline.dataset.row_codec import MAX_FIRST_SECOND, RowKey, decode_record
from beam_pipeline.dataset.row_encoder import encode_row
from beam_pipeline.dataset.rtt import decode_rtt
from beam_pipeline.probe_rows.pregroup import pregroup
from beam_pipeline.sources.measurements import REASONS, Block, as_text, check
from beam_pipeline.sources.options import COLUMNS
from tests.support.helpers import canonical

GOOD = {
    "event_time": 1_700_000_000_000_000,
    "src_addr": "192.0.2.1",
    "dst_addr": "198.51.100.7",
    "ip_version": 4,
    "rtt": 12.5,
}
TYPES = {
    "event_time": pa.timestamp("us"),
    "src_addr": pa.string(),
    "dst_addr": pa.string(),
    "ip_version": pa.int8(),
    "rtt": pa.float32(),
}


def batch_of(rows: list[dict], **arrays: pa.Array) -> pa.RecordBatch:
    """Returns rows that differ from GOOD where they say so; whole columns may be given instead."""
    return pa.RecordBatch.from_arrays(
        [
            arrays[name]
            if name in arrays
            else pa.array([r.get(name, good) for r in rows], TYPES[name])
            for name, good in GOOD.items()
        ],
        names=list(COLUMNS),
    )


def with_column(name: str, column: pa.Array) -> pa.RecordBatch:
    """Returns rows that are good but for one column."""
    return batch_of([{}] * len(column), **{name: column})


def reasons_of(batch: pa.RecordBatch) -> list[str | None]:
    """Returns, row by row, the reason why it is none, or None."""
    block, faults = check(batch)
    reasons: list[str | None] = [None] * batch.num_rows
    for row, reason in zip(faults.rows.tolist(), faults.reasons, strict=True):
        reasons[row] = reason
    assert len(block) == batch.num_rows - len(faults.reasons)
    assert len(block.src.codes) == len(block.dst.codes) == len(block.rtt) == len(block)
    return reasons


def times_of(block: Block) -> list[int]:
    return block.event_time.tolist()


def addresses_of(column) -> list[str]:
    return [canonical(int(column.hi[code]) << 64 | int(column.lo[code])) for code in column.codes]


BREAKS = {
    "event_time_null": {"event_time": None},
    "event_time_before_1970": {"event_time": -1},
    "src_addr_null": {"src_addr": None},
    "src_addr_zone_id": {"src_addr": "::1%0"},
    "src_addr_invalid": {"src_addr": "x"},
    "dst_addr_null": {"dst_addr": None},
    "dst_addr_zone_id": {"dst_addr": "::1%0"},
    "dst_addr_invalid": {"dst_addr": "x"},
    "ip_version_null": {"ip_version": None},
    "ip_version_not_4_or_6": {"ip_version": 5},
    "ip_version_not_of_dst_addr": {"ip_version": 6},
    "rtt_null": {"rtt": None},
    "rtt_not_finite": {"rtt": float("nan")},
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        *((change, reason) for reason, change in BREAKS.items()),
        ({"event_time": 0}, None),
        ({"event_time": -(2**63)}, "event_time_before_1970"),
        ({"event_time": 2**63 - 1}, None),
        ({"src_addr": ""}, "src_addr_invalid"),
        ({"src_addr": "192.0.2.01"}, "src_addr_invalid"),
        ({"src_addr": "2001:db8::1"}, None),  # ip_version is the family of dst_addr alone
        ({"ip_version": -4}, "ip_version_not_4_or_6"),
        ({"ip_version": 4, "dst_addr": "2001:db8::1"}, "ip_version_not_of_dst_addr"),
        ({"ip_version": 6, "dst_addr": "2001:db8::1"}, None),
        ({"ip_version": 4, "dst_addr": "::ffff:198.51.100.7"}, None),
        ({"ip_version": 6, "dst_addr": "::ffff:198.51.100.7"}, "ip_version_not_of_dst_addr"),
        ({"rtt": float("-inf")}, "rtt_not_finite"),
        ({"rtt": -3.5}, None),
        ({"rtt": 0.0}, None),
        ({"rtt": 3e38}, None),
    ],
)
def test_reason_of_each_rule(change, reason):
    rows = [{}, change, {}]
    assert reasons_of(batch_of(rows)) == [None, reason, None]


@pytest.mark.parametrize("later", list(BREAKS)[2:])
def test_first_broken_rule_counts(later):
    for earlier in list(BREAKS)[: list(BREAKS).index(later)]:
        if not BREAKS[earlier].keys() & BREAKS[later].keys():
            assert reasons_of(batch_of([BREAKS[earlier] | BREAKS[later]])) == [earlier]


def test_order_of_rules():
    """What a unit or an encoding cannot hold, or cannot be read, has tests of its own."""
    others = ("_out_of_range", "_unreadable")
    assert [reason for reason in REASONS if not reason.endswith(others)] == list(BREAKS)


MAX_COMPACT_US = (MAX_FIRST_SECOND + 1) * 1_000_000 - 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rtt": 1e30}, "rtt_out_of_range"),
        ({"rtt": 4.3949e9}, "rtt_out_of_range"),
        ({"rtt": float(decode_rtt(np.array([0xFFFE]))[0])}, None),
        ({"rtt": 1e-9}, None),
        ({"rtt": -1e30}, None),
        ({"event_time": MAX_COMPACT_US + 1}, "event_time_out_of_range"),
        ({"event_time": MAX_COMPACT_US}, None),
    ],
)
def test_values_out_of_range_of_compact(values: dict, reason: str | None):
    """Its readers take the last time that is kept, and its largest RTT is kept when read again."""
    batch = batch_of([values])
    assert check(batch, "compact")[1].reasons == ([reason] if reason else [])
    assert reasons_of(batch) == [None]
    if reason is None:
        run = pregroup([check(batch, "compact")[0]], 1).narrow
        row = decode_record(encode_row(run, RowKey("1.2.3.4", 0), "compact"))
        rtt, kept = row.run["rtt"][0], np.float32(run["rtt"][0])
        assert row.run["event_time"][0] // 1_000_000 == run["event_time"][0] // 1_000_000
        assert rtt == kept == -1 or abs(rtt - kept) <= max(0.0005, kept * 2**-11)


def test_ip_version_does_not_hide_a_bad_destination():
    """The codes for bad addresses are numbers too."""
    for reason in ("dst_addr_null", "dst_addr_invalid", "dst_addr_zone_id"):
        versions = pa.array(range(256), pa.uint8())
        assert reasons_of(batch_of([BREAKS[reason]] * 256, ip_version=versions)) == [reason] * 256


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


@pytest.mark.parametrize("index", [pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64()])
@pytest.mark.parametrize("dtype", [pa.string(), pa.large_string(), pa.string_view()])
def test_texts_and_dictionaries_of_any_type(dtype, index):
    """With a null as an index, a null as an entry, and entries that nothing refers to."""
    entries = pa.array(["unused", *TEXTS, "also unused %"], dtype)
    codes = pa.array([1, 2, 3, 4, 5, None], index)
    for column in (pa.DictionaryArray.from_arrays(codes, entries), pa.array([*TEXTS, None], dtype)):
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
    """260 is 4 in its lowest byte."""
    wide = 260 if dtype.bit_width > 8 else 5
    column = pa.array([4, 6, 5, None, wide], dtype)
    assert reasons_of(with_column("ip_version", column)) == [
        None,
        "ip_version_not_of_dst_addr",
        "ip_version_not_4_or_6",
        "ip_version_null",
        "ip_version_not_4_or_6",
    ]


@pytest.mark.parametrize("dtype", [pa.float16(), pa.float32(), pa.float64()])
def test_rtt_of_any_float_type(dtype):
    values = [1.5, -3.5, 0.0, -0.0, np.nan, np.inf, -np.inf, None]
    batch = with_column("rtt", pa.array(values, pa.float64()).cast(dtype))
    assert reasons_of(batch) == [None] * 4 + ["rtt_not_finite"] * 3 + ["rtt_null"]
    block, _ = check(batch)
    assert block.rtt.dtype == np.float32
    assert block.rtt.tolist() == [1.5, -1.0, 0.0, 0.0]
    assert not np.signbit(block.rtt[2:]).any()


def test_float64_overflow_and_underflow():
    """-1e-50 is negative, so the ping failed, though float32 would make it -0.0."""
    column = pa.array([1e-50, -1e-50], pa.float64())
    assert check(with_column("rtt", column))[0].rtt.tolist() == [0.0, -1.0]
    column = pa.array([3.5e38, -3.5e38, 3.4e38], pa.float64())
    assert reasons_of(with_column("rtt", column)) == ["rtt_not_finite", "rtt_not_finite", None]


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
        ("src_addr", pa.array(TEXTS, pa.string_view()).dictionary_encode()),
        ("ip_version", pa.array([1, 2, None, 3, 4], pa.uint64())),
        ("rtt", pa.array([1.5, None, 2.5, float("inf"), -1.0], pa.float16())),
        ("event_time", pa.array([1, None, 2, 3, -4], pa.timestamp("s", "Europe/Berlin"))),
        ("event_time", pa.array([2**62, None, -(2**62), 0, 0], pa.timestamp("s"))),
    ],
)
def test_text_of_every_type(name, column):
    batch = with_column(name, column)
    texts = as_text(batch, np.arange(5))
    assert [text[name] is None for text in texts] == column.is_null().to_pylist()
    if name == "src_addr":
        assert [text[name] for text in texts] == TEXTS
