"""The command and its programs: names, versions, examples, and what --help costs."""

import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from beam_pipeline import __version__
from beam_pipeline.cli import probeline
from beam_pipeline.cli.command import run_command, tidy_up_on_signals
from beam_pipeline.cli.probeline import PROGRAMS, main
from beam_pipeline.dataset.rows import open_dataset
from beam_pipeline.errors import EXTRA_OF, ProbelineError, UsageError
from tests.support.repository import ROOT

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
COMMANDS = [[MODULE], *([MODULE, name] for name in PROGRAMS), ["beam_pipeline.main"]]


@pytest.fixture(autouse=True)
def _argv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts back sys.argv, which the command sets."""
    monkeypatch.setattr(sys, "argv", ["pytest"])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_loads_nothing_heavy(command: list[str]) -> None:
    arguments = [sys.executable, "-c", HELP, *command, "--help"]
    shown = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(shown.stderr) == []
    name = f"python -m {command[0]}"
    if command[0] == MODULE:
        name = " ".join(["probeline", *command[1:]])
    assert shown.stdout.startswith(f"usage: {name} ")
    assert re.search(rf"\nexample:\n  {re.escape(name)} .+\n\Z", shown.stdout)


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_parse(name: str) -> None:
    parser = importlib.import_module(PROGRAMS[name].module).make_parser()
    parsed, unknown = parser.parse_known_args(shlex.split(parser.example))
    assert parser.example and not unknown
    required = [each.dest for each in parser.flags if each.required]
    assert all(getattr(parsed, name) for name in required)


@pytest.mark.parametrize("name", PROGRAMS)
def test_texts_are_utf_8(name: str) -> None:
    parser = importlib.import_module(PROGRAMS[name].module).make_parser()
    for argument in ("\udcff", "--mask_token=\udcff", "key=a\udcffb"):
        with pytest.raises(UsageError, match=r"\\udcffb? is not UTF-8: give it in UTF-8"):
            parser.parse_known_args([argument])


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


def test_a_dataset_is_made_and_read_by_subcommands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM removes the temporary files of a program that has some."""
    monkeypatch.chdir(tmp_path)
    tidied: list[str] = []
    monkeypatch.setattr(probeline, "tidy_up_on_signals", lambda: tidied.append("rows"))

    def run(*arguments: str) -> str:
        assert main(arguments) == 0
        return capsys.readouterr().out

    run("generate", "--output=data", "--num-measurements=3000", "--num-probes=30")
    assert tidied == []
    run("rows", "--input", "data/*.parquet", "--output", "rows")
    assert tidied == ["rows"]
    assert open_dataset(str(tmp_path / "rows")).manifest.counts.measurements == 3000
    assert "keeps every promise" in run("verify", "rows")
    assert "3,000 measurements" in run("inspect", "rows")


def test_completion(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of commands, and of the flags of one."""
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    program = tmp_path / "probeline"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {MODULE} "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    for words, expected in (
        (["ver"], ["verify"]),
        (["verify", "data", "--max"], ["--max_faults"]),
    ):
        typed = f"COMP_WORDS=(probeline {shlex.join(words)}) COMP_CWORD={len(words)}"
        asked = f'{script}{typed}; _probeline; printf "%s\\n" "${{COMPREPLY[@]}}"'
        done = subprocess.run(
            ["bash", "-c", asked], env=environment, capture_output=True, text=True
        )
        assert done.stdout.split() == expected, done.stderr


# --- exit codes and errors ------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[[Sequence[str]], int | None]:
    """Returns a program that fails so."""

    def run(_: Sequence[str]) -> int | None:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProbelineError("no such\n  shard"), 1),
        (UsageError("no such\n  shard"), 2),
        (FileNotFoundError("no such\n  shard"), 1),
    ],
)
def test_an_error_is_one_line(error: Exception, code: int, capsys) -> None:
    assert run_command([], raising(error), "stopped") == code
    assert capsys.readouterr().err == "error: no such shard\n"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_removed_current_folder_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = importlib.import_module(PROGRAMS[name].module).main
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run(["--help"]) == 2
    assert capsys.readouterr().err.startswith("error: the current folder was removed: cd to")


def test_a_closed_terminal_ends_a_program_as_ctrl_c_does() -> None:
    numbers = (signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may run these tests
        tidy_up_on_signals()
        for number in numbers:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        tidy_up_on_signals()
        signal.raise_signal(signal.SIGHUP)  # as nohup wants it
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["x"], lambda argv: None, "stopped") == 0
    assert run_command(["x"], lambda argv: len(argv), "stopped") == 1
    failing = raising(ProbelineError("none"))
    assert run_command([], failing, "stopped", failure_code=2) == 2
    capsys.readouterr()
    assert run_command([], raising(KeyboardInterrupt()), "stopped; nothing written") == 130
    assert capsys.readouterr().err == "stopped; nothing written\n"


@pytest.mark.parametrize(
    ("module", "arguments", "package"),
    [
        ("beam_pipeline.main", ["--input=x", "--output=y"], "apache_beam"),
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
