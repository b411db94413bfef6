"""Checks the batches of training's first steps, logs a line about each, and draws them.

The input is one host's batches as MaxText gets them. The output, for host 0, is figures, their data
in feed-host0.json, and decoded contexts in decoded-host0.txt.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from beam_pipeline.errors import ProbelineError, explained_os_errors, program
from beam_pipeline.report.plots import prepare_folder, write_results
from beam_pipeline.report.tables import percent
from training.statistics.collector import Batch
from training.statistics.feed import Feed
from training.tokens.draws import MODE_NAMES


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
        write_results(folder, f"feed-{host}.json", content, note, drawings, feed)
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
