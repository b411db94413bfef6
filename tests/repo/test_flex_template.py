"""Flex Templates: metadata against the flags, and the image's steps in a clean folder.

No image is built and Google's launcher is not run: a small reader of the Dockerfile does its steps
in an empty environment, where the program is started with the launcher's words.
"""

import json
import re
import runpy
import shlex
import subprocess
from dataclasses import MISSING, Field, fields
from fnmatch import fnmatch
from pathlib import Path

import pytest
from google.cloud.dataflow_v1beta3 import types
from google.protobuf import json_format

from beam_pipeline.jobs import flex_template
from beam_pipeline.main import main
from beam_pipeline.overlap.job.config import flag_fields
from beam_pipeline.overlap.job.removal_config import RemovalConfig
from beam_pipeline.probe_rows import options
from beam_pipeline.probe_rows.options import Options
from tests.support.dataflow_api import DataflowApi
from tests.support.dataflow_helpers import IMAGE, SHAPING, local_dataset
from tests.support.dataflow_helpers import bucket as bucket
from tests.support.dataflow_helpers import dataflow as dataflow
from tests.support.dataflow_helpers import measurements as measurements
from tests.support.engines import stored_objects
from tests.support.repository import ROOT
from tests.support.stand_ins import check_copied
from tests.support.template_image import (
    TEMPLATES,
    TITLES,
    each_template,
    instructions,
    launch_and_work,
    launcher_words,
    template_at,
)
from tests.support.template_image import base_image as base_image

# A template starts the overlap job alone, without the removal that may follow it.
LEFT_OUT = ("remove_output", *(item.name for item in fields(RemovalConfig)))
FLAGS: dict[str, list[Field]] = {
    "probe_rows": [*fields(Options)],
    "overlap": [item for item in flag_fields() if item.name not in LEFT_OUT],
}
# These say of a template's value how it differs from a command line's.
PATHS = ("input", "output", *("input_path", "decontaminate_source", "output_path"))
OTHERWISE_TOLD = (*PATHS, "anonymize_key_file", "inline_bytes", "processes", "tokenizer")
# What a command line has and a template has not.
NOT_IN_A_TEMPLATE = ("local", "environment variable", "in memory", "Flink", "PROBELINE_", "clone")


def parameters_of(name: str) -> dict[str, dict]:
    metadata = json.loads((TEMPLATES / name / "metadata.json").read_text())
    return {parameter["name"]: parameter for parameter in metadata["parameters"]}


# --- metadata -------------------------------------------------------------------------------------


@each_template
def test_google_understands_the_metadata(name: str) -> None:
    text = (TEMPLATES / name / "metadata.json").read_text()
    told = json_format.Parse(text, types.TemplateMetadata.pb(types.TemplateMetadata()))
    assert told.name == TITLES[name] and not told.streaming
    for parameter in told.parameters:
        assert parameter.name and parameter.label and parameter.help_text
        assert parameter.param_type != types.ParameterType.DEFAULT


def test_metadata_and_docs_follow_the_flags() -> None:
    script = runpy.run_path(str(ROOT / "scripts/template_metadata.py"))
    cure = "run python scripts/template_metadata.py"
    assert set(script["TEMPLATES"]) == {path.parent.name for path in TEMPLATES.glob("*/metadata.*")}
    for name in TITLES:
        written = (TEMPLATES / name / "metadata.json").read_text()
        assert written == script["metadata_text"](name), cure
    docs = (ROOT / "docs/flex_templates.md").read_text()
    assert script["docs_text"](docs) == docs, cure


@each_template
def test_parameters_are_the_flags(name: str) -> None:
    told = parameters_of(name)
    assert list(told) == [item.name for item in FLAGS[name]]
    for item in FLAGS[name]:
        parameter = told[item.name]
        assert parameter["isOptional"] == (item.default is not MISSING)
        if item.default is not MISSING:
            default = parameter["defaultValue"]
            read = (
                default == "true" if isinstance(item.default, bool) else type(item.default)(default)
            )
            assert read == item.default
        choices = [option["value"] for option in parameter.get("enumOptions", [])]
        assert choices == list(item.metadata.get("choices", []))
        assert not [word for word in NOT_IN_A_TEMPLATE if word in parameter["helpText"]]
        if item.name in OTHERWISE_TOLD:
            assert "gs://" in parameter["helpText"] or item.name not in PATHS
        elif item.metadata.get("action") == "append":
            assert "several with a comma between" in parameter["helpText"]
        else:
            assert parameter["helpText"].startswith(item.metadata["help"])


