"""Checks the batches of training's first steps, logs a line about each, and draws them.

In go one host's batches as MaxText gets them. Out come, for host 0, figures, the numbers behind
them in feed-host0.json, and decoded contexts in decoded-host0.txt. Padding, modes and measurements
are counted in all segments. Decoding takes some 2 ms per example: time spans, RTTs and sources are
of a few examples of each batch or, in debug mode (with `log`), of all.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from beam_pipeline.errors import ProbelineError, UsageError, explained_os_errors
from beam_pipeline.report.plots import prepare_folder, write_results
from beam_pipeline.report.tables import percent
from beam_pipeline.storage.files import write_file
from training.padding.statistics import distribution, mode_counts, padding_of, repeats_of
from training.tokens import example_faults
from training.tokens.draws import MODE_NAMES
from training.tokens.example_faults import Batch
from training.tokens.kinds import FIELD_NAMES, MIN_MEASUREMENTS_FOR_MODE, measurement_text, parse
from training.tokens.tokenizer import Measurement

_MAX_DECODED = 32  # examples of a batch, without `log`
_MAX_CONTEXTS = 6  # that are written as text
_MAX_SOURCES = 10  # that are named


@dataclass
class FeedStatistics:
    """What training was fed; the first five lists have an entry per batch.

    Attributes:
      steps: numbers of the batch, as in feed-host0.json; `padding` is a share, the names of the
        modes count segments.
      padding, num_segments: float64 and int64 [batch], of each example.
      segments: `kinds.SEGMENT`.
      repeats: float64, of each segment, see `statistics.repeats_of`.
      fields: `kinds.Parsed.fields` of the first batch's inputs.
      spans_seconds: between the first and the last timestamp of decoded segments.
      rtts_ms: of decoded measurements, -1.0 is a failed ping.
      sources: decoded segments by source address.
      contexts: some decoded segments as text.
    """

    steps: list[dict[str, Any]] = field(default_factory=list)
    padding: list[np.ndarray] = field(default_factory=list)
    num_segments: list[np.ndarray] = field(default_factory=list)
    segments: list[np.ndarray] = field(default_factory=list)
    repeats: list[np.ndarray] = field(default_factory=list)
    fields: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    spans_seconds: list[int] = field(default_factory=list)
    rtts_ms: list[float] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)
    contexts: list[str] = field(default_factory=list)

    def total(self, name: str) -> int:
        """Returns the sum of a number over all steps."""
        return sum(step[name] for step in self.steps)


class FeedReport:
    """Reports the first batches of one host.

    Args:
      folder: local; files are written into it after `num_steps` batches, or by `close`.
      num_steps: later batches are ignored.
      log: debug mode: called with a line about each batch, of which every segment is decoded.
      log_rtt: how the batches tell RTTs, see `training.tokens.log_rtt`.

    Raises:
      UsageError: matplotlib is not installed, or the folder is not local.
      ProbelineError: the folder cannot be written into.
    """

    def __init__(
        self,
        folder: str | None,
        host_index: int,
        num_steps: int = 16,
        log: Callable[[str], None] | None = None,
        log_rtt: bool = False,
    ):
        if num_steps < 1:
            raise UsageError(f"num_steps is {num_steps}: it must be 1 or more")
        self._folder = prepare_folder(folder, "grain_visualization_dir") if folder else None
        self._host_index = host_index
        self._num_steps = num_steps
        self._log = log
        self._log_rtt = log_rtt
        self._feed = FeedStatistics()
        self._has_ended = self._folder is None and log is None

    def add(self, batch: Batch) -> None:
        """Checks and counts the next batch.

        Raises:
          ProbelineError: it breaks a rule of `batches.packing`: in which example, and where.
        """
        if self._has_ended:
            return
        feed = self._feed
        try:
            step, first = _count(feed, batch, self._log is not None, self._log_rtt)
        except ProbelineError as fault:
            raise ProbelineError(
                f"step {len(feed.steps)} on host {self._host_index}: {fault}; do not train on it: "
                "python -m training.analyze_padding checks whether the dataset is at fault"
            ) from fault
        if self._log is not None:
            self._log(_line(step, first))
        if len(feed.steps) == self._num_steps:
            self.close()

    def close(self) -> None:
        """Writes the files, unless they are written or there was no batch."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._folder is not None and self._feed.steps:
            self._write(self._folder)
        self._feed = FeedStatistics()

    def _write(self, folder: Path) -> None:
        from training.padding.plots import FEED_DRAWINGS

        feed, host = self._feed, f"host{self._host_index}"
        content = {"host_index": self._host_index, **_summarise(feed)}
        drawings = {f"{name}-{host}": draw for name, draw in FEED_DRAWINGS.items()}
        first = feed.steps[0]
        note = (
            f"{host} · {len(feed.steps)} steps of [{first['examples']}, {first['crop_size']}] · "
            f"{feed.total('segments_decoded'):,} of {feed.total('segments'):,} segments decoded"
        )
        write_results(folder, f"feed-{host}.json", content, note, drawings, feed)
        with explained_os_errors("write into", str(folder)):
            write_file(str(folder / f"decoded-{host}.txt"), "\n".join(feed.contexts).encode())
        if self._log is not None:
            self._log(f"figures of {len(feed.steps)} steps are in {folder}")


