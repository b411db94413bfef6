"""Tells what a dataset gives in training, and runs the seeds' checklist over it.

  python -m training.analyze_padding rows
  python -m training.analyze_padding rows/test --output=pictures --max_rows=1000

Tables of padding, timestamp modes, contexts a row, window spans, strides, and tokens and bytes a
measurement; with --output also as pictures (matplotlib) and, with the checklist, as figures.json.
It looks at a sample, which it names: seconds, not minutes, whatever the size of the dataset.

Exit code 0: every check that applies passes. 1: one fails. 2: the analysis cannot be run.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.errors import UsageError, explained_os_errors
from beam_pipeline.report.plot_style import prepare_folder
from training.padding.checklist import FAIL, NOT_APPLICABLE, Check, run_checks
from training.padding.measuring import measure
from training.padding.statistics import Extent, Figures
from training.padding.summary import Line, summarise
from training.padding.tables import print_tables, sample_text

FIGURES_NAME = "figures.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped; nothing was measured", failure_code=2)


def _run(argv: Sequence[str]) -> int:
    files, output, extent = _parse(argv)
    folder = prepare_folder(output, "--output") if output else None
    with _progress(extent) as advance:
        figures = measure(files, extent, advance)
    summary = summarise(figures)
    checks = run_checks(figures, summary)
    print_tables(figures, summary, checks)
    if folder is not None:
        _write(folder, figures, summary, checks)
    print(f"\n{_conclusion(figures, checks)}")
    return 1 if any(check.result == FAIL for check in checks) else 0


def _parse(argv: Sequence[str]) -> tuple[str, str | None, Extent]:
    default = Extent()
    parser = OneLineParser(
        "training.analyze_padding",
        "Padding, modes, windows and sizes of a dataset in training; a checklist.",
    )
    parser.add_argument(
        "dataset", help="a dataset's folder (its train split), a split's, or a glob of shards"
    )
    parser.add_argument("--output", help="local folder for pictures and figures.json")
    for name, what in (
        ("crop_size", "tokens of an example"),
        ("seed", "of the sample and of everything that is drawn"),
        ("max_rows", "rows that are read one by one"),
        ("num_batches", "batches that are taken from build_dataset"),
    ):
        value = getattr(default, name)
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{what} (%(default)s)")
    args = parser.parse_args(argv)
    for name in ("max_rows", "num_batches"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name}={getattr(args, name)}: give 1 or more")
    extent = Extent(
        **{field.name: getattr(args, field.name) for field in dataclasses.fields(Extent)}
    )
    return args.dataset, args.output, extent


def _write(
    output: Path, figures: Figures, summary: dict[str, list[Line]], checks: list[Check]
) -> None:
    from training.padding.plots import write_plots

    content = {
        "dataset": figures.dataset.path,
        "split": figures.shards.split,
        "encoding": figures.encoding,
        "options": dataclasses.asdict(figures.extent),
        "sample": {
            "text": sample_text(figures),
            "rows": len(figures.rows),
            "rows_read": len(figures.sampled),
            "epochs": figures.epochs._asdict(),
            "batches": figures.num_batches,
            "batch_size": figures.batch_size,
            "bad_rows": figures.bad_rows,
        },
        "figures": summary,
        "checks": [dataclasses.asdict(check) for check in checks],
    }
    with explained_os_errors("write into", str(output)):
        pictures = write_plots(figures, summary, output)
        path = output / FIGURES_NAME
        path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    print(f"\nwritten to {output}: {', '.join([*pictures, FIGURES_NAME])}")


def _conclusion(figures: Figures, checks: list[Check]) -> str:
    failed = [check.name for check in checks if check.result == FAIL]
    absent = [check.name for check in checks if check.result == NOT_APPLICABLE]
    text = f"{figures.files}: {len(checks) - len(failed) - len(absent)} checks pass"
    text += f", {len(absent)} not applicable ({', '.join(absent)})" if absent else ""
    if failed:
        text += (
            f", {len(failed)} FAILED ({', '.join(failed)}); python -m beam_pipeline.verify tells "
            "whether the dataset is damaged"
        )
    return text


@contextlib.contextmanager
def _progress(extent: Extent) -> Iterator[Callable[[float], None]]:
    """Yields what is to be told of rows and batches done; shows them if a person looks on."""
    console = Console(stderr=True)
    columns = (TextColumn("measure"), BarColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("measure", total=extent.max_rows + extent.num_batches)
        yield lambda steps: progress.advance(task, steps)


if __name__ == "__main__":
    sys.exit(main())
