"""Draws the measurements of a context: which ones, in what order, and which have a timestamp.

The kernels leave the drawn measurements in `Scratch.items`, as indices into the row in the order of
the context, with `Scratch.is_timed` beside them. There are three ways to draw:

  draw_window   a large row: a log-uniform window, from it a random subset that fills the crop
  draw_strided  measurements at a stride of 1, 2, 4, …
  draw_all      a small row: every measurement, for packing

Timestamp modes: FULL, in order of time; PARTIAL, 10 to 90 % of the measurements lose their
timestamp and are spread evenly, in random order, among the others; NONE, in random order.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import uint64

from beam_pipeline.kernels import kernel, subkernel
from training.rows.keyed_random import combine, next_below, next_uniform, uniform
from training.rows.measurement_at import dst_at, is_ipv6_at, prefetch, rtt_code_at, second_at
from training.rows.row_layout import NO_RANKS
from training.tokens.tokenizer import (
    MAX_MEASUREMENT_TOKENS,
    TIMESTAMP_ABS,
    timestamp_role,
    timestamp_tokens,
    untimed_tokens,
)

FULL, PARTIAL, NONE = 0, 1, 2
MODE_NAMES = ("full", "partial", "none")
MIN_UNTIMED, MAX_UNTIMED = 0.1, 0.9
MIN_MEASUREMENT_TOKENS = 12  # IPv4 to IPv4, failed, no timestamp
SLACK = MAX_MEASUREMENT_TOKENS  # extra room of a token buffer after its crop
_STRATUM = 8  # measurements among which the share of timestamps is exact, see _is_timed
_FAILED_CODE = 0xFFFF

# A context of few destinations takes those of randomly drawn measurements, an eighth to half as
# many as it has measurements, log-uniform: each occurs two to eight times on average, for any crop
# and row. Measurements to other destinations are skipped until the tries are used up.
_REPEATS_SALT = 0x7265_7065_6174
_FEWEST, _MOST = 1 / 8, 1 / 2  # destinations per measurement of a context
_MIN_ROWS = 4  # min ratio of a row's measurements to a context's
_MAX_TRIES = 512  # per measurement of a context


class Drawing(NamedTuple):
    """How contexts are drawn."""

    num_tokens: int  # of a context: crop size + 1, since targets are the next token
    full_weight: float  # share of this timestamp mode
    partial_weight: float  # NONE has the rest
    strided: bool  # draw_strided instead of draw_window
    max_measurements: int = 1 << 62  # of draw_strided
    stride_ratio: float = 1.0  # weight of stride 2s relative to stride s
    min_window: float = 0.0  # as a share of the row; 0 is one measurement
    max_window: float = 1.0
    repeat_share: float = 0.0  # of draw_window's contexts, with few destinations
    fixed_order_share: float = 0.0  # of all contexts, with one order of fields
    random_source_share: float = 0.0  # of all contexts
    log_rtt: bool = False  # see `training.tokens.log_rtt`


def new_drawing(
    crop_size: int, mode_weights: tuple[float, float, float], strided: bool, **more: Any
) -> Drawing:
    """Returns a Drawing; the weights of full, partial and none need not add up to 1."""
    full, partial, _ = (weight / sum(mode_weights) for weight in mode_weights)
    return Drawing(crop_size + 1, full, partial, strided, **more)


class Scratch(NamedTuple):
    """Memory in which a kernel draws one context; each thread has its own."""

    lists: np.ndarray  # int64 [3, power of two], at least 4 * len(items) wide
    items: np.ndarray  # int64 [items], the measurements drawn, in order
    is_timed: np.ndarray  # bool [items]
    few: np.ndarray  # uint64 [items], hashes of the few destinations
    window: np.ndarray  # int64 [3]: first measurement, size or stride, 1 for few destinations
    stream: np.ndarray  # uint64 [1], random number state
    tokens: np.ndarray  # int32 [num_tokens + SLACK]
    ranks: np.ndarray = NO_RANKS  # of the row, see `row_layout.Located`


def new_scratch(num_tokens: int, max_measurements: int = 0) -> Scratch:
    """Returns scratch for contexts of `num_tokens` and small rows of `max_measurements`."""
    max_items = max(-(-num_tokens // MIN_MEASUREMENT_TOKENS), max_measurements)
    width = 1 << (4 * max_items - 1).bit_length()
    return Scratch(
        lists=np.empty((3, width), np.int64),
        items=np.empty(max_items, np.int64),
        is_timed=np.empty(max_items, np.bool_),
        few=np.empty(max_items, np.uint64),
        window=np.zeros(3, np.int64),
        stream=np.zeros(1, np.uint64),
        tokens=np.empty(num_tokens + SLACK, np.int32),
    )


@subkernel
def draw_mode(stream, drawing):
    """Draws a timestamp mode."""
    share = next_uniform(stream)
    if share < drawing.full_weight:
        return FULL
    return PARTIAL if share < drawing.full_weight + drawing.partial_weight else NONE


@subkernel
def draw_untimed_share(stream, mode):
    """Draws the share of measurements without a timestamp."""
    share = MIN_UNTIMED + (MAX_UNTIMED - MIN_UNTIMED) * next_uniform(stream)
    if mode == PARTIAL:
        return share
    return 0.0 if mode == FULL else 1.0


@subkernel
def _is_timed(stream, number, share, phase, left):
    """Draws whether measurement `number` of a context has a timestamp.

    Measurements are drawn until the crop is full, so their number is not known in advance. To meet
    the share nevertheless, each stratum of _STRATUM measurements loses its share of timestamps,
    rounded so that the sum is right (`phase` in [0, 1) makes the rounding fair). `left`, int64 [2],
    has the measurements left in the stratum, and the timestamps left to drop.
    """
    if share <= 0.0 or share >= 1.0:
        return share <= 0.0
    if left[0] == 0:
        before = math.floor(number * share + phase)
        left[0] = _STRATUM
        left[1] = math.floor((number + _STRATUM) * share + phase) - before
    loses = next_below(stream, left[0]) < left[1]
    left[0] -= 1
    left[1] -= loses
    return not loses


@subkernel
def _shuffle(stream, values, count):
    for i in range(count - 1, 0, -1):
        j = next_below(stream, i + 1)
        values[i], values[j] = values[j], values[i]


@subkernel
def _reverse(values, count):
    for i in range(count // 2):
        j = count - 1 - i
        values[i], values[j] = values[j], values[i]


@subkernel
def _interleave(stream, timed, num_timed, untimed, num_untimed, items, is_timed):
    """Merges two lists; every possible merge is equally likely."""
    at, other = 0, 0
    for place in range(num_timed + num_untimed):
        left, other_left = num_timed - at, num_untimed - other
        takes = other_left == 0 or (left > 0 and next_below(stream, left + other_left) < left)
        is_timed[place] = takes
        if takes:
            items[place] = timed[at]
            at += 1
        else:
            items[place] = untimed[other]
            other += 1


@subkernel
def _is_new(item, seen):
    """Adds an item to a hash set, int64 [power of two] of -1; returns whether it was new."""
    mask = len(seen) - 1
    at = np.int64((uint64(item) * uint64(0x9E3779B97F4A7C15)) >> uint64(40)) & mask
    while seen[at] >= 0:
        if seen[at] == item:
            return False
        at = (at + 1) & mask
    seen[at] = item
    return True


@subkernel
def _tokens_at(raw, layout, src_is_ipv6, item):
    return untimed_tokens(
        src_is_ipv6, is_ipv6_at(raw, layout, item), rtt_code_at(raw, layout, item)
    )


@kernel
def untimed_tokens_of(raw, layout, src_is_ipv6):
    """Returns the number of tokens of all measurements of a row without timestamps."""
    tokens = 0
    for item in range(layout.num_measurements):
        tokens += _tokens_at(raw, layout, src_is_ipv6, item)
    return tokens


@subkernel
def _gap_tokens(raw, layout, earlier, later):
    delta = second_at(raw, layout, later) - second_at(raw, layout, earlier)
    return timestamp_tokens(timestamp_role(delta, False))


@subkernel
def _insert(raw, layout, timed, num_timed, item):
    """Inserts an item into the sorted `timed`; returns the number of tokens that its time adds."""
    place = num_timed
    while place > 0 and timed[place - 1] > item:
        timed[place] = timed[place - 1]
        place -= 1
    timed[place] = item
    is_first, is_last = place == 0, place == num_timed
    if is_first and is_last:
        return timestamp_tokens(TIMESTAMP_ABS)
    if is_first:  # the absolute time moves here; the next one becomes a difference
        return _gap_tokens(raw, layout, item, timed[1])
    before = timed[place - 1]
    if is_last:
        return _gap_tokens(raw, layout, before, item)
    after = timed[place + 1]
    return (
        _gap_tokens(raw, layout, before, item)
        + _gap_tokens(raw, layout, item, after)
        - _gap_tokens(raw, layout, before, after)
    )


@subkernel
def _max_count(layout, src_is_ipv6, mode, wanted):
    """Returns the max number of measurements of a row needed for `wanted` tokens."""
    all_ipv6 = layout.num_ipv6 == layout.num_measurements
    smallest = untimed_tokens(src_is_ipv6, all_ipv6, _FAILED_CODE) + (2 if mode == FULL else 0)
    return (wanted + smallest - 1) // smallest


# --- windows, strides and few destinations -------------------------------------------------------


@subkernel
def _draw_window_size(num_measurements, drawing, stream):
    """Draws a window size, log-uniform between two shares of the row."""
    low = math.log(max(1.0, drawing.min_window * (num_measurements + 1.0)))
    high = math.log(max(1.0, drawing.max_window * (num_measurements + 1.0)))
    size = np.int64(math.exp(low + next_uniform(stream) * (high - low)))
    return min(num_measurements, max(1, size))


@subkernel
def _draw_stride(num_measurements, enough, drawing, stream):
    """Draws a stride: a power of two that leaves `enough` measurements, or 1.

    Each power has `drawing.stride_ratio` times the probability of the previous one.
    """
    exponents = 1
    while (1 << exponents) * enough <= num_measurements:
        exponents += 1
    ratio = drawing.stride_ratio
    if ratio == 1.0:
        return 1 << next_below(stream, exponents)
    share = next_uniform(stream) * (1.0 - ratio**exponents)
    return 1 << min(exponents - 1, np.int64(math.log(1.0 - share) / math.log(ratio)))


@subkernel
def draws_repeats(key, share):
    """Returns whether the context with this key has few destinations."""
    return share > 0.0 and uniform(combine(key, _REPEATS_SALT)) < share


@subkernel
def _has_room(num_measurements, enough):
    """Returns whether a row is long enough for contexts of `enough` measurements with repeats."""
    return num_measurements >= _MIN_ROWS * enough


@subkernel
def _draw_few(raw, layout, scratch, enough):
    """Draws few destinations of a row into `scratch.few`, as hashes; returns their number."""
    share = _FEWEST * (_MOST / _FEWEST) ** next_uniform(scratch.stream)
    num_few = max(1, np.int64(share * enough))
    for number in range(num_few):
        item = next_below(scratch.stream, layout.num_measurements)
        scratch.few[number] = _hash_at(raw, layout, scratch.ranks, item)
    return num_few


@subkernel
def _is_one_of(few, raw, layout, ranks, item):
    """Returns whether a measurement's destination is among `few`, uint64 [few] of hashes."""
    of_item, is_in = _hash_at(raw, layout, ranks, item), False
    for each in few:
        is_in |= each == of_item
    return is_in


