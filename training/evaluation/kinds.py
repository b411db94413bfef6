"""What each token of a batch is: its kind, its segment's timestamp mode, and the measurements.

One pass over the targets, compiled. The first token of a segment is an input only, and always
MEASUREMENT_START; a crop may cut a segment's last measurement anywhere.
"""

from typing import NamedTuple

import numpy as np
from numba import njit, uint64

from beam_pipeline.dataset.addresses import MAPPED_IPV4
from beam_pipeline.dataset.rtt import FAILED_RTT
from beam_pipeline.kernels import kernel
from training.tokens import draws
from training.tokens.tokenizer import (
    DST_IPV4,
    DST_IPV6,
    FAILED,
    FIRST_BYTE,
    MEASUREMENT_START,
    RTT_START,
    SRC_IPV4,
    SRC_IPV6,
    TIMESTAMP_ABS,
    TIMESTAMP_DELTA1,
    TIMESTAMP_DELTA4,
)

KIND_NAMES = (
    *("measurement start", "role", "source, first", "source, again", "destination"),
    *("RTT exponent", "RTT mantissa", "timestamp"),
)
START, ROLE, FIRST_SRC, LATER_SRC, DST, RTT_EXPONENT, RTT_MANTISSA, TIMESTAMP = range(8)
FULL, PARTIAL, NONE, SHORT = draws.FULL, draws.PARTIAL, draws.NONE, 3
MODE_CLASSES = (*draws.MODE_NAMES, "short")
LEAST_TO_TELL_MODE = 10  # measurements of a segment; of fewer the mode is SHORT
NOTHING = -1  # kind and mode of padding

# A measurement whose destination and outcome are whole, in the order of examples and tokens.
# `place` is where RTT_START is an input: the two bytes are the targets there and behind it.
# Addresses are in halves as in `beam_pipeline.dataset.addresses`.
MEASUREMENT = np.dtype(
    [
        *((name, np.int64) for name in ("example", "segment", "place", "code")),
        *((name, np.uint64) for name in ("src_hi", "src_lo", "dst_hi", "dst_lo")),
        *((name, np.bool_) for name in ("has_src", "has_dst", "is_query")),
    ]
)


def _by_role(values: dict[int, int]) -> np.ndarray:
    return np.array([values.get(role, 0) for role in range(FIRST_BYTE)])


_NUM_BYTES = _by_role(
    {
        SRC_IPV4: 4,
        SRC_IPV6: 16,
        DST_IPV4: 4,
        DST_IPV6: 16,
        RTT_START: 2,
        TIMESTAMP_ABS: 8,
        TIMESTAMP_DELTA1: 1,
        TIMESTAMP_DELTA4: 4,
    }
)
_KIND_OF_BYTES = _by_role(
    {
        SRC_IPV4: LATER_SRC,
        SRC_IPV6: LATER_SRC,
        DST_IPV4: DST,
        DST_IPV6: DST,
        TIMESTAMP_ABS: TIMESTAMP,
        TIMESTAMP_DELTA1: TIMESTAMP,
        TIMESTAMP_DELTA4: TIMESTAMP,
        RTT_START: RTT_EXPONENT,
    }
)


class Parsed(NamedTuple):
    """What the targets of examples are.

    Attributes:
      kinds: int8 [n, crop_size], places in KIND_NAMES, NOTHING for padding.
      modes: int8 [n, crop_size], places in MODE_CLASSES, NOTHING for padding.
      measurements: MEASUREMENT; those with `is_query` are successful, and source and destination
        stand before the RTT.
    """

    kinds: np.ndarray
    modes: np.ndarray
    measurements: np.ndarray


def parse(targets: np.ndarray, segmentation: np.ndarray) -> Parsed:
    """Parses examples: int32 [n, crop_size] each, as `build_dataset` gives them."""
    kinds = np.full(targets.shape, NOTHING, np.int8)
    modes = np.full(targets.shape, NOTHING, np.int8)
    found = np.zeros(targets.size + 1, MEASUREMENT)
    count = _parse(targets, segmentation, kinds, modes, found)
    return Parsed(kinds, modes, found[:count].copy())


