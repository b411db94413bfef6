"""The 267 tokens of a measurement: columns to tokens, and tokens back to measurements.

A measurement is MEASUREMENT_START and then its fields in any order, each a role and its bytes:

  source       SRC_IPV4 + 4 bytes          SRC_IPV6 + 16 bytes
  destination  DST_IPV4 + 4 bytes          DST_IPV6 + 16 bytes
  RTT          RTT_START + 2 bytes (see `beam_pipeline.dataset.rtt`), or FAILED alone
  time         TIMESTAMP_ABS + 8 bytes of seconds since 1970, or seconds since the previous
               timestamp, TIMESTAMP_DELTA1 + 1 byte or TIMESTAMP_DELTA4 + 4 bytes, or nothing

Byte b is token 11 + b, highest byte first. Times are floored to seconds; the error of an RTT is at
most 0.049 % (0.5 µs below 2 ms). Only `write_measurement` writes tokens, also for the sampler.
"""
# pyarrow has no types; the arguments of kernels get theirs from numba.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numba import uint64

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.row_codec import MEASUREMENT_SCHEMA
from beam_pipeline.dataset.rtt import FAILED_RTT, decode_rtt, encode_rtt
from beam_pipeline.kernels import kernel, subkernel
from training.tokens.log_rtt import stored_codes, token_codes

MEASUREMENT_START = 0
SRC_IPV4, SRC_IPV6 = 1, 2
DST_IPV4, DST_IPV6 = 3, 4
TIMESTAMP_ABS, TIMESTAMP_DELTA1, TIMESTAMP_DELTA4 = 5, 6, 7
RTT_START = 8
THROUGHPUT_START = 9  # reserved
FAILED = 10
FIRST_BYTE = 11
VOCABULARY_SIZE = FIRST_BYTE + 256

ROLE_NAMES = (
    *("MEASUREMENT_START", "SRC_IPV4", "SRC_IPV6", "DST_IPV4", "DST_IPV6"),
    *("TIMESTAMP_ABS", "TIMESTAMP_DELTA1", "TIMESTAMP_DELTA4"),
    *("RTT_START", "THROUGHPUT_START", "FAILED"),
)
# A role's field and number of bytes; MEASUREMENT_START has none, THROUGHPUT_START is reserved.
_FIELDS = {
    SRC_IPV4: ("src_addr", 4),
    SRC_IPV6: ("src_addr", 16),
    DST_IPV4: ("dst_addr", 4),
    DST_IPV6: ("dst_addr", 16),
    TIMESTAMP_ABS: ("event_time", 8),
    TIMESTAMP_DELTA1: ("event_time", 1),
    TIMESTAMP_DELTA4: ("event_time", 4),
    RTT_START: ("rtt_ms", 2),
    FAILED: ("rtt_ms", 0),
}

# The first 6 rows have no timestamp (source 0, destination 1, RTT 2), the other 24 have one (3).
NUM_ORDERS, NUM_TIMESTAMPED_ORDERS = 6, 24
_NO_FIELD = 9
FIELD_ORDERS = np.array(
    [
        *((*order, _NO_FIELD) for order in itertools.permutations(range(3))),
        *itertools.permutations(range(4)),
    ],
    np.int64,
)
# Source, time, destination, RTT: an RTT follows what it depends on.
FIXED_ORDER, FIXED_TIMED_ORDER = (
    FIELD_ORDERS.tolist().index(order) for order in ([0, 1, 2, _NO_FIELD], [0, 3, 1, 2])
)

NO_TIMESTAMP = 0  # in place of one of the three timestamp roles
MAX_MEASUREMENT_TOKENS = 1 + 17 + 17 + 3 + 9
ABS_TOKENS, DELTA1_TOKENS, DELTA4_TOKENS = 9, 2, 5

# [order, field, other]: 1 if the other field comes before the field; source is 0, time is 3.
_PLACES = FIELD_ORDERS.argsort(axis=1)
_BEFORE = (_PLACES[:, np.newaxis] < _PLACES[:, :, np.newaxis]).astype(np.int64)


# --- encoding -----------------------------------------------------------------------------------


@subkernel
def untimed_tokens(src_is_ipv6, dst_is_ipv6, rtt_code):
    """Returns the number of tokens of a measurement without its timestamp."""
    tokens = 1 + 5 + 5 + 12 * src_is_ipv6 + 12 * dst_is_ipv6
    return tokens + (1 if rtt_code == FAILED_RTT else 3)


