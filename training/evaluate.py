"""Evaluates a trained model on held-out contexts, beside baselines that a network engineer knows.

  python -m training.evaluate --checkpoint=runs/first --data=rows
  python -m training.evaluate --checkpoint=runs/first --data=rows/train --num_contexts=1000

Loss in bits by kind of token and by timestamp mode; errors of predicted RTTs, and the calibration
of their distributions. Tables go to stdout; evaluation.json and pictures (matplotlib) to --output.

Exit code 0: it is evaluated. 2: it cannot be.
"""

import contextlib
import dataclasses
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
from absl import logging
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from beam_pipeline.cli.command import run_command
from beam_pipeline.cli.flags import OneLineParser
from beam_pipeline.errors import UsageError, explained_os_errors
from beam_pipeline.report.plot_style import prepare_folder
from training.evaluation.evaluating import evaluate
from training.evaluation.examples import Extent, Predictor, open_splits
from training.evaluation.predictions import Tell
from training.evaluation.results import Evaluation
from training.evaluation.tables import print_tables

RESULTS_NAME = "evaluation.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped; nothing was evaluated", failure_code=2)


def _run(argv: Sequence[str]) -> None:
    checkpoint, data, output, extent = _parse(argv)
    _check_matplotlib()
    split, train = open_splits(data)
    predictor = _load(checkpoint)
    folder = prepare_folder(output, "--output")
    with _progress() as tell:
        evaluation = evaluate(predictor, split, train, extent, tell)
    print_tables(evaluation)
    _write(evaluation, checkpoint, folder)


def _parse(argv: Sequence[str]) -> tuple[str, str, str, Extent]:
    default = Extent()
    parser = OneLineParser(
        "training.evaluate",
        "Loss, RTT errors and calibration of a trained model on held-out contexts.",
    )
    parser.add_argument("--checkpoint", required=True, help="the folder of a training run")
    parser.add_argument(
        "--data", required=True, help="a dataset's folder (its test split), or a split's"
    )
    parser.add_argument(
        "--output",
        help="local folder for evaluation.json and pictures (evaluation in that of the "
        "checkpoint; ./evaluation if it is not local)",
    )
    for name, what in (
        ("num_contexts", "examples that are evaluated"),
        ("num_rtt", "RTTs that are predicted, at most"),
        ("num_train_contexts", "training examples on which unigrams are counted"),
        ("num_train_rows", "training rows of which RTT medians are taken, at most"),
        ("batch_size", "examples that the model sees at once"),
        ("seed", "of the contexts and samples that are drawn"),
    ):
        value = getattr(default, name)
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{what} (%(default)s)")
    args = parser.parse_args(argv)
    names = [field.name for field in dataclasses.fields(Extent)]
    for name in names:
        least = 0 if name in ("num_rtt", "seed") else 1
        if getattr(args, name) < least:
            raise UsageError(f"--{name}={getattr(args, name)}: give {least} or more")
    is_local = "://" not in args.checkpoint
    beside = str(Path(args.checkpoint) / "evaluation") if is_local else "evaluation"
    extent = Extent(**{name: getattr(args, name) for name in names})
    return args.checkpoint, args.data, args.output or beside, extent


def _check_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "the pictures of an evaluation need matplotlib: pip install 'matplotlib>=3.9,<4'"
        )


def _load(checkpoint: str) -> Predictor:
    """Loads the model; only here is anything of MaxText imported."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.set_verbosity(logging.ERROR)  # a restore warns once for every array
    try:
        from training.maxtext.predictor import load_predictor
    except ImportError as error:
        raise UsageError(
            f"a checkpoint is read with MaxText ({error}): install it first"
        ) from error
    return load_predictor(checkpoint)


def _write(evaluation: Evaluation, checkpoint: str, folder: Path) -> None:
    from training.evaluation.plots import write_plots

    content = {"checkpoint": checkpoint, **evaluation.to_json()}
    with explained_os_errors("write into", str(folder)):
        (folder / RESULTS_NAME).write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
        pictures = write_plots(evaluation, folder)
    print(f"\nwritten to {folder}: {', '.join([RESULTS_NAME, *pictures])}")


@contextlib.contextmanager
def _progress() -> Iterator[Tell]:
    """Yields what is to be told of batches done; shows them if a person looks on."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("contexts")
        yield lambda what, done, total: progress.update(
            task, description=what, completed=done, total=total
        )


if __name__ == "__main__":
    sys.exit(main())
