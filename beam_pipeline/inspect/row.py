"""One decoded row of a dataset, and one training context: its tokens beside its measurements.

On a command line a row is train:12, its number in rows.parquet; a context is SEED,ROW,K. A context
follows from these alone, in epoch 0; `training.sampler.ProbeRowSampler` draws the same one with its
default settings. `training.inspect_context` draws it, and is loaded by name, only here.
"""

import importlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from beam_pipeline.dataset import addresses
from beam_pipeline.dataset.end_names import Names
from beam_pipeline.dataset.row_codec import ProbeRow
from beam_pipeline.dataset.rows import Dataset
from beam_pipeline.dataset.sorted_run import widen
from beam_pipeline.errors import UsageError
from beam_pipeline.inspect.names import ContextName, RowName
from beam_pipeline.report.tables import Table, bytes_text, ms_text, percent, span_us_text, time_text
from beam_pipeline.report.terminal import say

_NUM_AT_EACH_END = 10
TOKEN_STYLES = {
    "start": "bold reverse",
    "source": "cyan",
    "destination": "blue",
    "time": "yellow",
    "RTT": "green",
    "failed": "bold red",
}


class OneRow(NamedTuple):
    name: RowName
    shard: str
    position: int
    row: ProbeRow
    names: Names


def check_row_name(name: RowName, num_rows: int, flag: str) -> None:
    if name.number >= num_rows:
        have = f"0 to {num_rows - 1}" if num_rows else "none"
        raise UsageError(f"--{flag}: there is no row {name}; {name.split} has {have}")


def read_row(dataset: Dataset, name: RowName) -> OneRow:
    """Reads a row; UsageError if the split lacks it, ProbelineError if it cannot be read."""
    rows = dataset.rows(name.split)
    check_row_name(name, len(rows), "row")
    shard, position = rows.lines.place(name.number)
    path = dataset.manifest.splits[name.split].shards[shard].path
    return OneRow(name, path, position, rows[name.number], Names.read(dataset))


def row_text(one: OneRow) -> str:
    """Describes the row in two sentences."""
    row, run = one.row, widen(one.row.run)
    answered = run["rtt"][run["rtt"] >= 0]
    median = ms_text(float(np.median(answered)) if len(answered) else None)
    failed = 1 - len(answered) / len(run)
    destinations = len(np.unique(run[["dst_hi", "dst_lo"]]))
    (probe,) = one.names.shown([row.src_addr]).to_pylist()
    span_us = row.last_timestamp_us - row.first_timestamp_us
    return (
        f"Row {one.name} is row {row.row_index} of probe {probe} ({one.shard} record "
        f"{one.position}): {row.n_measurements:,} measurements of {destinations:,} destinations in "
        f"{bytes_text(row.num_bytes)}, {row.encoding}, over {span_us_text(span_us)} from "
        f"{time_text(row.first_timestamp_us)} UTC. Median RTT {median} ms, {percent(failed)} "
        "failed."
    )


def row_table(one: OneRow) -> Table:
    """Returns the measurements at both ends of the row."""
    run = widen(one.row.run)
    from_ends = np.minimum(np.arange(len(run)), np.arange(len(run))[::-1])
    places = np.flatnonzero(from_ends < _NUM_AT_EACH_END)
    some = run[places]
    halves = (np.ascontiguousarray(some[half]) for half in ("dst_hi", "dst_lo"))
    texts = one.names.shown(addresses.format_any(*halves)).to_pylist()
    unit = "s" if one.row.encoding == "compact" else "us"  # compact rows have whole seconds
    times = np.datetime_as_string(some["event_time"].astype("datetime64[us]"), unit)
    rows = [
        (f"{place:,}", str(time).replace("T", " "), text, "failed" if rtt < 0 else f"{rtt:.3f}")
        for place, time, text, rtt in zip(
            places.tolist(), times, texts, some["rtt"].tolist(), strict=True
        )
    ]
    title = f"Its measurements, {len(rows)} of {len(run):,}"
    if len(rows) < len(run):
        rows.insert(_NUM_AT_EACH_END, ("⋮", "", "", ""))
    columns = ("number", ("time, UTC", "text"), ("destination", "text"), "RTT, ms")
    return Table(title, columns, rows, "row")


# --- contexts -------------------------------------------------------------------------------------


class OneContext(NamedTuple):
    """A context, and how it was drawn; of each measurement the (text, field) tokens, and itself."""

    about: str
    measurements: list[tuple[list[tuple[str, str]], str]]


def draw_context(dataset: Dataset, name: ContextName) -> OneContext:
    """Draws a context; UsageError if it or its row does not exist, ProbelineError if unreadable."""
    check_row_name(name.row, len(dataset.rows(name.row.split)), "context")
    training = importlib.import_module("training.inspect_context")
    return OneContext(*training.draw_context(dataset, *name.row, name.seed, name.k))


def print_context(context: OneContext, console: Console) -> None:
    """Prints each measurement of a context on a line, its tokens below, coloured by field."""
    say(console, context.about)
    console.print(Text("tokens: ") + _coloured(zip(TOKEN_STYLES, TOKEN_STYLES, strict=True)))
    for number, (tokens, text) in enumerate(context.measurements):
        console.print(f"\n{number:3} {text}", soft_wrap=True, markup=False)
        console.print(Text("    ") + _coloured(tokens), soft_wrap=True)


def _coloured(tokens: Iterable[tuple[str, str]]) -> Text:
    """Returns tokens as text, coloured by kind."""
    return Text(" ").join(Text(text, TOKEN_STYLES[kind]) for text, kind in tokens)
