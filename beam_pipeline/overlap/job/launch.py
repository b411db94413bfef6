"""Launches the overlap job: finds the inputs, takes the output, runs the pipeline.

Inputs are matched before the output is touched, so that a wrong path costs no earlier result. The
job succeeded if `.SUCCESS` exists.
"""

import sys

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
    PipelineOptions,
    StandardOptions,
    WorkerOptions,
)

from beam_pipeline.documents.reading import WORK_UNIT_BYTES
from beam_pipeline.errors import ProbelineError, UsageError
from beam_pipeline.jobs import dataflow, output_folder, running
from beam_pipeline.jobs.beam_options import (
    IN_MEMORY_RUNNER,
    RUNNERS_WITH_OWN_FLAGS,
    check_job_server,
    use_cores,
)
from beam_pipeline.jobs.local_runner import forked_workers
from beam_pipeline.jobs.output_folder import OutputFiles
from beam_pipeline.overlap.evaluation_sources import parse_evaluation_source
from beam_pipeline.overlap.job import manifest
from beam_pipeline.overlap.job import pipeline as overlap_pipeline
from beam_pipeline.overlap.job.config import DeconConfig
from beam_pipeline.overlap.job.memory import share_one_heap
from beam_pipeline.overlap.results.layout import PATTERNS, SUCCESS_NAME, WORK_FOLDER
from beam_pipeline.storage.files import exists


def run(config: DeconConfig, beam_options: PipelineOptions, command: str = "") -> str | None:
    """Runs the job to its end and returns the path of its results.

    Returns None if the options ask for a template, as a Flex Template's launcher does.

    Args:
      command: that of the run, for a shell; "" if it is run from Python.

    Raises:
      UsageError: with skip_existing, the output holds the result of another run.
      ProbelineError: the run failed and left no finished output.
    """
    check_job_server(beam_options)
    job = dataflow.job_of(beam_options)
    if job is not None:
        evaluation = [parse_evaluation_source(source).path for source in config.sources]
        running.check_paths_are_shared(
            [
                ("output_path", config.output_path),
                *(("input_path", path) for path in config.input_paths),
                *(("decontaminate_source", path) for path in evaluation),
                *(("drop_ngrams", path) for path in config.drop_paths),
            ]
        )
    inputs = overlap_pipeline.find_inputs(config)
    files = list(manifest.input_files(*inputs))
    is_finished = exists(FileSystems.join(config.output_path, SUCCESS_NAME))
    if is_finished and config.skip_existing and not config.overwrite:
        manifest.check_same(config, files)
        print(f"{config.output_path} holds this result: nothing had to run", file=sys.stderr)
        return config.output_path
    num_bytes = sum(file.num_bytes for file in inputs.training)
    bound_parallelism(beam_options, config.processes, at_most=num_bytes // WORK_UNIT_BYTES)
    share_one_heap()
    with (
        forked_workers(beam_options),
        output_folder.taken(
            config.output_path,
            config.overwrite,
            job,
            files=output_files(config.skip_existing),
            inputs=inputs.paths,
        ) as job_run,
    ):
        manifest.write_input_files(config.output_path, job_run.folder, files)
        pipeline = running.new_pipeline(beam_options)
        overlap_pipeline.build(pipeline, config, inputs, job_run, command)
        if not running.run_to_end(pipeline, job, job_run):
            return None
    if not exists(FileSystems.join(config.output_path, SUCCESS_NAME)):
        raise ProbelineError(
            f"the runner ended without an error, yet {config.output_path} has no {SUCCESS_NAME}: "
            "see the runner's log, then run the same command again with --skip_existing"
        )
    return config.output_path


def output_files(skip_existing: bool) -> OutputFiles:
    """Returns which files in the output are the job's; those it resumes from stay."""
    own = (WORK_FOLDER,)
    folders = ((), own) if skip_existing else (own, ())
    return OutputFiles("output_path", "result", SUCCESS_NAME, PATTERNS, *folders)


def bound_parallelism(beam_options: PipelineOptions, processes: int, at_most: int) -> None:
    """Sets the parallelism, unless Beam's own flags do.

    Args:
      at_most: how many processes have work, where all cores of this machine are asked for.

    Raises:
      UsageError: the runner has no such setting.
    """
    runner = beam_options.view_as(StandardOptions).runner
    if runner == IN_MEMORY_RUNNER:
        direct = beam_options.view_as(DirectOptions)
        if processes and direct.direct_num_workers <= 1:
            direct.direct_num_workers = processes
        use_cores(beam_options, at_most)
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
