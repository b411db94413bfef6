"""Fixtures that more than one test file needs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PRISM_VERSION = "v2.77.0"
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def prism() -> str:
    """The path of the Prism binary, built with Go if need be; skips (in CI fails) without Go."""
    for candidate in (os.environ.get("PRISM_BINARY"), ROOT / ".engines" / "prism"):
        if candidate and Path(candidate).exists():
            return str(candidate)
    if shutil.which("go") is None:
        reason = "Prism needs Go (1.23 or newer) to be built, and there is no `go` here"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    result = subprocess.run(
        ["scripts/build_prism.sh", PRISM_VERSION], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return str(ROOT / ".engines" / "prism")
