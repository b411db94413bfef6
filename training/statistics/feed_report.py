"""Checks the batches of training's first steps, logs a line about each, and draws them.

The input is one host's batches as MaxText gets them. The output, for host 0, is figures, their data
in feed-host0.json, and decoded contexts in decoded-host0.txt. Padding, modes and measurements are
counted in all segments. Decoding takes about 2 ms per example, so time spans, RTTs and sources are
from a few examples of each batch, or from all on request.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from beam_pipeline.errors import ProbelineError, explained_os_errors, program
from beam_pipeline.report.plots import prepare_folder, write_results
from beam_pipeline.report.tables import percent
from training.statistics import collector
from training.statistics.collector import (
    Batch,
    BatchStatistics,
    DecodedSegment,
    Groups,
    distribution,
    mode_counts,
)
from training.tokens.draws import MODE_NAMES
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

    @property
    def groups(self) -> Groups:
        found, segments = self.all, self.all.segments
        minimum = MIN_MEASUREMENTS_FOR_MODE
        modes = {"all segments": 1, f"of {minimum} measurements or more": minimum}
        return Groups(
            padding={"all": found.padding},
            modes={
                name: np.array(list(mode_counts(segments, at_least).values()))
                for name, at_least in modes.items()
            },
            repeats={"all": found.repeats},
            spans_seconds={"decoded": np.array(self.spans_seconds)},
            numbers={
                "segments_per_example": found.num_segments,
                "measurements_per_segment": segments["num_measurements"],
                "contexts_per_source": np.array(list(self.sources.values())),
            },
            rtts_ms=np.array(self.rtts_ms),
            fields=self.fields,
        )

    def summary(self) -> dict[str, Any]:
        """Returns the content of feed-host0.json."""
        found, segments = self.all, self.all.segments
        groups, rtts = self.groups, np.array(self.rtts_ms)
        numbers = {name: distribution(values) for name, values in groups.numbers.items()}
        return {
            "steps": self.steps,
            "counted": {
                "examples": len(found.num_segments),
                "real_tokens": self.total("real_tokens"),
                "segments": len(segments),
                "padding": distribution(found.padding),
                "segments_per_example": numbers["segments_per_example"],
                "measurements_per_segment": numbers["measurements_per_segment"],
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
                "span_seconds": distribution(groups.spans_seconds["decoded"]),
                "contexts_per_source": numbers["contexts_per_source"],
                "largest_sources": dict(self.sources.most_common(_MAX_SOURCES)),
            },
        }


class FeedReport:
    """Reports the first `num_steps` batches of one host, in a local folder.

    `log` enables debug mode: it gets a line about each batch, whose segments are all decoded.
    """

    def __init__(
        self,
        folder: str | None,
        host_index: int,
        num_steps: int = 16,
        log: Callable[[str], None] | None = None,
        log_rtt: bool = False,
    ):
        self._folder = prepare_folder(folder, "grain_visualization_dir") if folder else None
        self._host_index = host_index
        self._num_steps = num_steps
        self._log = log
        self._log_rtt = log_rtt
        self._feed = Feed()
        self._has_ended = self._folder is None and log is None

    def add(self, batch: Batch) -> None:
        """Checks and counts the next batch; ProbelineError if it breaks a rule."""
        if self._has_ended:
            return
        feed = self._feed
        try:
            first = feed.add(batch, self._log is not None, self._log_rtt)
        except ProbelineError as fault:
            raise ProbelineError(
                f"step {len(feed.steps)} on host {self._host_index}: {fault}; do not train on it: "
                f"{program('padding', 'training.analyze_padding')} checks whether the dataset is "
                "at fault"
            ) from fault
        if self._log is not None:
            self._log(_line(feed.steps[-1], first))
        if len(feed.steps) == self._num_steps:
            self.close()

    def close(self) -> None:
        """Writes the files, unless they are already written or there was no batch."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._folder is not None and self._feed.steps:
            self._write(self._folder)
        self._feed = Feed()

    def _write(self, folder: Path) -> None:
        from training.statistics.plots import FEED_DRAWINGS

        feed, host = self._feed, f"host{self._host_index}"
        content = {"host_index": self._host_index, **feed.summary()}
        drawings = {f"{name}-{host}": draw for name, draw in FEED_DRAWINGS.items()}
        first = feed.steps[0]
        note = (
            f"{host} · {len(feed.steps)} steps of [{first['examples']}, {first['crop_size']}] · "
            f"{feed.total('segments_decoded'):,} of {feed.total('segments'):,} segments decoded"
        )
        write_results(folder, f"feed-{host}.json", content, note, drawings, feed.groups)
        with explained_os_errors("write into", str(folder)):
            (folder / f"decoded-{host}.txt").write_text("\n".join(feed.contexts), "utf-8")
        if self._log is not None:
            self._log(f"figures of {len(feed.steps)} steps are in {folder}")


def _line(step: dict[str, Any], first: str) -> str:
    modes = ", ".join(f"{step[name]} {name}" for name in MODE_NAMES)
    return (
        f"step {step['step']}: [{step['examples']}, {step['crop_size']}], "
        f"{step['real_tokens']:,} tokens, padding {percent(step['padding'], 2)}, "
        f"{step['segments']:,} segments: {modes}; {first}"
    )
