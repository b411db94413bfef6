"""One context of a probe row, from the row's bytes to tokens.

A context follows from its row and its key alone: `draws` chooses the measurements, `write_items`
turns them into tokens.
"""

from typing import NamedTuple

import numpy as np
from numba import njit, uint64

from beam_pipeline.kernels import kernel
from training.rows.keyed_random import combine
from training.rows.row_layout import dst_at, rtt_code_at, second_at
from training.tokens.draws import draw_mode, draw_strided, draw_window, most_items
from training.tokens.tokenizer import (
    MAX_MEASUREMENT_TOKENS,
    NO_TIMESTAMP,
    NUM_ORDERS,
    NUM_TIMESTAMPED_ORDERS,
    TIMESTAMP_ABS,
    timestamp_role,
    write_measurement,
)

SLACK = MAX_MEASUREMENT_TOKENS  # what a buffer of tokens needs behind its crop
DAMAGED = -1
LEAST_CROP = 64  # holds any measurement whole


@njit
def field_order(key, place, is_timed):
    """Returns the row of FIELD_ORDERS of the measurement at a place of the context with a key."""
    word = combine(key, place) >> uint64(32)
    if is_timed:
        return NUM_ORDERS + np.int64((word * uint64(NUM_TIMESTAMPED_ORDERS)) >> uint64(32))
    return np.int64((word * uint64(NUM_ORDERS)) >> uint64(32))


@njit
def write_items(raw, layout, src, items, is_timed, begin, end, key, tokens, limit):
    """Writes items[begin:end] until at least `limit` tokens are there.

    The first timestamp is absolute, the others are differences to the one before.

    Args:
      src: the probe's (hi, lo, is_ipv6).
      tokens: [limit + SLACK], filled.

    Returns:
      The number of tokens, of which those from `limit` on are the rest of a measurement that is
      cut there, and the first item that is not whole within the limit. DAMAGED in place of the
      number if the row's bytes cannot be right.
    """
    at = 0
    previous = np.int64(-1)
    for place in range(begin, end):
        item = items[place]
        dst = dst_at(raw, layout, item)
        if dst[2] < 0:
            return DAMAGED, place
        role, told = NO_TIMESTAMP, np.int64(0)
        if is_timed[place]:
            seconds = second_at(raw, layout, item)
            role = timestamp_role(seconds - previous, previous < 0)
            told = seconds if role == TIMESTAMP_ABS else seconds - previous
            previous = seconds
        order = field_order(key, place, is_timed[place])
        code = rtt_code_at(raw, layout, item)
        after = write_measurement(tokens, at, src, dst, code, role, told, order)
        if after >= limit:
            return after, place + 1 if after == limit else place
        at = after
    return at, end


class Drawing(NamedTuple):
    """How contexts are drawn.

    Attributes:
      num_tokens: of a whole context: one more than the crop, since targets are the next token.
      full_weight, partial_weight: shares of the timestamp modes; NONE has the rest.
      strided: draw_strided in place of draw_window.
    """

    num_tokens: int
    full_weight: float
    partial_weight: float
    strided: bool


class Scratch(NamedTuple):
    """Memory that a kernel draws one context in; each thread has its own."""

    lists: np.ndarray  # int64 [3, power of two]
    items: np.ndarray  # int64
    is_timed: np.ndarray  # bool
    window: np.ndarray  # int64 [2]
    stream: np.ndarray  # uint64 [1]
    tokens: np.ndarray  # int32


def new_scratch(num_tokens: int, most_measurements: int = 0) -> Scratch:
    """Returns scratch for contexts of `num_tokens` and for small rows of so many measurements."""
    most = max(int(most_items(num_tokens)), most_measurements)
    width = 1 << (4 * most - 1).bit_length()
    return Scratch(
        lists=np.empty((3, width), np.int64),
        items=np.empty(most, np.int64),
        is_timed=np.empty(most, np.bool_),
        window=np.zeros(2, np.int64),
        stream=np.zeros(1, np.uint64),
        tokens=np.empty(num_tokens + SLACK, np.int32),
    )


@njit
def draw_context(raw, layout, src, key, drawing, scratch):
    """Draws one context of a row into scratch.tokens.

    Returns:
      (number of tokens, at most drawing.num_tokens, or DAMAGED; mode; number of measurements).
    """
    stream = scratch.stream
    stream[0] = key
    mode = draw_mode(stream, drawing.full_weight, drawing.partial_weight)
    items, is_timed, window = scratch.items, scratch.is_timed, scratch.window
    wanted = drawing.num_tokens
    if drawing.strided:
        count = draw_strided(raw, layout, src[2], mode, wanted, stream, items, is_timed, window)
    else:
        lists = scratch.lists
        count = draw_window(
            raw, layout, src[2], mode, wanted, stream, lists, items, is_timed, window
        )
    num, _ = write_items(raw, layout, src, items, is_timed, 0, count, key, scratch.tokens, wanted)
    return min(num, wanted), mode, count


# What a context was made of; `window` is (first, size) of draw_window, (first, stride) of
# draw_strided.
CONTEXT_FACTS = np.dtype(
    [
        (name, np.int64)
        for name in ("num_tokens", "mode", "num_measurements", "num_timed", "first", "window")
    ]
)


@kernel
def draw_contexts(raw, layout, src, keys, drawing, scratch, cells, contexts, facts):
    """Draws a context for each key, the k-th into contexts[cells[k]].

    Args:
      raw: uint8, the bytes in which `layout`, a LAYOUT record, has its offsets.
      src: the probe's (hi, lo, is_ipv6).
      keys: uint64 [k].
      contexts: uint16 [k, drawing.num_tokens], filled; what is behind a context's end is zero.
      facts: CONTEXT_FACTS [k], filled.

    Returns:
      False if the row's bytes cannot be right.
    """
    for k in range(len(keys)):
        num, mode, count = draw_context(raw, layout, src, keys[k], drawing, scratch)
        if num < 0:
            return False
        cell = cells[k]
        for place in range(num):
            contexts[cell, place] = scratch.tokens[place]
        fact = facts[cell]
        fact.num_tokens, fact.mode, fact.num_measurements = num, mode, count
        fact.num_timed = scratch.is_timed[:count].sum()
        fact.first, fact.window = scratch.window[0], scratch.window[1]
    return True
