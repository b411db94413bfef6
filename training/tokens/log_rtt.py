"""The two-byte encoding of an RTT: as stored in rows, or on a finer, more even scale.

The first byte of a stored code is one of four per octave, 12 to 25 % wide, and 132 of the 256
occur. A model learns first bytes first, and they are too coarse to resolve noise of a few percent.

On the logarithmic scale, the first byte is one of 29 per octave, 2.4 % wide, from 4 ms to 0.5 s,
the range of most RTTs on the internet. It is one of six from 128 µs to 4 ms and from 0.5 to 1 s.
Shorter RTTs have four first bytes of 32 µs each; longer ones, up to 50 days, the last 13.

The second byte is the RTT's rank among the stored codes with this first byte, so that the same
bytes occur after every first byte: 25 to 48 of them from 4 ms to 0.5 s. Below 1 s the encoding is
lossless. Above, there are more than 256 codes; some share a byte, with an error of at most 0.4 %.
"""

import numpy as np

from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt
from beam_pipeline.kernels import subkernel

# The ends of the ranges as log2 of the RTT in µs, and their first bytes. The scale is linear in the
# RTT below the first end, and in its logarithm between two ends.
_OCTAVES = (7, 12, 19, 20, 42)
_FIRST_BYTES = (4, 34, 237, 243, 256)

_CODES = np.arange(FAILED_RTT)
# The codes that `encode_rtt` writes: above exponent 0 the mantissa's highest bit is set. Ascending.
WRITTEN_CODES = _CODES[(_CODES < 2048) | (_CODES & 1024 > 0)]


def _token_codes_of_all() -> np.ndarray:
    """Returns the two bytes of every code: uint16 [65,536]; FAILED_RTT stays unchanged."""
    ms = decode_rtt(WRITTEN_CODES)
    us = ms.astype(np.float64) * 1000
    first_us = 2 ** _OCTAVES[0]
    place = np.interp(np.log2(np.maximum(us, first_us)), _OCTAVES, _FIRST_BYTES)
    place = np.where(us < first_us, us * _FIRST_BYTES[0] / first_us, place)
    first = np.minimum(place.astype(np.int64), 255)
    counts = np.bincount(first)[first]
    rank = np.arange(len(first)) - np.searchsorted(first, first)
    second = np.where(counts > 256, rank * 256 // counts, rank)
    encoded = np.minimum(first << 8 | second, FAILED_RTT - 1)
    of_all = encoded[np.searchsorted(ms, decode_rtt(_CODES), "right") - 1]
    return np.append(of_all, FAILED_RTT).astype(np.uint16)


_TOKEN_CODES = _token_codes_of_all()


def _stored_of_all() -> np.ndarray:
    """Returns the code of every two bytes; bytes without a code take the next lower one's."""
    encoded, every = _TOKEN_CODES[WRITTEN_CODES], np.arange(FAILED_RTT)
    begin, end = (np.searchsorted(encoded, every, side) for side in ("left", "right"))
    stored = WRITTEN_CODES[np.where(begin < end, (begin + end) // 2, end - 1)]
    return np.append(stored, FAILED_RTT).astype(np.uint16)


_STORED = _stored_of_all()


@subkernel
def token_code(code, log_rtt):
    """Returns the two bytes of an RTT as a number; `code` is a result of `encode_rtt`."""
    return np.int64(_TOKEN_CODES[code]) if log_rtt else code


def token_codes(codes: np.ndarray, log_rtt: bool) -> np.ndarray:
    """Returns `token_code` of each code, [n]."""
    return _TOKEN_CODES[codes].astype(codes.dtype) if log_rtt else codes


def stored_codes(encoded: np.ndarray, log_rtt: bool) -> np.ndarray:
    """Inverts `token_codes`; unused two-byte values become the next lower used one."""
    return _STORED[encoded].astype(encoded.dtype) if log_rtt else encoded
