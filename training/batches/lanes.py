"""Lanes: which rows feed which example of the batch, in which order, and each lane's position.

Example i of every global batch is lane i's next crop; a host owns some of the lanes. The crops of
a lane follow from the plan alone, so the global batch does not depend on the number of hosts, and
the whole state is one CURSOR per lane.

Large and small rows are dealt separately. Every lane has a stretch of the large rows, in the order
of the shards, with as many contexts as any other lane, and a stretch of the small rows with about
as many tokens. With a batch of 3, large rows A to D (digits number their contexts) and small rows
a to i:

  large rows   A0 A1 A2 A3 B0 B1 | B2 C0 C1 C2 C3 C4 | C5 D0 D1 D2 D3 D4
  small rows   a  b  c  d        | e  f              | g  h  i
               lane 0              lane 1              lane 2

  batch 0      A2                  C3                  C5
  batch 1      c d                 f                   h i        small rows, packed
  batch 2      B0                  C0                  D3
  batch 3      A0                  B2                  D0
  …

In every epoch, a lane goes through both stretches in a new order:

  large rows  in windows of `mixed_rows` rows (or one window, with ALL_ROWS), all contexts of a
              window in random order: a row is read once, yet its contexts are spread
  small rows  one after the other; as many as fit are packed into each crop

The next lane item, a context or a group of small rows, comes from the stretch with the smaller
share done. A lane begins its next epoch as soon as one is finished. A row at the border of two
lanes, such as B, is shared: each lane draws its own contexts of it.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import uint64

from beam_pipeline.kernels import int64_record, kernel, subkernel
from training.rows.keyed_random import combine, mix, permuted, uniform
from training.tokens.draws import Drawing

# The position of a lane: `large_index` contexts of the window and `small_place` measurements of the
# small row are done.
CURSOR = int64_record(
    *("large_epoch", "large_window", "large_index"),
    *("small_epoch", "small_row", "small_place"),
)
# The kinds of lane items. STUCK: none of the lane's rows is readable. IDLE: the next item comes
# from a different dataset of a mixture.
DONE, LARGE, SMALL, STUCK, IDLE = 0, 1, 2, 3, 4
# LARGE: the row, its place among the large rows and the context's k; this lane has num_contexts of
# the row's contexts, from first_k on; is_shared if other lanes have more of them; the number of
# contexts in the window; the epoch. SMALL: the first row and the epoch.
LANE_ITEM = int64_record(
    *("kind", "row", "large", "k", "first_k", "num_contexts", "is_shared"),
    *("window_contexts", "epoch"),
)
# Purposes of keys below a seed and an epoch.
_CONTEXTS, _LARGE_ORDER, _WINDOW_ORDER, _SMALL_ORDER, _ROUNDING = range(1, 6)


class Plan(NamedTuple):
    """The rows of a split, some or all lanes, and the options that kernels need.

    Rows are numbered from 0 in the order of shard and position.
    """

    seed: np.uint64
    num_epochs: int  # or FOREVER
    shuffle: bool
    mixed_rows: int  # or ALL_ROWS
    pack: bool
    drawing: Drawing
    rounds_visits: bool  # visits are fractional, rounded differently in every epoch
    # Per row:
    identity: np.ndarray  # uint64, the key of (src_id, row_index)
    src_hi: np.ndarray  # uint64, or empty: all sources are IPv4
    src_lo: np.ndarray  # uint64
    is_bad: np.ndarray  # bool, set when a row turns out to be unreadable
    # Per large or small row:
    large_rows: np.ndarray  # int32, their numbers
    visits: np.ndarray  # float64 [num_large + 1], contexts of the split before each of them
    small_rows: np.ndarray  # int32, their numbers; with weights, repeated up to ceil(weight) times
    small_copy: np.ndarray  # uint8, number of earlier entries of the row; empty: no weights
    small_weight: np.ndarray  # float32, the row's weight; empty: no weights
    # Per lane:
    lane: np.ndarray  # int64, its number in the global batch
    large_begin: np.ndarray  # int64, index into large_rows
    large_end: np.ndarray
    visits_begin: np.ndarray  # float64, range of the lane's contexts
    visits_end: np.ndarray
    small_begin: np.ndarray  # int64, index into small_rows
    small_end: np.ndarray

    def of_lanes(self, lanes: slice) -> "Plan":
        """Returns the plan of some of these lanes."""
        names = self._fields[self._fields.index("lane") :]
        return self._replace(**{name: getattr(self, name)[lanes] for name in names})


FOREVER = 1 << 62
ALL_ROWS = 0
MIN_VISITS = 1e-3  # min contexts per epoch of a lane in an endless run


@subkernel
def context_key(seed, epoch, identity, k):
    """Returns the key of a row's k-th context."""
    return combine(combine(combine(combine(seed, epoch), _CONTEXTS), identity), k)


