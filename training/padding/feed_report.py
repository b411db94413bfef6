"""What training is fed in its first steps: each batch checked, told of in a line, and drawn.

Enter this host's batches as MaxText gets them; leave, host 0's by name, pictures, the numbers
behind them in feed-host0.json, and contexts in words in decoded-host0.txt. Padding, modes and
measurements are counted of all segments. Decoding takes some 2 ms an example: time spans, RTTs
and sources are of a few examples of each batch, of all of them in debug mode, with `log`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson

from beam_pipeline.errors import ProbelineError, UsageError, explained_os_errors
from beam_pipeline.report.plot_style import prepare_folder
from training.padding.feed_statistics import Feed, Step, mode_counts, summarise
from training.padding.summary import percent
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
from training.tokens.kinds import measurement_text, parse_segments, token_fields
from training.tokens.tokenizer import Measurement

_MOST_DECODED = 32  # examples of a batch, without `log`
_MOST_CONTEXTS = 6  # that are written in words


class FeedReport:
    """Looks at the first batches of one host.

    Args:
      folder: local; pictures are written into it when `num_steps` batches are in, or by `close`.
      num_steps: of further batches nothing is done.
      log: debug mode: told a line of each batch, of which every segment is decoded.

    Raises:
      UsageError: there is no matplotlib for pictures, or the folder is not local.
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
        self._feed = Feed()
        self._has_ended = self._folder is None and log is None

    def add(self, batch: Batch) -> None:
        """Takes the next batch in.

        Raises:
          ProbelineError: it breaks a rule of `batches.packing`: in which example, and where.
        """
        if self._has_ended:
            return
        feed = self._feed
        try:
            step, first = _take(feed, batch, decodes_all=self._log is not None)
        except ProbelineError as fault:
            raise ProbelineError(
                f"step {len(feed.steps)} on host {self._host_index}: {fault}; training must not go "
                "on with it: python -m training.analyze_padding tells whether the dataset gives it"
            ) from fault
        if self._log is not None:
            self._log(_line_of(step, first))
        if len(feed.steps) == self._num_steps:
            self.close()

    def close(self) -> None:
        """Writes what is not written yet; does nothing if no batch came."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._folder is not None and self._feed.steps:
            self._write(self._folder)
        self._feed = Feed()

    def _write(self, folder: Path) -> None:
        from training.padding.feed_plots import write_plots

        feed, host = self._feed, f"host{self._host_index}"
        content = {"host_index": self._host_index, **summarise(feed)}
        with explained_os_errors("write into", str(folder)):
            write_plots(feed, folder, host)
            text = "\n".join(feed.contexts)
            (folder / f"decoded-{host}.txt").write_text(text, "utf-8")
            data = orjson.dumps(content, option=orjson.OPT_INDENT_2)
            (folder / f"feed-{host}.json").write_bytes(data)
        if self._log is not None:
            self._log(f"pictures of {len(feed.steps)} steps are in {folder}")


# --- one batch ----------------------------------------------------------------------------------


def _take(feed: Feed, batch: Batch, decodes_all: bool) -> tuple[Step, Measurement | None]:
    """Checks a batch and adds it to the feed; returns its numbers and its first measurement.

    Raises:
      ProbelineError: what is wrong with it; the feed is as it was.
    """
    shape = np.shape(batch.get("inputs", 0))
    num_examples, crop_size = shape if len(shape) == 2 else (0, 0)
    fault = shape_fault(batch, num_examples, crop_size)
    for find in (token_fault, target_fault, position_fault):
        fault = fault or find(batch)
    if fault:
        raise ProbelineError(fault)
    num_decoded = num_examples if decodes_all else min(num_examples, _MOST_DECODED)
    chosen = np.linspace(0, num_examples - 1, num_decoded).astype(int).tolist()
    contexts = [context for example in chosen for context in _decode(batch, example)]
    segmentation = batch["inputs_segmentation"]
    segments = parse_segments(batch["targets"], segmentation)
    is_padding = segmentation == 0
    step = Step(
        step=len(feed.steps),
        examples=num_examples,
        crop_size=crop_size,
        real_tokens=int((~is_padding).sum()),
        padding=float(is_padding.mean()),
        segments=len(segments),
        segments_decoded=len(contexts),
        **dict(zip(MODE_NAMES, mode_counts(segments), strict=True)),
    )
    if not feed.steps:
        feed.fields = token_fields(batch["inputs"], segmentation)
    feed.steps.append(step)
    feed.padding.append(is_padding.mean(axis=1))
    feed.num_segments.append(segmentation.max(axis=1, initial=0))
    feed.segments.append(segments)
    for context in contexts:
        _count(feed, context)
    return step, contexts[0].measurements[0] if contexts else None


class _Context(NamedTuple):
    place: str
    measurements: list[Measurement]


def _decode(batch: Batch, example: int) -> Iterator[_Context]:
    """Yields the segments of an example decoded."""
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


def _count(feed: Feed, context: _Context) -> None:
    """Adds what a context of the last step says to the feed."""
    measurements = context.measurements
    times = [m.event_time for m in measurements if m.event_time is not None]
    if len(times) > 1:
        feed.spans_s.append(max(times) - min(times))
    feed.rtts_ms += [m.rtt_ms for m in measurements if m.rtt_ms is not None]
    if (source := measurements[0].src_addr) is not None:
        feed.sources[source] += 1
    if len(feed.contexts) < _MOST_CONTEXTS:
        head = f"step {feed.steps[-1].step}, {context.place}: {len(measurements)} measurements, "
        lines = [f"{head}{len(times)} with their time", *map(measurement_text, measurements)]
        feed.contexts.append("\n  ".join(lines) + "\n")


# --- in words -----------------------------------------------------------------------------------


def _line_of(step: Step, first: Measurement | None) -> str:
    modes = ", ".join(f"{getattr(step, name)} {name}" for name in MODE_NAMES)
    example = "no measurement" if first is None else " ".join(measurement_text(first).split())
    return (
        f"step {step.step}: [{step.examples}, {step.crop_size}], {step.real_tokens:,} tokens, "
        f"padding {percent(step.padding, 2)}, {step.segments:,} segments: {modes}; {example}"
    )
