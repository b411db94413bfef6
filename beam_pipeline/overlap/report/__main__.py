"""Writes a page of an overlap job's output to read, search and share.

  python -m beam_pipeline.overlap.report overlap
  python -m beam_pipeline.overlap.report gs://bucket/overlap --html report.html --png matrix.png
  python -m beam_pipeline.overlap.report overlap --format html,csv,markdown

The page is one file that needs no network: evaluation sets by n and coverage, the rows with most
covered tokens with both texts side by side, a search of all rows, what removal would take, hits by
training file, and what is not shown. --format writes the same tables for programs and documents.

Exit code 0: written. 1: the output cannot be read. 2: the command cannot be run as given.
"""

import sys
from collections.abc import Sequence

from beam_pipeline.cli.command import require_packages, run_command
from beam_pipeline.cli.flags import OneLineParser, check_range
from beam_pipeline.errors import UsageError

DEFAULT_HTML = "report.html"
FORMATS = ("html", "csv", "markdown")
DEFAULT_INSTANCES = 50
MAX_INSTANCES = 1_000  # a browser has to hold them all


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped; no report was written")


def make_parser() -> OneLineParser:
    """Returns the parser of the flags."""
    parser = OneLineParser(
        "beam_pipeline.overlap.report",
        "Writes one HTML page of the output of the overlap job.",
        "overlap --html report.html --format html,csv",
    )
    parser.add_argument("output", help="the job's --output_path, local or gs://")
    parser.add_argument("--html", default=DEFAULT_HTML, help="the page (%(default)s)")
    parser.add_argument(
        "--format",
        default=FORMATS[0],
        help="html, csv, markdown, or several with a comma between: report.html, report.NAME.csv "
        "for each table, report.md (%(default)s)",
    )
    parser.add_argument("--png", help="a picture of the matrix of evaluation set by n")
    parser.add_argument(
        "--removed",
        action="append",
        default=[],
        metavar="FOLDER",
        help="a clean corpus that beam_pipeline.overlap.remove wrote: what it took exactly; for "
        "several, say it again",
    )
    parser.add_argument(
        "--instances",
        type=int,
        default=DEFAULT_INSTANCES,
        help="how many instances are shown, those that overlap most (%(default)s)",
    )
    return parser


def _run(argv: Sequence[str]) -> None:
    args = make_parser().parse_args(argv)
    check_range("instances", args.instances, 0, MAX_INSTANCES)
    formats = [name.strip() for name in args.format.split(",")]
    print(write_report(args.output, args.html, args.png, args.instances, formats, args.removed))


def write_report(
    output_path: str,
    html: str = DEFAULT_HTML,
    png: str | None = None,
    num_instances: int = DEFAULT_INSTANCES,
    formats: Sequence[str] = FORMATS[:1],
    removed: Sequence[str] = (),
) -> str:
    """Writes the page, its tables as other files and a picture, as asked; returns a sentence.

    Args:
      output_path: the job's --output_path, local or on any filesystem of Beam.
      html: where to write the page, likewise; files of other formats lie beside it.
      png: where to write the picture; None for no picture.
      num_instances: how many instances are shown, those with most covered tokens.
      formats: some of FORMATS.
      removed: folders of clean corpora that were made by this output.

    Raises:
      UsageError: this is not a finished output, a format is unknown, or a package is missing.
      ProbelineError: a file cannot be read or written.
    """
    for name in formats:
        if name not in FORMATS:
            raise UsageError(f"--format={name}: give some of {', '.join(FORMATS)}, commas between")
    require_packages("--html", "jinja2")
    if png:
        require_packages("--png", "matplotlib")
    from beam_pipeline.overlap.report.output import Output
    from beam_pipeline.overlap.report.page import page
    from beam_pipeline.overlap.report.statistics import num_bytes_read, read_statistics
    from beam_pipeline.overlap.report.tables import csv_of, markdown_of, tables_of
    from beam_pipeline.report.terminal import progress_bar
    from beam_pipeline.storage.files import write_file

    output = Output(output_path)
    with progress_bar("read results", num_bytes_read(output)) as advance:
        statistics = read_statistics(output, num_instances, advance, removed)
    tables, stem, written = tables_of(statistics), html.removesuffix(".html"), []
    if "html" in formats:
        write_file(html, page(statistics, tables))
        written.append(html)
    if "csv" in formats:
        for table in tables.values():
            write_file(f"{stem}.{table.name}.csv", csv_of(table))
        written.append(f"{len(tables)} files {stem}.*.csv")
    if "markdown" in formats:
        heading = f"Train/test overlap: {output.path}"
        write_file(f"{stem}.md", markdown_of(tables.values(), heading))
        written.append(f"{stem}.md")
    if png:
        from beam_pipeline.overlap.report.picture import matrix_picture

        write_file(png, matrix_picture(statistics))
        written.append(png)
    return (
        f"{statistics.at_any} evaluation instances share an n-gram with the training data; "
        f"{' and '.join(written)} written"
    )


if __name__ == "__main__":
    sys.exit(main())