@kernel
def _parse(targets, segmentation, kinds, modes, found):
    count = segment = 0
    num_examples, crop_size = targets.shape
    for example in range(num_examples):
        begin = 0
        while begin < crop_size:
            end = begin + 1
            while end < crop_size and segmentation[example, end] == segmentation[example, begin]:
                end += 1
            if segmentation[example, begin] > 0:
                first = count
                count = _parse_segment(
                    targets[example], begin, end, kinds[example], modes[example], found, count
                )
                for i in range(first, count):
                    found[i].example, found[i].segment = example, segment
                segment += 1
            begin = end
    return count


@njit
def _parse_segment(targets, begin, end, kinds, modes, found, count):
    """Parses targets[begin:end], fills kinds and modes there and found[count:]; returns its end."""
    num_measurements, num_timed, is_timed = 1, 0, False
    role, bytes_left, hi, lo = 0, 0, uint64(0), uint64(0)
    _begin(found[count])
    for place in range(begin, end):
        token = targets[place]
        if bytes_left > 0:
            bytes_left -= 1
            kinds[place] = _kind_of_byte(role, bytes_left, num_measurements)
            hi = (hi << uint64(8)) | (lo >> uint64(56))
            lo = (lo << uint64(8)) | uint64(token - FIRST_BYTE)
            if bytes_left == 0:
                _end_field(found[count], role, hi, lo)
        elif token == MEASUREMENT_START:
            kinds[place] = START
            count += _is_complete(found[count])
            _begin(found[count])
            num_measurements += 1
            num_timed += is_timed
            is_timed = False
        else:
            kinds[place] = ROLE
            role, hi, lo = token, uint64(0), uint64(0)
            bytes_left = _NUM_BYTES[role] if role < FIRST_BYTE else 0
            is_timed |= TIMESTAMP_ABS <= role <= TIMESTAMP_DELTA4
            _begin_field(found[count], role, place)
    # Whether a last measurement without a time has been cut before it cannot be told.
    num_telling = num_measurements if is_timed else num_measurements - 1
    modes[begin:end] = _mode(num_measurements, num_telling, num_timed + is_timed)
    return count + _is_complete(found[count])


@njit
def _mode(num_measurements, num_telling, num_timed):
    if num_measurements < LEAST_TO_TELL_MODE:
        return SHORT
    if num_timed == num_telling:
        return FULL
    return NONE if num_timed == 0 else PARTIAL


@njit
def _kind_of_byte(role, bytes_left, num_measurements):
    kind = _KIND_OF_BYTES[role]
    if kind == LATER_SRC and num_measurements == 1:
        return FIRST_SRC
    return RTT_MANTISSA if kind == RTT_EXPONENT and bytes_left == 0 else kind


@njit
def _begin(measurement):
    measurement.code = -1
    measurement.has_src = measurement.has_dst = measurement.is_query = False


@njit
def _begin_field(measurement, role, place):
    if role == FAILED:
        measurement.code = FAILED_RTT
    elif role == RTT_START:
        measurement.place = place + 1
        measurement.is_query = measurement.has_src and measurement.has_dst


@njit
def _end_field(measurement, role, hi, lo):
    if role in (SRC_IPV4, DST_IPV4):
        lo |= uint64(MAPPED_IPV4)
    if role in (SRC_IPV4, SRC_IPV6):
        measurement.src_hi, measurement.src_lo, measurement.has_src = hi, lo, True
    elif role in (DST_IPV4, DST_IPV6):
        measurement.dst_hi, measurement.dst_lo, measurement.has_dst = hi, lo, True
    elif role == RTT_START:
        measurement.code = np.int64(lo)
        measurement.is_query &= lo > uint64(0)  # errors are relative to the RTT


@njit
def _is_complete(measurement):
    return measurement.has_dst and measurement.code >= 0
