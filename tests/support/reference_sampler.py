"""Contexts in plain Python, which the compiled samplers are held against, and what chance allows.

Nothing here comes from `training`. The tokens of a context tell which choices were made: which
measurements, in what order, which of them tell their time, and the order of their fields.
`choices_of` reads them, `encode` writes the tokens that these choices must give.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

START, SRC_IPV4, SRC_IPV6, DST_IPV4, DST_IPV6 = range(5)
ABSOLUTE, DELTA1, DELTA4, RTT, THROUGHPUT, FAILED = range(5, 11)
FIRST_BYTE = 11
FIELD_OF = (
    dict.fromkeys((SRC_IPV4, SRC_IPV6), "src")
    | dict.fromkeys((DST_IPV4, DST_IPV6), "dst")
    | dict.fromkeys((ABSOLUTE, DELTA1, DELTA4), "time")
    | dict.fromkeys((RTT, FAILED), "rtt")
)
NUM_BYTES = dict(
    zip(
        (SRC_IPV4, SRC_IPV6, DST_IPV4, DST_IPV6, ABSOLUTE, DELTA1, DELTA4, RTT, FAILED),
        (4, 16, 4, 16, 8, 1, 4, 2, 0),
        strict=True,
    )
)
FAILED_CODE = -1


class Item(NamedTuple):
    """What a context can tell of a measurement: seconds since 1970, address, two bytes of RTT."""

    second: int
    dst: int  # 128 bits; IPv4 is ::ffff:a.b.c.d
    code: int  # FAILED_CODE if the ping failed


class Choice(NamedTuple):
    """A measurement of a context, and its fields in their order: src, dst, rtt, perhaps time."""

    item: Item
    order: tuple[str, ...]


def items_of(records: Iterable[tuple[int, int, float]]) -> list[Item]:
    """Returns the items of measurements (µs since 1970, address, RTT in ms)."""
    return [Item(time // 1_000_000, dst, code_of(rtt)) for time, dst, rtt in records]


def code_of(rtt_ms: float) -> int:
    """Returns the nearest mantissa << exponent of µs, 11 and 5 bits; the largest one if too large.

    0xFFFF, the very largest, means something else in compact rows.
    """
    if rtt_ms < 0:
        return FAILED_CODE
    us = Fraction(rtt_ms) * 1000
    exponent = 0
    while round(us / 2**exponent) > 2047:
        exponent += 1
    return min(exponent << 11 | round(us / 2**exponent), 0xFFFE)


# --- writing ------------------------------------------------------------------------------------


def encode(src: int, choices: Iterable[Choice], limit: int | None = None) -> list[int]:
    """Returns the tokens of a context, cut at `limit`."""
    tokens: list[int] = []
    previous = None
    for item, order in choices:
        tokens.append(START)
        for field in order:
            if field == "src":
                tokens += _address(src, SRC_IPV4)
            elif field == "dst":
                tokens += _address(item.dst, DST_IPV4)
            elif field == "rtt":
                tokens += [FAILED] if item.code == FAILED_CODE else [RTT, *_bytes(item.code, 2)]
            else:
                tokens += _time(item.second, previous)
                previous = item.second
    return tokens[:limit]


def _bytes(value: int, count: int) -> list[int]:
    return [FIRST_BYTE + byte for byte in value.to_bytes(count, "big")]


def _address(address: int, ipv4_role: int) -> list[int]:
    if address >> 32 == 0xFFFF:
        return [ipv4_role, *_bytes(address & 0xFFFF_FFFF, 4)]
    return [ipv4_role + 1, *_bytes(address, 16)]


def _time(second: int, previous: int | None) -> list[int]:
    if previous is None or not 0 <= second - previous < 2**32:
        return [ABSOLUTE, *_bytes(second, 8)]
    delta = second - previous
    return [DELTA1, *_bytes(delta, 1)] if delta < 256 else [DELTA4, *_bytes(delta, 4)]


# --- relabelling --------------------------------------------------------------------------------

_RELABELLED = 0x6C61_6265_6C
_IS_RELABELLED = 0x7265_6C
_MASK = 2**64 - 1


def _mix(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & _MASK
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _MASK
    return word ^ word >> 31


def is_relabelled(key: int) -> bool:
    """Returns whether the context of few destinations with this key has other addresses."""
    return (_mix(key ^ _mix(_IS_RELABELLED)) >> 11) / 2**53 < 0.3


def relabelled(key: int, address: int) -> int:
    """Returns what the context of few destinations with this key shows for an address of 128 bits.

    Three in ten contexts have a new byte for each byte.
    The new one is the old one XOR a byte that follows from the key and the bytes before.
    """
    if not is_relabelled(key):
        return address
    num_bytes = 4 if address >> 32 == 0xFFFF else 16
    state, result = _mix(key ^ _mix(_RELABELLED)), address
    for shift in range(8 * num_bytes - 8, -1, -8):
        result ^= (state & 255) << shift
        state = _mix(state ^ _mix(address >> shift & 255))
    return result


def without_rtts(tokens: Sequence[int]) -> list[int]:
    """Returns tokens whose RTTs all have the code 0."""
    blank = list(tokens)
    for at, token in enumerate(tokens):
        if token == RTT:
            end = min(at + 3, len(blank))
            blank[at + 1 : end] = [FIRST_BYTE] * (end - at - 1)
    return blank


# --- reading ------------------------------------------------------------------------------------


class Told(NamedTuple):
    """What the tokens of one measurement say; None where they do not."""

    tokens: list[int]
    order: tuple[str, ...]  # the last field may be cut off
    dst: int | None
    code: int | None
    second: int | None
    is_cut: bool  # whether fields, or bytes of one, are missing for sure


def read(tokens: Sequence[int]) -> Iterator[Told]:
    """Yields what each measurement of a context says; all but the last must be whole."""
    starts = [at for at, token in enumerate(tokens) if token == START]
    assert starts[:1] == [0], "a context begins with a measurement"
    previous = None
    for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        told = _read_one(list(tokens[start:end]), previous)
        assert end == len(tokens) or not told.is_cut, f"the measurement at {start} is not whole"
        previous = told.second if told.second is not None else previous
        yield told


def _read_one(tokens: list[int], previous: int | None) -> Told:
    found: dict[str, int] = {}
    order: list[str] = []
    is_cut = False
    at = 1
    while at < len(tokens):
        role = tokens[at]
        content = tokens[at + 1 : at + 1 + NUM_BYTES[role]]
        assert all(FIRST_BYTE <= token < 267 for token in content)
        assert FIELD_OF[role] not in order, f"{FIELD_OF[role]} is told twice"
        order.append(FIELD_OF[role])
        at += 1 + NUM_BYTES[role]
        if at > len(tokens):
            is_cut = True
            break
        value = int.from_bytes(bytes(token - FIRST_BYTE for token in content), "big")
        if role == DST_IPV4:
            value |= 0xFFFF << 32
        elif role == FAILED:
            value = FAILED_CODE
        elif role in (DELTA1, DELTA4):
            assert previous is not None, "a difference to no timestamp"
            value += previous
        found[FIELD_OF[role]] = value
    is_cut = is_cut or not {"src", "dst", "rtt"} <= found.keys()
    return Told(tokens, tuple(order), found.get("dst"), found.get("rtt"), found.get("time"), is_cut)


def choices_of(tokens: Sequence[int], src: int, items: Iterable[Item]) -> list[Choice]:
    """Returns choices of a row's items that a context says were made.

    Raises:
      AssertionError: there are none: a measurement is not the row's, or is there too often.
    """
    told = list(read(tokens))
    left = Counter(items)
    chosen: list[Item | None] = [None] * len(told)
    for place, one in enumerate(told):
        if not one.is_cut and one.second is not None:
            chosen[place] = _take(left, Item(one.second, one.dst or 0, one.code or 0))
    last = told[-1]
    if not last.is_cut:
        return _with_untimed(told, chosen, left)
    seconds = [one.second for one in told[:-1] if one.second is not None]
    wrong = None
    for item in _cut_candidates(last, src, left, seconds[-1] if seconds else None):
        try:
            chosen[-1] = item
            return _with_untimed(told, chosen, left - Counter([item]))
        except AssertionError as error:
            wrong = error
    raise wrong or AssertionError(f"no measurement of the row begins with {last.tokens}")


def _take(left: Counter, item: Item) -> Item:
    assert left[item] > 0, f"{item} is not in the row, or not that often"
    left[item] -= 1
    return item


def _with_untimed(told: list[Told], chosen: list[Item | None], left: Counter) -> list[Choice]:
    """Gives measurements without a time any item that is left and has their other fields."""
    by_fields: dict[tuple[int, int], list[Item]] = {}
    for item in left.elements():
        by_fields.setdefault((item.dst, item.code), []).append(item)
    choices = []
    for one, item in zip(told, chosen, strict=True):
        if item is None:
            same = by_fields.get((one.dst or 0, FAILED_CODE if one.code is None else one.code))
            assert same, f"{one} is not in the row, or not that often"
            item = same.pop()
        choices.append(Choice(item, one.order))
    return choices


def _cut_candidates(last: Told, src: int, left: Counter, previous: int | None) -> Iterator[Item]:
    """Yields items that may have begun with these tokens; a time is not before the one before."""
    before = [] if previous is None else [Choice(Item(previous, 0, 0), ("time",))]
    skipped = len(encode(src, before))
    for item in +left:
        is_in_order = "time" not in last.order or previous is None or item.second >= previous
        if is_in_order and last.dst in (None, item.dst) and last.code in (None, item.code):
            tokens = encode(src, [*before, Choice(item, last.order)])[skipped:]
            if tokens[: len(last.tokens)] == last.tokens:
                yield item


# --- what chance allows -------------------------------------------------------------------------


def most_deviation(num: int, probability: float = 1e-9) -> float:
    """Returns what `num` independent draws exceed with at most this probability.

    It bounds how far the share of an event is from its probability (Hoeffding) and how far an
    empirical distribution function is from the true one, anywhere (Dvoretzky, Kiefer, Wolfowitz
    and Massart).
    """
    return math.sqrt(math.log(2 / probability) / (2 * num))


def most_chi_square(degrees: int, probability: float = 1e-9) -> float:
    """Returns what a chi-square variable exceeds with at most this probability (Laurent, Massart).

    Pearson's statistic is one if every cell expects many.
    """
    t = -math.log(probability)
    return degrees + 2 * math.sqrt(degrees * t) + 2 * t


def distance(values: Sequence[float], uniform_from: float = 0.0, to: float = 1.0) -> float:
    """Returns how far the distribution function of values is from that of a uniform variable."""
    ordered = sorted((value - uniform_from) / (to - uniform_from) for value in values)
    num = len(ordered)
    return max(max((i + 1) / num - value, value - i / num) for i, value in enumerate(ordered))
