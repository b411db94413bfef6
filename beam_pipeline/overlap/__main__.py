"""Finds every n-gram that evaluation sets share with training documents.

On a laptop:
  python -m beam_pipeline.overlap --preset precise --input_path corpus \\
    --decontaminate_source eval/mmlu --output_path overlap --ngram_length 13

On Dataflow:
  python -m beam_pipeline.overlap --input_path gs://bucket/corpus \\
    --decontaminate_source gs://bucket/eval/mmlu --output_path gs://bucket/overlap \\
    --runner=DataflowRunner --project=P --region=R --temp_location=gs://bucket/temp \\
    --setup_file=./setup.py

Exit code 0: success. 1: the run failed. 2: the command cannot be run as given. 130: the run, or the
wait for a job on Dataflow, was interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from beam_pipeline.cli.command import tidy_up_on_signals
from beam_pipeline.jobs import program
from beam_pipeline.overlap.job.config import DeconConfig, make_parser, parse

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

__all__ = ["main", "make_parser"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""

    def run_job(config: DeconConfig, beam_options: PipelineOptions) -> str | None:
        from beam_pipeline.overlap import run

        return run.run(config, beam_options)

    return program.run_program(argv, parse, run_job, _print_summary, "result")


def _print_summary(config: DeconConfig, output: str, seconds: float) -> None:
    from beam_pipeline.overlap.summary import print_summary

    print_summary(config, output, seconds)
    if config.remove_output:
        from beam_pipeline.overlap.removal.job import print_removal

        print_removal(config.remove_output)


if __name__ == "__main__":
    tidy_up_on_signals()
    sys.exit(main())
