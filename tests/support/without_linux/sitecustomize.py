"""Takes what Linux has and macOS lacks from each Python whose PYTHONPATH has this folder.

`sys.platform` stays, since packages load their libraries by it.
"""

import multiprocessing.heap
import os
import resource
import sys

_FOLDERS = ("/proc", "/sys", "/dev/shm")
_FUNCTIONS = ("mallopt", "malloc_trim", "prctl")  # of the C library
_NUM_FILES = 256  # that a process may open there


def _refuse(event: str, arguments: tuple) -> None:
    if event in ("open", "os.listdir", "os.scandir") and not isinstance(arguments[0], int):
        if os.fspath(arguments[0] or "").startswith(_FOLDERS):
            raise FileNotFoundError(2, "not on macOS", arguments[0])
    elif event == "ctypes.dlsym" and arguments[1] in _FUNCTIONS:
        raise AttributeError(arguments[1])


del os.sched_getaffinity, os.fork
multiprocessing.set_start_method("spawn")
multiprocessing.heap.Arena._dir_candidates = []  # without /dev/shm
resource.setrlimit(resource.RLIMIT_NOFILE, (_NUM_FILES, _NUM_FILES))
sys.addaudithook(_refuse)
