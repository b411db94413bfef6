"""One training context: its tokens, beside the measurements that they decode to.

The only part of `beam_pipeline` that knows `training`, which is loaded when a context is asked
for. A context follows from seed, epoch (here 0), row and K alone; it is what
`training.sampler.ProbeRowSampler` draws with its own settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from beam_pipeline.dataset.manifest import Dataset
from beam_pipeline.errors import UsageError
from beam_pipeline.inspect.index import Index, RowName
from beam_pipeline.inspect.row import check_row_name, parse_row_name
from beam_pipeline.inspect.terminal import say

if TYPE_CHECKING:
    from training.sampler import Example, ProbeRowSampler

_MAX_SEED = 2**63 - 1
# As short as can be told apart; a byte is shown as its value.
_SHORT_ROLES = ("start", "src4", "src6", "dst4", "dst6", "abs", "+1", "+4", "rtt", "put", "failed")
_STYLES = {
    "start": "bold reverse",
    "source": "cyan",
    "destination": "blue",
    "time": "yellow",
    "RTT": "green",
    "failed": "bold red",
}


class ContextName(NamedTuple):
    """Which context: of a seed, a row, and the K-th that the row gives in an epoch."""

    seed: int
    row: RowName
    k: int


class Token(NamedTuple):
    """A token as it is shown, and its kind: start, source, destination, time, RTT or failed."""

    text: str
    kind: str


class DecodedMeasurement(NamedTuple):
    """The tokens of one measurement and what they say."""

    tokens: list[Token]
    text: str


class OneContext(NamedTuple):
    """A context: `about` says in a sentence how it was drawn."""

    name: ContextName
    about: str
    measurements: list[DecodedMeasurement]


def parse_context_name(text: str) -> ContextName:
    """Parses SEED,ROW,K, such as 7,train:12,3.

    Raises:
      UsageError: it is not that.
    """
    parts = text.split(",")
    if len(parts) != 3 or not parts[0].isdecimal() or not parts[2].isdecimal():
        raise UsageError(f"--context={text} is not SEED,ROW,K, such as 7,train:12,3")
    if int(parts[0]) > _MAX_SEED:
        raise UsageError(f"--context={text}: the seed is over {_MAX_SEED}")
    return ContextName(int(parts[0]), parse_row_name(parts[1], "context"), int(parts[2]))


def draw_context(dataset: Dataset, index: Index, name: ContextName) -> OneContext:
    """Draws a context.

    Raises:
      UsageError: there is no such row or context, or what training needs is not installed.
      ProbelineError: the row cannot be read.
    """
    check_row_name(name.row, index, "context")
    try:
        from training.rows.row_source import ProbeRowDataSource
        from training.sampler import ProbeRowSampler
    except ImportError as error:
        raise UsageError(
            f"--context draws as training does, and {error.name} is not installed: "
            "pip install '.[training]', or leave it out"
        ) from error
    row = ProbeRowDataSource(dataset.file(name.row.split))[name.row.number]
    sampler = ProbeRowSampler(seed=name.seed)
    if sampler.is_small(row):
        return _of_small_row(name, row, sampler)
    count = sampler.num_contexts(len(row["measurements"]))
    _check_k(name, count)
    context = sampler.contexts(row)[name.k]
    about = (
        f"Context {name.k} of {count} that row {name.row} gives in epoch 0 with seed {name.seed}: "
        f"timestamp mode {context.mode}; {context.num_measurements} of a window of "
        f"{context.window:,} measurements from number {context.first:,} on, "
        f"{context.num_timed} of them with their time; {context.num_tokens:,} tokens, the last one "
        "a target only."
    )
    return OneContext(name, about, _decoded(context.example))


def _of_small_row(
    name: ContextName, row: Mapping[str, object], sampler: ProbeRowSampler
) -> OneContext:
    examples = list(sampler.examples(row))
    _check_k(name, len(examples))
    measurements = _decoded(examples[name.k])
    about = (
        f"Example {name.k} of {len(examples)} of the small row {name.row} in epoch 0 with seed "
        f"{name.seed}: all its measurements come once; in training several such rows are packed "
        f"into a crop of {sampler.crop_size:,} tokens."
    )
    return OneContext(name, about, measurements)


def _check_k(name: ContextName, count: int) -> None:
    if name.k >= count:
        raise UsageError(
            f"--context: K is {name.k}, row {name.row} gives contexts 0 to {count - 1}"
        )


def _decoded(example: Example) -> list[DecodedMeasurement]:
    """Decodes an example of one segment, its last target included."""
    from training.padding.feed_report import measurement_text
    from training.padding.feed_statistics import KIND_NAMES, token_kinds
    from training.tokens.tokenizer import FIRST_BYTE, MEASUREMENT_START, decode

    count = int((example["inputs_segmentation"] > 0).sum())
    tokens = np.append(example["inputs"][:1], example["targets"][:count])
    as_batch = {"inputs": tokens[None], "inputs_segmentation": np.ones((1, len(tokens)))}
    shown = [
        Token(_SHORT_ROLES[t] if t < FIRST_BYTE else str(t - FIRST_BYTE), KIND_NAMES[kind])
        for t, kind in zip(tokens.tolist(), token_kinds(as_batch)[0].tolist(), strict=True)
    ]
    starts = np.flatnonzero(tokens == MEASUREMENT_START).tolist()
    ends = [*starts[1:], len(tokens)]
    return [
        DecodedMeasurement(shown[start:end], measurement_text(measurement))
        for start, end, measurement in zip(starts, ends, decode(tokens), strict=True)
    ]


def print_context(context: OneContext, console: Console) -> None:
    """Prints a context, a measurement a line with its tokens below, coloured by kind."""
    say(console, context.about)
    console.print(Text.assemble("tokens: ", *_separated(list(_STYLES.items()))))
    for number, measurement in enumerate(context.measurements):
        console.print(f"\n{number:3} {measurement.text}", soft_wrap=True, markup=False)
        tokens = [(token.text, _STYLES[token.kind]) for token in measurement.tokens]
        console.print(Text.assemble("    ", *_separated(tokens)), soft_wrap=True)


def _separated(parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [piece for part in parts for piece in (part, (" ", ""))]
