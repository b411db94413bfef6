"""Flex Templates: parameters become flags, the image's steps in a clean folder, the scripts.

No image is built and Google's launcher is not run: a small reader of the Dockerfile does its steps
in an empty environment, where the program starts with the launcher's arguments.
"""

import re
import shlex
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from google.cloud.dataflow_v1beta3 import types

from beam_pipeline.jobs import flex_template
from beam_pipeline.main import main
from beam_pipeline.overlap.__main__ import main as overlap_main
from beam_pipeline.overlap.job import config
from beam_pipeline.probe_rows import options
from beam_pipeline.sources.options import Mapping, parse_columns
from scripts import template_metadata
from tests.support.dataflow_api import PROJECT, REGION, DataflowApi
from tests.support.dataflow_helpers import IMAGE, SHAPING, do_the_work, local_dataset
from tests.support.dataflow_helpers import bucket as bucket
from tests.support.dataflow_helpers import dataflow as dataflow
from tests.support.dataflow_helpers import measurements as measurements
from tests.support.engines import Gcs, stored_objects
from tests.support.overlap_jobs import corpus as corpus
from tests.support.repository import ROOT
from tests.support.stand_ins import StandIns, check_copied, check_shell, one_line, run_script
from tests.support.template_image import (
    TEMPLATES,
    each_template,
    instructions,
    launched_job,
    launcher_words,
    make_image,
    template_at,
)
from tests.support.template_image import base_image as base_image

# --- parameters as flags --------------------------------------------------------------------------


def flags_of(*parameters: str) -> list[str]:
    return flex_template.flags_of(parameters, options.make_parser())


def test_repeated_flags_are_one_parameter() -> None:
    given = ["--input=gs://a/x,y*.parquet,gs://b/{1,2}, gs://c/z", "--output=gs://o/a,b"]
    parsed, _ = options.parse(flags_of(*given))
    assert parsed.input == ("gs://a/x,y*.parquet", "gs://b/{1,2}", "gs://c/z")
    given = [
        "--input_path=gs://a/x,y/*.jsonl,gs://b/{1,2}.parquet",
        "--decontaminate_source=gs://a/mmlu, gsm8k=gs://b/e,1.jsonl,gs://c/lang=en/x.jsonl",
        *("--output_path=gs://o/a,b", "--ngram_length=5,10", "--overwrite=true", "--debug=false"),
    ]
    overlap, _ = config.parse(flex_template.flags_of(given, config.make_parser()))
    assert overlap.input_paths == ("gs://a/x,y/*.jsonl", "gs://b/{1,2}.parquet")
    assert overlap.sources == ("gs://a/mmlu", "gsm8k=gs://b/e,1.jsonl", "gs://c/lang=en/x.jsonl")
    assert overlap.ngram.lengths == (5, 10)
    assert overlap.overwrite and not overlap.debug


def test_flags_of_the_mapping_are_parameters() -> None:
    columns = "event_time=a.us,src_addr==192.0.2.1,rtt=p1,p2"
    given = [f"--columns={columns}", "--time_unit=us", "--rtt_unit=s", "--failed=null,timeout"]
    names = {each["name"] for each in template_metadata.metadata("probe_rows")["parameters"]}
    assert {flag[2:].partition("=")[0] for flag in given} <= names
    needed = ["--input=gs://a/x", "--output=gs://o/x"]
    parsed, _ = options.parse(flags_of(*needed, *given))
    assert parsed.mapping() == Mapping(parse_columns(columns), "us", "s", ("null", "timeout"))


def test_switches_are_true_or_false(capsys: pytest.CaptureFixture) -> None:
    assert flags_of("--overwrite=true", "--debug=false", "--overwrite") == ["--overwrite"] * 2
    assert flags_of("--use_public_ips=false") == ["--no_use_public_ips"]
    assert flex_template.launch(main, options.make_parser(), ["--overwrite=maybe"]) == 2
    assert one_line(capsys.readouterr().err).startswith("error: --overwrite=maybe")


def test_unknown_flags_of_the_launcher_are_dropped(capsys: pytest.CaptureFixture) -> None:
    assert flags_of("--labels={}", "--newFlag=1", "--region=r") == ["--labels={}", "--region=r"]
    assert "--newFlag" in capsys.readouterr().err


# --- jobs -----------------------------------------------------------------------------------------


