"""Statistics of the batches that training consumed: `Feed`.

Padding, modes and measurements are counted in all segments. Decoding takes about 2 ms per example,
so time spans, RTTs and sources are from a few examples of each batch, or from all on request.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from training.statistics import collector
from training.statistics.collector import (
    Batch,
    BatchStatistics,
    DecodedSegment,
    distribution,
    mode_counts,
)
from training.tokens.kinds import FIELD_NAMES, MIN_MEASUREMENTS_FOR_MODE, measurement_text, parse

_MAX_DECODED = 32  # examples per batch, unless all are decoded
_MAX_CONTEXTS = 6  # written as text
_MAX_SOURCES = 10  # listed by name


@dataclass
class Feed:
    """The batches that training consumed; `fields` are those of the first batch's inputs."""

    steps: list[dict[str, Any]] = field(default_factory=list)  # as in feed-host0.json
    batches: list[BatchStatistics] = field(default_factory=list)
    fields: np.ndarray = field(default_factory=partial(np.zeros, (0, 0), np.uint8))
    spans_seconds: list[int] = field(default_factory=list)  # of decoded segments
    rtts_ms: list[float] = field(default_factory=list)  # -1.0 is a failed ping
    sources: Counter[str] = field(default_factory=Counter)  # number of decoded segments by address
    contexts: list[str] = field(default_factory=list)  # as text

    @cached_property
    def all(self) -> BatchStatistics:
        """The statistics of all batches; cached, so use it after the last one."""
        return collector.together(self.batches)

    def total(self, name: str) -> int:
        """Returns the sum of a figure over all steps."""
        return sum(step[name] for step in self.steps)

    def add(self, batch: Batch, decodes_all: bool, log_rtt: bool) -> str:
        """Checks a batch and counts it; returns its first measurement as text."""
        found = collector.collect(batch)
        segmentation = batch["inputs_segmentation"]
        num_examples, crop_size = segmentation.shape
        num_decoded = num_examples if decodes_all else min(num_examples, _MAX_DECODED)
        decoded = [
            segment
            for example in np.linspace(0, num_examples - 1, num_decoded).astype(int).tolist()
            for segment in collector.decode_example(batch, example, log_rtt)
        ]
        if not self.steps:
            self.fields = parse(batch["inputs"], segmentation).fields
        self.steps.append(
            {
                "step": len(self.steps),
                "examples": num_examples,
                "crop_size": crop_size,
                "real_tokens": int((segmentation > 0).sum()),
                "padding": float((segmentation == 0).mean()),
                "segments": len(found.segments),
                "segments_decoded": len(decoded),
                **mode_counts(found.segments),
            }
        )
        self.batches.append(found)
        for segment in decoded:
            self._add_decoded(segment)
        first = decoded[0].measurements[0] if decoded else None
        return "no measurement" if first is None else " ".join(measurement_text(first).split())

    def _add_decoded(self, segment: DecodedSegment) -> None:
        measurements = segment.measurements
        times = [m.event_time for m in measurements if m.event_time is not None]
        if len(times) > 1:
            self.spans_seconds.append(max(times) - min(times))
        self.rtts_ms += [m.rtt_ms for m in measurements if m.rtt_ms is not None]
        if (source := measurements[0].src_addr) is not None:
            self.sources[source] += 1
        if len(self.contexts) < _MAX_CONTEXTS:
            where = f"step {self.steps[-1]['step']}, {segment.place}"
            head = f"{where}: {len(measurements)} measurements, {len(times)} with their time"
            self.contexts.append("\n  ".join([head, *map(measurement_text, measurements)]) + "\n")

    def summary(self) -> dict[str, Any]:
        """Returns the content of feed-host0.json."""
        found, segments = self.all, self.all.segments
        rtts, sources = np.array(self.rtts_ms), np.array(list(self.sources.values()))
        return {
            "steps": self.steps,
            "counted": {
                "examples": len(found.num_segments),
                "real_tokens": self.total("real_tokens"),
                "segments": len(segments),
                "padding": distribution(found.padding),
                "segments_per_example": distribution(found.num_segments),
                "measurements_per_segment": distribution(segments["num_measurements"]),
                "repeats_per_segment": distribution(found.repeats),
                "modes": [
                    {"measurements_at_least": minimum, **mode_counts(segments, minimum)}
                    for minimum in (1, MIN_MEASUREMENTS_FOR_MODE)
                ],
                "kinds_in_the_first_batch": {
                    name: int((self.fields == number).sum())
                    for number, name in enumerate(FIELD_NAMES)
                },
            },
            "decoded": {
                "segments": self.total("segments_decoded"),
                "measurements_with_rtt": len(rtts),
                "failed": int((rtts < 0).sum()),
                "rtt_ms": distribution(rtts[rtts >= 0]),
                "span_seconds": distribution(np.array(self.spans_seconds)),
                "contexts_per_source": distribution(sources),
                "largest_sources": dict(self.sources.most_common(_MAX_SOURCES)),
            },
        }
