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

import contextlib
import sys
from collections.abc import Sequence

from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline.dataset.data_card import command_of
from beam_pipeline.dataset.manifest import Dataset, open_dataset
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.jobs import dataflow, output_folder, program
from beam_pipeline.probe_rows import pipeline as probe_rows
from beam_pipeline.probe_rows import progress
from beam_pipeline.probe_rows.commit import DATASET_FILES
from beam_pipeline.probe_rows.job import Job, Workspace
from beam_pipeline.probe_rows.options import Options, parse
from beam_pipeline.probe_rows.summary import print_summary
from beam_pipeline.sources import anonymize_key, inputs
from beam_pipeline.storage.files import is_local

_MAX_FILES_IN_LAUNCHER = 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (default: sys.argv) and returns the exit code."""
    return program.run_program(argv, parse, run, print_summary, "dataset")


def run(options: Options, beam_options: PipelineOptions) -> Dataset | None:
    """Runs the job to its end and returns the finished dataset, None if it only wrote a template.

    Raises:
      ProbelineError: the job failed; no dataset that looks finished is left.
    """
    dataflow_job = dataflow.job_of(beam_options)
    if dataflow_job is not None:
        paths = [("output", options.output), *(("input", path) for path in options.input)]
        program.check_paths_are_shared(paths)
        _check_key_is_shared(options)
    matched = inputs.match_files(options.input)
    read_options = options.read_options()
    files: list = matched
    if len(matched) <= _MAX_FILES_IN_LAUNCHER:
        files = [inputs.inspect(*file, read_options) for file in matched]
    with output_folder.taken(
        options.output, options.overwrite, dataflow_job, files=DATASET_FILES
    ) as job_run:
        pipeline = program.new_pipeline(beam_options)
        job = Job(
            output=options.output,
            command=command_of(options),
            read_options=read_options,
            dataset_options=options.dataset_options(),
            workspace=Workspace(job_run.folder, options.inline_bytes_for(beam_options)),
            marker=job_run.marker,
        )
        probe_rows.build(pipeline, files, job)
        watching = _progress(files, job_run.folder)
        if not program.run_to_end(pipeline, dataflow_job, job_run, watching):
            return None
    try:
        return open_dataset(options.output)
    except ProbelineError as error:
        raise ProbelineError(f"the runner ended without an error, yet {error}") from error


def _check_key_is_shared(options: Options) -> None:
    key = options.anonymize_key_file
    if options.anonymize != "none" and anonymize_key.is_on_this_machine(key):
        raise UsageError(
            f"{anonymize_key.described(key)} is on this machine, where Dataflow's workers do not "
            "see it: let --anonymize_key_file name a file on gs:// or a secret's version"
        )


def _progress(files: list, run_folder: str) -> contextlib.AbstractContextManager[None]:
    if not is_local(run_folder):
        return contextlib.nullcontext()  # its files cannot be watched from here
    known = [file for file in files if isinstance(file, inputs.InputFile)]
    return progress.watched(run_folder, inputs.plan_units(known), sys.stderr)


if __name__ == "__main__":
    program.tidy_up_on_sigterm()
    sys.exit(main())