def rows_words(bucket: str) -> list[str]:
    """Returns the arguments that the launcher gives to the job of probe rows."""
    return [
        *(f"--input={bucket}/in/*.parquet", f"--output={bucket}/out", *SHAPING),
        '--labels={"goog-dataflow-provided-template-type": "flex", "team": "net"}',
        *("--max_num_workers=9", "--worker_machine_type=n2-standard-4", "--overwrite=false"),
        *launcher_words(bucket, "rows"),
    ]


def overlap_words(bucket: str) -> list[str]:
    """Returns the arguments that the launcher gives to the overlap job."""
    return [
        f"--input_path={bucket}/in",
        f"--decontaminate_source={bucket}/eval/music-1a2b3c,[x]={bucket}/eval/other.jsonl",
        *(f"--output_path={bucket}/out", "--ngram_length=5,12", "--skip_existing=false"),
        *("--processes=9", *launcher_words(bucket, "overlap")),
    ]


def check_job(job: types.Job, name: str) -> None:
    (pool,) = job.environment.worker_pools
    assert job.name == name and job.type_ == types.JobType.JOB_TYPE_BATCH
    assert pool.autoscaling_settings.max_num_workers == 9
    assert pool.worker_harness_container_image == IMAGE
    if name == "rows":
        assert pool.machine_type == "n2-standard-4"
        assert dict(job.labels) == {"goog-dataflow-provided-template-type": "flex", "team": "net"}


