"""Statistics of batches for `analyze_padding`, the feed report and `evaluate`.

A batch is a dict of arrays [n, crop_size] under MaxText's names, with the rules of
`batches.packing`. Shares are between 0 and 1.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.errors import ProbelineError
from training.tokens.draws import MODE_NAMES
from training.tokens.kinds import KIND_NAMES, NOTHING, Parsed, parse, timestamp_modes
from training.tokens.tokenizer import VOCABULARY_SIZE, Measurement, decode

type Batch = Mapping[str, np.ndarray]
BATCH_KEYS = tuple(
    f"{side}{suffix}"
    for side in ("inputs", "targets")
    for suffix in ("", "_segmentation", "_position")
)


MODE_SHARES = (0.4, 0.3, 0.3)  # as the sampler draws the timestamp modes


class Groups(NamedTuple):
    """What a program measured, by the names of groups, for figures; shares are 0 to 1.

    Only a feed report has the last three.
    """

    padding: Mapping[str, np.ndarray]  # of examples
    modes: Mapping[str, np.ndarray]  # contexts of each of MODE_NAMES
    repeats: Mapping[str, np.ndarray]  # of contexts, see `repeats_of`
    spans_seconds: Mapping[str, np.ndarray]  # of contexts, between their first and last time
    numbers: Mapping[str, np.ndarray] = {}  # of segments, measurements, contexts
    rtts_ms: np.ndarray = np.zeros(0)  # -1.0 is a failed ping
    fields: np.ndarray = np.zeros((0, 0))  # of the first batch's inputs


class BatchStatistics(NamedTuple):
    """Statistics of the examples and segments of a batch."""

    padding: np.ndarray  # float64 [n], the share of padding in each example
    num_segments: np.ndarray  # int64 [n], per example
    segments: np.ndarray  # `kinds.SEGMENT` [segments]
    repeats: np.ndarray  # float64 [segments], see `repeats_of`


class DecodedSegment(NamedTuple):
    """A segment of an example: its place and measurements."""

    place: str
    measurements: list[Measurement]


def collect(batch: Batch) -> BatchStatistics:
    """Checks a batch and collects its statistics.

    Raises ProbelineError with the rule, example and position if the batch breaks a rule.
    """
    _check(batch)
    segmentation = batch["inputs_segmentation"]
    parsed = parse(batch["targets"], segmentation)
    return BatchStatistics(
        (segmentation == 0).mean(axis=1),
        segmentation.max(axis=1, initial=0),
        parsed.segments,
        repeats_of(parsed),
    )


def _check(batch: Batch) -> None:
    if sorted(batch) != sorted(BATCH_KEYS):
        raise ProbelineError(f"the arrays are {', '.join(sorted(batch))}")
    shape = batch["inputs"].shape
    for name, values in batch.items():
        if values.shape != shape or values.ndim != 2 or values.dtype != np.int32:
            raise ProbelineError(f"{name} is {values.dtype} {list(values.shape)}")
    for name, is_wrong, rule in _rules(batch):
        if is_wrong.any():
            example, position = np.unravel_index(is_wrong.argmax(), is_wrong.shape)
            value = batch[name][example, position]
            raise ProbelineError(
                f"example {example} position {position}: {name} is {value}: {rule}"
            )


def _rules(batch: Batch) -> Iterator[tuple[str, np.ndarray, str]]:
    """Yields the name of an array, which of its values break a rule, and the rule."""
    inputs, targets = batch["inputs"], batch["targets"]
    segments, positions = batch["inputs_segmentation"], batch["inputs_position"]
    for name, tokens in (("inputs", inputs), ("targets", targets)):
        is_wrong = (tokens < 0) | (tokens >= VOCABULARY_SIZE)
        yield name, is_wrong, f"tokens are 0 to {VOCABULARY_SIZE - 1}"
    for suffix in ("segmentation", "position"):
        is_wrong = batch[f"inputs_{suffix}"] != batch[f"targets_{suffix}"]
        yield f"targets_{suffix}", is_wrong, "inputs and targets have the same"
    is_wrong = np.zeros(segments.shape, bool)
    is_inner = (segments[:, :-1] == segments[:, 1:]) & (segments[:, 1:] > 0)
    is_wrong[:, :-1] = is_inner & (targets[:, :-1] != inputs[:, 1:])
    yield "targets", is_wrong, "a target is the next input of its segment"
    is_padding = segments == 0
    for name, values in batch.items():
        yield name, is_padding & (values != 0), "padding is 0 in all arrays"
    step = np.diff(segments, axis=1, prepend=0)
    is_wrong = ~(is_padding & (step < 0)) & (step != 0) & (step != 1)
    is_wrong |= (is_padding.cumsum(axis=1) > 0) & ~is_padding
    rule = "segments are numbered 1, 2, … and all padding is at the end"
    yield "inputs_segmentation", is_wrong, rule
    places = np.arange(segments.shape[1])
    starts = np.maximum.accumulate(np.where(step == 1, places, 0), axis=1)
    is_wrong = np.where(is_padding, 0, places - starts) != positions
    yield "inputs_position", is_wrong, "positions count from 0 in every segment"


def together(batches: Sequence[BatchStatistics]) -> BatchStatistics:
    """Combines the statistics of several batches."""
    return BatchStatistics(*map(np.concatenate, zip(*batches, strict=True)))


def segments_of(batch: Batch, example: int) -> Iterator[np.ndarray]:
    """Yields the tokens of each segment of an example, including its last target."""
    segments = batch["inputs_segmentation"][example]
    for segment in range(1, int(segments.max(initial=0)) + 1):
        at = np.flatnonzero(segments == segment)
        yield np.append(batch["inputs"][example, at], batch["targets"][example, at[-1:]])


def decode_example(batch: Batch, example: int, log_rtt: bool = False) -> list[DecodedSegment]:
    """Decodes the segments of an example, each of one probe; ProbelineError if that fails."""
    decoded, at = [], 0
    for segment, tokens in enumerate(segments_of(batch, example), 1):
        try:
            measurements = decode(tokens, log_rtt)
            if len({m.src_addr for m in measurements if m.src_addr is not None}) > 1:
                raise ValueError("it has several probes")
        except ValueError as error:
            raise ProbelineError(
                f"example {example} position {at}: segment {segment}, which begins there, does not "
                f"decode: {error}"
            ) from error
        place = f"example {example}, segment {segment} of {len(tokens)} tokens"
        decoded.append(DecodedSegment(place, measurements))
        at += len(tokens) - 1
    return decoded


def count_tokens(batches: Iterable[Batch]) -> np.ndarray:
    """Counts the targets of batches by their kind: int64 [kinds, 267]."""
    counts = np.zeros(len(KIND_NAMES) * VOCABULARY_SIZE, np.int64)
    for batch in batches:
        kinds = parse(batch["targets"], batch["targets_segmentation"]).kinds
        is_token = kinds != NOTHING
        cells = kinds[is_token].astype(np.int64) * VOCABULARY_SIZE + batch["targets"][is_token]
        counts += np.bincount(cells, minlength=len(counts))
    return counts.reshape(len(KIND_NAMES), VOCABULARY_SIZE)


def repeats_of(parsed: Parsed) -> np.ndarray:
    """Returns the share of measurements with a repeated destination: float64 [segments]."""
    measurements = parsed.measurements
    columns = [measurements[name] for name in ("dst_lo", "dst_hi", "segment")]
    ordered = np.stack(columns)[:, np.lexsort(columns)]
    is_new = np.ones(len(measurements), bool)
    is_new[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    num_segments = len(parsed.segments)
    num_new = np.bincount(ordered[2].astype(np.int64), is_new, num_segments)
    num_all = np.bincount(measurements["segment"], minlength=num_segments)
    return 1 - num_new / np.maximum(1, num_all)


def mode_counts(segments: np.ndarray, min_measurements: int = 1) -> dict[str, int]:
    """Returns the number of `kinds.SEGMENT`s in each mode, as far as their tokens show it."""
    chosen = segments[segments["num_measurements"] >= min_measurements]
    modes = timestamp_modes(chosen, chosen["fills_crop"])
    counts = np.bincount(modes, minlength=len(MODE_NAMES)).tolist()
    return dict(zip(MODE_NAMES, counts, strict=True))


def distribution(values: np.ndarray, count: str = "number", unit: str = "") -> dict[str, Any]:
    """Returns number, mean, min, p10, median, p90 and max of values; None without values.

    `count` is the key of the number of values, `unit` a suffix of the other keys.
    """
    quantiles = np.quantile(values, (0, 0.1, 0.5, 0.9, 1)).tolist() if len(values) else [None] * 5
    mean = float(values.mean()) if len(values) else None
    names = (f"{name}{unit}" for name in ("mean", "min", "p10", "median", "p90", "max"))
    return {count: len(values), **dict(zip(names, [mean, *quantiles], strict=True))}
