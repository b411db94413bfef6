"""Output for a terminal: sentences, tables that fit its width, and progress bars.

On a terminal, text is broken between words and no number is cut. Elsewhere, such as in a log, a
sentence is one line and a table has a fixed width.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from beam_pipeline.errors import printable

_LOG_WIDTH = 118
_COLUMN_GAP = 3
_MAX_MIN_WIDTH = 15


@dataclass(frozen=True)
class Sheet:
    """A table of plain text: the first `num_text` columns are text, the others are numbers.

    Columns that begin with the name of a split, such as `train rows`, form one group a split; a
    sheet that is too wide for the terminal is printed a group at a time.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_text: int = 1
    name: str = ""


def new_console() -> Console:
    """Returns a console on stdout, with a fixed width if that is no terminal."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = _LOG_WIDTH
    return console


def say(console: Console, text: str, mark: Text | None = None, style: str = "") -> None:
    """Prints a sentence, indented behind `mark` if there is one."""
    text = printable(text)
    if not console.is_terminal:
        console.print(*filter(None, (mark, Text(text, style))), soft_wrap=True)
        return
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_row(*filter(None, (mark, Text(text, style))))
    console.print(line)


def print_sheet(
    console: Console,
    sheet: Sheet,
    styles: Mapping[str, str] | None = None,
    groups: Sequence[str] = (),
) -> None:
    """Prints a sheet after an empty line.

    Args:
      styles: the rich style of a cell by its whole text, such as {"ok": "green"}.
      groups: first words of columns that may be printed apart if the sheet is too wide.
    """
    for part in _fitting(sheet, console.width, groups):
        console.print()
        console.print(_table(part, styles or {}))


@contextlib.contextmanager
def progress_bar(label: str, total: float) -> Iterator[Callable[[float], None]]:
    """Yields a function that advances a bar on stderr; shows nothing where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn(label), BarColumn(), "{task.percentage:.0f} %", TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(label, total=total)
        yield lambda advance: progress.advance(task, advance)


def _fitting(sheet: Sheet, width: int, groups: Sequence[str]) -> Iterator[Sheet]:
    lengths = [
        max(len(row[at]) for row in (sheet.columns, *sheet.rows)) + _COLUMN_GAP
        for at in range(len(sheet.columns))
    ]
    places = {
        group: [at for at, name in enumerate(sheet.columns) if name.startswith(f"{group} ")]
        for group in groups
    }
    if sum(lengths) < width or not groups or not all(places.values()):
        yield sheet
        return
    for group, of_group in places.items():
        chosen = [*range(sheet.num_text), *of_group]
        yield replace(
            sheet,
            title=f"{sheet.title}, {group}",
            columns=[sheet.columns[at] for at in chosen],
            rows=[[row[at] for at in chosen] for row in sheet.rows],
        )


def _table(sheet: Sheet, styles: Mapping[str, str]) -> Table:
    rows = sheet.rows or [("none", *[""] * (len(sheet.columns) - 1))]
    title = Text(printable(sheet.title), "bold") if sheet.title else None
    table = Table(
        *map(printable, sheet.columns), title=title, title_justify="left", box=SIMPLE_HEAD
    )
    for at, column in enumerate(table.columns):
        column.overflow = "fold"
        cells, words = [row[at] for row in rows], sheet.columns[at].split()
        if at < sheet.num_text:  # may break between words, and an address anywhere
            words += [word for cell in cells for word in cell.split()]
            column.min_width = min(_MAX_MIN_WIDTH, max(map(len, words), default=1))
        else:  # only the head may
            column.min_width = max(map(len, words + cells), default=1)
            column.justify = "right"
    for row in rows:
        table.add_row(*(Text(printable(cell), styles.get(cell, "")) for cell in row))
    return table