@subkernel
def source_of(plan, row):
    """Returns the address of a row's probe: (hi, lo, is_ipv6)."""
    lo = plan.src_lo[row]
    hi = plan.src_hi[row] if len(plan.src_hi) else uint64(0)
    return hi, lo, hi != 0 or lo >> uint64(32) != uint64(0xFFFF)


@kernel
def context_keys(seed, epoch, identity, first_k, count):
    """Returns the keys of contexts first_k, first_k + 1, … of a row: uint64 [count]."""
    keys = np.empty(count, np.uint64)
    for k in range(count):
        keys[k] = context_key(seed, epoch, identity, first_k + k)
    return keys


@subkernel
def _order_key(seed, epoch, purpose, lane):
    return combine(combine(combine(seed, epoch), purpose), lane)


# --- fractional weights ---------------------------------------------------------------------------


@kernel
def visits_rounding(seed, epoch, rounds_visits):
    """Returns an epoch's offset, added to fractional visits of all lanes before flooring."""
    if not rounds_visits:
        return 0.0
    return uniform(mix(combine(combine(seed, epoch), _ROUNDING)))


@subkernel
def small_context(plan, entry, epoch):
    """Returns the k of the context that an entry of small_rows gives in an epoch, or -1.

    A row of weight w has ceil(w) entries. By the end of an epoch, the number of its contexts so far
    is w times the number of epochs, rounded; the epochs that round up differ between rows.
    """
    if len(plan.small_copy) == 0:
        return np.int64(0)
    weight, copy = np.float64(plan.small_weight[entry]), np.int64(plan.small_copy[entry])
    phase = uniform(mix(combine(plan.identity[plan.small_rows[entry]], _ROUNDING)))
    visits = math.floor((epoch + 1) * weight + phase) - math.floor(epoch * weight + phase)
    return copy if copy < visits else np.int64(-1)


# --- contexts of large rows ---------------------------------------------------------------------


@subkernel
def _contexts_of(plan, i, large, rounding):
    """Returns (first k, number) of the contexts that lane i draws from a large row."""
    before = math.floor(plan.visits[large] + rounding)
    first = math.floor(max(plan.visits[large], plan.visits_begin[i]) + rounding)
    end = math.floor(min(plan.visits[large + 1], plan.visits_end[i]) + rounding)
    return np.int64(first - before), np.int64(max(0, end - first))


@kernel
def shares_of(plan, large, epoch):
    """Returns the lanes' shares of a large row: int64 [shares, 3] of lane here, first k, number."""
    begin = np.int64(0)
    while begin < len(plan.visits_end) and plan.visits_end[begin] <= plan.visits[large]:
        begin += 1
    end = begin
    while end < len(plan.visits_begin) and plan.visits_begin[end] < plan.visits[large + 1]:
        end += 1
    rounding = visits_rounding(plan.seed, epoch, plan.rounds_visits)
    shares = np.empty((max(0, end - begin), 3), np.int64)
    for i in range(begin, end):
        shares[i - begin, 0] = i
        shares[i - begin, 1], shares[i - begin, 2] = _contexts_of(plan, i, large, rounding)
    return shares


