"""Launches the overlap job: finds the inputs, takes the output, runs the pipeline.

Inputs are matched before the output is touched, so that a wrong path destroys no earlier result.
The job succeeded if `.SUCCESS` exists.
"""

import sys

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
    PipelineOptions,
    StandardOptions,
    WorkerOptions,
)

from beam_pipeline.documents.files import WORK_UNIT_BYTES
from beam_pipeline.errors import UsageError
from beam_pipeline.jobs import dataflow, frame
from beam_pipeline.jobs.beam_options import IN_MEMORY_RUNNER, RUNNERS_WITH_OWN_FLAGS
from beam_pipeline.jobs.frame import Commit, JobSpec
from beam_pipeline.jobs.output_folder import JobRun, OutputFiles
from beam_pipeline.machine import share_one_heap
from beam_pipeline.overlap.evaluation_sources import dataset_name, evaluation_sources
from beam_pipeline.overlap.job import manifest
from beam_pipeline.overlap.job import pipeline as overlap_pipeline
from beam_pipeline.overlap.job.config import DeconConfig
from beam_pipeline.overlap.results.layout import PATTERNS, SUCCESS_NAME, WORK_FOLDER
from beam_pipeline.storage.files import exists


def run(config: DeconConfig, beam_options: PipelineOptions) -> str | None:
    """Runs the job and returns the path of its results, or None if it only wrote a template.

    Raises:
      UsageError: with skip_existing, the output holds the result of another run.
      ProbelineError: the run failed and left no finished output.
    """
    evaluation = [source.path for source in evaluation_sources(config.sources)]
    paths = [
        ("output_path", config.output_path),
        *(("input_path", path) for path in config.input_paths),
        *(("decontaminate_source", path) for path in evaluation),
        *(("drop_ngrams", path) for path in config.drop_paths),
    ]
    dataflow_job = frame.check_runner(beam_options, paths)
    inputs = overlap_pipeline.find_inputs(config)
    for name, path in evaluation_sources(config.sources):
        if path in config.sources and name != (taken := dataset_name(path)):
            print(
                f"{path} is the evaluation set {name}, since another folder is {taken}; NAME=PATH "
                "gives it another name",
                file=sys.stderr,
            )
    files = list(manifest.input_files(inputs.training, inputs.evaluation, inputs.dropped))
    is_finished = exists(FileSystems.join(config.output_path, SUCCESS_NAME))
    if is_finished and config.skip_existing and not config.overwrite:
        manifest.check_same(config, files)
        print(f"{config.output_path} holds this result: nothing had to run", file=sys.stderr)
        return config.output_path
    bound_parallelism(beam_options, config.processes)
    share_one_heap()
    spec = JobSpec(
        output=config.output_path,
        files=output_files(config.skip_existing),
        inputs=inputs.paths,
        num_units=sum(file.num_bytes for file in inputs.training) // WORK_UNIT_BYTES,
        dataflow_job=dataflow_job,
        overwrite=config.overwrite,
    )

    for warning in inputs.warnings:
        print(warning, file=sys.stderr)

    def build(pipeline: beam.Pipeline, job_run: JobRun) -> Commit:
        manifest.write_input_files(config.output_path, job_run.folder, files)
        return overlap_pipeline.build(pipeline, config, inputs, job_run)

    return config.output_path if frame.run(spec, build, beam_options) else None


def output_files(skip_existing: bool) -> OutputFiles:
    """Returns the job's files in the output; files to resume from are kept."""
    own = (WORK_FOLDER,)
    folders = ((), own) if skip_existing else (own, ())
    return OutputFiles("output_path", "result", SUCCESS_NAME, PATTERNS, *folders)


def bound_parallelism(beam_options: PipelineOptions, processes: int) -> None:
    """Sets the parallelism, unless Beam's own flags do; UsageError if the runner cannot."""
    runner = beam_options.view_as(StandardOptions).runner
    if runner == IN_MEMORY_RUNNER:
        direct = beam_options.view_as(DirectOptions)
        if processes and direct.direct_num_workers <= 1:
            direct.direct_num_workers = processes
    elif processes == 0:
        return
    elif runner == dataflow.RUNNER:
        workers = beam_options.view_as(WorkerOptions)
        workers.max_num_workers = workers.max_num_workers or processes
    elif runner in RUNNERS_WITH_OWN_FLAGS:
        flink = beam_options.view_as(FlinkRunnerOptions)
        flink.parallelism = processes if flink.parallelism == -1 else flink.parallelism
    else:
        raise UsageError(f"--processes={processes}: {runner} has no such setting; leave it out")
