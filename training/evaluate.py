"""Evaluates a trained model on held-out contexts, next to simple baselines.

  python -m training.evaluate --checkpoint=runs/first --data=rows
  python -m training.evaluate --checkpoint=runs/first --data=rows/train --num_contexts=1000

Reports loss in bits by kind of token and by timestamp mode, errors of predicted RTTs, and the
calibration of their distributions. Tables go to stdout; evaluation.json and figures to --output.

Exit code 0: the model was evaluated. 2: it could not be.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from beam_pipeline.cli.command import require_packages, run_command
from beam_pipeline.cli.flags import OneLineParser, add_flags
from training.extent import EvaluationExtent

if TYPE_CHECKING:
    from training.evaluation.predictions import Predictor


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return run_command(argv, _run, "stopped; nothing was evaluated", failure_code=2)


def make_parser() -> OneLineParser:
    """Returns the parser of the flags."""
    parser = OneLineParser(
        "training.evaluate",
        "Loss, RTT errors and calibration of a trained model on held-out contexts.",
        "--checkpoint runs/first --data rows",
    )
    parser.add_argument("--checkpoint", required=True, help="the folder of a training run")
    parser.add_argument(
        "--data", required=True, help="a dataset's folder (its test split), or a split's"
    )
    parser.add_argument(
        "--output",
        help="local folder for evaluation.json and figures (default: evaluation, or "
        "evaluation-SPLIT of another split than test, in the checkpoint's folder; here if that is "
        "not local)",
    )
    add_flags(parser, dataclasses.fields(EvaluationExtent))
    return parser


def _run(argv: Sequence[str]) -> None:
    args = make_parser().parse_args(argv)
    names = [item.name for item in dataclasses.fields(EvaluationExtent)]
    extent = EvaluationExtent(**{name: getattr(args, name) for name in names})
    is_local = "://" not in args.checkpoint
    beside = str(Path(args.checkpoint) / "evaluation") if is_local else "evaluation"
    require_packages("training.evaluate", "maxtext", "matplotlib")
    from beam_pipeline.report.plots import prepare_folder, write_results
    from beam_pipeline.report.terminal import progress_bar
    from training.evaluation.examples import open_splits
    from training.evaluation.report import DRAWINGS, note_of, print_tables
    from training.evaluation.results import NUM_PASSES, evaluate

    split, train = open_splits(args.data)
    predictor = _load(args.checkpoint)
    of_split = "" if split.shards.split == "test" else f"-{split.shards.split}"
    folder = prepare_folder(args.output or beside + of_split, "--output")
    with progress_bar("evaluate", NUM_PASSES) as advance:
        evaluation = evaluate(predictor, split, train, extent, advance)
    print_tables(evaluation)
    content = {"checkpoint": args.checkpoint, **evaluation.to_json()}
    names = write_results(
        folder, "evaluation.json", content, note_of(evaluation), DRAWINGS, evaluation
    )
    print(f"\nwritten to {folder}: {', '.join(names)}")


def _load(checkpoint: str) -> Predictor:
    """Loads the model, which imports MaxText."""
    from absl import logging

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.set_verbosity(logging.ERROR)  # a restore warns once per array
    from training.maxtext.predictor import load_predictor

    return load_predictor(checkpoint)


if __name__ == "__main__":
    sys.exit(main())
