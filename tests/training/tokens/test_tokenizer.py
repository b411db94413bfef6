"""Measurements to tokens and back: what is kept, what is lost, and what `decode` refuses."""

import datetime
import itertools
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from beam_pipeline.dataset.rtt import decode_rtt, encode_rtt
from tests.support import reference_sampler as reference
from tests.support.contexts import YEAR_2500, contexts, measured
from tests.support.helpers import as_number
from tests.support.properties import num_examples
from tests.support.waiting import HANG_S
from training.tokens import tokenizer
from training.tokens.tokenizer import (
    FIELD_ORDERS,
    MAX_MEASUREMENT_TOKENS,
    ROLE_NAMES,
    decode,
    encode,
)

SRC = "192.0.2.1"
LARGEST_RTT_MS = (2046 << 31) / 1000  # 50.8 days
FIELD_NAMES = ("src", "dst", "rtt", "time")
# By the reference, each a role and its bytes.
SRC_FIELD = [1, 11 + 192, 11, 11 + 2, 12]
DST_FIELD = [3, 19, 19, 19, 19]
RTT_FIELD = [8, 14, 243]
TIME_FIELD = [5, *[11] * 7, 12]


def in_seconds(*seconds: int) -> pa.RecordBatch:
    return measured(*((second * 1_000_000, "8.8.8.8", 1.0) for second in seconds))


def roles_of(tokens: np.ndarray) -> list[int]:
    return [role for measurement in decode(tokens) for role in measurement.roles]


# --- the vocabulary -----------------------------------------------------------------------------


def test_tokens_are_those_of_the_specification():
    names = [
        *("MEASUREMENT_START", "SRC_IPV4", "SRC_IPV6", "DST_IPV4", "DST_IPV6"),
        *("TIMESTAMP_ABS", "TIMESTAMP_DELTA1", "TIMESTAMP_DELTA4", "RTT_START"),
        *("THROUGHPUT_START", "FAILED"),
    ]
    assert list(ROLE_NAMES) == names
    assert [getattr(tokenizer, name) for name in names] == list(range(11))
    assert tokenizer.FIRST_BYTE == 11
    assert tokenizer.VOCABULARY_SIZE == 267


def test_tokens_of_a_measurement_one_by_one():
    tokens = encode(SRC, measured((1_500_000, "8.8.8.8", 1.0), (257_000_000, "2001:db8::1", -1.0)))
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [
        *(0, 1, 203, 11, 13, 12, 3, 19, 19, 19, 19),
        *(8, 11 + 3, 11 + 0xE8),  # 1,000 µs
        *(5, 11, 11, 11, 11, 11, 11, 11, 12),
        *(0, 1, 203, 11, 13, 12),
        *(4, 11 + 0x20, 11 + 0x01, 11 + 0x0D, 11 + 0xB8, *[11] * 11, 12),
        10,
        *(7, 11, 11, 12, 11),  # 256 s later
    ]


def test_no_measurement_is_longer_than_the_longest():
    longest = encode("::", measured((0, "::", 1.0)))
    assert len(longest) == MAX_MEASUREMENT_TOKENS == 47


def test_nothing_is_no_tokens():
    assert encode(SRC, measured()).tolist() == []
    assert decode([]) == []


# --- round trip ---------------------------------------------------------------------------------


