"""Launches the conversion: finds and inspects the input, takes the output, runs the pipeline."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any

import orjson
from apache_beam.options.pipeline_options import PipelineOptions

from beam_pipeline.convert import pipeline as conversion
from beam_pipeline.convert.commit import Job
from beam_pipeline.convert.layout import MANIFEST, SUCCESS, layout_of
from beam_pipeline.convert.options import ConvertOptions
from beam_pipeline.convert.units import estimated_units, inspect
from beam_pipeline.errors import ProbelineError
from beam_pipeline.jobs import dataflow, output_folder, running
from beam_pipeline.jobs.beam_options import check_job_server, use_cores
from beam_pipeline.jobs.frame import start_time
from beam_pipeline.jobs.local_runner import forked_workers
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.sources.inputs import match_files
from beam_pipeline.sources.reading import UnreadableInputError
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import exists, read_file

_NOT_IN_THE_MANIFEST = ("output", "overwrite", "debug")


def run(options: ConvertOptions, beam_options: PipelineOptions) -> dict[str, Any] | None:
    """Runs the job to its end and returns its manifest, None if it only wrote a template.

    Raises:
      UsageError: the command cannot be run as given.
      ProbelineError: the job failed; nothing that looks finished is left.
    """
    check_job_server(beam_options)
    job = dataflow.job_of(beam_options)
    if job is not None:
        paths = [("output", options.output), *(("input", path) for path in options.input)]
        running.check_paths_are_shared(paths)
    started, layout = start_time(), layout_of(options.output)
    matched = match_files(options.input)
    known = itertools.repeat(options.record_options())
    with ThreadPoolExecutor(gcs.REQUESTS_AT_A_TIME) as pool:
        files = list(pool.map(inspect, itertools.count(), matched, known))
    for file in files:
        if file.problem is not None and options.on_bad_file == "fail":
            raise UnreadableInputError(file.file.path, 0, file.problem).as_error()
    use_cores(beam_options, at_most=estimated_units(files))
    with (
        forked_workers(beam_options),
        output_folder.taken(
            options.output,
            options.overwrite,
            job,
            files=layout.output_files(),
            inputs=[file.path for file in matched],
        ) as job_run,
    ):
        pipeline = running.new_pipeline(beam_options)
        # The lease stays with the launcher.
        shared = JobRun(job_run.folder, job_run.marker)
        told = {
            item.name: getattr(options, item.name)
            for item in fields(options)
            if item.name not in _NOT_IN_THE_MANIFEST
        }
        conversion.build(pipeline, files, options, Job(layout, shared, told, started))
        if not running.run_to_end(pipeline, job, job_run):
            return None
    data = read_file(f"{layout.output}/{MANIFEST}")
    if data is None or not exists(f"{layout.output}/{SUCCESS}"):
        raise ProbelineError(
            f"the runner ended without an error, yet {options.output} is not finished: run the "
            "command again"
        )
    return orjson.loads(data)
