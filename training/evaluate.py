"""Evaluates a trained model on held-out contexts, beside baselines that a network engineer knows.

  python -m training.evaluate --checkpoint=runs/first --data=rows
  python -m training.evaluate --checkpoint=runs/first --data=rows/train --num_contexts=1000

Loss in bits by kind of token and by timestamp mode; errors of predicted RTTs, and the calibration
of their distributions. Tables go to stdout; evaluation.json and figures (matplotlib) to --output.

Exit code 0: the model is evaluated. 2: it cannot be.
"""

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from beam_pipeline.cli.command import require_packages, run_command
from beam_pipeline.cli.flags import OneLineParser, add_flags
from training.evaluation.extent import Extent

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
        help="local folder for evaluation.json and figures (default: evaluation in that of the "
        "checkpoint; ./evaluation if it is not local)",
    )
    add_flags(parser, dataclasses.fields(Extent))
    return parser


def _run(argv: Sequence[str]) -> None:
    args = make_parser().parse_args(argv)
    extent = Extent(**{item.name: getattr(args, item.name) for item in dataclasses.fields(Extent)})
    is_local = "://" not in args.checkpoint
    beside = str(Path(args.checkpoint) / "evaluation") if is_local else "evaluation"
    require_packages("training.evaluate", "maxtext", "matplotlib")
    from beam_pipeline.report.plots import prepare_folder, write_results
    from beam_pipeline.report.terminal import progress_bar
    from training.evaluation.examples import open_splits
    from training.evaluation.plots import DRAWINGS, note_of
    from training.evaluation.results import NUM_PASSES, evaluate
    from training.evaluation.tables import print_tables

    split, train = open_splits(args.data)
    predictor = _load(args.checkpoint)
    folder = prepare_folder(args.output or beside, "--output")
    with progress_bar("evaluate", NUM_PASSES) as advance:
        evaluation = evaluate(predictor, split, train, extent, advance)
    print_tables(evaluation)
    content = {"checkpoint": args.checkpoint, **evaluation.to_json()}
    names = write_results(
        folder, "evaluation.json", content, note_of(evaluation), DRAWINGS, evaluation
    )
    print(f"\nwritten to {folder}: {', '.join(names)}")


def _load(checkpoint: str) -> "Predictor":
    """Loads the model, which imports MaxText."""
    from absl import logging

    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.set_verbosity(logging.ERROR)  # a restore warns once for every array
    from training.maxtext.predictor import load_predictor

    return load_predictor(checkpoint)


if __name__ == "__main__":
    sys.exit(main())
