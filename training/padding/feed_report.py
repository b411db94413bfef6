"""Checks the batches of training's first steps, logs a line about each, and draws them.

In go one host's batches as MaxText gets them. Out come, for host 0, figures, the numbers behind
them in feed-host0.json, and decoded contexts in decoded-host0.txt. Padding, modes and measurements
are counted in all segments. Decoding takes some 2 ms per example: time spans, RTTs and sources are
of a few examples of each batch or, in debug mode (with `log`), of all.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from beam_pipeline.errors import ProbelineError, UsageError, explained_os_errors
from beam_pipeline.report.formatting import percent
from beam_pipeline.report.plot_style import prepare_folder
from training.padding.statistics import (
    FeedStatistics,
    Step,
    count_examples,
    distribution,
    mode_counts,
)
from training.tokens.draws import MODE_NAMES
from training.tokens.example_faults import (
    Batch,
    decoded,
    position_fault,
    segments_of,
    shape_fault,
    target_fault,
    token_fault,
)
from training.tokens.kinds import (
    FIELD_NAMES,
    MIN_MEASUREMENTS_FOR_MODE,
    measurement_text,
    parse,
)
from training.tokens.tokenizer import Measurement

_MAX_DECODED = 32  # examples of a batch, without `log`
_MAX_CONTEXTS = 6  # that are written as text
_MAX_SOURCES = 10  # that are named


class FeedReport:
    """Reports the first batches of one host.

    Args:
      folder: local; files are written into it after `num_steps` batches, or by `close`.
      num_steps: later batches are ignored.
      log: debug mode: called with a line about each batch, of which every segment is decoded.

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
    ):
        if num_steps < 1:
            raise UsageError(f"num_steps is {num_steps}: it must be 1 or more")
        self._folder = prepare_folder(folder, "grain_visualization_dir") if folder else None
        self._host_index = host_index
        self._num_steps = num_steps
        self._log = log
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
            step, first = _count(feed, batch, decodes_all=self._log is not None)
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
        from training.padding.plots import write_feed_plots

        feed, host = self._feed, f"host{self._host_index}"
        content = {"host_index": self._host_index, **_summarise(feed)}
        with explained_os_errors("write into", str(folder)):
            write_feed_plots(feed, folder, host)
            (folder / f"decoded-{host}.txt").write_text("\n".join(feed.contexts), "utf-8")
            data = orjson.dumps(content, option=orjson.OPT_INDENT_2)
            (folder / f"feed-{host}.json").write_bytes(data)
        if self._log is not None:
            self._log(f"figures of {len(feed.steps)} steps are in {folder}")


def _line(step: Step, first: Measurement | None) -> str:
    modes = ", ".join(f"{getattr(step, name)} {name}" for name in MODE_NAMES)
    example = "no measurement" if first is None else " ".join(measurement_text(first).split())
    return (
        f"step {step.step}: [{step.examples}, {step.crop_size}], {step.real_tokens:,} tokens, "
        f"padding {percent(step.padding, 2)}, {step.segments:,} segments: {modes}; {example}"
    )


# --- one batch ----------------------------------------------------------------------------------


class _Context(NamedTuple):
    place: str
    measurements: list[Measurement]


