"""Writes a training corpus anew without what evaluation sets share with it.

  python -m beam_pipeline.overlap.remove --result_path overlap --output_path clean --remove split

The result is one of `python -m beam_pipeline.overlap`, and the training files are as they were
then. All other flags go to Beam. Exit codes are those of the overlap job.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from beam_pipeline.cli.command import tidy_up_on_sigterm
from beam_pipeline.jobs import program
from beam_pipeline.overlap.removal.options import RemovalOptions, make_parser, options_of

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

__all__ = ["main", "make_parser"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return program.run_program(argv, _parse, _run, _print_summary, "clean corpus")


def _parse(argv: Sequence[str]) -> tuple[RemovalOptions, PipelineOptions]:
    known, rest = make_parser().parse_known_args(argv)
    options = options_of(known)
    from beam_pipeline.jobs.beam_options import parse_beam_options

    return options, parse_beam_options(rest, [item.name for item in fields(RemovalOptions)])


def _run(options: RemovalOptions, beam_options: PipelineOptions) -> str | None:
    from beam_pipeline.overlap.removal import job

    return job.run(options, beam_options)


def _print_summary(options: RemovalOptions, output: str, seconds: float) -> None:
    import orjson

    from beam_pipeline.overlap.removal.job import MANIFEST
    from beam_pipeline.storage.files import read_file

    counts = orjson.loads(read_file(f"{output}/{MANIFEST}") or b"{}")["counts"]
    print(
        f"{counts['records_in']:,} records in {seconds:.1f} s: {counts['untouched']:,} untouched, "
        f"{counts['changed']:,} changed to {counts['records_out']:,}, {counts['dropped']:,} "
        f"dropped; the counts by file are in {output}/{MANIFEST}"
    )


if __name__ == "__main__":
    tidy_up_on_sigterm()
    sys.exit(main())
