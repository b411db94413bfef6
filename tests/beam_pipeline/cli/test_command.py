"""How every program ends: exit codes, one line for an error, a sentence after Ctrl-C."""

import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import setuptools

from beam_pipeline.cli.command import EXTRA_OF, run_command
from beam_pipeline.errors import ProbelineError, UsageError
from tests.support.repository import ROOT


def raising(error: BaseException) -> Callable[[Sequence[str]], int | None]:
    """Returns a program that fails so."""

    def run(_: Sequence[str]) -> int | None:
        raise error

    return run


def test_the_exit_code_is_the_programs() -> None:
    assert run_command(["x"], lambda argv: None, "stopped") == 0
    assert run_command(["x"], lambda argv: len(argv), "stopped") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProbelineError("no such\n  shard"), 1),
        (UsageError("no such\n  shard"), 2),
        (FileNotFoundError("no such\n  shard"), 1),
    ],
)
def test_an_error_is_one_line(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([], raising(error), "stopped") == code
    assert capsys.readouterr().err == "error: no such shard\n"


def test_custom_failure_code() -> None:
    failing = raising(ProbelineError("none"))
    assert run_command([], failing, "stopped", failure_code=2) == 2


def test_ctrl_c_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([], raising(KeyboardInterrupt()), "stopped; nothing written") == 130
    assert capsys.readouterr().err == "stopped; nothing written\n"


@pytest.mark.parametrize(
    ("module", "arguments", "package"),
    [
        ("beam_pipeline.main", ["--input=x", "--output=y"], "apache_beam"),
        (
            "beam_pipeline.overlap",
            ["--input_path=x", "--decontaminate_source=y", "--output_path=z"],
            "apache_beam",
        ),
        ("training.analyze_padding", ["rows"], "grain"),
        ("training.train", ["tiny"], "maxtext"),
    ],
)
def test_missing_extra(module: str, arguments: list[str], package: str) -> None:
    script = (
        f"import sys, runpy; sys.modules[{package!r}] = None; "
        f"sys.argv = {['x', *arguments]!r}; runpy.run_module({module!r}, run_name='__main__')"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT
    )
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert package in result.stderr
    assert f": pip install 'probeline[{EXTRA_OF[package]}]'\n" in result.stderr
    assert result.returncode == 2 and not result.stdout


def test_other_missing_modules_are_bugs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModuleNotFoundError):
        run_command([], raising(ModuleNotFoundError("gone", name="beam_pipeline.gone")), "stopped")


def test_extras_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", told.update)
    runpy.run_path(str(ROOT / "setup.py"))
    assert set(EXTRA_OF.values()) <= told["extras_require"].keys()
