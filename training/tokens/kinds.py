"""Parses the tokens of batches: fields, kinds for the loss, segments, modes and measurements.

The only parser of token arrays; `tokenizer.decode` decodes and checks a single context. The first
token of a segment occurs only as an input and is always MEASUREMENT_START, so targets suffice.
A crop may cut the last measurement anywhere:

  inputs        START  SRC_IPV4  b b b b  DST_IPV4  b b b b  RTT_START  b b  START  …
  targets              SRC_IPV4  b b b b  DST_IPV4  b b b b  RTT_START  b b  START  …
"""

from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from numba import uint64

from beam_pipeline.dataset.addresses import MAPPED_IPV4
from beam_pipeline.dataset.rtt import FAILED_RTT
from beam_pipeline.kernels import kernel
from beam_pipeline.report.tables import NONE as NO_VALUE
from training.tokens.draws import FULL, MODE_NAMES, NONE, PARTIAL
from training.tokens.log_rtt import stored_codes
from training.tokens.tokenizer import FIRST_BYTE, MEASUREMENT_START, Measurement

FIELD_NAMES = ("padding", "start", "source", "destination", "time", "RTT", "failed")
_SRC, _DST, _TIME, _RTT, _FAILED = range(2, 7)
# By role: the field that it opens, and the number of bytes after it (-1: the unused role).
_FIELD_OF_ROLE = np.array([1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 6], np.uint8)
_NUM_BYTES = np.array([0, 4, 16, 4, 16, 8, 1, 4, 2, -1, 0])

# The class of a token in tables of the loss.
KIND_NAMES = (
    *("measurement start", "role", "source, first", "source, again", "destination"),
    *("RTT, first byte", "RTT, second byte", "timestamp"),
)
START, ROLE, FIRST_SRC, LATER_SRC, DST, RTT_FIRST, RTT_SECOND, TIMESTAMP = range(8)
# [field, 0 for the role, 1 for the first byte, 2 for other bytes]
_KIND_OF_FIELD = np.array(
    [
        *([ROLE] * 3, [START] * 3, [ROLE, LATER_SRC, LATER_SRC], [ROLE, DST, DST]),
        *([ROLE, TIMESTAMP, TIMESTAMP], [ROLE, RTT_FIRST, RTT_SECOND], [ROLE] * 3),
    ],
    np.int8,
)
SHORT = 3
MODE_CLASSES = (*MODE_NAMES, "short")
MIN_MEASUREMENTS_FOR_MODE = 10  # of a segment; in shorter ones PARTIAL can look like FULL or NONE
NOTHING = -1  # kind and mode of padding
_MAX_SECOND = 32_503_680_000  # the year 3000; a later second is shown as a number

# `num_tokens` includes the last target; `whole_tokens` precede the last measurement, which may be
# cut if the segment fills the crop.
SEGMENT = np.dtype(
    [
        *((name, np.int64) for name in ("example", "num_tokens", "whole_tokens")),
        *((name, np.int64) for name in ("num_measurements", "num_timed")),
        *((name, np.bool_) for name in ("is_last_timed", "fills_crop")),
    ]
)
# A measurement whose destination and outcome are whole, in the order of the batch.
# `place`: the position whose input is RTT_START; its target and the next are the two bytes.
# `code`: the RTT, as `encode_rtt` returns it.
# `is_query`: the ping was answered, and source and destination precede the RTT.
MEASUREMENT = np.dtype(
    [
        *((name, np.int64) for name in ("example", "segment", "place", "code")),
        *((name, np.uint64) for name in ("src_hi", "src_lo", "dst_hi", "dst_lo")),
        ("is_query", np.bool_),
    ]
)


class Parsed(NamedTuple):
    """The parsed tokens of a batch."""

    fields: np.ndarray  # uint8 [n, crop_size], indices into FIELD_NAMES; a byte has its role's
    kinds: np.ndarray  # int8 [n, crop_size], indices into KIND_NAMES, NOTHING for padding
    segments: np.ndarray  # SEGMENT [segments]
    measurements: np.ndarray  # MEASUREMENT [measurements]

    @property
    def modes(self) -> np.ndarray:
        """The index into MODE_CLASSES of each token, NOTHING for padding: int8 [n, crop_size]."""
        # The last measurement may have been cut just before its timestamp.
        modes = timestamp_modes(self.segments, ~self.segments["is_last_timed"])
        modes[self.segments["num_measurements"] < MIN_MEASUREMENTS_FOR_MODE] = SHORT
        of_tokens = np.full(self.kinds.shape, NOTHING, np.int8)
        of_tokens[self.kinds != NOTHING] = np.repeat(modes, self.segments["num_tokens"] - 1)
        return of_tokens


