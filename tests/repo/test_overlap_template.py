"""The Flex Template `overlap`: a launcher's words become a job, and the job does its work.

What both templates share is in test_flex_template.
"""

import gzip
from pathlib import Path

import pytest
from google.cloud.dataflow_v1beta3 import types

from beam_pipeline.jobs import flex_template
from beam_pipeline.overlap import NGramConfig
from beam_pipeline.overlap.__main__ import main
from beam_pipeline.overlap.job import config
from beam_pipeline.overlap.job.config import parse
from tests.support.dataflow_api import DataflowApi
from tests.support.dataflow_helpers import IMAGE
from tests.support.dataflow_helpers import dataflow as dataflow
from tests.support.engines import Gcs, stored_objects
from tests.support.overlap_jobs import corpus as corpus
from tests.support.overlap_jobs import files_below, flags
from tests.support.template_image import base_image as base_image
from tests.support.template_image import launch_and_work, launcher_words, template_at


@pytest.fixture
def bucket(gcs: Gcs, corpus: Path) -> str:
    """A bucket with training documents and evaluation sets."""
    bucket = gcs.make_bucket()
    gcs.upload(corpus, bucket)
    return bucket


def words(bucket: str) -> list[str]:
    """Returns what the launcher gives to the program."""
    return [
        f"--input_path={bucket}/in",
        f"--decontaminate_source={bucket}/eval/music-1a2b3c,[x]={bucket}/eval/other.jsonl",
        *(f"--output_path={bucket}/out", "--ngram_length=5,12", "--skip_existing=false"),
        *("--processes=9", *launcher_words(bucket, "overlap")),
    ]


def check_job(job: types.Job) -> None:
    (pool,) = job.environment.worker_pools
    assert job.name == "overlap" and job.type_ == types.JobType.JOB_TYPE_BATCH
    assert pool.worker_harness_container_image == IMAGE
    assert pool.autoscaling_settings.max_num_workers == 9


def test_several_sets_and_several_n_are_one_parameter_each() -> None:
    given = [
        "--input_path=gs://a/x,y/*.jsonl,gs://b/{1,2}.parquet",
        "--decontaminate_source=gs://a/mmlu, gsm8k=gs://b/e,1.jsonl,gs://c/lang=en/x.jsonl",
        *("--output_path=gs://o/a,b", "--ngram_length=5,10", "--overwrite=true", "--debug=false"),
    ]
    parsed, _ = parse(flex_template.flags_of(given, config.make_parser()))
    assert parsed.input_paths == ("gs://a/x,y/*.jsonl", "gs://b/{1,2}.parquet")
    assert parsed.sources == (*("gs://a/mmlu", "gsm8k=gs://b/e,1.jsonl", "gs://c/lang=en/x.jsonl"),)
    assert parsed.datasets == ["mmlu", "gsm8k", "lang=en"]
    assert parsed.ngram == NGramConfig([5, 10])
    assert parsed.overwrite and not parsed.debug


def test_the_job_is_written_and_nobody_waits(
    dataflow: DataflowApi, bucket: str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv(flex_template.IMAGE_VARIABLE, IMAGE)
    given = [*words(bucket), f"--dataflow_endpoint={dataflow.endpoint}"]
    assert flex_template.launch(main, config.make_parser(), given) == 0
    check_job(template_at(bucket))
    assert not [request for request in dataflow.requests if "POST" in request]
    assert "the job's template is written; nothing has run yet" in capsys.readouterr().out


def plain(data: bytes) -> bytes:
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


@pytest.mark.slow
def test_the_image_launches_a_job_and_does_its_work(
    dataflow: DataflowApi, bucket: str, corpus: Path, base_image: Path, tmp_path: Path
) -> None:
    bad = "--max_details=-7"
    job, error = launch_and_work(
        base_image, tmp_path, "overlap", words(bucket), bad, bucket, dataflow
    )
    check_job(job)
    assert error.startswith("error: --max_details=-7 is outside -1 to ")
    assert main(flags(corpus)) == 0
    expected, found = files_below(corpus / "out"), stored_objects(f"{bucket}/out")
    assert set(found) == set(expected)
    for name in expected:
        if name.endswith((".jsonl", ".jsonl.gz")) and not name.startswith("progress/"):
            here, there = plain(expected[name]), plain(found[name])
            assert there.replace(bucket.encode(), bytes(corpus)) == here, name
