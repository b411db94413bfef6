"""Checks of examples that hold for all rows; each returns the first fault as text, or None.

A batch is a dict of arrays [n, crop_size] under MaxText's names, with the rules of
`batches.packing`.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from training.tokens.tokenizer import VOCABULARY_SIZE, Measurement, decode

BATCH_KEYS = tuple(
    f"{side}{suffix}"
    for side in ("inputs", "targets")
    for suffix in ("", "_segmentation", "_position")
)
Batch = Mapping[str, np.ndarray]
_MAX_KEPT = 5


@dataclass
class Tally:
    """Counts checks and faults; keeps the first faults."""

    num_checked: int = 0
    num_faults: int = 0
    faults: list[str] = field(default_factory=list)

    def take(self, fault: str | None, num_checked: int = 1) -> None:
        """Counts `num_checked` checks with at most one fault."""
        self.num_checked += num_checked
        if fault is not None:
            self.num_faults += 1
            self.faults = [*self.faults, fault][:_MAX_KEPT]


def shape_fault(batch: Batch, num_examples: int, crop_size: int) -> str | None:
    """Finds any deviation from six int32 arrays [num_examples, crop_size]."""
    if sorted(batch) != sorted(BATCH_KEYS):
        return f"the arrays are {', '.join(sorted(batch))}"
    for name, values in batch.items():
        if values.shape != (num_examples, crop_size) or values.dtype != np.int32:
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


def time_fault(measurements: list[Measurement]) -> str | None:
    """Finds a timestamp earlier than the previous one of its segment."""
    times = [m.event_time for m in measurements if m.event_time is not None]
    for before, after in itertools.pairwise(times):
        if after < before:
            return f"second {after} comes after {before}"
    return None


def context_fault(
    measurements: list[Measurement],
    src_addr: str,
    first_second: int,
    last_second: int,
    mode: str | None,
) -> str | None:
    """Finds a measurement, or a number of timestamps, that a context of a row cannot have."""
    for m in measurements:
        if m.src_addr not in (None, src_addr):
            return f"its source is {m.src_addr}, the row's is {src_addr}"
        if m.event_time is not None and not first_second <= m.event_time <= last_second:
            return f"second {m.event_time} is not in the row, {first_second} to {last_second}"
    num_timed = sum(m.event_time is not None for m in measurements)
    # The last measurement may be cut just before its timestamp.
    if mode == "full" and num_timed < len(measurements) - 1:
        return f"{num_timed} of {len(measurements)} timestamps in mode full"
    if mode == "none" and num_timed:
        return f"{num_timed} timestamps in mode none"
    return None
