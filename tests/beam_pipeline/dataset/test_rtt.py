"""RTTs as codes of 16 bits: which are exact, how far others are off, and their order."""

import numpy as np
import pytest

from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt, encode_rtt

LARGEST_RTT_MS = (2046 << 31) / 1000


def test_rtt_precision_below_2_ms():
    us = np.arange(2049)
    assert (decode_rtt(encode_rtt(us / 1000)) == (us / 1000).astype(np.float32)).all()
    between = np.linspace(0, 2.0475, 100_003)
    error_us = np.abs(decode_rtt(encode_rtt(between)).astype(np.float64) - between) * 1000
    assert error_us.max() <= 0.5 + 1e-4  # and what float32 adds


@pytest.mark.parametrize("lowest", [2.048, 1000.0, 4e9])
def test_rtt_precision_above_2_ms(lowest):
    """0.049 %, as the docstring of `row_codec` states it."""
    rtt = np.concatenate(
        [
            np.linspace(lowest, lowest * 1.01, 50_001),
            np.geomspace(lowest, min(lowest * 1e4, LARGEST_RTT_MS), 50_001),
        ]
    )
    rtt = rtt[rtt <= LARGEST_RTT_MS]
    error = np.abs(decode_rtt(encode_rtt(rtt)).astype(np.float64) - rtt) / rtt
    assert error.max() <= 2**-11 + 1e-7  # and what float32 adds


def test_rtt_codes_are_monotonic():
    grid = np.concatenate(
        [np.linspace(0, 50, 200_001), np.geomspace(50, 2 * LARGEST_RTT_MS, 200_001)]
    )
    codes = encode_rtt(grid)
    assert (np.diff(codes.astype(np.int64)) >= 0).all()
    assert codes[0] == 0
    assert codes[-1] == encode_rtt(np.array([1e30]))[0] == FAILED_RTT - 1
    assert (np.diff(decode_rtt(codes)) >= 0).all()


def test_rtt_codes_round_trip():
    codes = np.arange(FAILED_RTT, dtype=np.uint16)
    canonical_codes = codes[(codes < 2048) | ((codes & 0x7FF) >= 1024)]
    assert (encode_rtt(decode_rtt(canonical_codes)) == canonical_codes).all()
    assert (decode_rtt(codes) >= 0).all()
    assert encode_rtt(np.array([-1.0, -0.5])).tolist() == [FAILED_RTT] * 2
    assert decode_rtt(np.array([FAILED_RTT], np.uint16)).tolist() == [-1.0]


def test_golden_rtt_codes():
    ms = [0.0, 0.001, 2.047, 2.048, 4.0, 4.094, 4.096, 1048.576]
    codes = [0, 1, 2047, 3072, 4048, 4095, 5120, 21504]  # exponent << 11 | mantissa
    assert encode_rtt(np.array(ms)).tolist() == codes
    assert decode_rtt(np.array(codes, np.uint16)).tolist() == np.array(ms, np.float32).tolist()