def matches(parameter: dict, value: str) -> bool:
    """Tells whether a value passes the checks of a parameter, as POSIX egrep does them."""
    return all(
        subprocess.run(["grep", "-qE", regex], input=value, text=True).returncode == 0
        for regex in parameter["regexes"]
    )


VALUES = {
    "probe_rows": (
        ("input", "gs://a/b/*.parquet,gs://c/d", "data/*.parquet"),
        ("output", "gs://a/rows", "gs://a"),
        ("columns", "event_time=ts,rtt=rtt_ms", "time=ts"),
        ("anonymize_key_file", "gs://a/key.hex", "key.hex"),
        ("anonymize_key_file", "projects/p/secrets/s/versions/1", "projects/p/secrets/s"),
        ("max_row_size_mb", "0.5", "8MiB"),
        ("split_seed", "-3", "1.5"),
        ("on_bad_file", "dead_letter", "skip"),
        ("overwrite", "true", "yes"),
    ),
    "overlap": (
        ("input_path", "gs://a/b/**/*.jsonl.zst,gs://c/d", "data"),
        ("decontaminate_source", "gs://a/mmlu,gsm8k=gs://b/*.jsonl", "eval/mmlu"),
        ("decontaminate_source", "gsm8k=gs://b/c", "gsm8k=c"),
        ("output_path", "gs://a/overlap", "gs://a"),
        ("ngram_length", "5,10,15", "5, 10"),
        ("max_details", "-1", "all"),
        ("degenerate", "skip", "drop"),
        ("skip_existing", "true", "yes"),
    ),
}


@each_template
def test_what_the_checks_let_pass(name: str) -> None:
    told = parameters_of(name)
    for parameter in told.values():
        if parameter.get("defaultValue") and "regexes" in parameter:
            assert matches(parameter, parameter["defaultValue"]), parameter
    for flag, good, bad in VALUES[name]:
        assert matches(told[flag], good) and not matches(told[flag], bad), flag


# --- parameters as flags --------------------------------------------------------------------------


def flags_of(*parameters: str) -> list[str]:
    return flex_template.flags_of(parameters, options.make_parser())


def test_several_inputs_are_one_parameter() -> None:
    flags = flags_of("--input=gs://a/x,y*.parquet,gs://b/{1,2}, gs://c/z", "--output=gs://o/a,b")
    assert flags == [
        *("--input=gs://a/x,y*.parquet", "--input=gs://b/{1,2}", "--input=gs://c/z"),
        "--output=gs://o/a,b",
    ]
    parsed, _ = options.parse(flags)
    assert parsed.input == ("gs://a/x,y*.parquet", "gs://b/{1,2}", "gs://c/z")


def test_lists_of_beams_are_as_given() -> None:
    given = ["--experiments=a,b", '--labels={"team": "a,b=c"}', "--temp_location=gs://a,gs://b"]
    assert flags_of(*given) == given


def test_switches_are_true_or_false(capsys: pytest.CaptureFixture) -> None:
    assert flags_of("--overwrite=true", "--debug=false", "--overwrite") == [
        *("--overwrite", "--overwrite"),
    ]
    # Beam's own: a switch that is turned off by another one.
    assert flags_of("--use_public_ips=false") == ["--no_use_public_ips"]
    assert flags_of("--use_public_ips=True") == ["--use_public_ips"]
    assert flex_template.launch(main, options.make_parser(), ["--overwrite=maybe"]) == 2
    assert capsys.readouterr().err == "error: --overwrite=maybe: give true or false\n"


