"""Shows what a finished dataset holds: in the terminal, and as a page to look at.

  python -m beam_pipeline.inspect rows
  python -m beam_pipeline.inspect gs://bucket/rows --html=report.html
  python -m beam_pipeline.inspect rows --row=train:12          one row, decoded
  python -m beam_pipeline.inspect rows --context=7,train:12,3  a training context: seed, row, K

Sizes, families, failed pings and probes are exact, from rows.parquet and the manifest; RTT, hours,
destinations and silences are from a bounded sample of the rows, the same each time. Needs no
Beam. Exit code 0: shown. 1: there is no finished dataset, or it is damaged. 2: the command cannot
be run as given.
"""

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from typing import NamedTuple

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.dataset.manifest import Dataset, open_dataset
from beam_pipeline.errors import UsageError
from beam_pipeline.inspect.context import (
    ContextName,
    OneContext,
    draw_context,
    parse_context_name,
    print_context,
)
from beam_pipeline.inspect.facts import gather
from beam_pipeline.inspect.index import Index, RowName
from beam_pipeline.inspect.row import OneRow, parse_row_name, print_row, read_row
from beam_pipeline.inspect.terminal import new_console, print_facts, say
from beam_pipeline.storage.files import write_file

# What the page is made with, and the extra of setup.py that brings it.
_EXTRA_OF = {"matplotlib": "plots", "jinja2": "report"}


class _Arguments(NamedTuple):
    dataset: str
    html: str | None
    row: RowName | None
    context: ContextName | None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _show, "stopped")


def _show(argv: Sequence[str]) -> None:
    arguments = _parse(argv)
    dataset = open_dataset(arguments.dataset)
    row, context = _read(dataset, arguments)
    console = new_console()
    if row is not None:
        print_row(row, console)
    if context is not None:
        print_context(context, console)
    if arguments.html is None and (row is not None or context is not None):
        return
    facts = gather(dataset)
    num_bytes = 0
    if arguments.html is not None:  # first, since a reader such as head may not wait for the end
        from beam_pipeline.inspect.page import page

        shown_row = row
        if row is None and (name := facts.typical_row) is not None:
            shown_row = read_row(dataset, facts.indexes[name.split], name)
        data = page(facts, shown_row, context)
        write_file(arguments.html, data)
        num_bytes = len(data)
    if row is None and context is None:
        print_facts(facts)
    if arguments.html is not None:
        say(console, f"{arguments.html}: {num_bytes:,} bytes, to open in a browser")


def _read(dataset: Dataset, arguments: _Arguments) -> tuple[OneRow | None, OneContext | None]:
    row = context = None
    if (name := arguments.row) is not None:
        row = read_row(dataset, Index.read(dataset, name.split), name)
    if (asked := arguments.context) is not None:
        context = draw_context(dataset, Index.read(dataset, asked.row.split), asked)
    return row, context


def _parse(argv: Sequence[str]) -> _Arguments:
    args = _parser().parse_args(argv)
    if args.html is not None:
        _require_packages_of_html()
    return _Arguments(
        args.dataset,
        args.html,
        None if args.row is None else parse_row_name(args.row, "row"),
        None if args.context is None else parse_context_name(args.context),
    )


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        "beam_pipeline.inspect", "Shows what a finished dataset of probe rows holds."
    )
    parser.add_argument("dataset", help="the folder that --output named, local or gs://")
    parser.add_argument(
        "--html", help="where to write the page, plots and all tables, local or gs://"
    )
    parser.add_argument(
        "--row",
        help="show one row in place of the summary, by its number in rows.parquet: 12, test:3",
    )
    parser.add_argument(
        "--context",
        metavar="SEED,ROW,K",
        help="show one training context in place of the summary: 7,train:12,3",
    )
    return parser


def _require_packages_of_html() -> None:
    lacking = {p: e for p, e in _EXTRA_OF.items() if importlib.util.find_spec(p) is None}
    if lacking:
        raise UsageError(
            f"--html needs {' and '.join(lacking)}: pip install '.[{','.join(lacking.values())}]', "
            "or leave it out"
        )


if __name__ == "__main__":
    sys.exit(main())
