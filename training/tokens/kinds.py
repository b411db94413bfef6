"""Parses the tokens of batches: fields, kinds for the loss, segments, modes and measurements.

The only parser of token arrays. It works on whole batches of `build_dataset`; what a context says
in full is `tokenizer.decode`'s. The first token of a segment is an input only and always
MEASUREMENT_START, so targets alone tell everything; a crop may cut the last measurement anywhere:

  inputs        START  SRC_IPV4  b b b b  DST_IPV4  b b b b  RTT_START  b b  START  …
  targets              SRC_IPV4  b b b b  DST_IPV4  b b b b  RTT_START  b b  START  …
"""

from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from beam_pipeline.dataset.addresses import MAPPED_IPV4
from beam_pipeline.dataset.rtt import FAILED_RTT
from beam_pipeline.report.formatting import NONE as NO_VALUE
from training.tokens.draws import FULL, MODE_NAMES, NONE, PARTIAL
from training.tokens.tokenizer import (
    DST_IPV6,
    FIRST_BYTE,
    MEASUREMENT_START,
    SRC_IPV6,
    TIMESTAMP_ABS,
    TIMESTAMP_DELTA4,
    Measurement,
)

FIELD_NAMES = ("padding", "start", "source", "destination", "time", "RTT", "failed")
_SRC, _DST, _RTT, _FAILED = 2, 3, 5, 6
# By role: the field that it opens, and the bytes that follow it.
_FIELD_OF_ROLE = np.array([1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 6], np.uint8)
_NUM_BYTES = np.array([0, 4, 16, 4, 16, 8, 1, 4, 2, 0, 0])

# The class of a token in tables of the loss.
KIND_NAMES = (
    *("measurement start", "role", "source, first", "source, again", "destination"),
    *("RTT exponent", "RTT mantissa", "timestamp"),
)
START, ROLE, FIRST_SRC, LATER_SRC, DST, RTT_EXPONENT, RTT_MANTISSA, TIMESTAMP = range(8)
# [field, 0 for the role, 1 for its first byte, 2 for the others]
_KIND_OF_FIELD = np.array(
    [
        *([ROLE] * 3, [START] * 3, [ROLE, LATER_SRC, LATER_SRC], [ROLE, DST, DST]),
        *([ROLE, TIMESTAMP, TIMESTAMP], [ROLE, RTT_EXPONENT, RTT_MANTISSA], [ROLE] * 3),
    ],
    np.int8,
)
SHORT = 3
MODE_CLASSES = (*MODE_NAMES, "short")
MIN_MEASUREMENTS_FOR_MODE = 10  # of a segment; in shorter ones PARTIAL can look like another mode
NOTHING = -1  # kind and mode of padding
_MAX_SECOND = 32_503_680_000  # the year 3000; a later second is shown as a number

# `num_tokens` includes the last target, `whole_tokens` are those before the last measurement,
# which can be cut if the segment fills the crop.
SEGMENT = np.dtype(
    [
        *((name, np.int64) for name in ("example", "num_tokens", "whole_tokens")),
        *((name, np.int64) for name in ("num_measurements", "num_timed")),
        *((name, np.bool_) for name in ("is_last_timed", "fills_crop")),
    ]
)
# A measurement whose destination and outcome are whole, in the order of the batch.
# `place` is where RTT_START is an input: the two bytes are the targets there and behind it.
# `is_query`: the ping was answered, and source and destination precede the RTT.
MEASUREMENT = np.dtype(
    [
        *((name, np.int64) for name in ("example", "segment", "place", "code")),
        *((name, np.uint64) for name in ("src_hi", "src_lo", "dst_hi", "dst_lo")),
        ("is_query", np.bool_),
    ]
)


class Parsed(NamedTuple):
    """What the targets of a batch are.

    Attributes:
      kinds: int8 [n, crop_size], indices into KIND_NAMES, NOTHING for padding.
      modes: int8 [n, crop_size], indices into MODE_CLASSES, NOTHING for padding.
      measurements: MEASUREMENT [measurements].
    """

    kinds: np.ndarray
    modes: np.ndarray
    measurements: np.ndarray


class _Flat(NamedTuple):
    """The tokens of a batch without padding, in one row.

    Attributes:
      at: index of each token in the flattened batch.
      segment, measurement: number of each token's segment and measurement in the batch.
      begins: index of each segment's first token in this row.
      role_at: index in this row of the role that each token is or belongs to.
    """

    at: np.ndarray
    tokens: np.ndarray
    segment: np.ndarray
    measurement: np.ndarray
    begins: np.ndarray
    role_at: np.ndarray


