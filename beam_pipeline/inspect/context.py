"""One training context: its tokens, beside the measurements that they decode to.

A context follows from seed, epoch (here 0), row and K alone. It is the one that
`training.sampler.ProbeRowSampler` draws with its default settings.
"""

import importlib
from collections.abc import Iterable
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from beam_pipeline.dataset.rows import Dataset
from beam_pipeline.inspect.index import Index
from beam_pipeline.inspect.names import ContextName
from beam_pipeline.inspect.row import check_row_name
from beam_pipeline.report.terminal import say

TOKEN_STYLES = {
    "start": "bold reverse",
    "source": "cyan",
    "destination": "blue",
    "time": "yellow",
    "RTT": "green",
    "failed": "bold red",
}


class Token(NamedTuple):
    """A token as text, and its field: start, source, destination, time, RTT or failed."""

    text: str
    kind: str


class DecodedMeasurement(NamedTuple):
    """The tokens of one measurement, and the measurement as text."""

    tokens: list[Token]
    text: str


class OneContext(NamedTuple):
    """A context; `about` is a sentence on how it was drawn."""

    name: ContextName
    about: str
    measurements: list[DecodedMeasurement]


def draw_context(dataset: Dataset, index: Index, name: ContextName) -> OneContext:
    """Draws a context with `training.inspect_context`, which is loaded here only.

    Raises:
      UsageError: there is no such row or context.
      ProbelineError: the row cannot be read.
    """
    check_row_name(name.row, index, "context")
    training = importlib.import_module("training.inspect_context")
    about, measurements = training.draw_context(dataset, *name.row, name.seed, name.k)
    shown = [DecodedMeasurement([Token(*t) for t in tokens], text) for tokens, text in measurements]
    return OneContext(name, about, shown)


def print_context(context: OneContext, console: Console) -> None:
    """Prints a context: each measurement on a line, its tokens below, coloured by field."""
    say(console, context.about)
    console.print(Text("tokens: ") + _coloured(zip(TOKEN_STYLES, TOKEN_STYLES, strict=True)))
    for number, measurement in enumerate(context.measurements):
        console.print(f"\n{number:3} {measurement.text}", soft_wrap=True, markup=False)
        console.print(Text("    ") + _coloured(measurement.tokens), soft_wrap=True)


def _coloured(tokens: Iterable[tuple[str, str]]) -> Text:
    """Returns tokens, each with its kind, as text."""
    return Text(" ").join(Text(text, TOKEN_STYLES[kind]) for text, kind in tokens)
