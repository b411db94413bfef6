"""Writes records of other formats as sharded ArrayRecord: JSON lines, Parquet rows, TFRecord.

On a laptop:
  python -m beam_pipeline.convert --input 'c4/*.jsonl.gz' --output c4-records

On Dataflow:
  python -m beam_pipeline.convert --input 'gs://bucket/*.jsonl.gz' --output gs://bucket/records \\
    --runner=DataflowRunner --project=P --region=R --temp_location=gs://bucket/temp \\
    --setup_file=./setup.py

Exit codes: 0, the records are written; 1, the job failed; 2, the command is not valid; 130,
interrupted, or stopped waiting for a job on Dataflow.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from beam_pipeline.cli.command import tidy_up_on_signals
from beam_pipeline.convert.options import MANIFEST, ConvertOptions, make_parser, parse
from beam_pipeline.errors import number_of
from beam_pipeline.jobs import program

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

__all__ = ["main", "make_parser"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return program.run_program(argv, parse, _run, _print_summary, "set of records")


def _run(options: ConvertOptions, beam_options: PipelineOptions) -> dict[str, Any] | None:
    from beam_pipeline.convert import job

    return job.run(options, beam_options)


def _print_summary(options: ConvertOptions, manifest: dict[str, Any], seconds: float) -> None:
    counts = manifest["counts"]
    num_bytes = sum(shard["num_bytes"] for shard in manifest["shards"])
    print(
        f"{number_of(counts['records_out'], 'record')} of "
        f"{number_of(len(manifest['inputs']), 'file')} in "
        f"{len(manifest['shards']):,} shards of {num_bytes / 1e6:,.1f} MB, in {seconds:.1f} s"
    )
    if letters := counts["dead_letters"]:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in letters.items())
        print(f"{sum(letters.values()):,} dead letters below {options.output}: {reasons}")
    print(f"Counts and checksums are in {options.output.rstrip('/')}/{MANIFEST}")


if __name__ == "__main__":
    tidy_up_on_signals()
    sys.exit(main())
