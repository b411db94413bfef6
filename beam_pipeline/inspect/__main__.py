"""Shows the contents of a finished dataset, in the terminal or as an HTML page.

  python -m beam_pipeline.inspect rows
  python -m beam_pipeline.inspect gs://bucket/rows --html=report.html
  python -m beam_pipeline.inspect rows --row=train:12          one row, decoded
  python -m beam_pipeline.inspect rows --context=7,train:12,3  a training context: seed, row, K
  python -m beam_pipeline.inspect rows --compare=yesterday     differences from another dataset
  python -m beam_pipeline.inspect rows --compare=1             differences from generation 1

Sizes, IPv6, failed pings and probes are exact, from rows.parquet and the manifest. RTT, hours,
destinations and silences come from a bounded sample of the rows, the same each time. Does not need
Beam. Exit codes: 0, shown; 1, the dataset is unfinished or damaged; 2, invalid command.
"""

import sys
from collections.abc import Sequence
from functools import partial

from beam_pipeline.cli.command import require_packages, run_command
from beam_pipeline.cli.flags import Once, OneLineParser
from beam_pipeline.errors import UsageError
from beam_pipeline.inspect.names import parse_context_name, parse_row_name


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped")


def make_parser() -> OneLineParser:
    parser = OneLineParser(
        "beam_pipeline.inspect",
        "Shows the contents of a finished dataset of probe rows.",
        "rows --html report.html",
    )
    parser.add_argument("dataset", help="a dataset's folder, local or gs://")
    parser.add_argument("--html", help="file for a page with plots and all tables, local or gs://")
    parser.add_argument(
        "--row",
        type=partial(parse_row_name, flag="row"),
        help="show one row instead of the summary, by its number in rows.parquet: 12, test:3",
    )
    parser.add_argument(
        "--context",
        action=Once,
        type=parse_context_name,
        metavar="SEED,ROW,K",
        help="show one training context instead of the summary: 7,train:12,3",
    )
    parser.add_argument(
        "--compare",
        metavar="DATASET|GENERATION",
        help="show, instead of the summary, the differences from another dataset or an earlier "
        "generation of this one, by its number: yesterday, gs://bucket/rows, 1",
    )
    return parser


def _run(argv: Sequence[str]) -> None:
    args = make_parser().parse_args(argv)
    if args.compare is not None:
        if args.html is not None or args.row or args.context:
            raise UsageError(
                f"--compare={args.compare} excludes --html, --row and --context: leave them out"
            )
        from beam_pipeline.inspect.terminal import show_changes

        show_changes(args.dataset, args.compare)
        return
    if args.html is not None:
        require_packages("--html", "matplotlib", "jinja2")
    from beam_pipeline.inspect.terminal import show

    show(args.dataset, args.html, args.row, args.context)


if __name__ == "__main__":
    sys.exit(main())
