"""Measures a dataset as training sees it, and checks it.

  python -m training.analyze_padding rows
  python -m training.analyze_padding rows/test --output=figures --max_rows=1000

Prints tables of padding, timestamp modes, contexts per row, window spans, strides, and tokens and
bytes per measurement; --output adds figures (matplotlib) and figures.json with the checks. It
measures a sample, so it takes seconds for a dataset of any size.

Exit code 0: every applicable check passes. 1: one fails. 2: the analysis cannot be run.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser, add_flags
from beam_pipeline.errors import program
from training.extent import AnalysisExtent

if TYPE_CHECKING:
    from training.statistics.analysis import Statistics
    from training.statistics.checks import Check


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
    from training.statistics.checks import FAIL, NOT_APPLICABLE, PASS, run_checks
    from training.statistics.summary import sample_text, summarise, tables

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
    styles = {PASS: "green", FAIL: "bold red", NOT_APPLICABLE: "yellow"}
    print_table(console, Table("Checks", columns, checks), styles)
    if folder is not None:
        from training.statistics.plots import DRAWINGS

        place = _place(statistics)
        content = {**place, **_content(statistics), "figures": summary}
        content["checks"] = [check._asdict() for check in checks]
        note = " · ".join(place.values())
        names = write_results(folder, "figures.json", content, note, DRAWINGS, statistics)
        print(f"\nwritten to {folder}: {', '.join(names)}")
    print(f"\n{statistics.files}: {_conclusion(checks)}")
    return 1 if any(check.result == FAIL for check in checks) else 0


def _place(statistics: Statistics) -> dict[str, str]:
    return {
        "dataset": statistics.dataset.path,
        "split": statistics.shards.split,
        "encoding": statistics.encoding,
    }


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
            "bad_rows": statistics.bad_rows,
        },
    }


def _conclusion(checks: Sequence[Check]) -> str:
    names: dict[str, list[str]] = {"pass": [], "not applicable": [], "FAIL": []}
    for check in checks:
        names[check.result].append(check.name)
    passed, absent, failed = names.values()
    text = f"{len(passed)} checks pass"
    text += f", {len(absent)} not applicable ({', '.join(absent)})" if absent else ""
    if failed:
        text += (
            f", {len(failed)} FAILED ({', '.join(failed)}); "
            f"{program('verify', 'beam_pipeline.verify')} checks whether the dataset is damaged"
        )
    return text


if __name__ == "__main__":
    sys.exit(main())