@settings(max_examples=num_examples(150))
@given(contexts())
def test_decode_inverts_encode(context):
    src_addr, measurements, is_timed, orders = context
    decoded = decode(
        encode(src_addr, measured(*measurements), np.array(is_timed), np.array(orders))
    )
    coded = decode_rtt(encode_rtt(np.array([rtt for _, _, rtt in measurements], np.float32)))
    assert [(one.src_addr, one.dst_addr, one.rtt_ms, one.event_time) for one in decoded] == [
        (src_addr, dst, rtt, time // 1_000_000 if timed else None)
        for (time, dst, _), rtt, timed in zip(measurements, coded.tolist(), is_timed)
    ]
    assert all(one.is_whole for one in decoded)


@settings(max_examples=num_examples(150))
@given(contexts())
def test_encode_is_the_plain_reference(context):
    src_addr, measurements, is_timed, orders = context
    tokens = encode(src_addr, measured(*measurements), np.array(is_timed), np.array(orders))
    choices = [
        reference.Choice(item, tuple(FIELD_NAMES[field] for field in FIELD_ORDERS[order][:num]))
        for item, order, num in zip(
            reference.items_of(
                (time, as_number(dst), float(np.float32(rtt))) for time, dst, rtt in measurements
            ),
            orders,
            [4 if timed else 3 for timed in is_timed],
        )
    ]
    assert tokens.tolist() == reference.encode(as_number(src_addr), choices)


def test_fields_have_all_30_orders():
    untimed = [tuple(order[:3].tolist()) for order in FIELD_ORDERS[:6]]
    timed = [tuple(order.tolist()) for order in FIELD_ORDERS[6:]]
    assert sorted(untimed) == sorted(itertools.permutations(range(3)))
    assert sorted(timed) == sorted(itertools.permutations(range(4)))
    one = measured((7_000_000, "2001:db8::", 1.5))
    found = set()
    for order in range(30):
        tokens = encode(SRC, one, np.array([order >= 6]), np.array([order]))
        (measurement,) = decode(tokens)
        found.add(measurement.roles)
        assert (measurement.src_addr, measurement.dst_addr) == (SRC, "2001:db8::")
        assert measurement.rtt_ms == 1.5
        assert measurement.event_time == (7 if order >= 6 else None)
    assert found == {*itertools.permutations((1, 4, 8)), *itertools.permutations((1, 4, 8, 5))}


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("::1", "::1"),
        ("::1.2.3.4", "::102:304"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("2001:DB8:0:0::", "2001:db8::"),
        ("2001:db8::1:0:0:1", "2001:db8::1:0:0:1"),
        ("0.0.0.0", "0.0.0.0"),
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    ],
)
def test_addresses_come_back_in_their_canonical_form(text, decoded):
    (measurement,) = decode(encode(text, measured((0, text, 1.0))))
    assert (measurement.src_addr, measurement.dst_addr) == (decoded, decoded)
    assert measurement.roles[:2] == ((2, 4) if ":" in decoded else (1, 3))


# --- time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delta", "role", "num_bytes"),
    [(0, 6, 1), (1, 6, 1), (255, 6, 1), (256, 7, 4), (2**32 - 1, 7, 4), (2**32, 5, 8), (-1, 5, 8)],
)
def test_a_difference_takes_as_few_bytes_as_hold_it(delta, role, num_bytes):
    first = 1_700_000_000
    tokens = encode(SRC, in_seconds(first, first + delta))
    before = encode(SRC, in_seconds(first))
    assert len(tokens) == 2 * len(before) - 9 + 1 + num_bytes
    assert roles_of(tokens)[-1] == role
    assert [one.event_time for one in decode(tokens)] == [first, first + delta]


def test_differences_are_to_the_timestamp_before_not_to_the_measurement_before():
    tokens = encode(SRC, in_seconds(100, 200, 300, 301), np.array([True, False, True, True]))
    assert [one.event_time for one in decode(tokens)] == [100, None, 300, 301]
    assert tokens[-2:].tolist() == [6, 12]
    assert roles_of(tokens).count(5) == 1


def test_times_reach_from_1970_to_2500_and_lose_fractions_of_a_second():
    assert datetime.datetime(2500, 1, 1, tzinfo=datetime.UTC).timestamp() == YEAR_2500
    measurements = measured((0, "8.8.8.8", 1.0), (YEAR_2500 * 1_000_000 + 999_999, "8.8.8.8", 1.0))
    assert [one.event_time for one in decode(encode(SRC, measurements))] == [0, YEAR_2500]


# --- RTT ----------------------------------------------------------------------------------------


def decoded_rtts(values: np.ndarray) -> np.ndarray:
    rows = measured(*((0, "8.8.8.8", value) for value in values.tolist()))
    return np.array([one.rtt_ms for one in decode(encode(SRC, rows))])


def assert_rtt_error(values: np.ndarray, decoded: np.ndarray) -> None:
    """The bound of the docs; what float32 loses on top, 2**-24, fits in what 0.049 % rounds up."""
    error = np.abs(decoded - values)
    small = values < 2.048
    assert (error[small] <= 0.0005 * (1 + 1e-3)).all()
    assert (error[~small] <= 0.00049 * values[~small]).all()
    assert (error[values > 1] <= 0.001 * values[values > 1]).all()


def test_rtts_are_off_by_at_most_half_a_microsecond_or_0_049_percent():
    values = np.geomspace(1e-4, LARGEST_RTT_MS * 0.999, 3000).astype(np.float32).astype(float)
    assert_rtt_error(values, decoded_rtts(values))


@settings(max_examples=num_examples(200))
@given(st.lists(st.floats(0, 2**32, width=32), min_size=1, max_size=50))
def test_no_rtt_is_off_by_more(values):
    floats = np.array(values)
    assert_rtt_error(floats, decoded_rtts(floats))


