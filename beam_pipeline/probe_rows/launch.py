"""Launches the probe-rows job: finds the input, takes the output, runs the pipeline.

Input files are matched, and inspected if they are few, before the output is touched. The job
succeeded if `_SUCCESS` exists.
"""

import os
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from beam_pipeline.dataset.data_card import command_of
from beam_pipeline.dataset.rows import Dataset, open_dataset
from beam_pipeline.errors import UsageError
from beam_pipeline.jobs import beam_options as runners
from beam_pipeline.jobs import frame
from beam_pipeline.jobs.frame import Commit, JobSpec
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.probe_rows import appending
from beam_pipeline.probe_rows import pipeline as probe_rows
from beam_pipeline.probe_rows.job import Job
from beam_pipeline.probe_rows.options import LOCAL_INLINE_BYTES, REMOTE_INLINE_BYTES, Options
from beam_pipeline.probe_rows.pipeline import MeasurementFiles
from beam_pipeline.probe_rows.progress import look
from beam_pipeline.probe_rows.switch import DATASET_FILES
from beam_pipeline.sources import anonymize_key, inputs, stored_rows
from beam_pipeline.sources.anonymize_key import KeyReference
from beam_pipeline.storage.files import is_local, real_path
from beam_pipeline.storage.matching import FileVersion

_MAX_FILES_IN_LAUNCHER = 1000
_ALWAYS_ALLOWED_SHARDS = 1000
_LOCAL_RUNNERS = (runners.IN_MEMORY_RUNNER, runners.PRISM_RUNNER)


def run(options: Options, beam_options: PipelineOptions) -> Dataset | None:
    """Runs the job and returns the finished dataset; None if it only wrote a template."""
    paths = [("output", options.output), *(("input", path) for path in options.input)]
    dataflow_job = frame.check_runner(beam_options, paths)
    if dataflow_job is not None:
        _check_key_is_shared(options)
    base = appending.open_base(options.output) if options.append else None
    read_options = options.read_options()
    given = sort_inputs(options)
    anonymized_by = carried_key(given, read_options.anonymize)
    matched = inputs.match_files(given.patterns)
    stored = [file for dataset in given.datasets for file in stored_rows.shards_of(dataset)]
    new_files = matched + [file.file for file in stored]
    _check_apart(matched, options.output)
    planned = appending.plan(options, new_files)
    if base:
        if planned.files_digest in [each.files_digest for each in base.manifest.generations]:
            return appending.tidied(options.output)  # an append is idempotent
        stored += stored_rows.shards_of(base, is_of_output=True)
    datasets = [*given.datasets, base] if base else given.datasets
    named = tuple(dataset.path for dataset in datasets if dataset.manifest.names)
    files: MeasurementFiles = [*stored, *matched]
    if is_inspected_here := len(matched) <= _MAX_FILES_IN_LAUNCHER:
        inspect = partial(inputs.inspect, options=read_options)
        files = stored = stored + frame.inspected(matched, inspect)
        _check_num_shards(options.num_shards, stored)
    units = inputs.plan_units(stored)
    spec = JobSpec(
        output=options.output,
        files=DATASET_FILES,
        inputs=[file.path for file in new_files],
        num_units=len(units) if is_inspected_here else len(files),
        dataflow_job=dataflow_job,
        overwrite=options.overwrite,
        append=options.append,
        look=partial(look, units=units),
    )

    def build(pipeline: beam.Pipeline, job_run: JobRun) -> Commit:
        job = Job(
            run=job_run,
            command=command_of(options, appending.all_inputs(base, planned)),
            read_options=read_options,
            anonymized_by=anonymized_by,
            dataset_options=options.dataset_options(),
            inline_bytes=inline_bytes(options, beam_options),
            planned=planned,
            base=appending.as_base(base.manifest) if base else None,
            named_datasets=() if read_options.anonymize else named,
        )
        if base:
            appending.check(base, job.manifest_options())
        return probe_rows.build(pipeline, files, job)

    if not frame.run(spec, build, beam_options):
        return None
    return open_dataset(options.output)


def _check_apart(files: Sequence[FileVersion], output: str) -> None:
    """Raises UsageError for input in the output folder, which would then mean the dataset."""
    for file in files if is_local(output) else ():
        if os.path.dirname(real_path(file.path)) == real_path(output):
            raise UsageError(
                f"the input {file.path} lies in --output={output}, which would then be read as the "
                "dataset alone: choose another output"
            )


def _check_num_shards(num_shards: int, files: Sequence[inputs.MeasurementFile]) -> None:
    """Raises UsageError for far more shards than the input can fill, since each is a file."""
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


def inline_bytes(options: Options, beam_options: PipelineOptions) -> int:
    """Returns --inline_bytes, or the default for the runner."""
    if options.inline_bytes >= 0:
        return options.inline_bytes
    runner = beam_options.view_as(StandardOptions).runner
    # Flink sorts a group within its managed memory, so little may be inline.
    is_bounded = runner in runners.RUNNERS_WITH_OWN_FLAGS
    if is_bounded or (runner in _LOCAL_RUNNERS and is_local(options.output)):
        return LOCAL_INLINE_BYTES
    return REMOTE_INLINE_BYTES


class Inputs(NamedTuple):
    """The inputs: finished datasets, and patterns of files."""

    datasets: list[Dataset]
    patterns: list[str]


def sort_inputs(options: Options) -> Inputs:
    """Separates datasets from other inputs; ProbelineError unless they are whole and finished."""
    paths = list(dict.fromkeys(path.rstrip("/") or path for path in options.input))
    if options.input_format == "probe_rows":
        return Inputs([stored_rows.open_input(path) for path in paths], [])
    if options.input_format != "auto":
        return Inputs([], list(options.input))
    for path in filter(stored_rows.is_part, paths):
        stored_rows.open_input(path)  # refuses it
    folders = list(filter(stored_rows.is_dataset, paths))
    for folder in filter(is_local, folders):
        stored_rows.refuse_more_input(folder)
    patterns = [path for path in options.input if path.rstrip("/") not in folders]
    return Inputs([stored_rows.open_input(path) for path in folders], patterns)


def carried_key(inputs: Inputs, key: KeyReference | None) -> str:
    """Returns the fingerprint of the key that replaced the addresses of all inputs, "" if none.

    `key` is that of --anonymize, which replaces the real addresses among the inputs. Raises
    UsageError if real addresses would mix with replaced ones, or those of several keys.
    """
    by_key = {_fingerprint(dataset): dataset.path for dataset in inputs.datasets}
    if key is not None:
        by_key.pop("", None)
        by_key[key.fingerprint] = "--anonymize"
    elif inputs.patterns:
        by_key.setdefault("", inputs.patterns[0])
    if len(by_key) > 1:
        (one, one_path), (other, other_path) = list(by_key.items())[:2]
        raise UsageError(
            f"the addresses of {one_path} are {_described(one)}, those of {other_path} "
            f"{_described(other)}: give only datasets of one key, or those of one key and "
            "--anonymize with that key"
        )
    return next(iter(by_key), "")


def _fingerprint(dataset: Dataset) -> str:
    return dataset.manifest.options.get("anonymize_key_fingerprint", "")


def _described(fingerprint: str) -> str:
    return f"replaced with key {fingerprint}" if fingerprint else "real ones"