@subkernel
def _hash_at(raw, layout, ranks, item):
    dst = dst_at(raw, layout, item, ranks)
    return combine(dst[0], dst[1])


# --- the three ways to draw ----------------------------------------------------------------------


@subkernel
def draw_window(raw, layout, src_is_ipv6, mode, drawing, repeats, scratch):
    """Draws from a large row enough measurements for `drawing.num_tokens`; returns their number.

    The window's size is log-uniform, by default over [1, n]; its place is uniform, and its subset
    random. A window that might not fill the crop becomes a run of consecutive measurements that
    does, from either end of the smallest window that is sure to fill it.

    With `repeats` the window is the whole row and the measurements go to few destinations; a row
    too short for that is drawn from as usual.
    """
    num, stream, items = layout.num_measurements, scratch.stream, scratch.items
    timed, untimed, seen = scratch.lists[0], scratch.lists[1], scratch.lists[2]
    wanted = drawing.num_tokens
    enough = _max_count(layout, src_is_ipv6, mode, wanted)
    size = _draw_window_size(num, drawing, stream)
    repeats = repeats and _has_room(num, enough)
    size = num if repeats else size
    is_stretch = size <= enough
    if is_stretch:
        size = min(num, enough)
    first = next_below(stream, num - size + 1)
    is_backward = is_stretch and next_below(stream, 2) == 1
    if not is_stretch:
        seen[:] = -1
        # Chosen ahead, so that each is prefetched before it is read.
        for place in range(enough):
            items[place] = first + next_below(stream, size)
            prefetch(raw, layout, items[place])
    share = draw_untimed_share(stream, mode)
    phase = next_uniform(stream)
    left = np.zeros(2, np.int64)
    num_timed = num_untimed = tokens = num_chosen = 0
    num_few = _draw_few(raw, layout, scratch, enough) if repeats else 0
    few, tries_left = scratch.few[:num_few], _MAX_TRIES * enough if repeats else 0
    while tokens < wanted and num_timed + num_untimed < size:
        count = num_timed + num_untimed
        if is_stretch:
            item = first + size - 1 - count if is_backward else first + count
        else:
            if num_chosen < enough:
                item = items[num_chosen]
                num_chosen += 1
            else:
                item = first + next_below(stream, size)
            tries_left -= 1
            if tries_left >= 0 and not _is_one_of(few, raw, layout, scratch.ranks, item):
                continue
            if not _is_new(item, seen):
                continue
        tokens += _tokens_at(raw, layout, src_is_ipv6, item)
        if _is_timed(stream, count, share, phase, left):
            tokens += _insert(raw, layout, timed, num_timed, item)
            num_timed += 1
        else:
            untimed[num_untimed] = item
            num_untimed += 1
    count = num_timed + num_untimed
    scratch.window[0], scratch.window[1], scratch.window[2] = first, size, repeats
    if is_stretch:
        scratch.window[0] = first + size - count if is_backward else first
        scratch.window[1] = count
    _shuffle(stream, untimed, num_untimed)
    _interleave(stream, timed, num_timed, untimed, num_untimed, items, scratch.is_timed)
    return count


