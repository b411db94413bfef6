"""Statistics of batches for `analyze_padding`, the feed report and `evaluate`.

A batch is a dict of arrays [n, crop_size] under MaxText's names, with the rules of
`batches.packing`. Shares are between 0 and 1.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from beam_pipeline.errors import ProbelineError
from training.tokens import example_faults
from training.tokens.draws import MODE_NAMES
from training.tokens.example_faults import Batch
from training.tokens.kinds import KIND_NAMES, NOTHING, Parsed, parse, timestamp_modes
from training.tokens.tokenizer import VOCABULARY_SIZE, Measurement


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
    fault = (
        example_faults.shape_fault(batch)
        or example_faults.token_fault(batch)
        or example_faults.target_fault(batch)
        or example_faults.position_fault(batch)
    )
    if fault:
        raise ProbelineError(fault)
    segmentation = batch["inputs_segmentation"]
    parsed = parse(batch["targets"], segmentation)
    return BatchStatistics(
        (segmentation == 0).mean(axis=1),
        segmentation.max(axis=1, initial=0),
        parsed.segments,
        repeats_of(parsed),
    )


def together(batches: Sequence[BatchStatistics]) -> BatchStatistics:
    """Combines the statistics of several batches."""
    return BatchStatistics(*map(np.concatenate, zip(*batches, strict=True)))


def decode_example(batch: Batch, example: int, log_rtt: bool = False) -> list[DecodedSegment]:
    """Decodes the segments of an example; ProbelineError if that fails."""
    decoded = []
    for segment, tokens in enumerate(example_faults.segments_of(batch, example), 1):
        measurements, fault = example_faults.decoded(tokens, log_rtt)
        if fault:
            at = int((batch["inputs_segmentation"][example] == segment).argmax())
            raise ProbelineError(
                f"example {example} position {at}: segment {segment}, which begins there, does not "
                f"decode: {fault}"
            )
        place = f"example {example}, segment {segment} of {len(tokens)} tokens"
        decoded.append(DecodedSegment(place, measurements))
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