def parse(tokens: np.ndarray, segmentation: np.ndarray, log_rtt: bool = False) -> Parsed:
    """Parses the targets of a batch, int32 [n, crop_size]; for inputs, only `fields` is correct."""
    parsed = Parsed(
        np.zeros(tokens.shape, np.uint8),
        np.full(tokens.shape, NOTHING, np.int8),
        np.zeros(tokens.size, SEGMENT),
        np.zeros(tokens.size, MEASUREMENT),
    )
    arrays = (np.ascontiguousarray(values, np.int32) for values in (tokens, segmentation))
    num_segments, num_measurements = _parse(*arrays, *parsed)
    measurements = parsed.measurements[:num_measurements].copy()
    measurements["code"] = stored_codes(measurements["code"], log_rtt)
    return parsed._replace(
        segments=parsed.segments[:num_segments].copy(), measurements=measurements
    )


@kernel
def _parse(tokens, segmentation, fields, kinds, segments, measurements):
    """Fills the arrays of `Parsed`; returns the number of segments and of measurements."""
    num_segments = num_measurements = 0
    for example in range(len(tokens)):
        for at in range(tokens.shape[1]):
            number, token = segmentation[example, at], tokens[example, at]
            if number == 0:
                continue
            is_begin = at == 0 or segmentation[example, at - 1] != number
            if is_begin:
                segment = segments[num_segments]
                segment.example, segment.num_tokens, segment.num_measurements = example, 1, 1
                num_segments += 1
                role, offset, hi, lo = MEASUREMENT_START, 0, uint64(0), uint64(0)
            if token == MEASUREMENT_START:
                segment.whole_tokens, segment.is_last_timed = segment.num_tokens, False
                segment.num_measurements += 1
            if is_begin or token == MEASUREMENT_START:
                measurement = measurements[num_measurements]
                measurement.example, measurement.segment = example, num_segments - 1
                place_of_measurement, is_first = num_measurements, is_begin
                has_src = has_dst = has_outcome = False
            segment.num_tokens += 1
            segment.fills_crop = at == tokens.shape[1] - 1
            if token < FIRST_BYTE:
                role, offset, hi, lo = token, 0, uint64(0), uint64(0)
            else:
                offset += 1
                hi = hi << uint64(8) | lo >> uint64(56)
                lo = lo << uint64(8) | uint64(token - FIRST_BYTE)
            field = _FIELD_OF_ROLE[role]
            kind = _KIND_OF_FIELD[field, min(offset, 2)]
            fields[example, at] = field
            kinds[example, at] = FIRST_SRC if is_first and kind == LATER_SRC else kind
            if field == _TIME and offset == 0:
                segment.num_timed += 1
                segment.is_last_timed = True
            if offset != _NUM_BYTES[role]:
                continue
            if field in (_SRC, _DST) and _NUM_BYTES[role] == 4:
                lo |= uint64(MAPPED_IPV4)
            if field == _SRC:
                measurement.src_hi, measurement.src_lo, has_src = hi, lo, True
            elif field == _DST:
                measurement.dst_hi, measurement.dst_lo, has_dst = hi, lo, True
            elif field == _RTT:
                measurement.place, measurement.code, has_outcome = at - 1, lo, True
                # Errors are relative to the RTT, which must not be 0.
                measurement.is_query = has_src and has_dst and lo > 0
            elif field == _FAILED:
                measurement.code, has_outcome = FAILED_RTT, True
            if has_dst and has_outcome:
                num_measurements = place_of_measurement + 1
    return num_segments, num_measurements


def timestamp_modes(segments: np.ndarray, may_be_cut: np.ndarray | bool) -> np.ndarray:
    """Returns each segment's FULL, PARTIAL or NONE; may_be_cut allows one missing timestamp."""
    num_untimed = segments["num_measurements"] - segments["num_timed"]
    modes = np.where(num_untimed <= may_be_cut, FULL, PARTIAL)
    return np.where(segments["num_timed"] == 0, NONE, modes)


def measurement_text(measurement: Measurement) -> str:
    """Returns source, destination, RTT and time in one line, with – for missing fields.

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
