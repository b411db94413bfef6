"""What is counted in the batches that training is fed: `Feed`, and the numbers of feed-host0.json.

`feed_report` fills it, `feed_plots` draws it.
"""

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from training.padding.statistics import LEAST_OF_A_SMALL_ROW
from training.tokens.draws import FULL, MODE_NAMES, NONE, PARTIAL
from training.tokens.example_faults import Batch
from training.tokens.tokenizer import (
    FIRST_BYTE,
    MEASUREMENT_START,
    TIMESTAMP_ABS,
    TIMESTAMP_DELTA4,
    VOCABULARY_SIZE,
)

_MOST_SOURCES = 10  # that are named

# A segment; `num_timed` are its measurements with a timestamp, `mode` is what they look like.
SEGMENT = np.dtype([(name, np.int64) for name in ("num_measurements", "num_timed", "mode")])
KIND_NAMES = ("padding", "start", "source", "destination", "time", "RTT", "failed")
_KIND_OF_ROLE = np.zeros(VOCABULARY_SIZE, np.uint8)  # of a byte without a role: none
_KIND_OF_ROLE[:FIRST_BYTE] = (1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 6)


@dataclass(frozen=True)
class Step:
    """A batch in numbers: `padding` is a share, the names of the modes count segments."""

    step: int
    examples: int
    crop_size: int
    real_tokens: int
    padding: float
    segments: int
    segments_decoded: int
    full: int
    partial: int
    none: int


@dataclass
class Feed:
    """What was fed; steps, padding, num_segments and segments have an entry a batch.

    Attributes:
      padding: share of each example.
      num_segments: of each example.
      segments: SEGMENT.
      kinds: of each token of the first batch, its place in KIND_NAMES.
      spans_s: between the ends of the timestamps of a decoded segment, if it has two.
      rtts_ms: of decoded measurements, -1.0 is a failed ping.
      sources: how many decoded segments are of an address.
      contexts: some decoded segments in words.
    """

    steps: list[Step] = field(default_factory=list)
    padding: list[np.ndarray] = field(default_factory=list)
    num_segments: list[np.ndarray] = field(default_factory=list)
    segments: list[np.ndarray] = field(default_factory=list)
    kinds: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    spans_s: list[int] = field(default_factory=list)
    rtts_ms: list[float] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)
    contexts: list[str] = field(default_factory=list)


# --- one batch ----------------------------------------------------------------------------------


def segment_lines(batch: Batch) -> np.ndarray:
    """Counts in the tokens of a checked batch: SEGMENT [segments], in the batch's order.

    The last measurement of a segment that fills the crop can be cut before its timestamp: if it
    alone has none, the mode is full.
    """
    segments, inputs = batch["inputs_segmentation"], batch["inputs"]
    is_real = segments > 0
    is_last = is_real.copy()
    is_last[:, :-1] &= segments[:, :-1] != segments[:, 1:]
    number = (is_real & (batch["inputs_position"] == 0)).cumsum().reshape(segments.shape) - 1
    of_input, end = number[is_real], batch["targets"][is_last]
    inputs = inputs[is_real]
    lines = np.zeros(len(end), SEGMENT)
    for name, least, most in (
        ("num_measurements", MEASUREMENT_START, MEASUREMENT_START),
        ("num_timed", TIMESTAMP_ABS, TIMESTAMP_DELTA4),
    ):
        is_one = (inputs >= least) & (inputs <= most)
        lines[name] = np.bincount(of_input[is_one], minlength=len(end))
        lines[name] += (end >= least) & (end <= most)
    untimed = lines["num_measurements"] - lines["num_timed"]
    fills_crop = np.nonzero(is_last)[1] == segments.shape[1] - 1
    is_full = untimed <= fills_crop
    lines["mode"] = np.where(lines["num_timed"] == 0, NONE, np.where(is_full, FULL, PARTIAL))
    return lines


def token_kinds(batch: Batch) -> np.ndarray:
    """Returns the place in KIND_NAMES of each input of a checked batch; bytes are as their role."""
    inputs, is_real = batch["inputs"], batch["inputs_segmentation"] > 0
    places = np.where(inputs < FIRST_BYTE, np.arange(inputs.shape[1]), 0)
    roles = np.take_along_axis(inputs, np.maximum.accumulate(places, axis=1), axis=1)
    return np.where(is_real, _KIND_OF_ROLE[roles], 0).astype(np.uint8)


# --- all of them --------------------------------------------------------------------------------


def summarise(feed: Feed) -> dict[str, Any]:
    """Returns the numbers behind the pictures, for JSON; shares are between 0 and 1."""
    segments = np.concatenate(feed.segments)
    rtts = np.array(feed.rtts_ms)
    return {
        "steps": [dataclasses.asdict(step) for step in feed.steps],
        "counted": {
            "examples": sum(step.examples for step in feed.steps),
            "real_tokens": sum(step.real_tokens for step in feed.steps),
            "segments": len(segments),
            "padding": _distribution(np.concatenate(feed.padding)),
            "segments_per_example": _distribution(np.concatenate(feed.num_segments)),
            "measurements_per_segment": _distribution(segments["num_measurements"]),
            "modes": [
                {
                    "measurements_at_least": least,
                    **dict(zip(MODE_NAMES, mode_counts(segments, least), strict=True)),
                }
                for least in (1, LEAST_OF_A_SMALL_ROW)
            ],
            "kinds_in_the_first_batch": {
                name: int((feed.kinds == kind).sum()) for kind, name in enumerate(KIND_NAMES)
            },
        },
        "decoded": {
            "segments": sum(step.segments_decoded for step in feed.steps),
            "measurements_with_rtt": len(rtts),
            "failed": int((rtts < 0).sum()),
            "rtt_ms": _distribution(rtts[rtts >= 0]),
            "span_seconds": _distribution(np.array(feed.spans_s)),
            "contexts_per_source": _distribution(np.array(list(feed.sources.values()))),
            "largest_sources": dict(feed.sources.most_common(_MOST_SOURCES)),
        },
    }


def mode_counts(segments: np.ndarray, least: int) -> list[int]:
    """Returns how many segments of `least` measurements or more are of each mode.

    Of few measurements a partial segment can look full, or like one without timestamps.
    """
    modes = segments["mode"][segments["num_measurements"] >= least]
    return np.bincount(modes, minlength=len(MODE_NAMES)).tolist()


def _distribution(values: np.ndarray) -> dict[str, float | None]:
    names = ("least", "p10", "median", "p90", "most")
    if not len(values):
        return {"number": 0, "mean": None, **dict.fromkeys(names)}
    quantiles = np.quantile(values, (0, 0.1, 0.5, 0.9, 1)).tolist()
    return {
        "number": len(values),
        "mean": float(values.mean()),
        **dict(zip(names, quantiles, strict=True)),
    }
