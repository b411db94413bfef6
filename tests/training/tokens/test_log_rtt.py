"""RTTs told on the logarithmic scale."""

import numpy as np
import pytest

from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt, encode_rtt
from tests.support.drawn_contexts import WEIGHTS, contexts_of, draw, row_of
from tests.support.helpers import make_run
from training.tokens.kinds import parse
from training.tokens.log_rtt import stored_codes, token_code, token_codes
from training.tokens.tokenizer import decode

DAY_MS = 86_400_000.0
WRITTEN = np.unique(encode_rtt(np.append(0, np.geomspace(1e-3, 49 * DAY_MS, 400_000))))
IS_EXACT = decode_rtt(WRITTEN) <= 1048


def test_what_is_told_can_be_told_back_and_ascends_with_the_rtt():
    told = token_codes(WRITTEN, True).astype(int)
    steps = np.diff(told)
    assert (steps[IS_EXACT[1:]] > 0).all() and (steps >= 0).all()
    assert told[0] == 0 and told[-1] < FAILED_RTT
    back = stored_codes(told, True)
    assert (back[IS_EXACT] == WRITTEN[IS_EXACT]).all()
    ratio = decode_rtt(back[~IS_EXACT]) / decode_rtt(WRITTEN[~IS_EXACT])
    assert 0.003 < np.abs(ratio - 1).max() < 0.004
    assert (token_codes(back, True) == told).all()
    assert [token_code(code, True) for code in WRITTEN[::97].tolist()] == told[::97].tolist()
    assert (token_codes(WRITTEN, False) == WRITTEN).all()
    assert (stored_codes(WRITTEN, False) == WRITTEN).all()


def test_how_wide_first_bytes_are():
    ms = decode_rtt(WRITTEN).astype(float)
    first = token_codes(WRITTEN, True) >> 8
    for octave in range(5 + 7 + 1):
        low = 0.128 * 2.0**octave
        within = np.unique(first[(ms >= low) & (ms < 2 * low - 1e-3)])
        assert len(within) == np.ptp(within) + 1 == (29 if 5 <= octave < 12 else 6)
    assert len(np.unique(first)) == 256


def test_the_second_byte_counts_the_rtts_of_a_first_byte():
    told = token_codes(WRITTEN, True).astype(int)
    for first in range(256):
        seconds = told[told >> 8 == first] & 255
        if first < 243:
            assert seconds.tolist() == list(range(len(seconds))) and len(seconds) >= 16
        else:  # the last one holds more than the 49 days that are written here
            most = 256 if first < 255 else 200
            assert len(seconds) > 256 and set(seconds.tolist()) >= set(range(most))
    # Of common RTTs the same bytes come behind every first byte.
    ms = decode_rtt(WRITTEN)
    common = told[(ms >= 4.2) & (ms < 500)] & 255
    assert 40 < common.max() < 48


def test_a_failed_ping_stays_one_and_bytes_that_tell_no_rtt_are_read_as_the_next_lower():
    failed = np.array([FAILED_RTT])
    assert token_codes(failed, True) == FAILED_RTT == stored_codes(failed, True)
    assert token_code(FAILED_RTT, True) == FAILED_RTT
    told = np.unique(token_codes(WRITTEN, True).astype(int))
    never = np.setdiff1d(np.arange(told[-1]), told)
    lower = told[np.searchsorted(told, never) - 1]
    assert len(never) > 30_000 and (lower < never).all()
    assert (stored_codes(never, True) == stored_codes(lower, True)).all()


@pytest.mark.parametrize("mode", WEIGHTS)
def test_contexts_differ_in_how_rtts_are_told_alone(mode: int):
    row = row_of(make_run(900, seed=5))
    plain, log = (
        contexts_of(draw(row, 6, WEIGHTS[mode], log_rtt=log_rtt)) for log_rtt in (False, True)
    )
    for before, after in zip(plain, log, strict=True):
        assert before != after
        # The last measurement can be cut within its RTT.
        assert decode(before)[:-1] == decode(after, log_rtt=True)[:-1]
        codes = [
            parse(np.array([tokens[1:]]), np.ones((1, len(tokens) - 1)), log_rtt)
            .measurements["code"]
            .tolist()[:-1]
            for tokens, log_rtt in ((before, False), (after, True))
        ]
        assert codes[0] == codes[1]
