"""Workflows, releases, the version in all places, and the hooks of pre-commit."""

import os
import re
import shlex
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


def setup_py() -> str:
    return (ROOT / "setup.py").read_text()


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


def test_a_release_is_checked_first() -> None:
    runs = [step["run"] for step in steps("release") if "run" in step]
    assert runs[0].startswith('python scripts/release_notes.py "$GITHUB_REF_NAME" >notes.md')
    server, repository = re.findall(r'^REPOSITORY = "(.+)/(.+/.+)"$', setup_py(), re.MULTILINE)[0]
    variables = {"GITHUB_SERVER_URL": server, "GITHUB_REPOSITORY": repository}
    for more, code in (({}, 0), ({"GITHUB_REPOSITORY": "else/where"}, 1)):
        environment = {**os.environ, **variables, **more}
        assert subprocess.run(["bash", "-c", runs[1]], cwd=ROOT, env=environment).returncode == code
    assert runs[2].endswith("python -m build --outdir dist")
    assert runs[3].startswith('gh release create "$GITHUB_REF_NAME" dist/*')
    assert "--notes-file notes.md" in runs[3] and len(runs) == 4


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
        ("CITATION.cff", "\nversion: 1.2.0", "", "no line is like"),
        ("CHANGELOG.md", "## 1.2.0", "## 1.2", "nothing under '## 1.2.0'"),
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


def test_hooks_are_the_steps_of_make_quality() -> None:
    (repo,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"  # nothing is fetched
    quality = (ROOT / "Makefile").read_text().partition("quality: setup")[2].partition("\n\n")[0]
    tools = re.findall(r"\$\(BIN\)/(\w+)", quality)
    assert [Path(shlex.split(hook["entry"])[0]).name for hook in repo["hooks"]] == tools