def test_what_only_the_launcher_knows_is_left_out(capsys: pytest.CaptureFixture) -> None:
    assert flags_of("--labels={}", "--newFlag=1", "--region=r") == ["--labels={}", "--region=r"]
    assert capsys.readouterr().err.startswith("warning: --newFlag is no flag")


def words(bucket: str) -> list[str]:
    """Returns what the launcher gives to the program."""
    return [
        *(f"--input={bucket}/in/*.parquet", f"--output={bucket}/out", *SHAPING),
        '--labels={"goog-dataflow-provided-template-type": "flex", "team": "net"}',
        *("--max_num_workers=9", "--worker_machine_type=n2-standard-4", "--overwrite=false"),
        *launcher_words(bucket, "rows"),
    ]


def check_job(job: types.Job) -> None:
    (pool,) = job.environment.worker_pools
    assert (job.name, pool.machine_type) == ("rows", "n2-standard-4")
    assert pool.autoscaling_settings.max_num_workers == 9
    assert pool.worker_harness_container_image == IMAGE
    assert dict(job.labels) == {"goog-dataflow-provided-template-type": "flex", "team": "net"}


@pytest.mark.parametrize("given", ["all", "no runner", "an image"])
def test_the_job_is_written_and_nobody_waits(
    dataflow: DataflowApi, bucket: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a runner a template is for Dataflow; a given image is taken."""
    told = [*words(bucket), f"--dataflow_endpoint={dataflow.endpoint}"]
    if given == "no runner":
        told.remove("--runner=DataflowRunner")
    elif given == "an image":
        told.append(f"--sdk_container_image={IMAGE}")
    image = "not/this:1" if given == "an image" else IMAGE
    monkeypatch.setenv(flex_template.IMAGE_VARIABLE, image)
    assert flex_template.launch(main, options.make_parser(), told) == 0
    check_job(template_at(bucket))
    assert not [request for request in dataflow.requests if "POST" in request]


# --- the image ------------------------------------------------------------------------------------


@each_template
def test_the_image_is_made_of_versions_and_of_files_that_are_there(name: str) -> None:
    steps = list(instructions(name))
    bases = [arguments for name, arguments in steps if name == "FROM"]
    lock = (ROOT / "requirements.txt").read_text()
    (beam,) = re.findall(r"^apache-beam==(.+)$", lock, re.MULTILINE)
    assert bases[0] == f"apache/beam_python3.12_sdk:{beam} AS beam"
    assert all(re.search(r":(?!latest)[\w.-]*\d", base) for base in bases)
    assert bases[-1].startswith("python:3.12-slim")
    copied = [arguments for name, arguments in steps if name == "COPY"]
    check_copied(copied)
    sources = [
        source for line in copied if not line.startswith("--") for source in shlex.split(line)[:-1]
    ]
    assert {f"templates/{name}/main.py", "requirements.txt"} <= set(sources)
    own = re.findall("^!(.+)$", (TEMPLATES / "Dockerfile.dockerignore").read_text(), re.M)
    for source in sources:
        assert any(fnmatch(f"{source}/", f"{kept}/*") for kept in own), source


def test_the_image_has_the_tested_versions_and_nothing_for_training() -> None:
    (packages, *_) = [words for name, words in instructions("probe_rows") if name == "RUN"]
    assert "--constraint requirements.txt '.[gcp]'" in packages


@pytest.mark.slow
def test_the_image_launches_a_job_and_does_its_work(
    dataflow: DataflowApi, bucket: str, measurements: Path, base_image: Path, tmp_path: Path
) -> None:
    bad = "--max_row_size_mb=9999"
    job, error = launch_and_work(
        base_image, tmp_path, "probe_rows", words(bucket), bad, bucket, dataflow
    )
    assert error == "error: --max_row_size_mb=9999.0 is outside 0.001 to 1024\n"
    check_job(job)
    (pool,) = job.environment.worker_pools
    assert "workflow.tar.gz" not in {package.name for package in pool.packages}
    found = stored_objects(f"{bucket}/out")
    expected = local_dataset(measurements, tmp_path / "local")
    assert {name: found[name] for name in expected} == expected
    assert set(found) == {*expected, "README.md", "croissant.json", "manifest.json", "_SUCCESS"}
