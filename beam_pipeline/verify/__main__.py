"""Reads a whole dataset back and checks every promise of its format, record by record.

  python -m beam_pipeline.verify rows
  python -m beam_pipeline.verify gs://bucket/rows --max_faults=100

Does not need Beam. Memory is a few MiB of records, about 50 bytes per row, and rows.parquet of one
split. Prints one line per check, and each fault with its shard and record. Exit codes: 0, all
promises are kept; 1, some are broken, or the dataset is not finished; 2, invalid command.
"""

import sys
from collections.abc import Sequence

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser, check_range


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped; the dataset was not checked completely")


def make_parser() -> OneLineParser:
    parser = OneLineParser(
        "beam_pipeline.verify", "Checks every promise of a dataset of probe rows.", "rows"
    )
    parser.add_argument("dataset", help="the folder that --output named, local or gs://")
    parser.add_argument(
        "--max_faults", type=int, default=20, help="faults shown of each check (%(default)s)"
    )
    return parser


def _run(argv: Sequence[str]) -> int:
    args = make_parser().parse_args(argv)
    check_range("max_faults", args.max_faults, 0, None)
    from beam_pipeline.verify.terminal import verify_and_report

    return verify_and_report(args.dataset, args.max_faults)


if __name__ == "__main__":
    sys.exit(main())
