"""Writes a training corpus without the text that it shares with evaluation sets.

  python -m beam_pipeline.overlap.remove --result_path overlap --output_path clean --remove split

The result is from `python -m beam_pipeline.overlap`, and the training files must not have changed.
All other flags go to Beam. Exit codes are those of the overlap job.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from beam_pipeline.cli.command import tidy_up_on_signals
from beam_pipeline.jobs import program
from beam_pipeline.overlap.removal.options import RemovalOptions, parse, removal_parser

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

__all__ = ["main", "make_parser"]

make_parser = removal_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    parse_removal = partial(parse, parser=make_parser(), options=RemovalOptions)
    return program.run_program(argv, parse_removal, _run, _print_summary, "clean corpus")


def _run(options: RemovalOptions, beam_options: PipelineOptions) -> str | None:
    from beam_pipeline.overlap.removal import job

    return job.remove(options, beam_options)


def _print_summary(options: RemovalOptions, output: str, seconds: float) -> None:
    from beam_pipeline.overlap.removal.job import print_removal

    print_removal(output)


if __name__ == "__main__":
    tidy_up_on_signals()
    sys.exit(main())
