"""Makes a page of an overlap job's output that a person can read, search and hand on.

  python -m beam_pipeline.overlap.report overlap
  python -m beam_pipeline.overlap.report gs://bucket/overlap --html report.html --png matrix.png

The page is one file that needs no network: the matrix of evaluation set by n, the instances that
overlap most with both texts side by side, hits by training file, and what is not shown. All
details are read once, in bounded memory: some seconds for every GB of decompressed lines.

Exit code 0: written. 1: the output cannot be read. 2: the command cannot be run as given.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.errors import UsageError
from beam_pipeline.storage.small_files import write_file

DEFAULT_HTML = "report.html"
DEFAULT_INSTANCES = 50
MOST_INSTANCES = 1_000  # a browser has to hold them all


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped; no report was written")


def _run(argv: Sequence[str]) -> None:
    args = _parse(argv)
    print(write_report(args.output, args.html, args.png, args.instances))


def write_report(
    output_path: str,
    html: str = DEFAULT_HTML,
    png: str | None = None,
    num_instances: int = DEFAULT_INSTANCES,
) -> str:
    """Writes the page and, if asked for, the picture; returns a sentence of what was written.

    Args:
      output_path: what the job had as --output_path; local, or on any filesystem of Beam.
      html, png: where to write, likewise.
      num_instances: how many instances are shown, those that overlap most.

    Raises:
      UsageError: this is no finished output, or a package is missing.
      ProbelineError: a file cannot be read or written.
    """
    _require("jinja2", "--html", "report")
    if png:
        _require("matplotlib", "--png", "plots")
    from beam_pipeline.overlap.report.figures import read_figures
    from beam_pipeline.overlap.report.output import Output
    from beam_pipeline.overlap.report.page import page
    from beam_pipeline.overlap.results.layout import DETAILS

    output = Output(output_path)
    with _progress(sum(output.find(DETAILS).values())) as advance:
        figures = read_figures(output, num_instances, advance)
    write_file(html, page(figures))
    if png:
        from beam_pipeline.overlap.report.picture import matrix_picture

        write_file(png, matrix_picture(figures))
    hits = figures.in_all
    return (
        f"{hits.num_hit:,} of {hits.num_instances:,} evaluation instances share an n-gram with the "
        f"training data; {' and '.join(filter(None, (html, png)))} written"
    )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = OneLineParser(
        "beam_pipeline.overlap.report", "One HTML page of the output of the overlap job."
    )
    parser.add_argument("output", help="the job's --output_path, local or gs://")
    parser.add_argument("--html", default=DEFAULT_HTML, help="the page (%(default)s)")
    parser.add_argument("--png", help="a picture of the matrix of evaluation set by n")
    parser.add_argument(
        "--instances",
        type=int,
        default=DEFAULT_INSTANCES,
        help="how many instances are shown, those that overlap most (%(default)s)",
    )
    args = parser.parse_args(argv)
    if not 0 <= args.instances <= MOST_INSTANCES:
        raise UsageError(
            f"--instances={args.instances}: give 0 to {MOST_INSTANCES:,}; a browser holds no more"
        )
    return args


def _require(package: str, flag: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise UsageError(
            f"{flag} needs {package}, which is in the extra `{extra}`: pip install '.[{extra}]'"
        )


@contextlib.contextmanager
def _progress(num_bytes: int) -> Iterator[Callable[[int], None]]:
    """Yields what is to be told of bytes of the details; shows them if a person looks on."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("read details"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("read", total=num_bytes)
        yield lambda position: progress.update(task, completed=position)


if __name__ == "__main__":
    sys.exit(main())
