"""The job's graph, and the job on many small probes."""

from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pytest

from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.jobs.beam_options import IN_MEMORY_RUNNER
from beam_pipeline.jobs.frame import add_transforms
from beam_pipeline.jobs.output_folder import JobRun
from beam_pipeline.probe_rows import bucket
from beam_pipeline.probe_rows import pipeline as probe_rows
from beam_pipeline.probe_rows.job import Job
from beam_pipeline.probe_rows.options import parse
from beam_pipeline.sources.inputs import MeasurementFile
from beam_pipeline.storage.matching import FileVersion
from tests.support.helpers import measurements_table, quick_and_slow, reference_rows
from tests.support.job_runs import files_of, history, make_dataset, read_rows, write_input


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


# --- many small probes ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    table = measurements_table(6000, seed=4, num_probes=2500, ipv6_share=0.4)
    parts = [table.slice(at, 2000) for at in (0, 2000, 4000)]
    return write_input(tmp_path_factory.mktemp("small") / "in", *parts), table


SHAPE = ("--probes_per_shard=1000", "--max_row_size_mb=1")


@pytest.fixture(scope="module")
def dataset(source: tuple[Path, pa.Table], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(source[0], tmp_path_factory.mktemp("dataset") / "out", *SHAPE)


@pytest.mark.slow
def test_many_small_probes_come_out_whole(source: tuple[Path, pa.Table], dataset: Path) -> None:
    rows, wanted = read_rows(dataset), reference_rows(source[1])
    assert history(rows) == wanted and len(wanted) > 1500
    counts = [split.num_probes for split in open_dataset(str(dataset)).manifest.splits.values()]
    assert sum(counts) == len(wanted) and min(counts) > 100


@pytest.mark.parametrize(
    "limits", quick_and_slow([(1, 10_000), (1000, 10_000), (10, 7)], [(10, 7)])
)
def test_the_number_of_buckets_changes_no_byte(
    source: tuple[Path, pa.Table],
    dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[int, int],
) -> None:
    monkeypatch.setattr(bucket, "BUCKET_ROWS", limits[0])
    monkeypatch.setattr(bucket, "MAX_BUCKETS", limits[1])
    again = make_dataset(source[0], tmp_path / "out", *SHAPE, "--inline_bytes=300")
    assert files_of(again) == files_of(dataset)