def _count(
    feed: FeedStatistics, batch: Batch, decodes_all: bool
) -> tuple[Step, Measurement | None]:
    """Checks a batch and counts it; returns its numbers and its first measurement.

    Raises:
      ProbelineError: the batch breaks a rule; the statistics are unchanged.
    """
    shape = np.shape(batch.get("inputs", 0))
    num_examples, crop_size = shape if len(shape) == 2 else (0, 0)
    fault = shape_fault(batch, num_examples, crop_size)
    for find in (token_fault, target_fault, position_fault):
        fault = fault or find(batch)
    if fault:
        raise ProbelineError(fault)
    num_decoded = num_examples if decodes_all else min(num_examples, _MAX_DECODED)
    chosen = np.linspace(0, num_examples - 1, num_decoded).astype(int).tolist()
    contexts = [context for example in chosen for context in _decode(batch, example)]
    segments = parse(batch["targets"], batch["targets_segmentation"]).segments
    examples = count_examples(batch)
    num_padding = int(examples["num_padding"].sum())
    step = Step(
        step=len(feed.steps),
        examples=num_examples,
        crop_size=crop_size,
        real_tokens=num_examples * crop_size - num_padding,
        padding=num_padding / (num_examples * crop_size),
        segments=len(segments),
        segments_decoded=len(contexts),
        **mode_counts(segments),
    )
    if not feed.steps:
        feed.fields = parse(batch["inputs"], batch["inputs_segmentation"]).fields
    feed.steps.append(step)
    feed.examples.append(examples)
    feed.segments.append(segments)
    for context in contexts:
        _count_context(feed, context)
    return step, contexts[0].measurements[0] if contexts else None


def _decode(batch: Batch, example: int) -> Iterator[_Context]:
    for segment, tokens in enumerate(segments_of(batch, example), 1):
        measurements, fault = decoded(tokens)
        if fault:
            at = int((batch["inputs_segmentation"][example] == segment).argmax())
            raise ProbelineError(
                f"example {example} position {at}: segment {segment}, which begins there, does not "
                f"decode: {fault}"
            )
        place = f"example {example}, segment {segment} of {len(tokens)} tokens"
        yield _Context(place, measurements)


def _count_context(feed: FeedStatistics, context: _Context) -> None:
    measurements = context.measurements
    times = [m.event_time for m in measurements if m.event_time is not None]
    if len(times) > 1:
        feed.spans_seconds.append(max(times) - min(times))
    feed.rtts_ms += [m.rtt_ms for m in measurements if m.rtt_ms is not None]
    if (source := measurements[0].src_addr) is not None:
        feed.sources[source] += 1
    if len(feed.contexts) < _MAX_CONTEXTS:
        head = f"step {feed.steps[-1].step}, {context.place}: {len(measurements)} measurements, "
        lines = [f"{head}{len(times)} with their time", *map(measurement_text, measurements)]
        feed.contexts.append("\n  ".join(lines) + "\n")


# --- all batches --------------------------------------------------------------------------------


def _summarise(feed: FeedStatistics) -> dict[str, Any]:
    """Returns the content of feed-host0.json; shares are between 0 and 1."""
    segments, examples = np.concatenate(feed.segments), np.concatenate(feed.examples)
    padding = [
        e["num_padding"] / s.crop_size for e, s in zip(feed.examples, feed.steps, strict=True)
    ]
    rtts, sources = np.array(feed.rtts_ms), np.array(list(feed.sources.values()))
    return {
        "steps": [dataclasses.asdict(step) for step in feed.steps],
        "counted": {
            "examples": len(examples),
            "real_tokens": sum(step.real_tokens for step in feed.steps),
            "segments": len(segments),
            "padding": distribution(np.concatenate(padding)),
            "segments_per_example": distribution(examples["num_segments"]),
            "measurements_per_segment": distribution(segments["num_measurements"]),
            "modes": [
                {"measurements_at_least": minimum, **mode_counts(segments, minimum)}
                for minimum in (1, MIN_MEASUREMENTS_FOR_MODE)
            ],
            "kinds_in_the_first_batch": {
                name: int((feed.fields == field).sum()) for field, name in enumerate(FIELD_NAMES)
            },
        },
        "decoded": {
            "segments": sum(step.segments_decoded for step in feed.steps),
            "measurements_with_rtt": len(rtts),
            "failed": int((rtts < 0).sum()),
            "rtt_ms": distribution(rtts[rtts >= 0]),
            "span_seconds": distribution(np.array(feed.spans_seconds)),
            "contexts_per_source": distribution(sources),
            "largest_sources": dict(feed.sources.most_common(_MAX_SOURCES)),
        },
    }