@subkernel
def window_of(plan, i, window):
    """Returns the [begin, end) of a window in the lane's order of its large rows.

    The first window is full, so that an epoch is well mixed from its start. Of the next windows, as
    many as the lane's number modulo the width are one row shorter, so that lanes drift apart and do
    not all begin a window, and read many rows, in the same step.
    """
    num = plan.large_end[i] - plan.large_begin[i]
    if plan.mixed_rows == ALL_ROWS:
        return np.int64(0), num
    width = plan.mixed_rows
    num_shorter = plan.lane[i] % width
    begin = window * width - min(max(window - 1, 0), num_shorter)
    end = (window + 1) * width - min(window, num_shorter)
    return min(begin, num), min(end, num)


@subkernel
def _large_at(plan, i, key, place):
    num = plan.large_end[i] - plan.large_begin[i]
    return plan.large_begin[i] + (permuted(place, num, key) if plan.shuffle else place)


@subkernel
def _context_at(plan, i, cursor, item):
    """Fills `item` with the context at the cursor; returns False if its window has ended."""
    rounding = visits_rounding(plan.seed, cursor.large_epoch, plan.rounds_visits)
    purpose = combine(uint64(_WINDOW_ORDER), cursor.large_window)
    order = _order_key(plan.seed, cursor.large_epoch, purpose, plan.lane[i])
    if plan.mixed_rows == ALL_ROWS:
        first = np.int64(math.floor(plan.visits_begin[i] + rounding))
        total = np.int64(math.floor(plan.visits_end[i] + rounding)) - first
        if cursor.large_index >= total:
            return False
        visit = first + permuted(cursor.large_index, total, order)
        large = _large_of(plan, i, visit, rounding)
        first_k, num = _contexts_of(plan, i, large, rounding)
        left = visit - np.int64(math.floor(plan.visits[large] + rounding)) - first_k
        _set_item(plan, i, cursor, item, large, first_k, num, left)
        item.window_contexts = total
        return True
    key = _order_key(plan.seed, cursor.large_epoch, _LARGE_ORDER, plan.lane[i])
    begin, end = window_of(plan, i, cursor.large_window)
    total = np.int64(0)
    for place in range(begin, end):
        total += _contexts_of(plan, i, _large_at(plan, i, key, place), rounding)[1]
    if cursor.large_index >= total:
        return False
    left = permuted(cursor.large_index, total, order) if plan.shuffle else cursor.large_index
    for place in range(begin, end):
        large = _large_at(plan, i, key, place)
        first_k, num = _contexts_of(plan, i, large, rounding)
        if left < num:
            _set_item(plan, i, cursor, item, large, first_k, num, left)
            break
        left -= num
    item.window_contexts = total
    return True


@subkernel
def _large_of(plan, i, visit, rounding):
    """Returns the lane's large row that contains visit `visit` of the split."""
    begin, end = plan.large_begin[i], plan.large_end[i]
    while end - begin > 1:
        middle = (begin + end) // 2
        if math.floor(plan.visits[middle] + rounding) <= visit:
            begin = middle
        else:
            end = middle
    return begin


@subkernel
def _set_item(plan, i, cursor, item, large, first_k, num, left):
    item.row = plan.large_rows[large]
    item.epoch = cursor.large_epoch
    item.large = large
    item.first_k = first_k
    item.num_contexts = num
    item.k = first_k + left
    # A lane may share its first and its last row with neighbouring lanes.
    before, after = plan.visits[large], plan.visits[large + 1]
    item.is_shared = before < plan.visits_begin[i] or after > plan.visits_end[i]


@subkernel
def settle_large(plan, i, cursor, item):
    """Moves the cursor to the next context of a readable row; returns whether there is one."""
    num = plan.large_end[i] - plan.large_begin[i]
    if num == 0:
        return False
    # A limit for lanes without readable rows. With few visits per epoch, which epochs have one is
    # random: none in 40 / visits epochs has probability exp(-40).
    visits = max(MIN_VISITS, plan.visits_end[i] - plan.visits_begin[i])
    until = cursor.large_epoch + 64 + np.int64(40 / visits)
    while cursor.large_epoch < min(until, plan.num_epochs):
        if _context_at(plan, i, cursor, item):
            if not plan.is_bad[item.row]:
                return True
            cursor.large_index += 1
        elif window_of(plan, i, cursor.large_window)[1] < num:
            cursor.large_window += 1
            cursor.large_index = 0
        else:
            cursor.large_epoch += 1
            cursor.large_window = 0
            cursor.large_index = 0
    return False