@subkernel
def timestamp_role(delta, is_first):
    """Returns the role of a timestamp `delta` seconds after the previous one."""
    if is_first or delta < 0 or delta > 0xFFFF_FFFF:
        return TIMESTAMP_ABS
    return TIMESTAMP_DELTA1 if delta < 256 else TIMESTAMP_DELTA4


@subkernel
def timestamp_tokens(role):
    """Returns the number of tokens of a timestamp."""
    if role == TIMESTAMP_ABS:
        return ABS_TOKENS
    return DELTA1_TOKENS if role == TIMESTAMP_DELTA1 else DELTA4_TOKENS


@subkernel
def _write_bytes(tokens, at, value, num_bytes):
    for i in range(num_bytes):
        shift = uint64(8 * (num_bytes - 1 - i))
        tokens[uint64(at + i)] = FIRST_BYTE + np.int64((value >> shift) & uint64(255))


@subkernel
def _write_address(tokens, at, role_ipv4, hi, lo, is_ipv6):
    if is_ipv6:
        tokens[at] = role_ipv4 + 1
        _write_bytes(tokens, at + 1, hi, 8)
        _write_bytes(tokens, at + 9, lo, 8)
    else:
        tokens[at] = role_ipv4
        _write_bytes(tokens, at + 1, lo, 4)


@subkernel
def write_measurement(tokens, at, src, dst, rtt_code, role, seconds, order):
    """Writes one measurement to tokens[at:], at most MAX_MEASUREMENT_TOKENS; returns its end.

    A field's place is the sum of the fields before it. No branch depends on the order, which is
    random and would be mispredicted.

    Args:
      src, dst: addresses (hi, lo, is_ipv6), uint64 halves as in `beam_pipeline.dataset.addresses`.
      rtt_code: a result of `log_rtt.token_code`.
      role: of the timestamp, or NO_TIMESTAMP.
      seconds: since 1970, or since the previous timestamp.
      order: row of FIELD_ORDERS; it has four fields exactly if there is a timestamp.
    """
    is_failed = rtt_code == FAILED_RTT
    src_tokens, dst_tokens = 5 + 12 * src[2], 5 + 12 * dst[2]
    rtt_tokens = 1 if is_failed else 3
    time_tokens = timestamp_tokens(role) if role != NO_TIMESTAMP else 0
    tokens[at] = MEASUREMENT_START
    begin = at + 1
    places = _BEFORE[order]
    src_at = begin + places[0, 1] * dst_tokens + places[0, 2] * rtt_tokens
    dst_at = begin + places[1, 0] * src_tokens + places[1, 2] * rtt_tokens
    rtt_at = begin + places[2, 0] * src_tokens + places[2, 1] * dst_tokens
    time_at = begin + places[3, 0] * src_tokens + places[3, 1] * dst_tokens
    src_at += places[0, 3] * time_tokens
    dst_at += places[1, 3] * time_tokens
    rtt_at += places[2, 3] * time_tokens
    time_at += places[3, 2] * rtt_tokens
    # The RTT is written first: a failed ping has no RTT bytes, so the next field overwrites them.
    tokens[rtt_at] = FAILED if is_failed else RTT_START
    _write_bytes(tokens, rtt_at + 1, uint64(rtt_code), 2)
    _write_address(tokens, src_at, SRC_IPV4, src[0], src[1], src[2] > 0)
    _write_address(tokens, dst_at, DST_IPV4, dst[0], dst[1], dst[2] > 0)
    if role == TIMESTAMP_DELTA1:
        tokens[time_at] = role
        _write_bytes(tokens, time_at + 1, uint64(seconds), 1)
    elif role == TIMESTAMP_DELTA4:
        tokens[time_at] = role
        _write_bytes(tokens, time_at + 1, uint64(seconds), 4)
    elif role == TIMESTAMP_ABS:
        tokens[time_at] = role
        _write_bytes(tokens, time_at + 1, uint64(seconds), 8)
    return begin + src_tokens + dst_tokens + rtt_tokens + time_tokens


@kernel
def _encode_all(tokens, src, hi, lo, is_ipv6, rtt_codes, seconds, is_timed, orders):
    at = 0
    previous = np.int64(-1)
    for i in range(len(seconds)):
        role, shown = NO_TIMESTAMP, np.int64(0)
        if is_timed[i]:
            role = timestamp_role(seconds[i] - previous, previous < 0)
            shown = seconds[i] if role == TIMESTAMP_ABS else seconds[i] - previous
            previous = seconds[i]
        dst = (hi[i], lo[i], is_ipv6[i])
        at = write_measurement(tokens, at, src, dst, rtt_codes[i], role, shown, orders[i])
    return at


