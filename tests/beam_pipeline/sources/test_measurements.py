"""Every rule that a measurement must keep, with its reason, for every type of column."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.row_codec import MAX_FIRST_SECOND, RowKey, decode_record
from beam_pipeline.dataset.row_encoder import encode_row
from beam_pipeline.dataset.rtt import decode_rtt
from beam_pipeline.probe_rows.pregroup import pregroup
from beam_pipeline.sources.measurements import as_text, check
from beam_pipeline.sources.options import COLUMNS
from tests.support.helpers import as_number, canonical
from tests.support.properties import num_examples

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


def addresses_of(column) -> list[str]:
    return [canonical(int(column.hi[code]) << 64 | int(column.lo[code])) for code in column.codes]


# --- the rules, in plain Python -------------------------------------------------------------------

PER_US = {"s": (1_000_000, 1), "ms": (1000, 1), "us": (1, 1), "ns": (1, 1000)}


def in_us(time: int, unit: str) -> int:
    factor, divisor = PER_US[unit]
    return time * factor // divisor


def address_fault(text: str | None) -> str | None:
    if text is None:
        return "null"
    if "%" in text:
        return "zone_id"
    try:
        as_number(text)
    except ValueError:
        return "invalid"
    return None


def first_fault(
    time: int | None, unit: str, src: str | None, dst: str | None, version: int | None, rtt: Any
) -> str | None:
    """Returns the first rule that a measurement breaks."""
    if time is None:
        return "event_time_null"
    if in_us(time, unit) < 0:
        return "event_time_before_1970"
    if in_us(time, unit) >= 2**63:
        return "event_time_out_of_range"
    for name, text in (("src_addr", src), ("dst_addr", dst)):
        if fault := address_fault(text):
            return f"{name}_{fault}"
    if version is None:
        return "ip_version_null"
    if version not in (4, 6):
        return "ip_version_not_4_or_6"
    if version != (6 if ":" in canonical(as_number(str(dst))) else 4):
        return "ip_version_not_of_dst_addr"
    if rtt is None:
        return "rtt_null"
    with np.errstate(over="ignore"):
        return None if np.isfinite(np.float32(rtt)) else "rtt_not_finite"


def stored_rtt(rtt: float) -> float:
    """Returns an RTT as a dataset has it: a failed ping is -1, also one that float32 makes -0.0."""
    return -1.0 if rtt < 0 else float(np.float32(rtt))


# --- columns of any type --------------------------------------------------------------------------

INTEGERS = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(),
    pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
]  # fmt: skip
TEXTS = ["192.0.2.1", "bad", None, "::FFFF:192.0.2.1", "::1%0"]
ADDRESSES = [*TEXTS, "", "192.0.2.01", "2001:db8::1", "198.51.100.7", "192.0.2.1", "::ffff:1.2.3.4"]
TIMES = st.one_of(
    st.none(),
    st.sampled_from([0, -1, 999, 1000, 1999, -999, 2**63 - 1, -(2**63), 1_700_000_000]),
    st.sampled_from([2**63 // factor + more for factor in (1000, 10**6) for more in (-1, 0, 1)]),
    st.integers(0, 2**53),
)
# 260 is 4 in its lowest byte.
VERSIONS = st.none() | st.sampled_from([4, 4, 4, 6, 6, 5, -4, 260])
RTTS = st.none() | st.sampled_from([1.5, -3.5, -0.0, -1e-50, -1e-50, 3e38, 3.5e38, np.nan, -np.inf])


@st.composite
def columns_of_texts(draw: st.DrawFn, texts: list[str | None]) -> pa.Array:
    """Returns texts as they are, or as a dictionary with other entries and nulls of both kinds."""
    dtype = draw(st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]))
    if draw(st.booleans()):
        return pa.array(["x", *texts, "y"], dtype).slice(1, len(texts))
    entries = pa.array(["unused", *ADDRESSES, "also unused %"], dtype)
    codes = [1 + ADDRESSES.index(text) for text in texts]
    if draw(st.booleans()):
        codes = [None if text is None else code for text, code in zip(texts, codes, strict=True)]
    index = draw(st.sampled_from([pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64()]))
    return pa.DictionaryArray.from_arrays(pa.array(codes, index), entries)


ADDRESS = st.sampled_from(ADDRESSES)
GOOD_ROWS = st.tuples(
    *(st.integers(0, 2**53), st.sampled_from(ADDRESSES[-4:]), st.just("198.51.100.7")),
    *(st.just(4), RTTS.filter(lambda rtt: rtt is not None)),
)


@settings(max_examples=num_examples(400, quick=80))
@given(
    rows=st.lists(
        st.tuples(TIMES, ADDRESS, ADDRESS, VERSIONS, RTTS) | GOOD_ROWS,
        min_size=1,
        max_size=30,
    ),
    unit=st.sampled_from([*PER_US]),
    zone=st.sampled_from([None, "UTC", "Europe/Berlin", "+05:30"]),
    integer=st.sampled_from(INTEGERS),
    floating=st.sampled_from([pa.float16(), pa.float32(), pa.float64()]),
    data=st.data(),
)
def test_columns_of_any_type_are_judged_by_the_rules(rows, unit, zone, integer, floating, data):
    times, sources, destinations, versions, rtts = map(list, zip(*rows, strict=True))
    limits = np.iinfo(integer.to_pandas_dtype())
    versions = [v if v is None or limits.min <= v <= limits.max else 5 for v in versions]
    rtt = pa.array(rtts, pa.float64()).cast(floating)
    batch = batch_of(
        [],
        event_time=pa.array(times, pa.int64()).cast(pa.timestamp(unit, zone)),
        src_addr=data.draw(columns_of_texts(sources)),
        dst_addr=data.draw(columns_of_texts(destinations)),
        ip_version=pa.array(versions, integer),
        rtt=rtt,
    )
    kept: list[Any] = [*zip(times, sources, destinations, versions, rtt.to_pylist(), strict=True)]
    wanted = [first_fault(time, unit, *others) for time, *others in kept]
    assert reasons_of(batch) == wanted
    block, faults = check(batch)
    texts = as_text(batch, faults.rows)
    for text, row in zip(texts, faults.rows.tolist(), strict=True):
        assert (text["src_addr"], text["dst_addr"]) == kept[row][1:3]
        assert [each is None for each in text.values()] == [each is None for each in kept[row]]
    kept = [row for row, fault in zip(kept, wanted, strict=True) if fault is None]
    assert block.event_time.tolist() == [in_us(row[0], unit) for row in kept]
    for at, column in ((1, block.src), (2, block.dst)):
        assert addresses_of(column) == [canonical(as_number(row[at])) for row in kept]
    assert block.rtt.dtype == np.float32
    assert block.rtt.tolist() == [stored_rtt(row[4]) for row in kept]
    assert not np.signbit(block.rtt[block.rtt == 0]).any()


MAX_COMPACT_US = (MAX_FIRST_SECOND + 1) * 1_000_000 - 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rtt": 4.3949e9}, "rtt_out_of_range"),
        ({"rtt": float(decode_rtt(np.array([0xFFFE]))[0])}, None),
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


def test_null_time_over_a_value():
    column = pa.Array.from_buffers(
        pa.timestamp("us"), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([-5, 7], np.int64))]
    )
    assert reasons_of(with_column("event_time", column)) == ["event_time_null", None]


def test_invalid_utf8_is_a_dead_letter():
    """Nobody has checked the strings of a Parquet file."""
    data, offsets = b"192.0.2.1\xff\xfe", np.array([0, 9, 11], np.int32)
    column = pa.StringArray.from_buffers(2, pa.py_buffer(offsets), pa.py_buffer(data))
    batch = with_column("src_addr", column)
    assert reasons_of(batch) == [None, "src_addr_invalid"]
    (text,) = as_text(batch, np.array([1]))
    assert text["dst_addr"] == GOOD["dst_addr"]
