"""This process and its machine or container: memory, forks, the garbage collector."""

import contextlib
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),  # version 2
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),  # version 1
)
_MAX_CHECKS, _CHECK_S = 50, 0.01


def machine_memory_bytes(cgroup_limits: tuple[Path, ...] = _CGROUP_LIMITS) -> int:
    """Returns the memory of the machine or, if smaller, the limit of the control group.

    Without a limit, the file of version 2 has "max", that of version 1 a huge number.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in cgroup_limits:
        if path.is_file() and (text := path.read_text().strip()).isdigit():
            limits.append(int(text))
    return min(limits)


def can_fork() -> bool:
    """Returns whether this process can fork: on Linux, with a single thread.

    Threads of libraries count, since a fork lacks them, except those of jemalloc, Arrow's
    allocator, which restarts its own.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    for _ in range(_MAX_CHECKS):
        if len(_threads()) == 1:
            return True
        time.sleep(_CHECK_S)  # a joined thread may take a moment to disappear
    return False


def _threads() -> list[str]:
    """Returns the names of this process's threads, including those of libraries."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names.append((task / "comm").read_text())
    return [name for name in names if not name.startswith("jemalloc")]


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
