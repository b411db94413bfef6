"""What is compiled in one process must be right in the next, whatever has changed in between."""

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from beam_pipeline import kernels
from beam_pipeline.kernels import kernel
from tests.support.repository import ROOT


def run_script(folder: Path, script: str, *arguments: str) -> str:
    """Runs a script in a process of its own whose compiled kernels are kept in `folder`/cache."""
    paths = os.pathsep.join([str(folder), str(ROOT)])
    result = subprocess.run(
        [sys.executable, "-B", "-c", textwrap.dedent(script), *arguments],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-1000:]
    return result.stdout.strip()


SORT = """
    import sys
    import numpy as np
    from beam_pipeline.dataset import sorted_run

    for name in sys.argv[1:]:
        rng = np.random.default_rng(1)
        run = np.zeros(1000, getattr(sorted_run, name))
        run["event_time"] = rng.integers(0, 500, 1000)
        run["dst_lo"] = rng.integers(0, 500, 1000)
        expected = np.sort(run, order=list(run.dtype.names))
        sorted_run.sort_groups(run, np.array([0, 1000]))
        assert (run == expected).all(), name
"""


@pytest.mark.slow
def test_kernels_of_several_structured_types_from_several_processes(tmp_path: Path) -> None:
    """numba gives both types the same name if they are the first of their processes."""
    for types in (["NARROW"], ["WIDE"], ["NARROW", "WIDE"], ["WIDE", "NARROW"]):
        run_script(tmp_path, SORT, *types)


@pytest.mark.slow
def test_kernels_are_kept_in_the_users_cache_and_announced(tmp_path: Path) -> None:
    """Nothing is left beside the module, and the next process compiles nothing."""
    (tmp_path / "kernel_module.py").write_text(
        "from beam_pipeline.kernels import kernel\n\n@kernel\ndef add(x):\n    return x + 1\n"
    )
    dropped = ("NUMBA_CACHE_DIR", "PROBELINE_QUIET")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment |= {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    script = "import kernel_module; print(kernel_module.add(1))"
    command = [sys.executable, "-c", script]
    shown = []
    for size in (None, 0, 100, None):
        for kept in tmp_path.glob("cache/probeline/kernels/*/*"):
            kept.write_bytes(kept.read_bytes()[:size])
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == "2\n"
        shown.append(done.stderr)
    assert shown[0].startswith("Compiling kernels, once for this version: ")
    assert shown[1:] == [shown[0], shown[0], ""]
    assert {path.name for path in tmp_path.iterdir()} == {"cache", "kernel_module.py"}
    (kept,) = tmp_path.glob("cache/probeline/kernels/*/*")
    assert kept.name.startswith("kernel_module.add-")
    (tmp_path / "file").touch()  # no folder can be made there: it is kept elsewhere, or nowhere
    environment["XDG_CACHE_HOME"] = str(tmp_path / "file")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n" and done.stderr == shown[0]


def test_nowhere_to_keep_what_is_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def locate(function: object) -> None:
        raise RuntimeError("no locator available")

    def save(files: object, key: object, value: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    kernels._warn_once.cache_clear()
    monkeypatch.setattr(kernels._Files, "save", save)
    assert kernel(lambda: 3)() == 3
    monkeypatch.setattr(kernels, "_Cache", locate)
    assert (kernel(lambda: 1)(), kernel(lambda: 2)()) == (1, 2)
    assert capsys.readouterr().err.count("set NUMBA_CACHE_DIR") == 1


CALLER = """
from beam_pipeline.kernels import kernel
from callee import add

@kernel
def twice(x):
    return 2 * add(x)
"""
CALLEE = """
import numpy as np
import values
from numba import njit, types
from numba.extending import intrinsic
from values import LIMIT

TABLE = np.array([10, 20])

@intrinsic
def constant(typing_context):
    def generate(context, builder, signature, args):
        return context.get_constant(types.int64, 10000)
    return types.int64(), generate

@njit
def add(x):
    return x + 1 + LIMIT + TABLE[0] + values.MORE + constant()
"""
VALUES = """
LIMIT = 100
MORE = 1000
"""


@pytest.mark.slow
def test_a_change_in_another_file_is_seen(tmp_path: Path) -> None:
    files = {"caller.py": CALLER, "callee.py": CALLEE, "values.py": VALUES}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    script = "import caller; print(caller.twice(2), len(caller.twice.stats.cache_hits))"
    assert run_script(tmp_path, script) == "22226 0"
    assert run_script(tmp_path, script) == "22226 1"
    expected = 22226
    for file, old, new, more in (
        ("callee.py", "x + 1", "x + 2", 1),
        ("callee.py", "[10, 20]", "[11, 20]", 1),
        ("callee.py", "10000", "10001", 1),
        ("values.py", "LIMIT = 100", "LIMIT = 101", 1),
        ("values.py", "MORE = 1000", "MORE = 2000", 1000),
    ):
        assert old in files[file]
        files[file] = files[file].replace(old, new)
        (tmp_path / file).write_text(files[file])
        expected += 2 * more
        assert run_script(tmp_path, script) == f"{expected} 0", new
