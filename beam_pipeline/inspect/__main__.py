"""Shows the contents of a finished dataset, in the terminal or as an HTML page.

  python -m beam_pipeline.inspect rows
  python -m beam_pipeline.inspect gs://bucket/rows --html=report.html
  python -m beam_pipeline.inspect rows --row=train:12          one row, decoded
  python -m beam_pipeline.inspect rows --context=7,train:12,3  a training context: seed, row, K

Sizes, families, failed pings and probes are exact, from rows.parquet and the manifest. RTT, hours,
destinations and silences come from a bounded sample of the rows, the same each time. Needs no
Beam. Exit code 0: shown. 1: there is no finished dataset, or it is damaged. 2: the command cannot
be run as given.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from beam_pipeline.cli.command import require_packages, run_command
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.dataset.manifest import SPLITS, open_dataset
from beam_pipeline.inspect.compare import conclusion
from beam_pipeline.inspect.context import draw_context, parse_context_name, print_context
from beam_pipeline.inspect.facts import Facts, gather, sample_text
from beam_pipeline.inspect.index import Index
from beam_pipeline.inspect.row import parse_row_name, read_row, row_sheet, row_text
from beam_pipeline.inspect.tables import sheets
from beam_pipeline.report.formatting import NONE, number_of
from beam_pipeline.report.terminal import new_console, print_sheet, say
from beam_pipeline.storage.files import write_file

_VERDICT_STYLES = {"alike": "green", "differs": "yellow", "unlike": "bold red"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _show, "stopped")


def _show(argv: Sequence[str]) -> None:
    args = _parse(argv)
    dataset = open_dataset(args.dataset)
    row = context = None
    if args.row:
        row = read_row(dataset, Index.read(dataset, args.row.split), args.row)
    if args.context:
        index = Index.read(dataset, args.context.row.split)
        context = draw_context(dataset, index, args.context)
    console = new_console()
    if row:
        say(console, row_text(row))
        print_sheet(console, row_sheet(row))
    if context:
        print_context(context, console)
    is_summary = row is None and context is None
    if args.html is None and not is_summary:
        return
    facts = gather(dataset)
    data = b""
    if args.html is not None:  # first: a reader of stdout, such as head, may end the program
        from beam_pipeline.inspect.page import page

        if row is None and (name := facts.typical_row):
            row = read_row(dataset, facts.indexes[name.split], name)
        data = page(facts, row, context)
        write_file(args.html, data)
    if is_summary:
        print_facts(facts, console)
    if args.html is not None:
        say(console, f"{args.html}: {len(data):,} bytes, to open in a browser")


def print_facts(facts: Facts, console: Console) -> None:
    """Prints the findings and all tables, and last whether test is like train."""
    manifest = facts.dataset.manifest
    probes = sum(split.num_probes for split in manifest.splits.values())
    period = f", {facts.period} UTC" if facts.period else ""
    console.print(
        f"[bold]{escape(facts.dataset.path)}[/]: "
        f"{number_of(manifest.counts.measurements, 'measurement')} of "
        f"{number_of(probes, 'probe')}{period}; made by Probeline "
        f"{manifest.versions.get('probeline', NONE)}",
        soft_wrap=not console.is_terminal,
    )
    console.print()
    for finding in facts.findings:
        mark = Text("!", "bold yellow") if finding.is_warning else Text("·", "dim")
        say(console, finding.text, mark)
    for sheet in sheets(facts):
        print_sheet(console, sheet, _VERDICT_STYLES, SPLITS)
    console.print()
    say(console, sample_text(facts))
    if (found := conclusion(facts.comparisons)) is not None:
        console.print()
        say(console, found.text, style=_VERDICT_STYLES[found.verdict])


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(
        "beam_pipeline.inspect", "Shows the contents of a finished dataset of probe rows."
    )
    parser.add_argument("dataset", help="the folder that --output named, local or gs://")
    parser.add_argument(
        "--html", help="where to write the page, plots and all tables, local or gs://"
    )
    parser.add_argument(
        "--row",
        type=partial(parse_row_name, flag="row"),
        help="show one row in place of the summary, by its number in rows.parquet: 12, test:3",
    )
    parser.add_argument(
        "--context",
        type=parse_context_name,
        metavar="SEED,ROW,K",
        help="show one training context in place of the summary: 7,train:12,3",
    )
    args = parser.parse_args(argv)
    if args.html is not None:
        require_packages("--html", {"matplotlib": "plots", "jinja2": "report"})
    return args


if __name__ == "__main__":
    sys.exit(main())
