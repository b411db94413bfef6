"""Writes a dataset of probe rows from ping measurements.

On a laptop:
  python -m beam_pipeline.main --input 'data/*.parquet' --output rows

On Dataflow:
  python -m beam_pipeline.main --input 'gs://bucket/data/*.parquet' --output gs://bucket/rows \\
    --runner=DataflowRunner --project=P --region=R --temp_location=gs://bucket/temp \\
    --setup_file=./setup.py

Exit codes: 0, the dataset is finished; 1, the job failed; 2, the command is not valid; 130,
interrupted, or stopped waiting for a job on Dataflow.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from beam_pipeline.cli.command import tidy_up_on_signals
from beam_pipeline.jobs import program
from beam_pipeline.probe_rows.options import Options, make_parser, parse

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

    from beam_pipeline.dataset.rows import Dataset

__all__ = ["main", "make_parser"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return program.run_program(argv, parse, _run, _print_summary, "dataset")


def _run(options: Options, beam_options: PipelineOptions) -> Dataset | None:
    with program.importing():
        from beam_pipeline.probe_rows import launch

    return launch.run(options, beam_options)


def _print_summary(options: Options, dataset: Dataset, seconds: float) -> None:
    from beam_pipeline.probe_rows.progress import print_summary

    print_summary(options, dataset, seconds)


if __name__ == "__main__":
    tidy_up_on_signals()
    sys.exit(main())
