"""Workflows, releases, the version in all places, and the hooks of pre-commit."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from beam_pipeline import __version__
from scripts import release_notes
from tests.support.repository import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def load(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())


def steps(workflow: str) -> list[dict[str, Any]]:
    (job,) = load(ROOT / f".github/workflows/{workflow}.yml")["jobs"].values()
    assert job["timeout-minutes"] <= 360  # what a hosted runner allows
    return job["steps"]


# --- workflows ------------------------------------------------------------------------------------


def test_ci_runs_the_targets_of_make() -> None:
    assert [step["run"] for step in steps("ci") if "run" in step] == [".ci/run"]
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    commands = re.findall(r"^(?:\S+=\S+ )?make (.+?)(?: +#.*)?$", script.read_text(), re.MULTILINE)
    words = [word for command in commands for word in command.split()]
    targets = {word for word in words if not word.startswith("-")}
    phony = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]
    assert targets <= set(phony.split()) and "test" in targets
    used = [step["uses"].partition("@")[0] for step in steps("ci") if "uses" in step]
    tools = ("checkout", "setup-python", "setup-go", "setup-java")
    assert used == [f"actions/{tool}" for tool in tools]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_rights_of_workflows(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "write" if path.stem == "release" else "read"}
    assert all(re.search(r"@v\d+$", step["uses"]) for step in steps(path.stem) if "uses" in step)


# --- releases -------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project at the moment of its release 1.2.0."""
    (tmp_path / "beam_pipeline").mkdir()
    (tmp_path / "beam_pipeline/__init__.py").write_text('"""Doc."""\n\n__version__ = "1.2.0"\n')
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.0\n")
    changes = "# Changelog\n\n## Unreleased\n\n## 1.2.0\n\n### New\n- A.\n\n## 1.1.0\n\n- B.\n"
    (tmp_path / "CHANGELOG.md").write_text(changes)
    return tmp_path


def test_the_notes_are_the_section_of_the_version(project: Path) -> None:
    assert release_notes.notes("v1.2.0", project) == "### New\n- A.\n"


@pytest.mark.parametrize(
    ("file", "before", "after", "complaint"),
    [
        ("beam_pipeline/__init__.py", "1.2.0", "1.3.0", "the tag is v1.2.0, .*__init__.py has 1.3"),
        ("CITATION.cff", "\nversion: 1.2.0", "\nversion: 1.1.0", "CITATION.cff has 1.1.0"),
        ("CHANGELOG.md", "### New\n- A.\n", "", "nothing under '## 1.2.0'"),
        ("CHANGELOG.md", "Unreleased\n", "Unreleased\n\n- C.\n", "has lines under Unreleased"),
    ],
)
def test_a_release_that_does_not_agree(
    project: Path, file: str, before: str, after: str, complaint: str
) -> None:
    path = project / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(SystemExit, match=f"^error: .*{complaint}"):
        release_notes.notes("v1.2.0", project)


def test_this_version() -> None:
    """What a release would check, but for the changes that are not released yet."""
    released = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[2].strip()
    assert released.startswith(f"{__version__} (") and released.count("\n") <= 41
    names = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert names[0] == "Unreleased"
    versions = [tuple(map(int, name.split()[0].split("."))) for name in names[1:]]
    assert versions == sorted(set(versions), reverse=True)
    assert load(ROOT / "CITATION.cff")["version"] == __version__
    command = [sys.executable, "-S", "scripts/release_notes.py", "v0.0.0"]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 1 and refused.stderr.startswith("error: the tag is v0.0.0")


# --- hooks ----------------------------------------------------------------------------------------