def _flatten(tokens: np.ndarray, segmentation: np.ndarray) -> _Flat:
    is_real = segmentation > 0
    is_begin = is_real.copy()
    is_begin[:, 1:] &= segmentation[:, 1:] != segmentation[:, :-1]
    flat, is_begin = tokens[is_real], is_begin[is_real]
    segment = is_begin.cumsum() - 1
    return _Flat(
        at=np.flatnonzero(is_real),
        tokens=flat,
        segment=segment,
        measurement=(flat == MEASUREMENT_START).cumsum() + segment,
        begins=np.flatnonzero(is_begin),
        role_at=np.maximum.accumulate(np.where(flat < FIRST_BYTE, np.arange(len(flat)), 0)),
    )


def _unflatten(flat: _Flat, values: np.ndarray, shape: tuple[int, ...], padding: int) -> np.ndarray:
    batch = np.full(shape, padding, values.dtype)
    batch.flat[flat.at] = values
    return batch


def parse(targets: np.ndarray, segmentation: np.ndarray) -> Parsed:
    """Parses the examples of an evaluation: int32 [n, crop_size] each, as in a batch."""
    flat, segments = _flatten(targets, segmentation), parse_segments(targets, segmentation)
    # Whether a last measurement without a time is cut before it cannot be known.
    modes = timestamp_modes(segments, ~segments["is_last_timed"]).astype(np.int8)
    modes[segments["num_measurements"] < MIN_MEASUREMENTS_FOR_MODE] = SHORT
    return Parsed(
        token_kinds(targets, segmentation),
        _unflatten(flat, modes[flat.segment], targets.shape, NOTHING),
        find_measurements(targets, segmentation),
    )


# --- tokens -------------------------------------------------------------------------------------


def token_fields(tokens: np.ndarray, segmentation: np.ndarray) -> np.ndarray:
    """Returns the index into FIELD_NAMES of each token; a byte has its role's.

    Args:
      tokens: inputs or targets of a batch, int32 [n, crop_size].
      segmentation: 0 for padding, [n, crop_size].

    Returns:
      uint8 [n, crop_size].
    """
    flat = _flatten(tokens, segmentation)
    return _unflatten(flat, _FIELD_OF_ROLE[flat.tokens[flat.role_at]], tokens.shape, 0)


def token_kinds(targets: np.ndarray, segmentation: np.ndarray) -> np.ndarray:
    """Returns the index into KIND_NAMES of each target, NOTHING for padding: int8 [n, crop]."""
    flat = _flatten(targets, segmentation)
    offsets = np.minimum(np.arange(len(flat.at)) - flat.role_at, 2)
    kinds = _KIND_OF_FIELD[_FIELD_OF_ROLE[flat.tokens[flat.role_at]], offsets]
    is_first = flat.measurement == flat.measurement[flat.begins][flat.segment]
    kinds[(kinds == LATER_SRC) & is_first] = FIRST_SRC
    return _unflatten(flat, kinds, targets.shape, NOTHING)


# --- segments and measurements ------------------------------------------------------------------


def parse_segments(targets: np.ndarray, segmentation: np.ndarray) -> np.ndarray:
    """Counts measurements and timestamps in the segments of a batch: SEGMENT [segments]."""
    flat, crop_size = _flatten(targets, segmentation), targets.shape[1]
    segments = np.zeros(len(flat.begins), SEGMENT)
    if not len(segments):
        return segments
    is_start = flat.tokens == MEASUREMENT_START
    is_time = (flat.tokens >= TIMESTAMP_ABS) & (flat.tokens <= TIMESTAMP_DELTA4)
    places = np.arange(len(flat.at))
    last_start, last_time = (
        np.maximum.reduceat(np.where(is_one, places, -1), flat.begins)
        for is_one in (is_start, is_time)
    )
    ends = np.append(flat.begins[1:], len(flat.at))
    segments["example"] = flat.at[flat.begins] // crop_size
    segments["num_tokens"] = ends - flat.begins + 1
    segments["whole_tokens"] = np.maximum(last_start + 1 - flat.begins, 0)
    segments["num_measurements"] = np.add.reduceat(is_start, flat.begins, dtype=np.int64) + 1
    segments["num_timed"] = np.add.reduceat(is_time, flat.begins, dtype=np.int64)
    segments["is_last_timed"] = last_time > last_start
    segments["fills_crop"] = flat.at[ends - 1] % crop_size == crop_size - 1
    return segments


