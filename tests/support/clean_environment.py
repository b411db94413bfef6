"""Python environments that hold only what is installed into them, and a copy to install from."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from beam_pipeline.storage.files import locked
from tests.support.engines import missing
from tests.support.repository import ROOT

# What packages are made of; what was built in the checkout stays behind.
_SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "beam_pipeline", "training")
# What pip and uv say of a machine without a network.
_OFFLINE = ("NameResolutionError", "NewConnectionError", "Network is unreachable", "dns error")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")


def copy_of_the_project(folder: Path, *more: str) -> Path:
    """Copies the sources, and more paths of the checkout, so that builds leave no files in it."""
    for name in (*_SOURCES, *more):
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=_LEFT_OUT)
        else:
            shutil.copyfile(source, target)
    return folder


def new_environment(folder: Path) -> Path:
    """Makes an environment with pip alone; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin" / "python"


def clean(environment: os._Environ | dict[str, str]) -> dict[str, str]:
    """Returns an environment's variables without those that point to this checkout."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    return {name: value for name, value in environment.items() if name not in hidden}


def done(result: subprocess.CompletedProcess) -> None:
    """Fails the test with what a command said; where no index of packages answers, skips it."""
    said = f"{result.stdout}{result.stderr}"
    if result.returncode and any(sign in said for sign in _OFFLINE):
        missing("clean environments are made of packages from an index, and none answers")
    assert result.returncode == 0, said


def find_uv() -> str | None:
    return shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def pip(python: Path, *arguments: str) -> None:
    """Runs an environment's pip; installs by uv, if it is there, in a tenth of the time."""
    uv = find_uv()
    installs_by_uv = uv is not None and arguments[0] == "install"
    program = [uv, "pip"] if installs_by_uv else [python, "-m", "pip"]
    result = subprocess.run(
        [*program, *arguments, "--quiet"],
        cwd=python.parent,
        env=clean(os.environ) | {"VIRTUAL_ENV": str(python.parents[1])},  # uv goes by it
        capture_output=True,
        text=True,
    )
    done(result)


TENSORFLOW = (
    "tensorflow-cpu==2.21.0; sys_platform == 'linux' and platform_machine == 'x86_64'",
    "tensorflow==2.21.0; sys_platform != 'linux' or platform_machine != 'x86_64'",
)


@pytest.fixture(scope="session")
def tensorflow() -> Path:
    """The Python of an environment with TensorFlow, kept for the next run of the tests."""
    return _kept_environment("tensorflow", TENSORFLOW)


TORCH = ("torch==2.15.0", "torchdata==0.11.0")


@pytest.fixture(scope="session")
def pytorch() -> Path:
    """The Python of an environment with PyTorch, kept for the next run of the tests."""
    return _kept_environment("torch", TORCH)


@pytest.fixture(scope="session")
def dolma() -> Path:
    """The program dolma, in the environment of the benches, kept for the next run of the tests."""
    lines = (ROOT / "benchmarks/peers/dolma.txt").read_text().splitlines()
    requirements = [line for line in lines if not line.startswith("#")]
    return _kept_environment("dolma", requirements).with_name("dolma")


def _kept_environment(name: str, requirements: Sequence[str]) -> Path:
    folder = ROOT / ".engines" / name
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    folder.parent.mkdir(exist_ok=True)
    with locked(str(folder.with_suffix(".lock"))):
        if not stamp.exists() or stamp.read_text() != "\n".join(requirements):
            shutil.rmtree(folder, ignore_errors=True)
            pip(new_environment(folder), "install", *requirements)
            stamp.write_text("\n".join(requirements))
    return python
