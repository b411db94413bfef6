"""How every program ends: exit codes, one line for an error, a sentence after Ctrl-C."""

from collections.abc import Callable, Sequence

import pytest

from beam_pipeline.cli.command import run_command
from beam_pipeline.errors import ProbelineError, UsageError


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


def test_a_program_may_name_the_code_of_errors() -> None:
    failing = raising(ProbelineError("none"))
    assert run_command([], failing, "stopped", failure_code=2) == 2


def test_ctrl_c_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([], raising(KeyboardInterrupt()), "stopped; nothing written") == 130
    assert capsys.readouterr().err == "stopped; nothing written\n"
