"""RTT in two bytes, as compact rows hold it and as the tokeniser of training splits it.

The high 5 bits are an exponent, the low 11 a mantissa: mantissa << exponent is the RTT in µs. It
is off by at most 0.5 µs below 2.048 ms and by 2**-11 = 0.049 % above.
"""

import numpy as np

FAILED_RTT = 0xFFFF
_MAX_RTT = 0xFFFE


def encode_rtt(rtt_ms: np.ndarray) -> np.ndarray:
    """Encodes float [n] milliseconds as uint16 [n]: 5 bits exponent, 11 bits mantissa of µs.

    The value is mantissa << exponent, the nearest one that there is. Negative (failed) becomes
    FAILED_RTT; what is too large (50 days) becomes the largest value.
    """
    us = np.abs(np.asarray(rtt_ms, np.float64)) * 1000
    _, bit_length = np.frexp(us)
    exponent = np.clip(bit_length - 11, 0, 31)
    mantissa = np.rint(np.ldexp(us, -exponent))
    carried = mantissa >= 2048
    exponent, mantissa = exponent + carried, np.where(carried, 1024, mantissa)
    code = np.where(exponent > 31, _MAX_RTT, exponent * 2048 + mantissa)
    code = np.minimum(code, _MAX_RTT)
    return np.where(np.asarray(rtt_ms) < 0, FAILED_RTT, code).astype(np.uint16)


def decode_rtt(codes: np.ndarray) -> np.ndarray:
    """Inverts `encode_rtt`: uint16 [n] to float32 [n] milliseconds, -1.0 for a failed ping."""
    codes = np.asarray(codes, np.uint16)
    us = (codes & 0x7FF).astype(np.int64) << (codes >> 11).astype(np.int64)
    return np.where(codes == FAILED_RTT, np.float32(-1), (us / 1000).astype(np.float32))
