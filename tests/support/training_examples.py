"""The training examples, run as examples/README.md says, on other rows."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.support import documents
from tests.support.repository import ROOT
from tests.support.waiting import HANG_S


def check_training_example(script: str, rows: Path, folder: Path) -> None:
    """Runs the command of an example; its loss falls, and is the same after a stop.

    Args:
      folder: an empty one, to run the command in.
    """
    (block,) = [b for b in documents.blocks("examples/README.md") if script in b.text]
    code = (ROOT / "examples" / script).read_text()
    lines = [line.partition("  #")[0].strip() for line in code.splitlines()]
    install, command = (line.partition("  #")[0] for line in block.text.splitlines())
    assert install in lines and command in lines
    (extra,) = re.findall(r"pip install '\.\[([a-z]+)\]'", install)
    assert f'"{extra}": ' in (ROOT / "setup.py").read_text()
    python, path, data = shlex.split(command)
    assert (python, path, data) == ("python", f"examples/{script}", "demo/rows")
    (folder / "demo").mkdir()
    (folder / "demo" / "rows").symlink_to(rows)
    result = subprocess.run(
        [sys.executable, ROOT / path, data],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert result.returncode == 0, result.stderr
    first, whole, resumed = map(float, re.findall(r"^step .*: loss ([\d.]+)$", result.stdout, re.M))
    assert whole == resumed < 0.9 * first
