"""scripts/make_venv.sh: uv if it is there, fetched if it is not, pip if neither works."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tests.support.stand_ins import StandIns, check_shell, run_script

SCRIPT = ROOT / "scripts" / "make_venv.sh"
WHAT = ["--constraint", "requirements.txt", "--editable", ".[beam,report]"]
FETCHES_UV = 'if [[ $* == *" uv" ]]; then mv "${0%/*}/fetched" "${0%/*}/uv"; fi'


class Machine:
    """An environment with stand-ins for `python` and `uv`, and a PATH with bash alone."""

    def __init__(self, folder: Path):
        self.folder = folder / "venv"
        self.programs = StandIns(self.folder / "bin")
        self.path = folder / "path"
        self.path.mkdir()
        (self.path / "bash").symlink_to(str(shutil.which("bash")))
        (self.path / "mv").symlink_to(str(shutil.which("mv")))

    def install(self) -> list[list[str]]:
        """Runs the script; returns what the stand-ins were called with."""
        environment = {**self.programs.variables, "PATH": str(self.path)}
        run_script(SCRIPT, "no", str(self.folder), "beam,report", environment=environment)
        return self.programs.calls()

    def with_uv(self, *words: str) -> list[str]:
        return [*words, "pip", "install", "--quiet", "--python", f"{self.folder}/bin/python", *WHAT]

    @staticmethod
    def with_pip(*what: str) -> list[str]:
        quiet = ["--quiet", "--disable-pip-version-check"]
        return ["python", "-m", "pip", *quiet, "install", *what]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_uv_that_is_there_is_used(machine: Machine) -> None:
    machine.programs.add("python")
    machine.programs.add("uv")
    (machine.folder / "bin" / "uv").rename(machine.path / "uv")
    assert machine.install() == [machine.with_uv("uv")]


def test_uv_that_is_missing_is_fetched(machine: Machine) -> None:
    machine.programs.add("python", FETCHES_UV)
    machine.programs.add("fetched")
    assert machine.install() == [machine.with_pip("uv"), machine.with_uv("uv")]


def test_pip_installs_where_uv_cannot_be_had(machine: Machine) -> None:
    machine.programs.add("python", '[[ $* != *" uv" ]]')
    assert machine.install() == [machine.with_pip("uv"), machine.with_pip("--no-compile", *WHAT)]


def test_pip_installs_where_uv_fails(machine: Machine) -> None:
    machine.programs.add("python", FETCHES_UV)
    machine.programs.add("fetched", "exit 2")
    calls = [machine.with_pip("uv"), machine.with_uv("uv"), machine.with_pip("--no-compile", *WHAT)]
    assert machine.install() == calls


def test_a_missing_python_is_one_line(machine: Machine) -> None:
    shutil.rmtree(machine.folder)
    result = subprocess.run(
        ["bash", SCRIPT, "python9", machine.folder, "beam"],
        env={"PATH": str(machine.path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert "needs Python 3.12 or 3.13, and neither python9 nor python is one" in result.stderr
    assert not machine.folder.exists()


def test_the_script_is_valid() -> None:
    check_shell(SCRIPT)