@subkernel
def draw_strided(raw, layout, src_is_ipv6, mode, drawing, scratch):
    """Draws every stride-th measurement of a window, in order of time; returns their number.

    The stride is a power of two that leaves enough measurements for a crop, so the window is sure
    to fill it. The items begin at the window's first measurement or end at its last, so that every
    part of a row can be drawn. In PARTIAL mode each timestamp is kept with probability 1/2. A row
    too short for `drawing.num_tokens` gives all it has; `drawing.max_measurements` limits the
    number.
    """
    num, stream = layout.num_measurements, scratch.stream
    items, is_timed = scratch.items, scratch.is_timed
    wanted, most = drawing.num_tokens, drawing.max_measurements
    enough = min(most, _max_count(layout, src_is_ipv6, mode, wanted))
    stride = _draw_stride(num, enough, drawing, stream)
    reach = (min(num, enough) - 1) * stride
    item = next_below(stream, num - reach)
    is_backward = next_below(stream, 2) == 1
    step = stride
    if is_backward:
        item += reach
        step = -stride
    count = tokens = 0
    previous = np.int64(-1)
    while tokens < wanted and count < most and 0 <= item < num:
        items[count] = item
        is_timed[count] = mode == FULL or (mode == PARTIAL and next_below(stream, 2) == 1)
        tokens += _tokens_at(raw, layout, src_is_ipv6, item)
        if is_timed[count]:
            if previous < 0:
                tokens += timestamp_tokens(TIMESTAMP_ABS)
            else:
                tokens += _gap_tokens(raw, layout, min(previous, item), max(previous, item))
            previous = item
        count += 1
        item += step
    if is_backward:
        _reverse(items, count)
        _reverse(is_timed, count)
    scratch.window[0], scratch.window[1], scratch.window[2] = items[0], stride, 0
    return count


@subkernel
def draw_all(num_measurements, key, drawing, scratch):
    """Draws every measurement of a small row, in the order of the mode that the key selects."""
    stream, timed, untimed = scratch.stream, scratch.lists[0], scratch.lists[1]
    stream[0] = key
    mode = draw_mode(stream, drawing)
    num_to_lose = np.int64(num_measurements * draw_untimed_share(stream, mode))
    num_timed = num_untimed = 0
    for item in range(num_measurements):
        if next_below(stream, num_measurements - item) < num_to_lose - num_untimed:
            untimed[num_untimed] = item
            num_untimed += 1
        else:
            timed[num_timed] = item
            num_timed += 1
    _shuffle(stream, untimed, num_untimed)
    _interleave(stream, timed, num_timed, untimed, num_untimed, scratch.items, scratch.is_timed)
