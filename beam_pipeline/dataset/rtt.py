"""The two-byte RTT encoding of compact rows and training tokens.

The high 5 bits are an exponent, the low 11 a mantissa: the RTT is mantissa << exponent, in µs. The
error is at most 0.5 µs below 2.048 ms and 2**-11 = 0.049 % above.
"""

import math

import numpy as np
from numba import njit

from beam_pipeline.kernels import kernel

FAILED_RTT = 0xFFFF
_MAX_RTT = 0xFFFE
MAX_RTT_MS = 2046.5 * 2**31 / 1000  # 50 days; beyond it the error bound does not hold


@njit(inline="always")
def rtt_code(rtt_ms):
    """Encodes one RTT, float32 or float64 ms, for use in kernels; see `encode_rtt`."""
    if rtt_ms < 0:
        return FAILED_RTT
    us = np.float64(rtt_ms) * 1000
    exponent = 0
    if us >= 2048:
        exponent = math.frexp(us)[1] - 11
        us = math.ldexp(us, -exponent)
    mantissa = int(np.rint(us)) if us < 2048 else 2048
    if mantissa == 2048:
        exponent, mantissa = exponent + 1, 1024
    return min(exponent * 2048 + mantissa, _MAX_RTT)


@kernel
def _encode_all(rtt_ms, codes):
    for i in range(len(codes)):
        codes[i] = rtt_code(rtt_ms[i])


def encode_rtt(rtt_ms: np.ndarray) -> np.ndarray:
    """Encodes float [n] milliseconds as the nearest codes, uint16 [n].

    Negative RTTs (failed pings) become FAILED_RTT, those over 50 days the largest code.
    """
    values = np.ascontiguousarray(rtt_ms)
    if values.dtype != np.float32:
        values = values.astype(np.float64)
    codes = np.empty(values.shape, np.uint16)
    _encode_all(values.reshape(-1), codes.reshape(-1))
    return codes


def decode_rtt(codes: np.ndarray) -> np.ndarray:
    """Inverts `encode_rtt`: uint16 [n] to float32 [n] milliseconds, -1.0 for a failed ping."""
    codes = np.asarray(codes, np.uint16)
    us = (codes & 0x7FF).astype(np.int64) << (codes >> 11).astype(np.int64)
    return np.where(codes == FAILED_RTT, np.float32(-1), (us / 1000).astype(np.float32))
