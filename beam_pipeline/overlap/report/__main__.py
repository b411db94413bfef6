"""Writes an HTML page of an overlap job's output.

  python -m beam_pipeline.overlap.report overlap
  python -m beam_pipeline.overlap.report gs://bucket/overlap --html page.html

The page is one file that needs no network: evaluation sets by n and coverage, the rows with most
covered tokens with both texts side by side, what removal would take, hits by training file, and
what is not counted. Its figures are those of stats/report.json, which the job writes.

Exit code 0: written. 1: the output cannot be read. 2: the command cannot be run as given.
"""

import sys
from collections.abc import Sequence

from beam_pipeline.cli.command import require_packages, run_command
from beam_pipeline.cli.flags import OneLineParser, check_range

DEFAULT_HTML = "overlap.html"
DEFAULT_INSTANCES = 50
MAX_INSTANCES = 1_000  # MAX_ROWS of report.json


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped; no report was written")


def make_parser() -> OneLineParser:
    """Returns the parser of the flags."""
    parser = OneLineParser(
        "beam_pipeline.overlap.report",
        "Writes one HTML page of the output of the overlap job.",
        "overlap --html overlap.html",
    )
    parser.add_argument("output", help="the job's --output_path, local or gs://")
    parser.add_argument("--html", default=DEFAULT_HTML, help="the page (%(default)s)")
    parser.add_argument(
        "--removed",
        action="append",
        default=[],
        metavar="FOLDER",
        help="a clean corpus that beam_pipeline.overlap.remove wrote, to show what it took; may be "
        "repeated",
    )
    parser.add_argument(
        "--instances",
        type=int,
        default=DEFAULT_INSTANCES,
        help="number of rows shown with their texts, those with most tokens covered (%(default)s)",
    )
    return parser


def _run(argv: Sequence[str]) -> None:
    args = make_parser().parse_args(argv)
    check_range("instances", args.instances, 0, MAX_INSTANCES)
    print(write_report(args.output, args.html, args.instances, args.removed))


def write_report(
    output_path: str,
    html: str = DEFAULT_HTML,
    num_instances: int = DEFAULT_INSTANCES,
    removed: Sequence[str] = (),
) -> str:
    """Writes the page; returns a summary sentence.

    Args:
      output_path: the job's --output_path, local or on any filesystem of Beam.
      num_instances: number of rows shown with their texts.
      removed: folders of clean corpora made from this output.

    Raises:
      UsageError: the output is not finished, or jinja2 is missing.
      ProbelineError: a file cannot be read or written.
    """
    require_packages("--html", "jinja2")
    from beam_pipeline.overlap.report.contents import read_contents, read_removed
    from beam_pipeline.overlap.report.instances import num_bytes_read, read_instances
    from beam_pipeline.overlap.report.output import finished_output
    from beam_pipeline.overlap.report.page import Summary, page
    from beam_pipeline.overlap.results.layout import SUMMARY
    from beam_pipeline.report.terminal import progress_bar
    from beam_pipeline.storage.files import write_file

    output = finished_output(output_path)
    summary = output.record(SUMMARY, Summary)
    report, details = read_contents(output, summary.ngram_lengths), summary.options["details"]
    removals = [read_removed(folder, report.removal) for folder in removed]
    with progress_bar("read results", num_bytes_read(output, details)) as advance:
        instances = read_instances(output, report.rows[:num_instances], details, advance)
    write_file(html, page(output.path, summary, report, instances, removals))
    return (
        f"{report.overall[0]} evaluation rows share an n-gram with the training data; "
        f"{html} written"
    )


if __name__ == "__main__":
    sys.exit(main())
