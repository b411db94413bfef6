"""The imports of a job, without what a run on this machine does not use.

Where they are installed, Beam imports pandas, MongoDB's client, IPython and the connectors to
Google's services, Arrow imports pandas, and numba imports SciPy and more: half of the time in which
a small run starts. All of them are optional, so their imports may fail, and in `lean_imports` they
do.
"""

import contextlib
import gc
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


class _Hidden(MetaPathFinder):
    """Finds no module of these names."""

    def __init__(self, names: Sequence[str]):
        self._names = names

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname in self._names:
            raise ModuleNotFoundError(f"{fullname} is hidden", name=fullname)


@contextlib.contextmanager
def lean_imports(arguments: Sequence[str]) -> Iterator[None]:
    """Lets imports of OPTIONAL modules fail in the block.

    Args:
      arguments: the command line of this process. Nothing fails if it names a runner, a path with a
        scheme, or a function, module:function, which may import anything.
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


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Keeps the collector of garbage, and what Beam logs of modules it does not find, away."""
    disabled = logging.root.manager.disable
    logging.disable()
    gc.disable()  # what is imported stays
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        logging.disable(disabled)
