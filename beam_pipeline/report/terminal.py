"""Terminal output: sentences, tables that fit the width, and progress bars.

On a terminal, text wraps between words and numbers are never cut. Elsewhere, such as in a log,
sentences are one line and tables have a fixed width.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from beam_pipeline.errors import printable
from beam_pipeline.report.tables import Table

_LOG_WIDTH = 118
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


def print_table(console: Console, table: Table, styles: Mapping[str, str] | None = None) -> None:
    """Prints a table after an empty line; `styles` are rich styles by the text of a whole cell."""
    console.print()
    console.print(_rich_table(table, styles or {}))


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
