"""The job's graph."""

import apache_beam as beam

from beam_pipeline.jobs.beam_options import IN_MEMORY_RUNNER
from beam_pipeline.jobs.frame import add_transforms
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.probe_rows import pipeline as probe_rows
from beam_pipeline.probe_rows.job import Job
from beam_pipeline.probe_rows.options import parse
from beam_pipeline.sources.inputs import MeasurementFile
from beam_pipeline.storage.matching import FileVersion


def test_pipeline_of_a_thousand_large_files_is_small() -> None:
    """Dataflow refuses 10 MB."""
    options, _ = parse(["--input=x", "--output=x"])
    sizes = 350_000_000, 1
    files = [
        MeasurementFile(FileVersion(f"gs://bucket/in/{i:04d}", *sizes), "parquet", (131_072,) * 267)
        for i in range(1000)
    ]
    pipeline = beam.Pipeline(IN_MEMORY_RUNNER)
    job = Job(
        run=JobRun("gs://bucket/out/.probeline-temp/run", output="gs://bucket/out"),
        command="a command",
        read_options=options.read_options(),
        dataset_options=options.dataset_options(),
        inline_bytes=1 << 16,
    )
    add_transforms(pipeline, job.run, lambda *_: probe_rows.build(pipeline, files, job))
    assert len(pipeline.to_runner_api().SerializeToString()) < 400_000
