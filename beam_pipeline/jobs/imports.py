"""What a job imports: no more than it needs, and without the garbage collector.

Where they are installed, Beam imports pandas, MongoDB's client, IPython and connectors to Google's
services, Arrow imports pandas, and numba imports SciPy: half of the start-up time of a small run.
All of these are optional, so `lean_imports` makes their imports fail.
"""

import contextlib
import gc
import importlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder

OPTIONAL = (
    *("apache_beam.io.gcp.bigquery", "apache_beam.io.gcp.gcsfilesystem", "google.cloud.dataflow"),
    *("IPython", "apitools", "bson", "cffi", "colorama", "pandas", "scipy"),
)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Disables the garbage collector, and Beam's log of missing modules, in the block."""
    disabled = logging.root.manager.disable
    logging.disable()
    gc.disable()  # what is imported stays
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        logging.disable(disabled)


class _Hidden(MetaPathFinder):
    """Hides modules from imports."""

    def __init__(self, names: Sequence[str]):
        self.names = names

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname in self.names:
            raise ModuleNotFoundError(f"{fullname} is hidden", name=fullname)


@contextlib.contextmanager
def lean_imports(arguments: Sequence[str]) -> Iterator[None]:
    """Makes imports of OPTIONAL modules fail in the block.

    Nothing fails if the command line names a runner, a path with a scheme, or a function
    (module:function), which may import anything.
    """
    may_need_all = any(
        text.startswith("--runner") or re.search(r"://|(^|=)[\w.]+:[\w.]+$", text)
        for text in arguments
    )
    finder = _Hidden(() if may_need_all else OPTIONAL)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy starts threads that spin
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        gc.freeze()  # the process ends: no last collection


def is_lean() -> bool:
    """Returns whether imports of OPTIONAL modules fail now."""
    return any(isinstance(finder, _Hidden) and finder.names for finder in sys.meta_path)


def call(lean: bool, module: str, function: str, *arguments: object) -> None:
    """Imports a function in a new process, leanly or not, and calls it."""
    with lean_imports([] if lean else ["--runner"]):
        with importing():
            target = getattr(importlib.import_module(module), function)
        target(*arguments)
