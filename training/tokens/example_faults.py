"""Checks of examples that hold for all rows; each returns the first fault as text, or None.

A batch is a dict of arrays [n, crop_size] under MaxText's names, with the rules of
`batches.packing`.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from training.tokens.tokenizer import VOCABULARY_SIZE, Measurement, decode

BATCH_KEYS = tuple(
    f"{side}{suffix}"
    for side in ("inputs", "targets")
    for suffix in ("", "_segmentation", "_position")
)
Batch = Mapping[str, np.ndarray]


def shape_fault(batch: Batch) -> str | None:
    """Finds any deviation from six int32 arrays of one shape [n, crop_size]."""
    if sorted(batch) != sorted(BATCH_KEYS):
        return f"the arrays are {', '.join(sorted(batch))}"
    shape = batch["inputs"].shape
    for name, values in batch.items():
        if values.shape != shape or values.ndim != 2 or values.dtype != np.int32:
            return f"{name} is {values.dtype} {list(values.shape)}"
    return None


def token_fault(batch: Batch) -> str | None:
    """Finds a token outside the vocabulary."""
    for side in ("inputs", "targets"):
        tokens = batch[side]
        if place := _first((tokens < 0) | (tokens >= VOCABULARY_SIZE)):
            return (
                f"{_at(place)}: {tokens[place]} in {side} is not a token, the last one is "
                f"{VOCABULARY_SIZE - 1}"
            )
    return None


def target_fault(batch: Batch) -> str | None:
    """Finds a target that is not the next input of its segment, or padding that is not zero."""
    inputs, targets = batch["inputs"], batch["targets"]
    segments = batch["inputs_segmentation"]
    if place := _first(segments != batch["targets_segmentation"]):
        return f"{_at(place)}: inputs and targets have different segments"
    is_inner = (segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] > 0)
    if place := _first(is_inner & (targets[:, :-1] != inputs[:, 1:])):
        following = inputs[:, 1:][place]
        return f"{_at(place)}: the target is {targets[place]}, the next input is {following}"
    for name, values in batch.items():
        if place := _first((segments == 0) & (values != 0)):
            return f"{_at(place)}: padding is not zero everywhere, {name} has {values[place]}"
    return None


def position_fault(batch: Batch) -> str | None:
    """Finds segments not numbered 1, 2, …, or positions that do not count 0, 1, … in each."""
    segments, positions = batch["inputs_segmentation"], batch["inputs_position"]
    if place := _first(positions != batch["targets_position"]):
        return f"{_at(place)}: inputs and targets have different positions"
    step = np.diff(segments, axis=1, prepend=0)
    is_end = (segments == 0) & (step < 0)
    is_after_padding = ((segments == 0).cumsum(axis=1) > 0) & (segments != 0)
    if place := _first((~is_end & (step != 0) & (step != 1)) | is_after_padding):
        return f"{_at(place)}: segments are not numbered 1, 2, … with all padding at the end"
    places = np.arange(segments.shape[1])
    starts = np.maximum.accumulate(np.where(step == 1, places, 0), axis=1)
    if place := _first(np.where(segments > 0, places - starts, 0) != positions):
        return f"{_at(place)}: positions do not count from 0 in every segment"
    return None


def _first(is_wrong: np.ndarray) -> tuple[int, int] | None:
    """Returns the first (example, position) that is wrong, or None."""
    if not is_wrong.any():
        return None
    example, position = np.unravel_index(is_wrong.argmax(), is_wrong.shape)
    return int(example), int(position)


def _at(place: tuple[int, int]) -> str:
    return f"example {place[0]} position {place[1]}"


def segments_of(batch: Batch, example: int) -> Iterator[np.ndarray]:
    """Yields the tokens of each segment of an example, including its last target."""
    segments = batch["inputs_segmentation"][example]
    for segment in range(1, int(segments.max(initial=0)) + 1):
        at = np.flatnonzero(segments == segment)
        yield np.append(batch["inputs"][example, at], batch["targets"][example, at[-1:]])


def decoded(tokens: np.ndarray, log_rtt: bool = False) -> tuple[list[Measurement], str | None]:
    """Returns the measurements of a segment, or why it cannot be decoded."""
    try:
        measurements = decode(tokens, log_rtt)
    except ValueError as error:
        return [], str(error)
    if len({m.src_addr for m in measurements if m.src_addr is not None}) > 1:
        return [], "it has several probes"
    return measurements, None