def test_the_bounds_on_rtt_are_not_stated_too_wide():
    values = np.linspace(2.048, 4.096, 4000).astype(np.float32).astype(float)
    worst = (np.abs(decoded_rtts(values) - values) / values).max()
    assert 0.00047 < worst <= 2**-11 + 1e-7


@pytest.mark.parametrize(
    ("rtt", "code"),
    [
        (0.0, 0),
        (0.0004, 0),
        (0.001, 1),
        (2.047, 2047),
        (2.0474, 2047),
        (2.0478, 1 << 11 | 1024),
        (2.048, 1 << 11 | 1024),
        (LARGEST_RTT_MS, 31 << 11 | 2046),
        (1e10, 31 << 11 | 2046),
    ],
)
def test_rtts_at_the_borders_have_these_two_bytes(rtt, code):
    tokens = encode(SRC, measured((0, "8.8.8.8", rtt)))
    assert tokens[11:14].tolist() == [8, 11 + (code >> 8), 11 + (code & 255)]
    assert reference.code_of(float(np.float32(rtt))) == code


@pytest.mark.parametrize("rtt", [-1.0, -0.001, -1e30])
def test_a_failed_ping_is_one_token(rtt):
    tokens = encode(SRC, measured((0, "8.8.8.8", rtt)))
    assert tokens[11:13].tolist() == [10, 5]
    assert decode(tokens)[0].rtt_ms == -1.0


# --- what encode refuses ------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["nowhere", "1.2.3", "fe80::1%eth0", ""])
def test_an_address_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="not an IP address"):
        encode(text, measured((0, "8.8.8.8", 1.0)))
    with pytest.raises(ValueError, match="not an IP address"):
        encode(SRC, measured((0, "8.8.8.8", 1.0), (0, text, 1.0)))


@pytest.mark.parametrize(("order", "is_timed"), [(5, True), (6, False), (0, True), (29, False)])
def test_an_order_must_suit_the_timestamp(order, is_timed):
    with pytest.raises(ValueError, match="orders below 6"):
        encode(SRC, in_seconds(1), np.array([is_timed]), np.array([order]))


# In a process of its own: choices that are let through read and write beyond arrays.
REFUSES_WRONG_CHOICES = """
import numpy as np, pyarrow as pa, sys
from beam_pipeline.dataset.row_codec import MEASUREMENT_SCHEMA
from training.tokenizer import encode
from tests.support.waiting import HANG_S
values = {"event_time": 0, "dst_addr": "8.8.8.8", "ip_version": 4, "rtt": 1.0}
rows = pa.RecordBatch.from_pylist([values] * 2, schema=MEASUREMENT_SCHEMA)
for is_timed, orders in eval(sys.argv[1]):
    try:
        encode("192.0.2.1", rows, np.array(is_timed, bool), orders and np.array(orders))
    except ValueError:
        print("refused", is_timed, orders, flush=True)
"""


