"""The command and its programs: names, versions, examples, and what --help costs."""

import importlib
import json
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from beam_pipeline import __version__
from beam_pipeline.cli import probeline
from beam_pipeline.cli.probeline import PROGRAMS, Program, main
from beam_pipeline.dataset.rows import open_dataset
from tests.support.repository import ROOT
from tests.support.warm_python import warm_python

MODULE = "beam_pipeline.cli.probeline"
# What takes a tenth of a second or more to import.
HEAVY = ("apache_beam", "numba", "pyarrow", "numpy", "array_record", "jax", "grain", "absl", "rich")
# Runs a program as `python -m` does, and prints on stderr which heavy packages it has loaded.
HELP = f"""
import json, runpy, sys
sys.argv[:] = sys.argv[1:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
finally:
    print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]), file=sys.stderr)
"""
COMMANDS = [[MODULE], *([MODULE, name] for name in PROGRAMS)]
MODULES = [[each.module.removesuffix(".__main__")] for each in PROGRAMS.values()]


@pytest.fixture(autouse=True)
def _argv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts back sys.argv, which the command sets."""
    monkeypatch.setattr(sys, "argv", ["pytest"])


@pytest.mark.parametrize("command", [*COMMANDS, *MODULES], ids=" ".join)
def test_help_loads_nothing_heavy(command: list[str]) -> None:
    arguments = [sys.executable, "-c", HELP, *command, "--help"]
    shown = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(shown.stderr) == []
    name = f"python -m {command[0]}"
    if command[0] == MODULE:
        name = " ".join(["probeline", *command[1:]])
    assert shown.stdout.startswith(f"usage: {name} ")
    assert re.search(rf"\nexample:\n  {re.escape(name)} .+\n\Z", shown.stdout)


def test_help_is_fast() -> None:
    """0.1 CPU-seconds, 2 with Beam; the ratio holds on a busy machine, too."""

    def cpu_seconds(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def ratio() -> float:
        return cpu_seconds("-m", MODULE, "rows", "--help") / cpu_seconds("-c", "pass")

    assert any(ratio() < 8 for _ in range(5))


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_parse(name: str) -> None:
    parser = importlib.import_module(PROGRAMS[name].module).make_parser()
    parsed, unknown = parser.parse_known_args(shlex.split(parser.example))
    assert parser.example and not unknown
    required = [each.dest for each in parser.flags if each.required]
    assert all(getattr(parsed, name) for name in required)


@pytest.mark.parametrize("name", ["", *PROGRAMS])
def test_version_of_every_program(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*filter(None, [name]), "--version"])
    assert capsys.readouterr().out == f"probeline {__version__}\n"


def test_help_without_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().err
    for name, program in PROGRAMS.items():
        assert re.search(rf"^  {name} +{program.summary}$", shown, re.MULTILINE)


def test_usage_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 2
    assert capsys.readouterr().err.startswith("error: the following arguments are required: data")


@pytest.mark.parametrize("tidies_up", [False, True])
def test_a_program_gets_its_arguments(tidies_up: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(probeline, "tidy_up_on_sigterm", lambda: called.append("sigterm"))
    module = Path(__file__).stem
    monkeypatch.setitem(sys.modules, module, sys.modules[__name__])
    program = Program(module, "", tidies_up)
    monkeypatch.setitem(PROGRAMS, "rows", program)
    monkeypatch.setattr(
        sys.modules[__name__], "main", lambda: called.append([*sys.argv]) or 3, raising=False
    )
    assert probeline.main(["rows", "--some-flag", "x", "--help"]) == 3
    assert called == ["sigterm"] * tidies_up + [["probeline rows", "--some-flag", "x", "--help"]]


def test_a_dataset_is_made_and_read_by_subcommands(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        command = [*warm_python(), "-m", MODULE, *arguments]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    run("generate", "--output=data", "--num-measurements=3000", "--num-probes=30")
    run("rows", "--input", "data/*.parquet", "--output", "rows")
    assert open_dataset(str(tmp_path / "rows")).manifest.counts.measurements == 3000
    assert "keeps every promise" in run("verify", "rows")
    assert "3,000 measurements" in run("inspect", "rows")
