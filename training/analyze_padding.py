"""Measures a dataset as training sees it, and checks it.

  python -m training.analyze_padding rows
  python -m training.analyze_padding rows/test --output=figures --max_rows=1000

Prints tables of padding, timestamp modes, contexts per row, repeats and window spans; checks
contexts per row, modes and padding. --output adds figures (matplotlib) and figures.json. It
measures a sample, so it takes seconds for a dataset of any size.

Exit code 0: every applicable check passes. 1: one fails. 2: the analysis cannot be run, such as
with a damaged row.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser, add_flags
from training.extent import AnalysisExtent

if TYPE_CHECKING:
    from training.statistics.analysis import Statistics


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped; nothing was measured", failure_code=2)


def make_parser() -> OneLineParser:
    """Returns the parser of the flags."""
    parser = OneLineParser(
        "training.analyze_padding",
        "Padding, modes, windows and sizes of a dataset in training, with checks.",
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
    names = [item.name for item in dataclasses.fields(AnalysisExtent)]
    extent = AnalysisExtent(**{name: getattr(args, name) for name in names})
    from beam_pipeline.report.plots import prepare_folder, write_results
    from beam_pipeline.report.tables import Table
    from beam_pipeline.report.terminal import new_console, print_table, progress_bar, say
    from training.statistics.analysis import measure
    from training.statistics.summary import run_checks, sample_text, summarise, tables

    folder = prepare_folder(args.output, "--output") if args.output else None
    with progress_bar("measure", extent.max_rows + extent.num_batches) as advance:
        statistics = measure(args.dataset, extent, advance)
    summary = summarise(statistics)
    checks = run_checks(statistics, summary)
    console = new_console()
    say(console, sample_text(statistics))
    for table in tables(summary):
        print_table(console, table)
    columns = [(name, "text") for name in ("check", "measured", "result")]
    styles = {"pass": "green", "FAIL": "bold red", "not applicable": "yellow"}
    print_table(console, Table("Checks", columns, checks), styles)
    if folder is not None:
        from training.statistics.plots import DRAWINGS

        place = {
            "dataset": statistics.dataset.path,
            "split": statistics.shards.split,
            "encoding": statistics.encoding,
        }
        content = {**place, **_content(statistics), "figures": summary}
        content["checks"] = [check._asdict() for check in checks]
        note = " · ".join(place.values())
        names = write_results(folder, "figures.json", content, note, DRAWINGS, statistics.groups)
        print(f"\nwritten to {folder}: {', '.join(names)}")
    failed = [check.name for check in checks if check.result == "FAIL"]
    conclusion = (
        f"{len(failed)} checks FAILED ({', '.join(failed)})" if failed else "no check fails"
    )
    print(f"\n{statistics.files}: {conclusion}")
    return 1 if failed else 0


def _content(statistics: Statistics) -> dict[str, Any]:
    from training.statistics.summary import sample_text

    return {
        "options": dataclasses.asdict(statistics.extent),
        "sample": {
            "text": sample_text(statistics),
            "rows": len(statistics.rows),
            "rows_read": len(statistics.sampled),
            "epochs": statistics.epochs._asdict(),
            "batches": statistics.num_batches,
            "batch_size": statistics.batch_size,
        },
    }


if __name__ == "__main__":
    sys.exit(main())
