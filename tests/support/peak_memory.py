"""The peak memory of a command."""

import json
import subprocess
import sys

import pytest

from tests.support.repository import ROOT


def peak_memory(command: list[str]) -> float:
    """Runs a command; returns the peak of its process tree in MiB.

    In a process of its own, since a child's ru_maxrss starts at what its parent used.
    """
    if sys.platform != "linux":
        pytest.skip("peaks of memory are read from /proc")
    measured = [sys.executable, "-m", "benchmarks.measure", "--", *command]
    result = subprocess.run(measured, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stderr.splitlines()[-1])["peak_mib"]
