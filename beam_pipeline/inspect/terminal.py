"""What a look at a dataset found, printed: sentences and tables that fit the terminal.

On a terminal, text is broken between words and no number is cut. Elsewhere, such as in a log,
a sentence is one line.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from beam_pipeline.dataset.manifest import SPLITS
from beam_pipeline.inspect.compare import conclusion
from beam_pipeline.inspect.facts import Facts, sample_text
from beam_pipeline.inspect.tables import Sheet, sheets
from beam_pipeline.inspect.words import number_of, period_text

_VERDICT_STYLES = {"alike": "green", "differs": "yellow", "unlike": "bold red"}
_WIDTH_OF_A_LOG = 118
_BETWEEN_COLUMNS = 3
_LONGEST_WORD = 15


def new_console() -> Console:
    """Returns a console on stdout, of a width that fits the tables where nobody knows one."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_A_LOG
    return console


def print_facts(facts: Facts) -> None:
    """Prints the findings and all sheets to stdout; whether test is like train comes last again."""
    console = new_console()
    manifest = facts.dataset.manifest
    probes = sum(split.num_probes for split in manifest.splits.values())
    period = f", {period_text(facts.period)} UTC" if facts.period else ""
    console.print(
        f"[bold]{escape(facts.dataset.path)}[/]: "
        f"{number_of(manifest.counts.measurements, 'measurement')} of "
        f"{number_of(probes, 'probe')}{period}; made by Probeline "
        f"{manifest.versions.get('probeline', '–')}",
        soft_wrap=not console.is_terminal,
    )
    console.print()
    for finding in facts.findings:
        mark = Text("!", "bold yellow") if finding.is_warning else Text("·", "dim")
        say(console, finding.text, mark)
    for sheet in sheets(facts):
        print_sheet(console, sheet)
    console.print()
    say(console, sample_text(facts))
    if (found := conclusion(facts.comparisons)) is not None:
        console.print()
        say(console, found.text, style=_VERDICT_STYLES[found.verdict])


def say(console: Console, text: str, mark: Text | None = None, style: str = "") -> None:
    """Prints a sentence after a mark, if there is one, and indented like it."""
    if not console.is_terminal:
        console.print(*filter(None, (mark, Text(text, style))), soft_wrap=True)
        return
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_row(*filter(None, (mark, Text(text, style))))
    console.print(line)


def print_sheet(console: Console, sheet: Sheet) -> None:
    """Prints a sheet; one that is too wide a split at a time, if that helps."""
    for one in _fitting(sheet, console.width):
        console.print()
        console.print(_table(one))


def _fitting(sheet: Sheet, width: int) -> Iterator[Sheet]:
    lengths = [max(len(row[at]) for row in (sheet.columns, *sheet.rows)) + _BETWEEN_COLUMNS
               for at in range(len(sheet.columns))]  # fmt: skip
    of_split = [
        [at for at, name in enumerate(sheet.columns) if name.startswith(f"{split} ")]
        for split in SPLITS
    ]
    if sum(lengths) < width or not all(of_split):
        yield sheet
        return
    for split, places in zip(SPLITS, of_split, strict=True):
        chosen = [*range(sheet.num_text), *places]
        yield replace(
            sheet,
            title=f"{sheet.title}, {split}",
            columns=[sheet.columns[at] for at in chosen],
            rows=[[row[at] for at in chosen] for row in sheet.rows],
        )


def _table(sheet: Sheet) -> Table:
    table = Table(*sheet.columns, title=Text(sheet.title, "bold"), title_justify="left")
    table.box = SIMPLE_HEAD
    for at, column in enumerate(table.columns):
        column.overflow = "fold"
        cells, words = [row[at] for row in sheet.rows], sheet.columns[at].split()
        if at < sheet.num_text:  # may break between words, and an address anywhere
            words += [word for cell in cells for word in cell.split()]
            column.min_width = min(_LONGEST_WORD, max(map(len, words), default=1))
        else:  # only the head may
            column.min_width = max(map(len, words + cells), default=1)
            column.justify = "right"
    for row in sheet.rows:
        table.add_row(*(Text(cell, _VERDICT_STYLES.get(cell, "")) for cell in row))
    return table
