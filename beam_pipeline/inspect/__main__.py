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
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from beam_pipeline.errors import ProbelineError, UsageError, explained_os_errors, one_line
from beam_pipeline.flags import OneLineParser, normalise_flags
from beam_pipeline.inspect.context import (
    ContextName,
    OneContext,
    draw_context,
    parse_context_name,
    print_context,
)
from beam_pipeline.inspect.facts import gather
from beam_pipeline.inspect.index import RowName, load_index
from beam_pipeline.inspect.row import OneRow, parse_row_name, print_row, read_row
from beam_pipeline.inspect.tables import new_console, print_facts
from beam_pipeline.manifest import Dataset, open_dataset


class _Arguments(NamedTuple):
    dataset: str
    html: str | None
    row: RowName | None
    context: ContextName | None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    try:
        arguments = _parse(sys.argv[1:] if argv is None else argv)
        _show(open_dataset(arguments.dataset), arguments)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except (ProbelineError, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


def _show(dataset: Dataset, arguments: _Arguments) -> None:
    row, context = _read(dataset, arguments)
    console = new_console()
    if row is not None:
        print_row(row, console)
    if context is not None:
        print_context(context, console)
    if arguments.html is None and (row is not None or context is not None):
        return
    facts = gather(dataset)
    if row is None and context is None:
        print_facts(facts)
    if arguments.html is not None:
        from beam_pipeline.inspect.page import page

        if row is None and (name := facts.typical_row) is not None:
            row = read_row(dataset, facts.indexes[name.split], name)
        data = page(facts, row, context).encode()
        with explained_os_errors("write", arguments.html), open(arguments.html, "wb") as file:
            file.write(data)
        console.print(f"{arguments.html}: {len(data):,} bytes, to open in a browser", markup=False)


def _read(dataset: Dataset, arguments: _Arguments) -> tuple[OneRow | None, OneContext | None]:
    row = context = None
    if (name := arguments.row) is not None:
        row = read_row(dataset, load_index(dataset, name.split), name)
    if (asked := arguments.context) is not None:
        context = draw_context(dataset, load_index(dataset, asked.row.split), asked)
    return row, context


def _parse(argv: Sequence[str]) -> _Arguments:
    args = _parser().parse_args(normalise_flags(argv))
    if args.html is not None:
        _check_html(args.html)
    return _Arguments(
        args.dataset,
        args.html,
        None if args.row is None else parse_row_name(args.row, "row"),
        None if args.context is None else parse_context_name(args.context),
    )


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m beam_pipeline.inspect",
        description="Shows what a finished dataset of probe rows holds.",
        allow_abbrev=False,
    )
    parser.add_argument("dataset", help="the folder that --output named, local or gs://")
    parser.add_argument("--html", help="local file for the page: plots and all tables, offline")
    parser.add_argument(
        "--row",
        help="show one row in place of the summary, by its number in rows.parquet: train:12",
    )
    parser.add_argument(
        "--context",
        metavar="SEED,ROW,K",
        help="show one training context in place of the summary: 7,train:12,3",
    )
    return parser


def _check_html(path: str) -> None:
    if "://" in path:
        raise UsageError(f"--html={path} is not a local file: give one, then copy it")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise UsageError(f"--html={path}: there is no folder {folder}; make it, or name another")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            f"--html={path} needs matplotlib for its plots: pip install '.[plots]', or leave it out"
        )


if __name__ == "__main__":
    sys.exit(main())
