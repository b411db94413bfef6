"""Measures what a dataset gives in training, and runs a checklist over it.

  python -m training.analyze_padding rows
  python -m training.analyze_padding rows/test --output=figures --max_rows=1000

Tables of padding, timestamp modes, contexts per row, window spans, strides, and tokens and bytes
per measurement; with --output also as figures (matplotlib) and, with the checklist, as
figures.json. It measures a sample, which it describes: seconds, not minutes, whatever the size of
the dataset.

Exit code 0: every check that applies passes. 1: one fails. 2: the analysis cannot be run.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser, add_flags
from training.extent import AnalysisExtent

if TYPE_CHECKING:
    from training.padding.checklist import Check
    from training.padding.statistics import Statistics


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped; nothing was measured", failure_code=2)


def make_parser() -> OneLineParser:
    """Returns the parser of the flags."""
    parser = OneLineParser(
        "training.analyze_padding",
        "Padding, modes, windows and sizes of a dataset in training; a checklist.",
        "rows --output figures",
    )
    parser.add_argument(
        "dataset", help="a dataset's folder (its train split), a split's, or a glob of shards"
    )
    parser.add_argument("--output", help="local folder for figures and figures.json")
    add_flags(parser, dataclasses.fields(AnalysisExtent))
    return parser


def _run(argv: Sequence[str]) -> int:
    args = make_parser().parse_args(argv)
    extent = AnalysisExtent(
        **{item.name: getattr(args, item.name) for item in dataclasses.fields(AnalysisExtent)}
    )
    from beam_pipeline.report.plots import prepare_folder
    from beam_pipeline.report.terminal import progress_bar
    from training.padding.checklist import FAIL, run_checks
    from training.padding.measuring import measure
    from training.padding.tables import print_tables

    folder = prepare_folder(args.output, "--output") if args.output else None
    with progress_bar("measure", extent.max_rows + extent.num_batches) as advance:
        statistics = measure(args.dataset, extent, advance)
    checks = run_checks(statistics)
    print_tables(statistics, checks)
    if folder is not None:
        _write(folder, statistics, checks)
    print(f"\n{_conclusion(statistics, checks)}")
    return 1 if any(check.result == FAIL for check in checks) else 0


def _write(folder: Path, statistics: Statistics, checks: list[Check]) -> None:
    from beam_pipeline.report.plots import write_results
    from training.padding.plots import DRAWINGS
    from training.padding.tables import sample_text

    place = {
        "dataset": statistics.dataset.path,
        "split": statistics.shards.split,
        "encoding": statistics.encoding,
    }
    content = {
        **place,
        "options": dataclasses.asdict(statistics.extent),
        "sample": {
            "text": sample_text(statistics),
            "rows": len(statistics.rows),
            "rows_read": len(statistics.sampled),
            "epochs": statistics.epochs._asdict(),
            "batches": statistics.num_batches,
            "batch_size": statistics.batch_size,
            "bad_rows": statistics.bad_rows,
        },
        "figures": statistics.summary,
        "checks": [dataclasses.asdict(check) for check in checks],
    }
    note = " · ".join(place.values())
    names = write_results(folder, "figures.json", content, note, DRAWINGS, statistics)
    print(f"\nwritten to {folder}: {', '.join(names)}")


def _conclusion(statistics: Statistics, checks: list[Check]) -> str:
    from training.padding.checklist import FAIL, NOT_APPLICABLE

    failed = [check.name for check in checks if check.result == FAIL]
    absent = [check.name for check in checks if check.result == NOT_APPLICABLE]
    text = f"{statistics.files}: {len(checks) - len(failed) - len(absent)} checks pass"
    text += f", {len(absent)} not applicable ({', '.join(absent)})" if absent else ""
    if failed:
        text += (
            f", {len(failed)} FAILED ({', '.join(failed)}); python -m beam_pipeline.verify checks "
            "whether the dataset is damaged"
        )
    return text


if __name__ == "__main__":
    sys.exit(main())
