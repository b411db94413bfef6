"""Writes the overlap of each training document with evaluation sets, in files beside the corpus.

  python -m beam_pipeline.overlap.attributes --result_path overlap --output_path corpus \\
    --format dolma

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
from beam_pipeline.overlap.removal.options import AttributeOptions, attributes_parser, parse

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

__all__ = ["main", "make_parser"]

make_parser = attributes_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    parse_attributes = partial(parse, parser=make_parser(), options=AttributeOptions)
    return program.run_program(argv, parse_attributes, _run, _print_summary, "set of attributes")


def _run(options: AttributeOptions, beam_options: PipelineOptions) -> str | None:
    from beam_pipeline.overlap.removal import job

    return job.write_attributes(options, beam_options)


def _print_summary(options: AttributeOptions, output: str, seconds: float) -> None:
    from beam_pipeline.overlap.removal.job import print_attributes

    print_attributes(options, output)


if __name__ == "__main__":
    tidy_up_on_signals()
    sys.exit(main())