def encode(
    src_addr: str,
    measurements: pa.RecordBatch,
    is_timed: np.ndarray | None = None,
    orders: np.ndarray | None = None,
    log_rtt: bool = False,
) -> np.ndarray:
    """Encodes measurements of one probe, in the order given, as one context.

    Args:
      src_addr: the probe.
      measurements: n rows of `row_codec.MEASUREMENT_SCHEMA`.
      is_timed: bool [n], the measurements that get a timestamp; all by default.
      orders: [n] rows of FIELD_ORDERS; by default source, destination, RTT, time.
      log_rtt: use the logarithmic RTT scale of `training.tokens.log_rtt`.

    Returns:
      int32 [number of tokens].

    Raises:
      ValueError: an address is invalid, or `is_timed` and `orders` do not match.

    Example:

        row = open_dataset("rows").rows("train")[0]
        tokens = encode(row.src_addr, row.to_arrow().slice(0, 10))
    """
    num = measurements.num_rows
    hi, lo, families = addresses.parse(measurements.column("dst_addr"))
    src_hi, src_lo, src_family = addresses.parse(pa.array([src_addr]))
    for family, texts in ((families, measurements.column("dst_addr")), (src_family, [src_addr])):
        if (wrong := np.flatnonzero((family != 4) & (family != 6))).size:
            raise ValueError(f"{texts[int(wrong[0])]} is not an IP address")
    timed = np.ones(num, bool) if is_timed is None else np.asarray(is_timed, bool)
    chosen = np.where(timed, NUM_ORDERS, 0) if orders is None else np.asarray(orders, np.int64)
    if not timed.shape == chosen.shape == (num,):
        raise ValueError(
            f"is_timed has shape {timed.shape} and orders has {chosen.shape}: both must have one "
            f"value for each of the {num} measurements"
        )
    is_order = (chosen >= 0) & (chosen < len(FIELD_ORDERS))
    if not (is_order & ((chosen >= NUM_ORDERS) == timed)).all():
        raise ValueError(
            f"orders do not match is_timed: use 0 to {NUM_ORDERS - 1} without a timestamp, and "
            f"{NUM_ORDERS} to {len(FIELD_ORDERS) - 1} with one"
        )
    tokens = np.empty(num * MAX_MEASUREMENT_TOKENS, np.int32)
    length = _encode_all(
        tokens,
        (src_hi[0], src_lo[0], bool(src_family[0] == 6)),
        hi,
        lo,
        families == 6,
        token_codes(encode_rtt(measurements.column("rtt").to_numpy()).astype(np.int64), log_rtt),
        measurements.column("event_time").cast(pa.int64()).to_numpy() // 1_000_000,
        timed,
        chosen,
    )
    return tokens[:length]


def encode_measurement(
    meas: Mapping[str, Any],
    prev_timestamp: datetime | None = None,
    randomize_field_order: bool = True,
    include_timestamp: bool = True,
    rng: np.random.Generator | None = None,
) -> list[int]:
    """Encodes one measurement as `encode` does.

    Args:
      meas: src_addr, and the dst_addr, ip_version, rtt and event_time of a data source.
      prev_timestamp: the previous timestamp, for a difference; None encodes an absolute time.
      randomize_field_order: False uses source, destination, RTT, time.
      include_timestamp: False omits the time.
      rng: draws the order of the fields; by default a new one per call.

    Returns:
      The tokens.

    Raises:
      ValueError: a field is missing, or an address is invalid.

    Example:

        row = ProbeRowDataSource("rows/train")[0]
        tokens = encode_measurement({"src_addr": row["src_addr"], **row["measurements"][0]})
    """
    names = ("src_addr", *MEASUREMENT_SCHEMA.names)
    if missing := [name for name in names if meas.get(name) is None]:
        raise ValueError(f"the measurement lacks {', '.join(missing)}: set {', '.join(names)}")
    is_delta = include_timestamp and prev_timestamp is not None
    context = [{**meas, "event_time": prev_timestamp}, meas] if is_delta else [meas]
    order = NUM_ORDERS if include_timestamp else 0
    if randomize_field_order:
        num_orders = NUM_TIMESTAMPED_ORDERS if include_timestamp else NUM_ORDERS
        order += int((rng or np.random.default_rng()).integers(num_orders))
    tokens = encode(
        meas["src_addr"],
        pa.RecordBatch.from_pylist(context, MEASUREMENT_SCHEMA),
        np.full(len(context), include_timestamp),
        np.full(len(context), order),
    )
    return tokens[np.flatnonzero(tokens == MEASUREMENT_START)[-1] :].tolist()