def timestamp_modes(segments: np.ndarray, may_be_cut: np.ndarray | bool) -> np.ndarray:
    """Returns FULL, PARTIAL or NONE of segments by num_measurements and num_timed: int64.

    Args:
      may_be_cut: whether one missing timestamp may be due to a cut, bool or bool [segments].
    """
    num_untimed = segments["num_measurements"] - segments["num_timed"]
    modes = np.where(num_untimed <= may_be_cut, FULL, PARTIAL)
    return np.where(segments["num_timed"] == 0, NONE, modes)


def find_measurements(targets: np.ndarray, segmentation: np.ndarray) -> np.ndarray:
    """Returns the measurements of a batch whose destination and outcome are whole: MEASUREMENT."""
    flat = _flatten(targets, segmentation)
    tokens, roles = flat.tokens, np.flatnonzero(flat.tokens < FIRST_BYTE)
    ends = np.minimum(roles + _NUM_BYTES[tokens[roles]], len(tokens))
    roles = roles[np.append(flat.segment, -1)[ends] == flat.segment[roles]]  # those not cut
    num_measurements = int(flat.measurement.max(initial=-1)) + 1
    role_at = np.full((len(FIELD_NAMES), num_measurements), -1)
    role_at[_FIELD_OF_ROLE[tokens[roles]], flat.measurement[roles]] = roles
    is_complete = (role_at[_DST] >= 0) & (role_at[[_RTT, _FAILED]] >= 0).any(axis=0)
    src, dst, rtt, failed = role_at[[_SRC, _DST, _RTT, _FAILED]][:, is_complete]
    found = np.zeros(len(dst), MEASUREMENT)
    found["example"] = flat.at[dst] // targets.shape[1]
    found["segment"] = flat.segment[dst]
    found["place"] = flat.at[rtt] % targets.shape[1] + 1
    found["code"] = np.where(failed >= 0, FAILED_RTT, _numbers(tokens, rtt, 2))
    found["src_hi"], found["src_lo"] = _addresses(tokens, src)
    found["dst_hi"], found["dst_lo"] = _addresses(tokens, dst)
    # Errors are relative to the RTT, which must not be 0.
    found["is_query"] = (src >= 0) & (src < rtt) & (dst < rtt) & (found["code"] > 0)
    return found


def _addresses(tokens: np.ndarray, roles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the uint64 halves of the addresses behind some roles, as `dataset.addresses` does."""
    is_ipv6 = (tokens[roles] == SRC_IPV6) | (tokens[roles] == DST_IPV6)
    hi, lo = _numbers(tokens, roles, 8), _numbers(tokens, roles + 8, 8)
    ipv4 = _numbers(tokens, roles, 4) | np.uint64(MAPPED_IPV4)
    return np.where(is_ipv6, hi, np.uint64(0)), np.where(is_ipv6, lo, ipv4)


def _numbers(tokens: np.ndarray, roles: np.ndarray, num_bytes: int) -> np.ndarray:
    """Returns the numbers in the bytes behind some roles, the highest byte first: uint64."""
    places = roles[:, np.newaxis] + np.arange(1, num_bytes + 1)
    digits = (tokens.take(places, mode="clip") - FIRST_BYTE).astype(np.uint8)
    return digits.view(f">u{num_bytes}")[:, 0].astype(np.uint64)


def measurement_text(measurement: Measurement) -> str:
    """Returns source, destination, RTT and time in one line; – is what the tokens do not say.

    Example:
      192.0.2.1       → 8.8.8.8             1.000 ms  2024-01-01 00:16:40
    """
    rtt, second = measurement.rtt_ms, measurement.event_time
    rtt_text = NO_VALUE if rtt is None else "failed" if rtt < 0 else f"{rtt:.3f} ms"
    time = NO_VALUE if second is None else f"second {second}"
    if second is not None and second < _MAX_SECOND:
        time = f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M:%S}"
    ends = f"{measurement.src_addr or NO_VALUE:15} → {measurement.dst_addr or NO_VALUE:15}"
    return f"{ends} {rtt_text:>12}  {time}" + ("" if measurement.is_whole else "  (cut)")
