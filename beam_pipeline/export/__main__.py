"""Writes the measurements of a finished dataset, or some of them, as Parquet or CSV.

  python -m beam_pipeline.export rows --output=pings.parquet
  python -m beam_pipeline.export gs://bucket/rows --output=day.csv.gz --probe=192.0.2.1 \\
    --since=2026-11-01 --until=2026-11-02
  python -m beam_pipeline.export rows --output=- --split=test | head    CSV

They come in the order of the dataset: train before test, shard by shard, row by row. Rows that
rows.parquet rules out are not read. Memory is a few MiB of records and a million measurements. Does
not need Beam. Exit codes: 0, written; 1, nothing matches, or the dataset is unfinished or damaged;
2, invalid command.
"""

import sys
from collections.abc import Sequence

from beam_pipeline.cli.command import run_command, tidy_up_on_signals
from beam_pipeline.cli.flags import OneLineParser, check_range
from beam_pipeline.sources.options import Sample, parse_window


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped; no file was written")


def make_parser() -> OneLineParser:
    parser = OneLineParser(
        "beam_pipeline.export",
        "Writes the measurements of a dataset of probe rows as Parquet or CSV.",
        "rows --output pings.parquet",
    )
    add = parser.add_argument
    add("dataset", help="a dataset's folder, local or gs://")
    add(
        "--output",
        required=True,
        help="file to write, local or gs://: .parquet, .csv or .csv.gz; - is CSV on stdout",
    )
    add("--split", choices=("train", "test", "all"), default="all", help="default: %(default)s")
    add("--probe", action="append", help="addresses of probes, separated by commas; repeatable")
    add("--since", default="", help="start of the time window: 2026-11-01T12:00:00Z")
    add("--until", default="", help="end of the time window, exclusive")
    add(
        "--sample_probes",
        type=float,
        default=1.0,
        help="share of the probes, the same ones as a dataset with this flag has",
    )
    add("--overwrite", action="store_true", help="replace the file")
    return parser


def _run(argv: Sequence[str]) -> None:
    args = make_parser().parse_args(argv)
    check_range("sample_probes", args.sample_probes, 1e-9, 1)
    sample = Sample(args.sample_probes, 1.0, *parse_window(args.since, args.until))
    from beam_pipeline.export.measurements import chosen_batches, export

    parts = chosen_batches(args.dataset, args.split, args.probe, sample)
    export(parts, args.output, args.overwrite)


if __name__ == "__main__":
    tidy_up_on_signals()
    sys.exit(main())
