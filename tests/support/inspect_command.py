"""What the command inspect prints."""

import pytest

from beam_pipeline.inspect import __main__ as inspect
from beam_pipeline.inspect.facts import Facts
from beam_pipeline.inspect.tables import tables


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert inspect.main(list(arguments)) == 0
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """Returns the one line that a command which cannot be run ends with."""
    assert inspect.main(list(arguments)) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    return err


def cells(facts: Facts, name: str) -> dict[str, list[str]]:
    """Returns the rows of a table by their first cell."""
    found = next(one for one in tables(facts) if one.name == name)
    return {row[0]: row[1:] for row in found.cells}
