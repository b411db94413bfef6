"""What is counted in the batches that training is fed: `Feed`, and the numbers of feed-host0.json.

`feed_report` fills it, `feed_plots` draws it.
"""

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from training.tokens.draws import MODE_NAMES
from training.tokens.kinds import FIELD_NAMES, MIN_MEASUREMENTS_FOR_MODE, timestamp_modes

_MOST_SOURCES = 10  # that are named


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
      segments: `kinds.SEGMENT`.
      fields: of each input of the first batch, its place in FIELD_NAMES.
      spans_s: between the ends of the timestamps of a decoded segment, if it has two.
      rtts_ms: of decoded measurements, -1.0 is a failed ping.
      sources: how many decoded segments are of an address.
      contexts: some decoded segments in words.
    """

    steps: list[Step] = field(default_factory=list)
    padding: list[np.ndarray] = field(default_factory=list)
    num_segments: list[np.ndarray] = field(default_factory=list)
    segments: list[np.ndarray] = field(default_factory=list)
    fields: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    spans_s: list[int] = field(default_factory=list)
    rtts_ms: list[float] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)
    contexts: list[str] = field(default_factory=list)


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
                for least in (1, MIN_MEASUREMENTS_FOR_MODE)
            ],
            "kinds_in_the_first_batch": {
                name: int((feed.fields == kind).sum()) for kind, name in enumerate(FIELD_NAMES)
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


def segment_modes(segments: np.ndarray) -> np.ndarray:
    """Returns the timestamp mode of SEGMENTs, as their tokens show it: int64."""
    return timestamp_modes(segments, segments["fills_crop"])


def mode_counts(segments: np.ndarray, least: int = 1) -> list[int]:
    """Returns how many segments of `least` measurements or more are of each mode.

    Of few measurements a partial segment can look full, or like one without timestamps.
    """
    segments = segments[segments["num_measurements"] >= least]
    return np.bincount(segment_modes(segments), minlength=len(MODE_NAMES)).tolist()


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
