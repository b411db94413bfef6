"""`pytest --cpu-budget`: what is within passes, what is above fails, and both are listed."""

import os
import subprocess
import sys

import pytest

from tests.support.repository import ROOT

SOME_TESTS = "tests/beam_pipeline/test_errors.py"


@pytest.mark.parametrize(
    ("budget", "code", "verdict"), [(0.1, 1, "MORE THAN the budget of 0"), (999, 0, "within")]
)
def test_a_run_has_a_budget(budget: float, code: int, verdict: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", f"--cpu-budget={budget}", SOME_TESTS]
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout
    assert verdict in done.stdout.splitlines()[-2]
    assert f"0.0 {SOME_TESTS}::" in done.stdout
