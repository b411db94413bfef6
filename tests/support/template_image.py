"""The image of a Flex template, built without Docker."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.clean_environment import clean, done, new_environment
from tests.support.dataflow_helpers import (
    IMAGE,
)
from tests.support.repository import ROOT

TEMPLATES = ROOT / "templates"


def instructions(template: str) -> Iterator[tuple[str, str]]:
    """Yields the instructions of a template's image and their arguments, lines joined."""
    text = re.sub(r"^#.*\n", "", (TEMPLATES / "Dockerfile").read_text(), flags=re.MULTILINE)
    text = text.replace("${TEMPLATE}", template).replace("${IMAGE}", IMAGE)
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip():
            name, _, arguments = line.partition(" ")
            yield name, arguments


@dataclass(frozen=True)
class Image:
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
            timeout=120,  # it must not wait for a job
        )


def make_image(folder: Path, template: str) -> Image:
    """Does the steps of a template's image below a folder, in an empty environment.

    Base images and what is copied from them are left out: the Python is the one that runs this
    test.
    """
    python = new_environment(folder / "python")
    root, variables = folder / "root", {}
    where = root
    for name, arguments in instructions(template):
        if name == "WORKDIR":
            where = root / arguments.lstrip("/")
            where.mkdir(parents=True)
        elif name == "ENV":
            key, _, value = arguments.partition("=")
            variables[key] = value
        elif name == "COPY" and not arguments.startswith("--from="):
            *sources, target = arguments.split()
            for source in sources:
                copy(ROOT / source, where / target, target.endswith("/"))
        elif name == "RUN":
            result = subprocess.run(
                ["bash", "-euc", arguments],
                cwd=where,
                env=clean(os.environ) | {"PATH": f"{python.parent}:/usr/bin:/bin"},
                capture_output=True,
                text=True,
            )
            done(result)
    return Image(python, root, variables)


def copy(source: Path, target: Path, into: bool) -> None:
    if source.is_dir():
        left_out = shutil.ignore_patterns("__pycache__")  # as Dockerfile.dockerignore says
        shutil.copytree(source, target, ignore=left_out, dirs_exist_ok=True)
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target / source.name if into else target)
