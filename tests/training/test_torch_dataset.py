"""`build_torch_dataset` without PyTorch, and its tests in an environment that has it."""

import importlib.util
import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import pytest

from tests.support.clean_environment import pytorch as pytorch
from tests.support.loader_helpers import config_of, refusal_of
from tests.support.repository import ROOT
from tests.support.waiting import HANG_S
from training import build_torch_dataset


def test_missing_pytorch_is_told() -> None:
    if importlib.util.find_spec("torch"):
        pytest.skip("PyTorch is installed")
    refusal_of(
        lambda: build_torch_dataset(config_of("rows")),
        "build_torch_dataset needs torch: pip install 'probeline[torch]'",
    )


@pytest.mark.slow
def test_with_pytorch(pytorch: Path) -> None:
    """Runs tests/training/with_torch; all else than PyTorch is of this environment."""
    packages = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
    # The path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="torch-", dir="/tmp") as short:
        result = subprocess.run(
            [pytorch, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/training/with_torch"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": packages, "PYTEST_ADDOPTS": "", "TMPDIR": short},
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "passed" in result.stdout and "skipped" not in result.stdout, result.stdout