def test_choices_must_be_in_range_and_one_for_each_measurement():
    choices = [
        ([True, True], [6, 30]),
        ([True, True], [6, 10**6]),
        ([True, False], [6, -1]),
        ([True] * 3, [6] * 3),
        ([True], [6]),
        ([True], None),
    ]
    command = [sys.executable, "-c", REFUSES_WRONG_CHOICES, repr(choices)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    refused = "".join(f"refused {is_timed} {orders}\n" for is_timed, orders in choices)
    assert (result.returncode, result.stdout) == (0, refused), result.stderr[-500:]


# --- what decode refuses ------------------------------------------------------------------------

WHOLE = [0, *SRC_FIELD, *DST_FIELD, *RTT_FIELD, *TIME_FIELD]


def test_the_measurement_that_is_damaged_below_is_right():
    (measurement,) = decode(WHOLE)
    assert (measurement.src_addr, measurement.dst_addr) == (SRC, "8.8.8.8")
    assert (measurement.rtt_ms, measurement.event_time) == (1.0, 1)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        pytest.param([11], "token 0 is 11, not MEASUREMENT_START", id="a byte first"),
        pytest.param(SRC_FIELD, "token 0 is 1, not MEASUREMENT_START", id="a field first"),
        pytest.param([5, *WHOLE], "token 0 is 5, not MEASUREMENT_START", id="a piece first"),
        pytest.param([0, 9, 11], "token 1 is 9, not the role", id="reserved role"),
        pytest.param([0, 11], "token 1 is 11, not the role", id="a byte for a role"),
        pytest.param([0, 267], "token 1 is 267, not the role", id="beyond the vocabulary"),
        pytest.param([0, -1], "token 1 is -1, not the role", id="negative"),
        pytest.param([*WHOLE, 11], "token 23 is 11, not the role", id="one byte too many"),
        pytest.param([0, 1, 11, 11, 11, 267], "SRC_IPV4 before token 6", id="byte too large"),
        pytest.param([0, 1, 11, 10, 11, 11], "SRC_IPV4 before token 6", id="role for a byte"),
        pytest.param([0, 8, 11, -1, 10], "RTT_START before token 4", id="byte below 0"),
        pytest.param([0, *SRC_FIELD, 0], "token 6 begins", id="few fields, then the next"),
        pytest.param([*WHOLE[:14][:-1], *WHOLE], "token 13 begins", id="cut in the middle"),
        pytest.param([*WHOLE[:6], *WHOLE], "token 6 begins", id="cut between fields"),
        pytest.param([0, 0], "token 1 begins", id="padding"),
        pytest.param([*WHOLE, 0, 0], "token 24 begins", id="padding at the end"),
        pytest.param([*WHOLE[:14], 6, 11], "TIMESTAMP_DELTA1 without", id="delta first"),
        pytest.param([*WHOLE[:14], 7, *[11] * 4], "TIMESTAMP_DELTA4 without", id="long delta"),
        pytest.param([0, *SRC_FIELD * 2], "token 0 tells its src_addr twice", id="two sources"),
        pytest.param([0, *SRC_FIELD, 2, *[11] * 16], "src_addr twice", id="of both families"),
        pytest.param([0, *DST_FIELD * 2], "dst_addr twice", id="two destinations"),
        pytest.param([0, 10, *RTT_FIELD], "rtt_ms twice", id="failed, and an RTT"),
        pytest.param([*WHOLE, *WHOLE, 6, 11], "token 23 tells its event_time", id="two times"),
    ],
)
def test_what_is_no_context_is_refused_with_its_position(tokens, message):
    with pytest.raises(ValueError, match=message):
        decode(tokens)


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param([0, 1, 5], id="a byte that is none"),
        pytest.param([0, 1, 267, 11], id="a byte too large"),
        pytest.param([0, 6], id="a difference to nothing"),
        pytest.param([0, *SRC_FIELD, 1, 11], id="a field told twice"),
    ],
)
def test_what_cannot_begin_a_context_is_refused_in_a_cut_field_too(tokens):
    with pytest.raises(ValueError):
        decode(tokens)


def test_the_two_bytes_that_mean_failed_in_compact_rows_are_no_rtt():
    """`encode` writes FAILED in their place, so `decode` would not be its inverse."""
    with pytest.raises(ValueError):
        decode([0, *SRC_FIELD, *DST_FIELD, 8, 266, 266])


@settings(max_examples=num_examples(300))
@given(st.lists(st.one_of(st.integers(0, 12), st.integers(0, 266)), max_size=40))
@example(WHOLE)
def test_any_tokens_are_measurements_or_refused(tokens):
    try:
        decoded = decode(tokens)
    except ValueError as error:
        assert "token" in str(error) or "without a timestamp" in str(error)
        return
    assert len(decoded) == tokens.count(0)
    assert all(one.is_whole for one in decoded[:-1])


# --- the end of a crop --------------------------------------------------------------------------


@pytest.mark.parametrize("order", range(30))
@pytest.mark.parametrize("dst", ["8.8.8.8", "2001:db8::1"])
@pytest.mark.parametrize("rtt", [12.5, -1.0])
def test_a_cut_last_measurement_is_not_whole(order, dst, rtt):
    """But for one cut, just before a timestamp that stands last."""
    rows = measured((5_000_000, SRC, 1.0), (6_000_000, dst, rtt))
    is_timed = np.array([True, order >= 6])
    first = encode(SRC, in_seconds(5))
    tokens = encode(SRC, rows, is_timed, np.array([6, order]))
    (_, whole) = decode(tokens)
    assert whole.is_whole
    for end in range(len(first) + 1, len(tokens)):
        before, cut = decode(tokens[:end])
        assert before.is_whole
        is_ambiguous = end == len(tokens) - 2 and whole.roles[-1] == 6
        assert cut.is_whole == is_ambiguous, end
        assert cut.roles == whole.roles[: len(cut.roles)]
        for name in ("src_addr", "dst_addr", "rtt_ms", "event_time"):
            assert getattr(cut, name) in (None, getattr(whole, name))
    assert [one.is_whole for one in decode(tokens[: len(first)])] == [True]
