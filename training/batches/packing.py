"""Fills crops, each with one context of a large row or with as many small rows as fit.

A segment is a stretch of a crop with tokens of one row; its positions start at 0. The target of
each input is the next token of the segment, so n tokens take n - 1 positions: the last is a target
only. In an epoch, every measurement of a small row is whole in exactly one crop. A measurement cut
at the end of a crop is repeated, whole, at the start of a new segment in the next crop.
"""

from typing import NamedTuple

import numpy as np

from beam_pipeline.kernels import kernel, subkernel
from training.batches.lanes import (
    LARGE,
    SMALL,
    context_key,
    settle_small,
    small_context,
    small_entry,
    source_of,
)
from training.rows.row_bytes import has_bytes, layout_of
from training.tokens.contexts import DAMAGED, draw_context, write_items
from training.tokens.draws import draw_all


class Crops(NamedTuple):
    """Examples, int32 [lanes, crop_size]; segments count from 1, padding is 0 in all arrays."""

    inputs: np.ndarray
    targets: np.ndarray
    segmentation: np.ndarray
    positions: np.ndarray


def new_crops(num_lanes: int, crop_size: int) -> Crops:
    """Returns crops of padding."""
    return Crops(*(np.zeros((num_lanes, crop_size), np.int32) for _ in Crops._fields))


def to_batch(crops: Crops) -> dict[str, np.ndarray]:
    """Returns crops under MaxText's names; a target has the segment and position of its input."""
    return {
        "inputs": crops.inputs,
        "inputs_segmentation": crops.segmentation,
        "inputs_position": crops.positions,
        "targets": crops.targets,
        "targets_segmentation": crops.segmentation,
        "targets_position": crops.positions,
    }


def narrow(crops: Crops) -> Crops:
    """Returns crops as uint16 without positions, to halve the bytes sent between processes."""
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


@subkernel
def _put_segment(crops, i, at, segment, tokens, num_tokens):
    """Writes a segment from position `at` on; returns its end."""
    end = at + num_tokens - 1
    # With slices, the compiler knows that no index is negative, and vectorises the loop.
    inputs, targets = crops.inputs[i, at:end], crops.targets[i, at:end]
    segmentation, positions = crops.segmentation[i, at:end], crops.positions[i, at:end]
    for place in range(num_tokens - 1):
        inputs[place] = tokens[place]
        targets[place] = tokens[place + 1]
        segmentation[place] = segment
        positions[place] = place
    return end


@subkernel
def _pack_one(plan, i, cursor, row_bytes, crops, scratch):
    """Fills crop i with small rows, moves the cursor past them; returns an unusable row or -1."""
    crop_size = plan.drawing.num_tokens - 1
    at = segment = 0
    while at < crop_size and settle_small(plan, i, cursor):
        entry = small_entry(plan, i, cursor.small_epoch, cursor.small_row)
        row = plan.small_rows[entry]
        if not has_bytes(row_bytes, row):
            return row
        raw, layout = row_bytes.raw, layout_of(row_bytes, row)
        src, count = source_of(plan, row), layout.num_measurements
        k = small_context(plan, entry, cursor.small_epoch)
        key = context_key(plan.seed, cursor.small_epoch, plan.identity[row], k)
        draw_all(count, key, plan.drawing, scratch)
        limit = crop_size - at + 1
        begin, drawing = cursor.small_place, plan.drawing
        num, place = write_items(raw, layout, src, scratch, begin, count, key, drawing, limit)
        if num == DAMAGED:
            return row
        segment += 1
        at = _put_segment(crops, i, at, segment, scratch.tokens, min(num, limit))
        cursor.small_place = place
        if place == count:
            cursor.small_row += 1
            cursor.small_place = 0
        if not plan.pack:
            break
    return -1


@kernel
def pack_small(plan, cursors, items, row_bytes, crops, scratch):
    """Fills the crops of lanes whose next item is a group of small rows, and moves their cursors.

    Returns a row without bytes or with damaged ones, with the crops incomplete; else -1.
    """
    for i in range(len(cursors)):
        if items[i].kind == SMALL:
            row = _pack_one(plan, i, cursors[i], row_bytes, crops, scratch)
            if row >= 0:
                return row
    return -1


@kernel
def draw_large(plan, items, row_bytes, crops, scratch):
    """Draws contexts of large rows into the crops of lanes that need one; as `pack_small`."""
    for i in range(len(items)):
        item = items[i]
        if item.kind != LARGE:
            continue
        if not has_bytes(row_bytes, item.row):
            return item.row
        raw, layout = row_bytes.raw, layout_of(row_bytes, item.row)
        src = source_of(plan, item.row)
        key = context_key(plan.seed, item.epoch, plan.identity[item.row], item.k)
        num, _, _ = draw_context(raw, layout, src, key, plan.drawing, scratch)
        _put_segment(crops, i, 0, 1, scratch.tokens, num)
    return -1


@kernel
def put_contexts(contexts, facts, lanes, crops):
    """Fills crop lanes[j] with contexts[j]."""
    for j in range(len(lanes)):
        _put_segment(crops, lanes[j], 0, 1, contexts[j], facts[j].num_tokens)


@kernel
def pad_small(raw, layout, src, key, drawing, scratch, crops):
    """Writes a single small row to as many crops as it needs; returns their number or DAMAGED."""
    count, limit = layout.num_measurements, drawing.num_tokens
    draw_all(count, key, drawing, scratch)
    begin = num_crops = 0
    while begin < count:
        num, begin = write_items(raw, layout, src, scratch, begin, count, key, drawing, limit)
        if num == DAMAGED:
            return DAMAGED
        _put_segment(crops, num_crops, 0, 1, scratch.tokens, min(num, limit))
        num_crops += 1
    return num_crops