def _line(step: dict[str, Any], first: Measurement | None) -> str:
    modes = ", ".join(f"{step[name]} {name}" for name in MODE_NAMES)
    example = "no measurement" if first is None else " ".join(measurement_text(first).split())
    return (
        f"step {step['step']}: [{step['examples']}, {step['crop_size']}], "
        f"{step['real_tokens']:,} tokens, padding {percent(step['padding'], 2)}, "
        f"{step['segments']:,} segments: {modes}; {example}"
    )


# --- one batch ----------------------------------------------------------------------------------


def _count(
    feed: FeedStatistics, batch: Batch, decodes_all: bool, log_rtt: bool
) -> tuple[dict[str, Any], Measurement | None]:
    """Checks a batch and counts it; returns its numbers and its first measurement.

    Raises:
      ProbelineError: the batch breaks a rule; the statistics are unchanged.
    """
    shape = np.shape(batch.get("inputs", 0))
    num_examples, crop_size = shape if len(shape) == 2 else (0, 0)
    fault = (
        example_faults.shape_fault(batch, num_examples, crop_size)
        or example_faults.token_fault(batch)
        or example_faults.target_fault(batch)
        or example_faults.position_fault(batch)
    )
    if fault:
        raise ProbelineError(fault)
    num_decoded = num_examples if decodes_all else min(num_examples, _MAX_DECODED)
    chosen = np.linspace(0, num_examples - 1, num_decoded).astype(int).tolist()
    decoded = [context for example in chosen for context in _decode(batch, example, log_rtt)]
    segmentation = batch["inputs_segmentation"]
    parsed = parse(batch["targets"], segmentation)
    step = {
        "step": len(feed.steps),
        "examples": num_examples,
        "crop_size": crop_size,
        "real_tokens": int((segmentation > 0).sum()),
        "padding": float((segmentation == 0).mean()),
        "segments": len(parsed.segments),
        "segments_decoded": len(decoded),
        **mode_counts(parsed.segments),
    }
    if not feed.steps:
        feed.fields = parse(batch["inputs"], segmentation).fields
    feed.steps.append(step)
    feed.padding.append(padding_of(batch))
    feed.num_segments.append(segmentation.max(axis=1, initial=0))
    feed.segments.append(parsed.segments)
    feed.repeats.append(repeats_of(parsed))
    for place, measurements in decoded:
        _count_context(feed, place, measurements)
    return step, decoded[0][1][0] if decoded else None


def _decode(batch: Batch, example: int, log_rtt: bool) -> list[tuple[str, list[Measurement]]]:
    """Returns the segments of an example: where each is, and its measurements."""
    contexts = []
    for segment, tokens in enumerate(example_faults.segments_of(batch, example), 1):
        measurements, fault = example_faults.decoded(tokens, log_rtt)
        if fault:
            at = int((batch["inputs_segmentation"][example] == segment).argmax())
            raise ProbelineError(
                f"example {example} position {at}: segment {segment}, which begins there, does not "
                f"decode: {fault}"
            )
        place = f"example {example}, segment {segment} of {len(tokens)} tokens"
        contexts.append((place, measurements))
    return contexts


def _count_context(feed: FeedStatistics, place: str, measurements: list[Measurement]) -> None:
    times = [m.event_time for m in measurements if m.event_time is not None]
    if len(times) > 1:
        feed.spans_seconds.append(max(times) - min(times))
    feed.rtts_ms += [m.rtt_ms for m in measurements if m.rtt_ms is not None]
    if (source := measurements[0].src_addr) is not None:
        feed.sources[source] += 1
    if len(feed.contexts) < _MAX_CONTEXTS:
        head = f"step {feed.steps[-1]['step']}, {place}: {len(measurements)} measurements, "
        lines = [f"{head}{len(times)} with their time", *map(measurement_text, measurements)]
        feed.contexts.append("\n  ".join(lines) + "\n")


# --- all batches --------------------------------------------------------------------------------


def _summarise(feed: FeedStatistics) -> dict[str, Any]:
    """Returns the content of feed-host0.json; shares are between 0 and 1."""
    segments, num_segments = np.concatenate(feed.segments), np.concatenate(feed.num_segments)
    rtts, sources = np.array(feed.rtts_ms), np.array(list(feed.sources.values()))
    return {
        "steps": feed.steps,
        "counted": {
            "examples": len(num_segments),
            "real_tokens": feed.total("real_tokens"),
            "segments": len(segments),
            "padding": distribution(np.concatenate(feed.padding)),
            "segments_per_example": distribution(num_segments),
            "measurements_per_segment": distribution(segments["num_measurements"]),
            "repeats_per_segment": distribution(np.concatenate(feed.repeats)),
            "modes": [
                {"measurements_at_least": minimum, **mode_counts(segments, minimum)}
                for minimum in (1, MIN_MEASUREMENTS_FOR_MODE)
            ],
            "kinds_in_the_first_batch": {
                name: int((feed.fields == field).sum()) for field, name in enumerate(FIELD_NAMES)
            },
        },
        "decoded": {
            "segments": feed.total("segments_decoded"),
            "measurements_with_rtt": len(rtts),
            "failed": int((rtts < 0).sum()),
            "rtt_ms": distribution(rtts[rtts >= 0]),
            "span_seconds": distribution(np.array(feed.spans_seconds)),
            "contexts_per_source": distribution(sources),
            "largest_sources": dict(feed.sources.most_common(_MAX_SOURCES)),
        },
    }
