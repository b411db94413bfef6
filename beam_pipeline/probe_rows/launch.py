"""Launches the probe-rows job: finds the input, takes the output, runs the pipeline.

Input files are matched, and if they are few inspected, before the output is touched. The job
succeeded if `_SUCCESS` exists.
"""

import contextlib
import itertools
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from rich.console import Console
from rich.live import Live

from beam_pipeline.dataset.data_card import command_of
from beam_pipeline.dataset.rows import Dataset, open_dataset
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.jobs import beam_options as runners
from beam_pipeline.jobs import dataflow, output_folder, running
from beam_pipeline.jobs.local_workers import forked_workers
from beam_pipeline.probe_rows import appending, progress
from beam_pipeline.probe_rows import pipeline as probe_rows
from beam_pipeline.probe_rows.input_datasets import carried_key, sort_inputs
from beam_pipeline.probe_rows.job import Job, Workspace
from beam_pipeline.probe_rows.options import LOCAL_INLINE_BYTES, REMOTE_INLINE_BYTES, Options
from beam_pipeline.probe_rows.switch import DATASET_FILES
from beam_pipeline.sources import anonymize_key, inputs, stored_rows
from beam_pipeline.sources.options import ReadOptions
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import is_local
from beam_pipeline.storage.matching import FileVersion

_MAX_FILES_IN_LAUNCHER = 1000
_ALWAYS_ALLOWED_SHARDS = 1000
_LOCAL_RUNNERS = (runners.IN_MEMORY_RUNNER, runners.PRISM_RUNNER)


def run(options: Options, beam_options: PipelineOptions) -> Dataset | None:
    """Runs the job to its end and returns the finished dataset, None if it only wrote a template.

    Raises:
      ProbelineError: the job failed; no dataset that looks finished is left.
    """
    runners.check_job_server(beam_options)
    dataflow_job = dataflow.job_of(beam_options)
    if dataflow_job is not None:
        paths = [("output", options.output), *(("input", path) for path in options.input)]
        running.check_paths_are_shared(paths)
        _check_key_is_shared(options)
    base = appending.open_base(options.output) if options.append else None
    read_options = options.read_options()
    given = sort_inputs(options)
    anonymized_by = carried_key(given, read_options.anonymize)
    matched = inputs.match_files(given.patterns)
    files: list = [file for dataset in given.datasets for file in stored_rows.shards_of(dataset)]
    new_files = matched + [file.file for file in files]
    planned = appending.plan(options, new_files)
    if base and appending.has_added(base, planned):
        return appending.tidied(options.output)
    if base:
        files += stored_rows.shards_of(base, is_of_output=True)
    if len(matched) <= _MAX_FILES_IN_LAUNCHER:
        files += _inspected(matched, read_options)
        _check_num_shards(options.num_shards, files)
        work: list = inputs.plan_units(files)
    else:
        work = files = files + matched
    runners.use_cores(beam_options, at_most=len(work))
    with (
        forked_workers(beam_options),
        output_folder.taken(
            options.output,
            options.overwrite,
            dataflow_job,
            files=DATASET_FILES,
            append=options.append,
            inputs=[file.path for file in new_files],
        ) as job_run,
    ):
        pipeline = running.new_pipeline(beam_options)
        job = Job(
            output=options.output,
            command=command_of(options, appending.all_inputs(base, planned)),
            read_options=read_options,
            anonymized_by=anonymized_by,
            dataset_options=options.dataset_options(),
            workspace=Workspace(job_run.folder, inline_bytes(options, beam_options)),
            marker=job_run.marker,
            planned=planned,
            base=appending.as_base(base.manifest) if base else None,
        )
        if base:
            appending.check(base, job.manifest_options())
        probe_rows.build(pipeline, files, job)
        watching = _progress(files, job_run.folder)
        if not running.run_to_end(pipeline, dataflow_job, job_run, watching):
            return None
    try:
        return open_dataset(options.output)
    except ProbelineError as error:
        raise ProbelineError(f"the runner ended without an error, yet {error}") from error


def _inspected(matched: Sequence[FileVersion], options: ReadOptions) -> list[inputs.InputFile]:
    """Inspects files, many at a time; a terminal shows how far it is.

    No thread remains, since workers are forked next; one that refreshes the line would.
    """
    found: list[inputs.InputFile] = []
    with (
        ThreadPoolExecutor(gcs.REQUESTS_AT_A_TIME) as pool,
        Live(console=Console(stderr=True), auto_refresh=False, transient=True) as line,
    ):
        for file in pool.map(inputs.inspect, matched, itertools.repeat(options)):
            found.append(file)
            shown = f"Looking at the input: {len(found)} of {len(matched)} files"
            line.update(shown, refresh=True)
    return found


def _check_num_shards(num_shards: int, files: Sequence[inputs.InputFile]) -> None:
    """Raises UsageError for many more shards than the input can fill; each takes a file."""
    num_rows = sum(sum(file.row_group_rows) for file in files)
    is_known = all(file.input_format in ("parquet", "probe_rows") for file in files)
    if is_known and num_shards > max(num_rows, _ALWAYS_ALLOWED_SHARDS):
        raise UsageError(
            f"--num_shards={num_shards} for {num_rows} rows leaves most shards empty: give at most "
            f"{max(num_rows, _ALWAYS_ALLOWED_SHARDS)}, or leave it out"
        )


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


def inline_bytes(options: Options, beam_options: PipelineOptions) -> int:
    """Returns --inline_bytes, or what suits the runner."""
    if options.inline_bytes >= 0:
        return options.inline_bytes
    runner = beam_options.view_as(StandardOptions).runner
    # Flink sorts a group within its managed memory, so little may be inline.
    is_bounded = runner in runners.RUNNERS_WITH_OWN_FLAGS
    if is_bounded or (runner in _LOCAL_RUNNERS and is_local(options.output)):
        return LOCAL_INLINE_BYTES
    return REMOTE_INLINE_BYTES
