"""Measurements to tokens and back: what is kept, what is lost, and what `decode` refuses."""

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
from training.tokens.tokenizer import FIELD_ORDERS, decode, encode

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


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ValueError, match="not an IP address"):
        encode("nowhere", measured((0, "8.8.8.8", 1.0)))
    with pytest.raises(ValueError, match="not an IP address"):
        encode(SRC, measured((0, "8.8.8.8", 1.0), (0, "1.2.3", 1.0)))


@pytest.mark.parametrize(
    ("is_timed", "orders"),
    [
        ([True, True], [6, 30]),
        ([True, False], [6, -1]),
        ([True] * 3, [6] * 3),
        ([True], None),
        ([True] * 2, [5] * 2),
        ([False] * 2, [6] * 2),
    ],
)
def test_choices_must_be_in_range_and_one_for_each_measurement(is_timed, orders):
    """Those that are let through read and write beyond arrays."""
    with pytest.raises(ValueError):
        encode(SRC, in_seconds(1, 2), np.array(is_timed), orders and np.array(orders))


WHOLE = [0, *SRC_FIELD, *DST_FIELD, *RTT_FIELD, *TIME_FIELD]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([5, *WHOLE], "token 0 is 5: a context begins with"),
        ([0, 9, 11], "token 1 is 9, which is not the role"),
        ([0, -1], "token 1 is -1, which is not the role"),
        ([*WHOLE, 11], "token 23 is 11, which is not the role"),
        ([0, 1, 11, 11, 11, 267], "SRC_IPV4, but not all of the 4 tokens"),
        ([0, 1, 11, 10, 11, 11], "SRC_IPV4, but not all of the 4 tokens"),
        ([*WHOLE[:6], *WHOLE], "measurement at token 0 is cut"),
        ([*WHOLE, 0, 0], "measurement at token 23 is cut"),  # padding
        ([*WHOLE[:14], 6, 11], "TIMESTAMP_DELTA1, but"),
        ([0, *SRC_FIELD, 2, *[11] * 16], "two fields for src_addr"),
        ([0, 10, *RTT_FIELD], "two fields for rtt_ms"),
        # Of a last measurement that is cut.
        ([0, 1, 267, 11], "SRC_IPV4, but not all"),
        ([0, 6], "TIMESTAMP_DELTA1, but"),
        ([0, *SRC_FIELD, 1, 11], "two fields for src_addr"),
        # `encode` writes FAILED in its place, so `decode` would not be its inverse.
        ([0, *SRC_FIELD, *DST_FIELD, 8, 266, 266], "RTT"),
    ],
)
def test_invalid_context(tokens, message):
    with pytest.raises(ValueError, match=message):
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


@pytest.mark.parametrize(("dst", "rtt"), [("8.8.8.8", 12.5), ("2001:db8::1", -1.0)])
def test_a_cut_last_measurement_is_not_whole(dst, rtt):
    """But for one cut, just before a timestamp that stands last."""
    rows = measured((5_000_000, SRC, 1.0), (6_000_000, dst, rtt))
    first = encode(SRC, in_seconds(5))
    for order in range(30):
        is_timed = np.array([True, order >= 6])
        tokens = encode(SRC, rows, is_timed, np.array([6, order]))
        (_, whole) = decode(tokens)
        assert whole.is_whole
        for end in range(len(first) + 1, len(tokens)):
            before, cut = decode(tokens[:end])
            assert before.is_whole
            is_ambiguous = end == len(tokens) - 2 and whole.roles[-1] == 6
            assert cut.is_whole == is_ambiguous, (order, end)
            assert cut.roles == whole.roles[: len(cut.roles)]
            for name in ("src_addr", "dst_addr", "rtt_ms", "event_time"):
                assert getattr(cut, name) in (None, getattr(whole, name))
