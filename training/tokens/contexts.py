"""One context of a probe row: from the row's bytes to tokens.

A context follows from its row and its key alone: `draws` chooses the measurements, `write_items`
turns them into tokens.
"""

import numpy as np
from numba import uint64

from beam_pipeline.kernels import int64_record, kernel, subkernel
from training.rows.keyed_random import combine, uniform
from training.rows.measurement_at import dst_at, rtt_code_at, second_at
from training.tokens.augmentations import (
    draws_relabelled,
    draws_steady,
    relabelled,
    shown_source,
    steady_item,
)
from training.tokens.draws import draw_mode, draw_strided, draw_window, draws_repeats
from training.tokens.log_rtt import token_code
from training.tokens.tokenizer import (
    FIXED_ORDER,
    FIXED_TIMED_ORDER,
    NO_TIMESTAMP,
    NUM_ORDERS,
    NUM_TIMESTAMPED_ORDERS,
    TIMESTAMP_ABS,
    timestamp_role,
    write_measurement,
)

DAMAGED = -1
MIN_CROP = 64  # holds any measurement whole
_FIXED_ORDER = 0x6F72_6465_72  # salt of the choice of contexts with one order of fields
# How a context was drawn; the last three are `Scratch.window`.
CONTEXT_FACTS = int64_record(
    *("num_tokens", "mode", "num_measurements", "num_timed", "first", "window", "has_repeats")
)


@subkernel
def has_fixed_order(key, share):
    """Returns whether the context with this key has one order of fields in all its measurements."""
    return share > 0.0 and uniform(combine(key, _FIXED_ORDER)) < share


@subkernel
def field_order(key, place, is_timed):
    """Returns the row of FIELD_ORDERS for one measurement of the context with this key."""
    word = combine(key, place) >> uint64(32)
    if is_timed:
        return NUM_ORDERS + np.int64((word * uint64(NUM_TIMESTAMPED_ORDERS)) >> uint64(32))
    return np.int64((word * uint64(NUM_ORDERS)) >> uint64(32))


@subkernel
def write_items(raw, layout, src, scratch, begin, end, key, drawing, limit):
    """Writes scratch.items[begin:end] to scratch.tokens until there are at least `limit` tokens.

    The first timestamp is absolute; each later one is the difference from the previous one.

    Returns:
      The number of tokens (those beyond `limit` belong to the measurement cut there), or DAMAGED if
      the row's bytes are invalid; and the first item that does not fit whole within the limit.
    """
    at = 0
    previous = np.int64(-1)
    items, is_timed, tokens = scratch.items, scratch.is_timed, scratch.tokens
    ranks = scratch.ranks
    is_relabelled = draws_repeats(key, drawing.repeat_share) and draws_relabelled(key)
    src = shown_source(key, src, drawing.random_source_share)
    if is_relabelled:
        src = relabelled(key, src)
    firsts, is_steady = scratch.lists[2], is_relabelled and draws_steady(key)
    if is_steady:
        firsts[:] = -1
    is_fixed = has_fixed_order(key, drawing.fixed_order_share)
    for place in range(begin, end):
        item = items[place]
        dst = dst_at(raw, layout, item, ranks)
        if dst[2] < 0:
            return DAMAGED, place
        if is_relabelled:
            dst = relabelled(key, dst)
        role, value = NO_TIMESTAMP, np.int64(0)
        if is_timed[place]:
            seconds = second_at(raw, layout, item)
            role = timestamp_role(seconds - previous, previous < 0)
            value = seconds if role == TIMESTAMP_ABS else seconds - previous
            previous = seconds
        if is_fixed:
            order = FIXED_TIMED_ORDER if is_timed[place] else FIXED_ORDER
        else:
            order = field_order(key, place, is_timed[place])
        if is_steady:
            item = steady_item(raw, layout, ranks, firsts, item)
        code = token_code(rtt_code_at(raw, layout, item), drawing.log_rtt)
        after = write_measurement(tokens, at, src, dst, code, role, value, order)
        if after >= limit:
            return after, place + 1 if after == limit else place
        at = after
    return at, end


@subkernel
def draw_context(raw, layout, src, key, drawing, scratch):
    """Draws one context into scratch.tokens; returns (number of tokens or DAMAGED, mode, items)."""
    scratch.stream[0] = key
    mode = draw_mode(scratch.stream, drawing)
    wanted = drawing.num_tokens
    if drawing.strided:
        count = draw_strided(raw, layout, src[2], mode, drawing, scratch)
    else:
        repeats = draws_repeats(key, drawing.repeat_share)
        count = draw_window(raw, layout, src[2], mode, drawing, repeats, scratch)
    num, _ = write_items(raw, layout, src, scratch, 0, count, key, drawing, wanted)
    return min(num, wanted), mode, count


@kernel
def draw_contexts(raw, layout, src, keys, drawing, scratch, contexts, facts):
    """Draws a context for each key, the k-th into contexts[k]; False if the bytes are damaged.

    `src` is (hi, lo, is_ipv6), `keys` uint64 [k], `contexts` uint16 [k, drawing.num_tokens], filled
    up to each context's end, and `facts` CONTEXT_FACTS [k], filled.
    """
    for k in range(len(keys)):
        num, mode, count = draw_context(raw, layout, src, keys[k], drawing, scratch)
        if num < 0:
            return False
        for place in range(num):
            contexts[k, place] = scratch.tokens[place]
        fact = facts[k]
        fact.num_tokens, fact.mode, fact.num_measurements = num, mode, count
        fact.num_timed = 0
        for i in range(count):
            fact.num_timed += scratch.is_timed[i]
        window = scratch.window
        fact.first, fact.window, fact.has_repeats = window[0], window[1], window[2]
    return True