# --- decoding -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """A decoded measurement; a field is None if its tokens are missing.

    Attributes:
      src_addr: the probe's address, canonical text.
      dst_addr: the destination's address, canonical text.
      rtt_ms: milliseconds; -1.0 is a failed ping.
      event_time: seconds since 1970 UTC; absolute even where the tokens hold a difference.
      roles: of the fields, in order.
      is_whole: False if it is cut, which only the last measurement of a context can be; a cut
        just before its timestamp looks like a measurement without one.

    Example:

        row = open_dataset("rows").rows("train")[0]
        decode(encode(row.src_addr, row.to_arrow()))[0].rtt_ms
    """

    src_addr: str | None = None
    dst_addr: str | None = None
    rtt_ms: float | None = None
    event_time: int | None = None
    roles: tuple[int, ...] = ()
    is_whole: bool = True


def decode(tokens: Sequence[int] | np.ndarray, log_rtt: bool = False) -> list[Measurement]:
    """Decodes the tokens of one context, the inverse of `encode`; the last measurement may be cut.

    Args:
      tokens: [number of tokens], each below VOCABULARY_SIZE.
      log_rtt: as in `encode`.

    Raises:
      ValueError: the tokens are not a context; the message has the position and the reason.

    Example:

        row = open_dataset("rows").rows("train")[0]
        measurements = decode(encode(row.src_addr, row.to_arrow()))
    """
    values = np.asarray(tokens).tolist()
    starts = [at for at, token in enumerate(values) if token == MEASUREMENT_START]
    if values and (not starts or starts[0] != 0):
        raise ValueError(f"token 0 is {values[0]}: a context begins with MEASUREMENT_START, 0")
    measurements = []
    previous: int | None = None
    for start, end in itertools.pairwise([*starts, len(values)]):
        measurement = _decode_one(values, start, end, previous, log_rtt)
        if not measurement.is_whole and end < len(values):
            raise ValueError(f"the measurement at token {start} is cut, but is not the last one")
        if measurement.event_time is not None:
            previous = measurement.event_time
        measurements.append(measurement)
    return measurements


def _decode_one(
    values: list[int], start: int, end: int, previous: int | None, log_rtt: bool
) -> Measurement:
    found: dict[str, object] = {}
    roles: list[int] = []
    at, is_cut = start + 1, False
    while at < end:
        role = values[at]
        if role not in _FIELDS:
            raise ValueError(f"token {at} is {role}, which is not the role of a field")
        name, num_bytes = _FIELDS[role]
        content = values[at + 1 : min(end, at + 1 + num_bytes)]
        if any(not FIRST_BYTE <= token < VOCABULARY_SIZE for token in content):
            raise ValueError(
                f"token {at} is {ROLE_NAMES[role]}, but not all of the {num_bytes} tokens after it "
                f"are bytes, {FIRST_BYTE} to {VOCABULARY_SIZE - 1}"
            )
        if name in found:
            raise ValueError(f"the measurement at token {start} has two fields for {name}")
        if role in (TIMESTAMP_DELTA1, TIMESTAMP_DELTA4) and previous is None:
            raise ValueError(f"token {at} is {ROLE_NAMES[role]}, but there is no earlier timestamp")
        at += 1 + num_bytes
        if at > end:
            is_cut = True
            break
        found[name] = _meaning(role, bytes(t - FIRST_BYTE for t in content), previous, log_rtt)
        roles.append(role)
    is_whole = not is_cut and {"src_addr", "dst_addr", "rtt_ms"} <= found.keys()
    return Measurement(**found, roles=tuple(roles), is_whole=is_whole)  # type: ignore[arg-type]


def _meaning(role: int, content: bytes, previous: int | None, log_rtt: bool) -> object:
    number = int.from_bytes(content, "big")
    if role in (SRC_IPV4, SRC_IPV6, DST_IPV4, DST_IPV6):
        address = number if len(content) == 16 else number | addresses.MAPPED_IPV4
        halves = np.array([address >> 64, address & 0xFFFF_FFFF_FFFF_FFFF], np.uint64)
        return addresses.format_any(halves[:1], halves[1:])[0].as_py()
    if role == RTT_START:
        if number == FAILED_RTT:
            raise ValueError("the bytes of RTT_START are FF FF: a failed ping is FAILED, token 10")
        return float(decode_rtt(stored_codes(np.array([number]), log_rtt))[0])
    if role == FAILED:
        return -1.0
    return number if role == TIMESTAMP_ABS else (previous or 0) + number
