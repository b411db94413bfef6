"""Writes a page of an overlap job's output to read, search and share.

  python -m beam_pipeline.overlap.report overlap
  python -m beam_pipeline.overlap.report gs://bucket/overlap --html report.html --png matrix.png

The page is one file that needs no network: the matrix of evaluation set by n, the instances that
overlap most with both texts side by side, hits by training file, and what is not shown. All
details are read once, in bounded memory: some seconds for every GB of decompressed lines.

Exit code 0: written. 1: the output cannot be read. 2: the command cannot be run as given.
"""

import sys
from collections.abc import Sequence

from beam_pipeline.cli.command import require_packages, run_command
from beam_pipeline.cli.flags import OneLineParser, check_range

DEFAULT_HTML = "report.html"
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
        "overlap --html report.html --png matrix.png",
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
    return parser


def _run(argv: Sequence[str]) -> None:
    args = make_parser().parse_args(argv)
    check_range("instances", args.instances, 0, MAX_INSTANCES)
    print(write_report(args.output, args.html, args.png, args.instances))


def write_report(
    output_path: str,
    html: str = DEFAULT_HTML,
    png: str | None = None,
    num_instances: int = DEFAULT_INSTANCES,
) -> str:
    """Writes the page and, if asked for, the picture; returns a sentence about both.

    Args:
      output_path: the job's --output_path, local or on any filesystem of Beam.
      html: where to write the page, likewise.
      png: where to write the picture; None for no picture.
      num_instances: how many instances are shown, those that overlap most.

    Raises:
      UsageError: this is not a finished output, or a package is missing.
      ProbelineError: a file cannot be read or written.
    """
    require_packages("--html", "jinja2")
    if png:
        require_packages("--png", "matplotlib")
    from beam_pipeline.overlap.report.output import Output
    from beam_pipeline.overlap.report.page import page
    from beam_pipeline.overlap.report.statistics import read_statistics
    from beam_pipeline.overlap.results.layout import DETAILS
    from beam_pipeline.report.terminal import progress_bar
    from beam_pipeline.storage.files import write_file

    output = Output(output_path)
    with progress_bar("read details", output.num_bytes(DETAILS)) as advance:
        statistics = read_statistics(output, num_instances, advance)
    write_file(html, page(statistics))
    if png:
        from beam_pipeline.overlap.report.picture import matrix_picture

        write_file(png, matrix_picture(statistics))
    written = " and ".join(filter(None, (html, png)))
    return (
        f"{statistics.at_any} evaluation instances share an n-gram with the training data; "
        f"{written} written"
    )


if __name__ == "__main__":
    sys.exit(main())
