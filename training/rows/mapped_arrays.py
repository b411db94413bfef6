"""Arrays in a temporary file, which this process and those that it starts map into memory.

Processes share the pages, and the kernel may drop those that are not in use.
"""

import contextlib
import os
import tempfile
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from beam_pipeline.errors import explained_os_errors

# By name: the dtype and the length of an array.
type Sizes = Mapping[str, tuple[Any, int]]


class MappedArrays:
    """Some arrays, which a process writes once, part by part, and then maps.

    Pickled, it names its file, which is removed when the process that made it ends, or drops it.

    Args:
      sizes: of the arrays; each is zeros where nothing is written.

    Raises:
      ProbelineError: the file cannot be written.
    """

    def __init__(self, sizes: Sizes):
        self._sizes = {name: (np.dtype(dtype), length) for name, (dtype, length) in sizes.items()}
        self._begins: dict[str, int] = {}
        num_bytes = 0
        for name, (dtype, length) in self._sizes.items():
            self._begins[name] = num_bytes
            num_bytes += -(-dtype.itemsize * length // 64) * 64
        with explained_os_errors("write", tempfile.gettempdir()):
            file, self._path = tempfile.mkstemp(prefix="probeline-rows-")
            weakref.finalize(self, _remove, self._path, os.getpid())
            os.truncate(file, num_bytes)
            os.close(file)

    def write(self, name: str, begin: int, values: np.ndarray) -> None:
        """Writes values to an array, from an index on."""
        dtype, _ = self._sizes[name]
        with explained_os_errors("write", self._path), open(self._path, "r+b") as file:
            file.seek(self._begins[name] + begin * dtype.itemsize)
            file.write(np.ascontiguousarray(values, dtype).data)

    def arrays(self) -> dict[str, np.ndarray]:
        """Maps the arrays."""
        # Kernels are compiled for arrays that can be written; these pages would be copied then.
        return {
            name: np.asarray(np.memmap(self._path, dtype, "c", self._begins[name], length))
            if length
            else np.zeros(0, dtype)
            for name, (dtype, length) in self._sizes.items()
        }


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:  # not in a fork of it
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
