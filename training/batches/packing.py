"""Filling crops: one context of a large row each, or as many small rows as fit.

A segment is a stretch of a crop with tokens of one row. Inside it, each input's target is the
next token; the segment's last token is a target only, so that n tokens take n - 1 positions and
nothing is predicted across a boundary. Positions restart with every segment.

Every measurement of a small row is whole in exactly one crop an epoch. What the end of a crop
cuts comes again, whole, in the next one, as a new segment with an absolute timestamp of its own.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.np.unsafe.ndarray import to_fixed_tuple

from beam_pipeline.kernels import kernel
from training.batches.lanes import LARGE, SMALL, context_key, settle_small, small_at
from training.rows.row_layout import Layout, compact_layout
from training.tokens.contexts import DAMAGED, draw_context, write_items
from training.tokens.draws import draw_all

_NUM_OFFSETS = len(Layout._fields)
_to_tuple: Any = to_fixed_tuple


class Crops(NamedTuple):
    """Examples: int32 [lanes, crop_size] each; segments count from 1, padding is 0 everywhere."""

    inputs: np.ndarray
    targets: np.ndarray
    segmentation: np.ndarray
    positions: np.ndarray


def new_crops(num_lanes: int, crop_size: int) -> Crops:
    """Returns crops that are all padding."""
    return Crops(*(np.zeros((num_lanes, crop_size), np.int32) for _ in Crops._fields))


def to_batch(crops: Crops) -> dict[str, np.ndarray]:
    """Returns the batch as MaxText names it; a target's segment and position are its input's."""
    return {
        "inputs": crops.inputs,
        "inputs_segmentation": crops.segmentation,
        "inputs_position": crops.positions,
        "targets": crops.targets,
        "targets_segmentation": crops.segmentation,
        "targets_position": crops.positions,
    }


def narrow(crops: Crops) -> Crops:
    """Returns crops as uint16, without positions: less than half to send to another process."""
    inputs, targets, segmentation, _ = (values.astype(np.uint16) for values in crops)
    return Crops(inputs, targets, segmentation, inputs[:, :0])


@kernel
def widen(inputs, targets, segmentation, crops, first):
    """Writes narrow crops to crops[first], crops[first + 1], …"""
    for i in range(len(inputs)):
        position = 0
        for place in range(inputs.shape[1]):
            segment = segmentation[i, place]
            is_new = place == 0 or segment != segmentation[i, place - 1] or segment == 0
            position = 0 if is_new else position + 1
            crops.inputs[first + i, place] = inputs[i, place]
            crops.targets[first + i, place] = targets[i, place]
            crops.segmentation[first + i, place] = segment
            crops.positions[first + i, place] = position


class RowBytes(NamedTuple):
    """Where the bytes of rows are, for kernels.

    Either every row lies compact at its offset (the column cache), then `slots` is empty, or only
    the rows in use are there, with a slot each.
    """

    raw: np.ndarray  # uint8, read-only
    slots: np.ndarray  # int32 [rows], -1 where there is none
    starts: np.ndarray  # int64 [slots], where the bytes of each begin
    layouts: np.ndarray  # int64 [slots, 10], the `Layout` of each
    offsets: np.ndarray  # int64 [rows]
    num_measurements: np.ndarray  # int32 [rows]
    num_ipv6: np.ndarray  # int32 [rows]
    first_second: np.ndarray  # int64 [rows]


@njit
def _bytes_of(row_bytes, row):
    """Returns the bytes that a row lies in, and its layout in them."""
    if len(row_bytes.slots):
        slot = row_bytes.slots[row]
        layout = Layout(*_to_tuple(row_bytes.layouts[slot], _NUM_OFFSETS))
        return row_bytes.raw[row_bytes.starts[slot] :], layout
    layout = compact_layout(
        row_bytes.offsets[row],
        np.int64(row_bytes.num_measurements[row]),
        np.int64(row_bytes.num_ipv6[row]),
        row_bytes.first_second[row],
    )
    return row_bytes.raw, layout


@njit
def _src_of(plan, row):
    return plan.src_hi[row], plan.src_lo[row], plan.src_is_ipv6[row]


@njit
def _put_segment(crops, i, at, segment, tokens, num_tokens):
    """Writes a segment from position `at` on; returns the position behind it."""
    for place in range(num_tokens - 1):
        crops.inputs[i, at + place] = tokens[place]
        crops.targets[i, at + place] = tokens[place + 1]
        crops.segmentation[i, at + place] = segment
        crops.positions[i, at + place] = place
    return at + num_tokens - 1


@njit
def _pack_one(plan, i, cursor, row_bytes, crops, scratch):
    """Fills crop i with small rows from the cursor on and moves it behind them.

    Returns:
      False if a row has no slot, or is damaged.
    """
    crop_size = plan.drawing.num_tokens - 1
    at = segment = 0
    while at < crop_size and settle_small(plan, i, cursor):
        row = small_at(plan, i, cursor.small_epoch, cursor.small_row)
        if len(row_bytes.slots) and row_bytes.slots[row] < 0:
            return False
        raw, layout = _bytes_of(row_bytes, row)
        src, count = _src_of(plan, row), layout.num_measurements
        key = context_key(plan.seed, cursor.small_epoch, plan.identity[row], 0)
        draw_all(count, key, plan.drawing, scratch)
        limit = crop_size - at + 1
        num, place = write_items(raw, layout, src, scratch, cursor.small_place, count, key, limit)
        if num == DAMAGED:
            return False
        segment += 1
        at = _put_segment(crops, i, at, segment, scratch.tokens, min(num, limit))
        cursor.small_place = place
        if place == count:
            cursor.small_row += 1
            cursor.small_place = 0
        if not plan.pack:
            break
    return True


@kernel
def pack_small(plan, cursors, items, row_bytes, crops, scratch):
    """Fills the crops of lanes that go on with small rows, and moves their cursors.

    Returns:
      False if a row that is needed has no slot, or is damaged; the crops are then of no use.
    """
    for i in range(len(cursors)):
        if items[i].kind == SMALL and not _pack_one(plan, i, cursors[i], row_bytes, crops, scratch):
            return False
    return True


@kernel
def draw_large(plan, items, row_bytes, crops, scratch):
    """Fills the crops of lanes that go on with a context, drawing it from the row's bytes."""
    for i in range(len(items)):
        item = items[i]
        if item.kind != LARGE:
            continue
        raw, layout = _bytes_of(row_bytes, item.row)
        src = _src_of(plan, item.row)
        key = context_key(plan.seed, item.epoch, plan.identity[item.row], item.k)
        num, _, _ = draw_context(raw, layout, src, key, plan.drawing, scratch)
        _put_segment(crops, i, 0, 1, scratch.tokens, num)


@kernel
def put_contexts(contexts, facts, cells, crops):
    """Fills crop i with contexts[cells[i]], where that is not negative."""
    for i in range(len(cells)):
        if cells[i] >= 0:
            _put_segment(crops, i, 0, 1, contexts[cells[i]], facts[cells[i]].num_tokens)


@kernel
def pad_small(raw, layout, src, key, drawing, scratch, crops):
    """Writes a small row alone, as many crops as it takes.

    Returns:
      Their number, or DAMAGED if the row's bytes cannot be right.
    """
    count, limit = layout.num_measurements, drawing.num_tokens
    draw_all(count, key, drawing, scratch)
    begin = num_crops = 0
    while begin < count:
        num, begin = write_items(raw, layout, src, scratch, begin, count, key, limit)
        if num == DAMAGED:
            return DAMAGED
        _put_segment(crops, num_crops, 0, 1, scratch.tokens, min(num, limit))
        num_crops += 1
    return num_crops
