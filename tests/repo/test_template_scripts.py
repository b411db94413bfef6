"""The scripts of the Flex Templates: build.sh and launch.sh, with a stand-in for gcloud."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from beam_pipeline import __version__
from tests.support.dataflow_api import PROJECT, REGION
from tests.support.repository import ROOT
from tests.support.stand_ins import StandIns, check_shell, one_line, run_script
from tests.support.template_image import TEMPLATES, each_template

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


@pytest.mark.parametrize("script", ["common.sh", "build.sh", "launch.sh"])
def test_scripts_are_valid_shell(script: str) -> None:
    check_shell(TEMPLATES / script)


@each_template
def test_build_makes_an_image_and_a_template_file(scripts: Scripts, name: str) -> None:
    scripts.run("build.sh", name)
    image = f"{REGION}-docker.pkg.dev/{PROJECT}/probeline/{name}:7"
    assert scripts.calls == [
        [
            *("builds", "submit", str(scripts.root), f"--project={PROJECT}", f"--region={REGION}"),
            f"--config={scripts.root}/templates/cloudbuild.yaml",
            f"--substitutions=_TEMPLATE={name},_IMAGE={image}",
        ],
        [
            *("dataflow", "flex-template", "build"),
            *(f"gs://my-bucket/templates/{name}-7.json", f"--project={PROJECT}"),
            *(f"--image={image}", "--sdk-language=PYTHON"),
            f"--metadata-file={scripts.root}/templates/{name}/metadata.json",
        ],
    ]


def test_another_template_is_another_folder(scripts: Scripts) -> None:
    shutil.copytree(TEMPLATES / "overlap", scripts.root / "templates/other")
    scripts.run("build.sh", "other", REPOSITORY="mine")
    assert f"_IMAGE={REGION}-docker.pkg.dev/{PROJECT}/mine/other:7" in scripts.calls[0][-1]
    assert scripts.calls[1][3] == "gs://my-bucket/templates/other-7.json"


def test_a_failed_build_is_the_end(scripts: Scripts) -> None:
    scripts.run("build.sh", "probe_rows", code=3, GCLOUD_EXIT="3")
    assert len(scripts.calls) == 1


def test_launch_gives_parameters_and_flags(scripts: Scripts) -> None:
    scripts.run(
        "launch.sh",
        "probe_rows",
        "input=gs://a/x y/*.parquet,gs://b/z",
        "output=gs://my-bucket/rows",
        "--",
        *("--max-workers=40", "--disable-public-ips"),
        SERVICE_ACCOUNT="worker@x",
        JOB_NAME="rows-1",
    )
    assert scripts.calls == [
        [
            *("dataflow", "flex-template", "run", "rows-1"),
            *(f"--project={PROJECT}", f"--region={REGION}"),
            "--template-file-gcs-location=gs://my-bucket/templates/probe_rows-7.json",
            *("--temp-location=gs://my-bucket/temp", "--staging-location=gs://my-bucket/staging"),
            "--service-account-email=worker@x",
            "--parameters=^||^input=gs://a/x y/*.parquet,gs://b/z||output=gs://my-bucket/rows",
            *("--max-workers=40", "--disable-public-ips"),
        ]
    ]


def test_launch_of_overlap_takes_named_sets(scripts: Scripts) -> None:
    sources = "decontaminate_source=gs://a/mmlu,gsm8k=gs://b/x.jsonl"
    scripts.run("launch.sh", "overlap", "input_path=gs://a/in", sources)
    (call,) = scripts.calls
    assert re.fullmatch(r"overlap-\d{8}-\d{6}", call[3])
    assert f"--parameters=^||^input_path=gs://a/in||{sources}" in call


def test_a_job_has_a_name_of_its_own_and_a_template_the_version(scripts: Scripts) -> None:
    scripts.run("launch.sh", "probe_rows", "input=gs://a/b", TAG="")
    assert re.fullmatch(r"probe-rows-\d{8}-\d{6}", scripts.calls[0][3])
    assert f"probe_rows-{__version__}.json" in scripts.calls[0][6]


def test_dry_run_prints_commands_that_can_be_copied(scripts: Scripts) -> None:
    printed = scripts.run("launch.sh", "--dry-run", "probe_rows", "input=gs://a/*", JOB_NAME="j")
    assert scripts.calls == []
    scripts.run("launch.sh", "probe_rows", "input=gs://a/*", JOB_NAME="j")
    assert shlex.split(printed) == ["gcloud", *scripts.calls[0]]
    assert scripts.run("build.sh", "probe_rows", "--dry-run").count("\ngcloud") == 1


@pytest.mark.parametrize(
    ("script", "arguments", "settings", "part"),
    [
        ("build.sh", ["overlapp"], {}, "overlapp is not a template: overlap probe_rows"),
        ("build.sh", [], {}, "nothing is not a template"),
        ("build.sh", ["probe_rows"], {"PROJECT": ""}, "PROJECT is empty: set it to"),
        ("build.sh", ["probe_rows", "x"], {}, "x is an unexpected argument"),
        (
            "launch.sh",
            ["probe_rows", "input=gs://a"],
            {"BUCKET": "gs://b"},
            "only the bucket's name",
        ),
        ("launch.sh", ["probe_rows"], {}, "no parameters"),
        ("launch.sh", ["probe_rows", "--max-workers=3"], {}, "is not PARAMETER=VALUE"),
        ("launch.sh", ["probe_rows", "columns=a||b"], {}, "contains ||"),
        ("launch.sh", ["probe_rows", "input=x"], {"JOB_NAME": "My_Job"}, "JOB_NAME is My_Job"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    scripts: Scripts, script: str, arguments: list[str], settings: dict[str, Any], part: str
) -> None:
    assert part in one_line(scripts.run(script, *arguments, code=2, **settings))
    assert scripts.calls == []