@pytest.mark.parametrize("given", ["all", "no runner", "an image", "overlap"])
def test_a_launch_writes_the_job_and_ends(
    dataflow: DataflowApi,
    gcs: Gcs,
    bucket: str,
    corpus: Path,
    given: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a runner a template is for Dataflow; an image that is given is used."""
    program, parser, words = main, options.make_parser(), rows_words(bucket)
    if given == "overlap":
        gcs.upload(corpus, bucket)
        program, parser, words = overlap_main, config.make_parser(), overlap_words(bucket)
    elif given == "no runner":
        words.remove("--runner=DataflowRunner")
    elif given == "an image":
        words.append(f"--sdk_container_image={IMAGE}")
    image = "not/this:1" if given == "an image" else IMAGE
    monkeypatch.setenv(flex_template.IMAGE_VARIABLE, image)
    words.append(f"--dataflow_endpoint={dataflow.endpoint}")
    assert flex_template.launch(program, parser, words) == 0
    check_job(template_at(bucket), "overlap" if given == "overlap" else "rows")
    assert not [request for request in dataflow.requests if "POST" in request]


# --- the image ------------------------------------------------------------------------------------


@each_template
def test_image_files_and_versions(name: str) -> None:
    steps = list(instructions(name))
    bases = [arguments for step, arguments in steps if step == "FROM"]
    lock = (ROOT / "requirements.txt").read_text()
    (beam,) = re.findall(r"^apache-beam==(.+)$", lock, re.MULTILINE)
    assert bases[0] == f"apache/beam_python3.12_sdk:{beam} AS beam"
    assert bases[-1].startswith("python:3.12-slim")
    copied = [arguments for step, arguments in steps if step == "COPY"]
    check_copied(copied)
    sources = [
        source for line in copied if not line.startswith("--") for source in shlex.split(line)[:-1]
    ]
    assert {f"templates/{name}/main.py", "requirements.txt"} <= set(sources)
    kept = re.findall("^!(.+)$", (TEMPLATES / "Dockerfile.dockerignore").read_text(), re.M)
    for source in sources:
        assert any(fnmatch(f"{source}/", f"{pattern}/*") for pattern in kept), source
    (packages, *_) = [words for step, words in steps if step == "RUN"]
    assert "--constraint requirements.txt '.[gcp]'" in packages


@pytest.mark.slow
def test_the_image_writes_probe_rows(
    dataflow: DataflowApi, bucket: str, measurements: Path, base_image: Path, tmp_path: Path
) -> None:
    image, bad = make_image(base_image, tmp_path / "image", "probe_rows"), "--max_row_size_mb=9999"
    job = launched_job(image, rows_words(bucket), bad, bucket, dataflow)
    check_job(job, "rows")
    (pool,) = job.environment.worker_pools
    assert "workflow.tar.gz" not in {package.name for package in pool.packages}
    report = do_the_work(image.python, tmp_path / "work", job)
    assert report["source"].startswith(f"{base_image}/python")
    found = stored_objects(f"{bucket}/out")
    expected = local_dataset(measurements, tmp_path / "local")
    assert {name: found[name] for name in expected} == expected
    assert "_SUCCESS" in found


@pytest.mark.slow
def test_the_image_launches_overlap(
    dataflow: DataflowApi, gcs: Gcs, corpus: Path, base_image: Path, tmp_path: Path
) -> None:
    """Its work, from another environment, is tested in test_launch.py."""
    bucket = gcs.make_bucket()
    gcs.upload(corpus, bucket)
    image = make_image(base_image, tmp_path / "image", "overlap")
    job = launched_job(image, overlap_words(bucket), "--max_details=-7", bucket, dataflow)
    check_job(job, "overlap")


# --- scripts --------------------------------------------------------------------------------------

SETTINGS = {"PROJECT": PROJECT, "REGION": REGION, "BUCKET": "my-bucket", "TAG": "7"}


class Scripts:
    """The scripts in a copy whose path has a space, with a stand-in for gcloud."""

    def __init__(self, folder: Path):
        self.root = folder / "probe line"
        shutil.copytree(TEMPLATES, self.root / "templates")
        (self.root / "beam_pipeline").mkdir()
        shutil.copyfile(ROOT / "beam_pipeline/__init__.py", self.root / "beam_pipeline/__init__.py")
        self._programs = StandIns(folder / "bin")
        self._programs.add("gcloud", 'exit "${GCLOUD_EXIT:-0}"')

    def run(self, script: str, *arguments: str, code: int = 0, **environment: str) -> str:
        """Runs a script; returns what it prints, its errors if it fails."""
        variables = self._programs.variables | SETTINGS | environment
        path = self.root / "templates" / script
        return run_script(path, *arguments, environment=variables, code=code)

    @property
    def calls(self) -> list[list[str]]:
        return [call[1:] for call in self._programs.calls()]


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


@pytest.mark.parametrize("script", sorted(TEMPLATES.glob("*.sh")), ids=lambda path: path.name)
def test_shell_syntax(script: Path) -> None:
    check_shell(script)


def test_no_template_of_a_failed_build(scripts: Scripts) -> None:
    scripts.run("build.sh", "probe_rows", code=3, GCLOUD_EXIT="3")
    assert len(scripts.calls) == 1


def test_launch(scripts: Scripts) -> None:
    parameters = ["input=gs://a/x y/*.parquet,gs://b/z", "output=gs://my-bucket/rows"]
    more = ["--max-workers=40", "--disable-public-ips"]
    name: dict[str, Any] = {"SERVICE_ACCOUNT": "worker@x", "JOB_NAME": "rows-1"}
    printed = scripts.run("launch.sh", "--dry-run", "probe_rows", *parameters, "--", *more, **name)
    assert scripts.calls == []
    scripts.run("launch.sh", "probe_rows", *parameters, "--", *more, **name)
    assert shlex.split(printed) == ["gcloud", *scripts.calls[0]]
    assert scripts.calls == [
        [
            *("dataflow", "flex-template", "run", "rows-1"),
            *(f"--project={PROJECT}", f"--region={REGION}"),
            "--template-file-gcs-location=gs://my-bucket/templates/probe_rows-7.json",
            *("--temp-location=gs://my-bucket/temp", "--staging-location=gs://my-bucket/staging"),
            "--service-account-email=worker@x",
            f"--parameters=^||^{'||'.join(parameters)}",
            *more,
        ]
    ]


@pytest.mark.parametrize(
    ("script", "arguments", "settings", "part"),
    [
        ("build.sh", ["overlapp"], {}, "overlapp is not a template: overlap probe_rows"),
        ("build.sh", ["probe_rows"], {"PROJECT": ""}, "PROJECT is empty: set it to"),
        ("launch.sh", ["probe_rows", "input=gs://a"], {"BUCKET": "gs://b"}, "bucket's name"),
        ("launch.sh", ["probe_rows", "columns=a||b"], {}, "contains ||"),
        ("launch.sh", ["probe_rows", "input=x"], {"JOB_NAME": "My_Job"}, "JOB_NAME is My_Job"),
    ],
)
def test_bad_arguments(
    scripts: Scripts, script: str, arguments: list[str], settings: dict[str, str], part: str
) -> None:
    assert part in one_line(scripts.run(script, *arguments, code=2, **settings))
    assert scripts.calls == []
