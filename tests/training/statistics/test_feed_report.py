"""The feed report: its figures equal those of the batches, and invalid batches are refused."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.batches import Batch
from tests.support.contexts import measured as measurements
from tests.support.loader_helpers import expected_batches, refusal_of
from tests.support.probe_rows_on_disk import CROP, Mixed
from training.statistics.collector import distribution
from training.statistics.feed_report import FeedReport
from training.tokens.tokenizer import encode

PICTURES = ("padding", "modes", "segments", "repeats", "windows", "rtt", "tokens")
CROP_SIZE = 128


def files_of(host: int) -> set[str]:
    pictures = {f"{name}-host{host}.png" for name in PICTURES}
    return {*pictures, f"feed-host{host}.json", f"decoded-host{host}.txt"}


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def numbers_in(folder: Path, host: int = 0) -> dict[str, Any]:
    return json.loads((folder / f"feed-host{host}.json").read_bytes())


def context(src_addr: str, *seconds: int | None, failed: int = 0) -> np.ndarray:
    """Returns the tokens of a measurement for each second, None being untold; some have failed."""
    rtts = [-1.0 if number < failed else 1.0 for number in range(len(seconds))]
    rows = [
        (1_000_000 * (second or 0), "8.8.8.8", rtt)
        for second, rtt in zip(seconds, rtts, strict=True)
    ]
    is_timed = np.array([second is not None for second in seconds])
    return encode(src_addr, measurements(*rows), is_timed)


def crops(*examples: Sequence[np.ndarray]) -> Batch:
    """Lays contexts down as `batches.packing` does, one list an example; cuts them at the end."""
    inputs, targets, segments, positions = np.zeros((4, len(examples), CROP_SIZE), np.int32)
    for example, contexts in enumerate(examples):
        at = 0
        for segment, tokens in enumerate(contexts, 1):
            n = min(len(tokens) - 1, CROP_SIZE - at)
            inputs[example, at : at + n] = tokens[:n]
            targets[example, at : at + n] = tokens[1 : n + 1]
            segments[example, at : at + n] = segment
            positions[example, at : at + n] = np.arange(n)
            at += n
    return {
        "inputs": inputs,
        "inputs_segmentation": segments,
        "inputs_position": positions,
        "targets": targets,
        "targets_segmentation": segments.copy(),
        "targets_position": positions.copy(),
    }


FULL = context("192.0.2.1", 1000, 1100, 1400)  # 58 tokens
NONE = context("192.0.2.2", None, None, None, failed=1)  # 40 tokens
PARTIAL = context("192.0.2.2", 1000, None, None, None)  # 65 tokens
CUT = context("192.0.2.3", *range(2000, 2080, 10))  # 135 tokens, the crop ends in the last one
PADDING_ONLY = crops([])


@pytest.fixture
def batch() -> Batch:
    """Three examples, a quarter, half and nothing of them padding."""
    return crops([FULL, NONE], [PARTIAL], [CUT])


# --- figures ------------------------------------------------------------------------------


def test_statistics_of_a_batch(batch: Batch, tmp_path: Path) -> None:
    """Those before an invalid batch are drawn."""
    lines: list[str] = []
    report = FeedReport(str(tmp_path / "new" / "folder"), 3, log=lines.append)
    report.add(batch)
    report.add(PADDING_ONLY)
    make_undecodable(batch)
    refusal_of(lambda: report.add(batch), "step 2")
    assert names_in(tmp_path / "new" / "folder") == set()
    report.close()
    assert names_in(tmp_path / "new" / "folder") == files_of(3)
    numbers = numbers_in(tmp_path / "new" / "folder", 3)
    counts = {"real_tokens": 288, "segments": 4, "segments_decoded": 4}
    counts |= {"full": 2, "partial": 1, "none": 1}
    step = {"step": 0, "examples": 3, "crop_size": 128, "padding": 0.25, **counts}
    nothing = {"step": 1, "examples": 1, "crop_size": 128, "padding": 1} | dict.fromkeys(counts, 0)
    shares = numbers["counted"].pop("repeats_per_segment")
    assert (shares["number"], shares["min"]) == (4, pytest.approx(2 / 3))
    kinds = {"padding": 96, "start": 18, "source": 90, "destination": 88, "time": 45}
    assert numbers == {
        "host_index": 3,
        "steps": [step, nothing],
        "counted": {
            "examples": 4,
            "real_tokens": 288,
            "segments": 4,
            "padding": distribution(np.array([0.25, 0.5, 0, 1])),
            "segments_per_example": distribution(np.array([2, 1, 1, 0])),
            "measurements_per_segment": distribution(np.array([3, 3, 4, 8])),
            "modes": [
                {"measurements_at_least": 1, "full": 2, "partial": 1, "none": 1},
                {"measurements_at_least": 10, "full": 0, "partial": 0, "none": 0},
            ],
            "kinds_in_the_first_batch": {**kinds, "RTT": 46, "failed": 1},
        },
        "decoded": {
            "segments": 4,
            "measurements_with_rtt": 17,
            "failed": 1,
            "rtt_ms": distribution(np.ones(16)),
            "span_seconds": distribution(np.array([400, 60])),
            "contexts_per_source": distribution(np.array([1, 2, 1])),
            "largest_sources": {"192.0.2.2": 2, "192.0.2.1": 1, "192.0.2.3": 1},
        },
    }
    assert len(lines) == 3
    assert lines[0].startswith("step 0: [3, 128], 288 tokens, padding 25.00 %, 4 segments: 2 full")
    assert lines[0].endswith("192.0.2.1 → 8.8.8.8 1.000 ms 1970-01-01 00:16:40")
    assert "0 tokens, padding 100.00 %, 0 segments" in lines[1]
    assert lines[2].endswith(str(tmp_path / "new" / "folder"))
    text = (tmp_path / "new" / "folder" / "decoded-host3.txt").read_text()
    assert text.count("\n  ") == 18
    assert "step 0, example 0, segment 2 of 40 tokens: 3 measurements" in text
    assert text.count("→ 8.8.8.8               failed  –") == 1
    assert text.endswith("  192.0.2.3       → –                          –  –  (cut)\n")


@pytest.mark.parametrize("variant", ["packed", "windows"])
def test_real_batches_pass(mixed: Mixed, variant: str) -> None:
    lines: list[str] = []
    report = FeedReport(None, 0, log=lines.append)
    batches = expected_batches(mixed["compact"], variant, 25)
    for batch in batches:
        report.add(batch)
    report.add({**batches[0], "targets": batches[0]["inputs"]})  # after the last step
    report.close()
    assert len(lines) == 16
    assert all(f": [8, {CROP}], " in line for line in lines)
    num_segments = int(batches[0]["inputs_segmentation"].max(axis=1).sum())
    assert f" {num_segments} segments: " in lines[0]


# --- bounds ---------------------------------------------------------------------------


def test_decoded_examples_are_bounded_without_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.statistics.plots.FEED_DRAWINGS", {})
    batch = crops(*[[FULL, NONE]] * 40)
    batch["inputs"][4, 0] = 11  # of 32 examples out of 40, the fifth is not one
    report = FeedReport(str(tmp_path), 0, num_steps=1)
    report.add(batch)
    (step,) = numbers_in(tmp_path)["steps"]
    assert (step["segments"], step["segments_decoded"]) == (80, 64)
    assert numbers_in(tmp_path)["decoded"]["segments"] == 64
    refusal_of(lambda: FeedReport(None, 0, log=print).add(batch), "example 4 position 0")


# --- invalid batches ---------------------------------------------------------------------


def put(suffix: str, example: int, position: int, value: int) -> Callable[[Batch], None]:
    """Returns what changes one number of all arrays whose names end so."""

    def damage(batch: Batch) -> None:
        for name in batch:
            if name.endswith(suffix):
                batch[name][example, position] = value

    return damage


def make_undecodable(batch: Batch) -> None:
    batch["inputs"][0, 58] = batch["targets"][0, 57] = 11


def change(name: str, changed: Callable[[np.ndarray], np.ndarray]) -> Callable[[Batch], None]:
    return lambda batch: batch.update({name: changed(batch[name])})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (put("inputs", 1, 5, 267), "example 1 position 5: inputs is 267: tokens are 0 to 266"),
        (put("targets", 1, 5, 9), "example 1 position 5: targets is 9: a target is the next input"),
        (put("targets_segmentation", 2, 7, 2), "example 2 position 7: targets_segmentation is 2"),
        (put("inputs", 1, 127, 1), "example 1 position 127: inputs is 1: padding is 0"),
        (
            put("_segmentation", 0, 20, 3),
            "example 0 position 20: inputs_segmentation is 3: segments are",
        ),
        (
            put("_position", 0, 57, 57),
            "example 0 position 57: inputs_position is 57: positions count",
        ),
        (lambda batch: batch.update(crops([np.append(FULL, PARTIAL)])), "it has several probes"),
        (make_undecodable, "example 0 position 57: segment 2, which begins there, does not decode"),
        (lambda batch: batch.pop("targets_position"), "the arrays are inputs, "),
        (change("inputs", lambda x: x.astype(np.int64)), "inputs is int64 [3, 128]"),
        (change("inputs", np.ravel), "inputs is int32 [384]"),
    ],
)
def test_invalid_batch(damage: Callable[[Batch], None], words: str, batch: Batch) -> None:
    report = FeedReport(None, 5, log=lambda line: None)
    report.add(batch)
    damage(batch)
    refusal_of(lambda: report.add(batch), "step 1 on host 5: ", words, "analyze_padding")


# --- invalid arguments -----------------------------------------------------------------------
