"""Terminal output: sentences, tables that fit the width, and progress bars.

On a terminal, text wraps between words and numbers are never cut. Elsewhere, such as in a log,
sentences are one line and tables have a fixed width.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from beam_pipeline.errors import printable
from beam_pipeline.report.tables import Table

_LOG_WIDTH = 118
_COLUMN_GAP = 3
_MAX_MIN_WIDTH = 15


def new_console() -> Console:
    """Returns a console on stdout, of a fixed width unless stdout is a terminal."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = _LOG_WIDTH
    return console


def say(console: Console, text: str, mark: Text | None = None, style: str = "") -> None:
    """Prints a sentence, indented behind an optional `mark`."""
    text = printable(text)
    if not console.is_terminal:
        console.print(*filter(None, (mark, Text(text, style))), soft_wrap=True)
        return
    line = RichTable.grid(padding=(0, 1, 0, 0))
    line.add_row(*filter(None, (mark, Text(text, style))))
    console.print(line)


def print_table(
    console: Console,
    table: Table,
    styles: Mapping[str, str] | None = None,
    groups: Sequence[str] = (),
) -> None:
    """Prints a table after an empty line.

    Args:
      styles: rich styles by the text of a whole cell, such as {"ok": "green"}.
      groups: first words of headings, such as the splits in `train rows` and `test rows`. A table
        wider than the terminal is printed one group at a time.
    """
    for part in _fitting(table, console.width, groups):
        console.print()
        console.print(_rich_table(part, styles or {}))


@contextlib.contextmanager
def progress_bar(label: str, total: float) -> Iterator[Callable[[float], None]]:
    """Yields a function that advances a bar on stderr, shown only on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn(label), BarColumn(), "{task.percentage:.0f} %", TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(label, total=total)
        yield lambda advance: progress.advance(task, advance)


def _fitting(table: Table, width: int, groups: Sequence[str]) -> Iterator[Table]:
    headings, formats = table.headings, table.formats
    lengths = [max(map(len, cells)) for cells in zip(headings, *table.cells, strict=True)]
    places = {
        group: [at for at, name in enumerate(headings) if name.startswith(f"{group} ")]
        for group in groups
    }
    total = sum(lengths) + _COLUMN_GAP * len(lengths)
    if total < width or not groups or not all(places.values()):
        yield table
        return
    texts = [at for at, name in enumerate(formats) if name == "text"]
    for group, members in places.items():
        chosen = [*texts, *members]
        yield replace(
            table,
            title=f"{table.title}, {group}",
            columns=[(headings[at], formats[at]) for at in chosen],
            rows=[[row[at] for at in chosen] for row in table.rows],
        )


def _rich_table(table: Table, styles: Mapping[str, str]) -> RichTable:
    headings = table.headings
    rows = table.cells or [["none", *[""] * (len(headings) - 1)]]
    title = Text(printable(table.title), "bold") if table.title else None
    shown = RichTable(*map(printable, headings), title=title, title_justify="left", box=SIMPLE_HEAD)
    for at, (column, name) in enumerate(zip(shown.columns, table.formats, strict=True)):
        column.overflow = "fold"
        cells, words = [row[at] for row in rows], headings[at].split()
        if name == "text":  # wraps between words, and an address anywhere
            words += [word for cell in cells for word in cell.split()]
            column.min_width = min(_MAX_MIN_WIDTH, max(map(len, words), default=1))
        else:  # only the heading wraps
            column.min_width = max(map(len, words + cells), default=1)
            column.justify = "right"
    for row in rows:
        shown.add_row(*(Text(printable(cell), styles.get(cell, "")) for cell in row))
    return shown
