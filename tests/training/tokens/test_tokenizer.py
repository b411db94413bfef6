"""Measurements to tokens and back: what is kept, what is lost, and what `decode` refuses."""

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
from tests.support.contexts import contexts, measured
from tests.support.helpers import as_number
from tests.support.properties import num_examples
from tests.support.waiting import HANG_S
from training.tokens.tokenizer import FIELD_ORDERS, MAX_MEASUREMENT_TOKENS, decode, encode

SRC = "192.0.2.1"
FIELD_NAMES = ("src", "dst", "rtt", "time")
# By the reference, each a role and its bytes.
SRC_FIELD = [1, 11 + 192, 11, 11 + 2, 12]
DST_FIELD = [3, 19, 19, 19, 19]
RTT_FIELD = [8, 14, 243]
TIME_FIELD = [5, *[11] * 7, 12]


def in_seconds(*seconds: int) -> pa.RecordBatch:
    return measured(*((second * 1_000_000, "8.8.8.8", 1.0) for second in seconds))


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


@pytest.mark.parametrize("text", ["nowhere", "1.2.3", "fe80::1%eth0", ""])
def test_an_address_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="not an IP address"):
        encode(text, measured((0, "8.8.8.8", 1.0)))
    with pytest.raises(ValueError, match="not an IP address"):
        encode(SRC, measured((0, "8.8.8.8", 1.0), (0, text, 1.0)))


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
        *(([is_timed] * 2, [order] * 2) for order, is_timed in ((5, True), (6, False))),
    ]
    command = [sys.executable, "-c", REFUSES_WRONG_CHOICES, repr(choices)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    refused = "".join(f"refused {is_timed} {orders}\n" for is_timed, orders in choices)
    assert (result.returncode, result.stdout) == (0, refused), result.stderr[-500:]


WHOLE = [0, *SRC_FIELD, *DST_FIELD, *RTT_FIELD, *TIME_FIELD]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        pytest.param([5, *WHOLE], "token 0 is 5: a context begins with", id="a field first"),
        pytest.param([0, 9, 11], "token 1 is 9, which is not the role", id="reserved role"),
        pytest.param([0, 267], "token 1 is 267, which is not the role", id="beyond the vocabulary"),
        pytest.param([0, -1], "token 1 is -1, which is not the role", id="negative"),
        pytest.param([*WHOLE, 11], "token 23 is 11, which is not the role", id="one byte too many"),
        pytest.param(
            [0, 1, 11, 11, 11, 267], "SRC_IPV4, but not all of the 4 tokens", id="byte too large"
        ),
        pytest.param(
            [0, 1, 11, 10, 11, 11], "SRC_IPV4, but not all of the 4 tokens", id="role for a byte"
        ),
        pytest.param(
            [*WHOLE[:13], *WHOLE], "measurement at token 0 is cut", id="cut in the middle"
        ),
        pytest.param(
            [*WHOLE[:6], *WHOLE], "measurement at token 0 is cut", id="cut between fields"
        ),
        pytest.param([*WHOLE, 0, 0], "measurement at token 23 is cut", id="padding at the end"),
        pytest.param([*WHOLE[:14], 6, 11], "TIMESTAMP_DELTA1, but", id="delta first"),
        pytest.param([*WHOLE[:14], 7, *[11] * 4], "TIMESTAMP_DELTA4, but", id="long delta"),
        pytest.param(
            [0, *SRC_FIELD, 2, *[11] * 16], "two fields for src_addr", id="of both families"
        ),
        pytest.param([0, *DST_FIELD * 2], "two fields for dst_addr", id="two destinations"),
        pytest.param([0, 10, *RTT_FIELD], "two fields for rtt_ms", id="failed, and an RTT"),
        pytest.param(
            [*WHOLE, *WHOLE, 6, 11], "token 23 has two fields for event_time", id="two times"
        ),
    ],
)
def test_invalid_context(tokens, message):
    with pytest.raises(ValueError, match=message):
        decode(tokens)


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param([0, 1, 5], id="a byte that is none, in a cut field"),
        pytest.param([0, 1, 267, 11], id="a byte too large, in a cut field"),
        pytest.param([0, 6], id="a difference to nothing"),
        pytest.param([0, *SRC_FIELD, 1, 11], id="a cut field told twice"),
        # `encode` writes FAILED in its place, so `decode` would not be its inverse.
        pytest.param([0, *SRC_FIELD, *DST_FIELD, 8, 266, 266], id="the RTT of a failed ping"),
    ],
)
def test_no_context_even_if_cut(tokens):
    with pytest.raises(ValueError):
        decode(tokens)


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