# --- small rows ---------------------------------------------------------------------------------


@subkernel
def small_entry(plan, i, epoch, place):
    """Returns the lane's index into small_rows at a place of an epoch."""
    num = plan.small_end[i] - plan.small_begin[i]
    if plan.shuffle:
        place = permuted(place, num, _order_key(plan.seed, epoch, _SMALL_ORDER, plan.lane[i]))
    return plan.small_begin[i] + place


@subkernel
def small_at(plan, i, epoch, place):
    """Returns the lane's small row at a place of an epoch."""
    return plan.small_rows[small_entry(plan, i, epoch, place)]


@subkernel
def settle_small(plan, i, cursor):
    """Moves the cursor to the next readable small row; returns whether there is one."""
    num = plan.small_end[i] - plan.small_begin[i]
    if num == 0:
        return False
    until = cursor.small_epoch + 128  # a row of minimal weight occurs once in 100 epochs
    while cursor.small_epoch < min(until, plan.num_epochs):
        if cursor.small_row == num:
            cursor.small_epoch += 1
            cursor.small_row = 0
            cursor.small_place = 0
            continue
        entry = small_entry(plan, i, cursor.small_epoch, cursor.small_row)
        is_due = small_context(plan, entry, cursor.small_epoch) >= 0
        if is_due and not plan.is_bad[plan.small_rows[entry]]:
            return True
        cursor.small_row += 1
        cursor.small_place = 0
    return False


@kernel
def list_small(plan, cursors, items, tokens, rows):
    """Lists the small rows that the next crops may need; returns their number.

    Args:
      tokens: int32 [rows], the number of tokens of each row without timestamps.
      rows: int64 [large enough for all], filled; a row may be listed more than once.
    """
    count = 0
    for i in range(len(cursors)):
        if items[i].kind != SMALL:
            continue
        num = plan.small_end[i] - plan.small_begin[i]
        epoch, place = cursors[i].small_epoch, cursors[i].small_row
        is_begun = cursors[i].small_place > 0
        filled = 0
        while filled <= plan.drawing.num_tokens and epoch < plan.num_epochs and count < len(rows):
            if place == num:
                epoch += 1
                place = 0
                if epoch > cursors[i].small_epoch + 1:
                    break
                continue
            entry = small_entry(plan, i, epoch, place)
            row = plan.small_rows[entry]
            place += 1
            if plan.is_bad[row] or small_context(plan, entry, epoch) < 0:
                continue
            rows[count] = row
            count += 1
            # The rest of a row that the previous crop began has an unknown size.
            filled += 0 if is_begun else tokens[row] - 1
            is_begun = False
            if not plan.pack:
                break
    return count


# --- the next crop ------------------------------------------------------------------------------


@kernel
def peek(plan, cursors, items, is_due):
    """Fills `items`, LANE_ITEM [lanes], of due lanes with the next ones; skips bad rows."""
    for i in range(len(cursors)):
        cursor, item = cursors[i], items[i]
        if not is_due[i]:
            item.kind = IDLE
            continue
        num_large = plan.large_end[i] - plan.large_begin[i]
        num_small = plan.small_end[i] - plan.small_begin[i]
        has_large = settle_large(plan, i, cursor, item)
        has_small = settle_small(plan, i, cursor)
        if has_large and has_small:
            begin, end = window_of(plan, i, cursor.large_window)
            done = begin + (end - begin) * cursor.large_index / item.window_contexts
            large_progress = cursor.large_epoch + done / num_large
            has_large = large_progress <= cursor.small_epoch + cursor.small_row / num_small
        if has_large:
            item.kind = LARGE
        elif has_small:
            item.kind = SMALL
            item.row = small_at(plan, i, cursor.small_epoch, cursor.small_row)
            item.epoch = cursor.small_epoch
        elif (num_large > 0 and cursor.large_epoch < plan.num_epochs) or (
            num_small > 0 and cursor.small_epoch < plan.num_epochs
        ):
            item.kind = STUCK
        else:
            item.kind = DONE
