"""The wheel, in an empty environment and from an empty folder: nothing of the checkout is near."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.clean_environment import clean, copy_of_the_project, new_environment, pip
from tests.support.repository import ROOT

pytestmark = pytest.mark.slow  # installs packages for a minute

LOCK = ("--constraint", str(ROOT / "requirements.txt"))
PACKAGES = ("beam_pipeline", "training")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    python = new_environment(folder / "builder")
    project = copy_of_the_project(folder / "project")
    pip(python, "wheel", "--no-deps", "--wheel-dir", str(folder), str(project))
    (wheel,) = folder.glob("probeline-*.whl")
    return wheel


class Desk:
    """An empty folder, and an environment with the wheel alone."""

    def __init__(self, folder: Path, wheel: Path):
        self.folder = folder / "empty"
        self.folder.mkdir()
        self.wheel = wheel
        self.python = new_environment(folder / "environment")
        self.install("")

    def install(self, extras: str) -> None:
        pip(self.python, "install", *LOCK, f"{self.wheel}{extras}")
        pip(self.python, "check")

    def run(self, command: str, code: int = 0) -> str:
        """Runs a subcommand of `probeline`; returns its output, or its error if it fails."""
        result = subprocess.run(
            [self.python.parent / "probeline", *command.split()],
            cwd=self.folder,
            env=clean(os.environ),
            capture_output=True,
            text=True,
        )
        assert result.returncode == code, result.stderr
        assert "apitools" not in result.stderr  # a warning of Beam without its extra gcp
        return result.stderr if code else result.stdout

    def files(self) -> set[str]:
        """Returns the installed files of our packages."""
        (home,) = self.python.parent.parent.glob("lib/python3*/site-packages")
        return {str(path.relative_to(home)) for name in PACKAGES for path in files(home / name)}


def files(folder: Path) -> list[Path]:
    """Returns the files of a package, less what Python and numba cache."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return [path for path in found if "__pycache__" not in path.parts]


def test_the_wheel_does_all_that_its_extras_say(wheel: Path, tmp_path: Path) -> None:
    desk = Desk(tmp_path, wheel)
    ours = {str(path.relative_to(ROOT)) for name in PACKAGES for path in files(ROOT / name)}
    assert desk.files() == ours

    desk.run("generate --output data --num_measurements 20000 --num_probes 50")
    for command, extra in (
        ("rows --input data/*.parquet --output rows", "beam"),
        ("overlap --input_path x --decontaminate_source y --output_path z", "beam"),
        ("padding rows", "training"),
        ("train tiny", "maxtext"),
        ("inspect rows --html page.html", "report"),
    ):
        error = desk.run(command, code=2)
        assert error.count("\n") == 1 and f"pip install 'probeline[{extra}]'" in error

    desk.install("[beam,report,training]")
    desk.run("rows --input data/*.parquet --output rows")
    assert "keeps every promise: 20,000 measurements" in desk.run("verify rows")
    desk.run("inspect rows --html page.html")
    assert "<svg" in (desk.folder / "page.html").read_text()
    assert "tokens:" in desk.run("inspect rows --context=1,0,0")
    (desk.folder / "corpus").mkdir()
    (desk.folder / "corpus" / "a.jsonl").write_text('{"text": "one two three four five"}\n' * 3)
    desk.run(
        "overlap --input_path corpus --decontaminate_source it=corpus --output_path overlap "
        "--ngram_length 3"
    )
    desk.run("report overlap")
    assert "<html" in (desk.folder / "report.html").read_text()


def test_what_an_index_shows(wheel: Path, tmp_path: Path) -> None:
    metadata = subprocess.run(
        ["unzip", "-p", wheel, "*.dist-info/METADATA"], capture_output=True, text=True, check=True
    ).stdout
    head, _, description = metadata.partition("\n\n")
    assert description == (ROOT / "README.md").read_text()
    for line in ("License-Expression: Apache-2.0", "Keywords: ", "Classifier: Typing :: Typed"):
        assert f"\n{line}" in head
