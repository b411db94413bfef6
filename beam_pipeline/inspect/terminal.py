"""Prints the report of inspect and writes its page."""

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from beam_pipeline.dataset.rows import open_whole
from beam_pipeline.errors import number_of, printable
from beam_pipeline.inspect import comparison, row
from beam_pipeline.inspect.figures import gather
from beam_pipeline.inspect.findings import Report, report_on, sample_text
from beam_pipeline.inspect.tables import tables
from beam_pipeline.report.tables import NONE
from beam_pipeline.report.terminal import new_console, print_table, say
from beam_pipeline.storage.files import write_file

_VERDICT_STYLES = {"alike": "green", "differs": "yellow", "unlike": "bold red"}


def show(
    path: str,
    html: str | None = None,
    row_name: row.RowName | None = None,
    context_name: row.ContextName | None = None,
) -> None:
    """Shows a dataset, or one row or context of it, in the terminal and optionally as a page."""
    dataset = open_whole(path)
    one_row = row.read_row(dataset, row_name) if row_name else None
    context = row.draw_context(dataset, context_name) if context_name else None
    console = new_console()
    if one_row:
        say(console, row.row_text(one_row))
        print_table(console, row.row_table(one_row))
    if context:
        row.print_context(context, console)
    is_summary = one_row is None and context is None
    if html is None and not is_summary:
        return
    report = report_on(gather(dataset))
    data = b""
    if html is not None:  # first, since a reader of stdout, such as head, may end the program
        from beam_pipeline.inspect.page import page

        data = page(report, one_row, context)
        write_file(html, data)
    if is_summary:
        print_report(report, console)
    if html is not None:
        say(console, f"{html}: {len(data):,} bytes, to open in a browser")


def show_changes(path: str, other: str) -> None:
    """Shows how a dataset differs from another (a folder) or from its own generation (a number)."""
    sides = comparison.sides_of(open_whole(path), other)
    console = new_console()
    say(console, comparison.summary(*sides))
    for table in comparison.change_tables(*sides):
        print_table(console, table, _VERDICT_STYLES)


def print_report(report: Report, console: Console) -> None:
    """Prints the findings and all tables, then whether test is like train."""
    figures = report.figures
    manifest = figures.dataset.manifest
    period = f", {figures.period} UTC" if figures.period else ""
    console.print(
        f"[bold]{escape(printable(figures.dataset.path))}[/]: "
        f"{number_of(figures.totals.num_measurements, 'measurement')} of "
        f"{number_of(figures.num_probes, 'probe')}{period}; made by Probeline "
        f"{escape(printable(manifest.versions.get('probeline', NONE)))}",
        soft_wrap=not console.is_terminal,
    )
    console.print()
    for finding in report.findings:
        mark = Text("!", "bold yellow") if finding.is_warning else Text("·", "dim")
        say(console, finding.text, mark)
    for table in tables(report):
        print_table(console, table, _VERDICT_STYLES)
    console.print()
    say(console, sample_text(figures))
    if report.verdict:
        console.print()
        say(console, report.conclusion, style=_VERDICT_STYLES[report.verdict])
