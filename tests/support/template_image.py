"""Flex Templates: what the launcher gives a program, and a template's image without Docker."""

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from google.cloud.dataflow_v1beta3 import types
from google.protobuf import json_format

from beam_pipeline.storage.files import locked
from tests.support.clean_environment import clean, done, find_uv, new_environment
from tests.support.dataflow_api import PROJECT, REGION, DataflowApi
from tests.support.dataflow_helpers import IMAGE
from tests.support.engines import stored_objects
from tests.support.repository import ROOT
from tests.support.stand_ins import one_line
from tests.support.waiting import HANG_S

TEMPLATES = ROOT / "templates"
TITLES = {"probe_rows": "Probe rows", "overlap": "Train/test overlap"}
each_template = pytest.mark.parametrize("name", TITLES)
_TEMPLATE_STEP = ("ARG", "TEMPLATE")  # what comes before it is the same for all


def instructions(template: str) -> Iterator[tuple[str, str]]:
    """Yields the instructions of a template's image and their arguments, lines joined."""
    text = re.sub(r"^#.*\n", "", (TEMPLATES / "Dockerfile").read_text(), flags=re.MULTILINE)
    text = text.replace("${TEMPLATE}", template).replace("${IMAGE}", IMAGE)
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip():
            name, _, arguments = line.partition(" ")
            yield name, arguments


def launcher_words(bucket: str, name: str) -> list[str]:
    """Returns the words that the launcher adds to a template's own parameters."""
    return [
        *("--runner=DataflowRunner", f"--job_name={name}", f"--project={PROJECT}"),
        *(f"--region={REGION}", f"--temp_location={bucket}/temp"),
        f"--staging_location={bucket}/staging",
        f"--template_location={bucket}/staging/template_launches/1/job_object",
    ]


def template_at(bucket: str) -> types.Job:
    """Returns the job that Dataflow would start; a field that it does not know is an error."""
    text = stored_objects(f"{bucket}/staging/template_launches/1")["job_object"]
    return types.Job.wrap(json_format.Parse(text, types.Job.pb(types.Job())))


class Image(NamedTuple):
    """What the steps of an image left: its Python, its files below a folder, its variables."""

    python: Path
    root: Path
    variables: dict[str, str]

    def launch(self, *words: str) -> subprocess.CompletedProcess:
        """Runs the program that Google's launcher would run, with its words."""
        program = self.variables["FLEX_TEMPLATE_PYTHON_PY_FILE"].lstrip("/")
        return subprocess.run(
            [self.python, self.root / program, *words],
            cwd=self.root.parent,
            env=clean(os.environ) | self.variables,
            capture_output=True,
            text=True,
            timeout=HANG_S,  # it must not wait for a job
        )


@pytest.fixture(scope="session")
def base_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an image up to the step that tells the templates apart; nobody changes it.

    Base images and what is copied from them are omitted: the Python is the one of this test.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # one for all processes
        folder = folder.parent
    base, stamp = folder / "base-image", folder / "base-image-is-made"
    with locked(str(folder / "base-image-lock")):
        if not stamp.exists():
            new_environment(base / "python")
            steps = itertools.takewhile(lambda step: step != _TEMPLATE_STEP, instructions("none"))
            do_steps(steps, base)
            stamp.touch()
    return base


def do_steps(steps: Iterable[tuple[str, str]], image: Path, where: str = ".") -> dict[str, str]:
    """Does steps of an image in its folder; returns the variables that they set."""
    root, variables = image / "root", {}
    for name, arguments in steps:
        if name == "WORKDIR":
            where = arguments.lstrip("/")
            (root / where).mkdir(parents=True)
        elif name == "ENV":
            key, _, value = arguments.partition("=")
            variables[key] = value
        elif name == "COPY" and not arguments.startswith("--from="):
            *sources, target = arguments.split()
            for source in sources:
                copy(ROOT / source, root / where / target, target.endswith("/"))
        elif name == "RUN":
            python = image / "python"
            variables_of_step = {"PATH": f"{python}/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(python)}
            result = subprocess.run(
                ["bash", "-euc", _by_uv(arguments)],
                cwd=root / where,
                env=clean(os.environ) | variables_of_step,
                capture_output=True,
                text=True,
            )
            done(result)
    return variables


def _by_uv(step: str) -> str:
    """Has uv, if it is there, install the packages of the lock, in a tenth of pip's time."""
    uv = find_uv()
    by_pip = r"pip install (?:--\S+ )*(?=--constraint)"
    return re.sub(by_pip, f"{uv} pip install --quiet ", step) if uv else step


def make_image(base: Path, folder: Path, template: str) -> Image:
    """Does the steps of one template, with the Python of the base image and a copy of its files."""
    shutil.copytree(base / "root", folder / "root")
    steps = itertools.dropwhile(lambda step: step != _TEMPLATE_STEP, instructions(template))
    variables = do_steps(steps, folder, "template")
    return Image(base / "python" / "bin" / "python", folder / "root", variables)


def launched_job(
    image: Image, words: list[str], bad: str, bucket: str, dataflow: DataflowApi
) -> types.Job:
    """Launches a template from its image; returns the job that it wrote.

    Args:
      words: the launcher's.
      bad: a further word, which must be refused in one line.
    """
    words = [*words, f"--dataflow_endpoint={dataflow.endpoint}"]
    refused = image.launch(*words, bad)
    assert refused.returncode == 2 and bad in one_line(refused.stderr)
    result = image.launch(*words)
    assert result.returncode == 0, result.stderr
    assert dataflow.jobs == []  # Dataflow starts what was written, nobody else does
    return template_at(bucket)


def copy(source: Path, target: Path, into: bool) -> None:
    if source.is_dir():
        left_out = shutil.ignore_patterns("__pycache__")  # as Dockerfile.dockerignore says
        shutil.copytree(source, target, ignore=left_out, dirs_exist_ok=True)
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target / source.name if into else target)
