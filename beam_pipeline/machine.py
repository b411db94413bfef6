"""What differs between operating systems: cores, memory, processes, threads, the heap.

Linux has all of it. Where something is missing, as on macOS, a function here does without it; other
modules use only what both have.
"""

import contextlib
import mmap
import os
import sys
import threading
import time
import unicodedata
from pathlib import Path

from beam_pipeline.errors import ProbelineError

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),  # version 2
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),  # version 1
)
_MAX_CHECKS, _CHECK_S = 50, 0.01
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_MAX_KEPT_BYTES = 32 << 20  # the largest value that glibc allows
_HEAP_BYTES = 64 << 20  # addresses that glibc takes for a thread's heap


def num_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_memory_bytes(cgroup_limits: tuple[Path, ...] = _CGROUP_LIMITS) -> int:
    """Returns the memory of the machine or, if smaller, the limit of the control group.

    Without a limit, the file of version 2 has "max", that of version 1 a huge number.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in cgroup_limits:
        with contextlib.suppress(OSError):
            if (text := path.read_text().strip()).isdigit():
                limits.append(int(text))
    return min(limits)


def path_key(path: str) -> str:
    """Returns a path as the file system compares it: macOS's ignores case and Unicode's forms."""
    if sys.platform != "darwin":
        return path
    return unicodedata.normalize("NFC", path).casefold()


# --- processes ----------------------------------------------------------------------------------


def can_fork() -> bool:
    """Returns whether this process can fork: on Linux, with a single thread.

    Threads of libraries count, since a fork lacks them, except those of jemalloc, Arrow's
    allocator, which restarts its own. macOS's own libraries may crash in a fork.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    with contextlib.suppress(OSError):  # /proc is not mounted
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


def end_with_parent() -> None:
    """Ends this process of `multiprocessing` when its parent is killed; it would run forever."""
    import multiprocessing.connection  # --help needs neither this nor ctypes

    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def require_threads(count: int) -> None:
    """Raises ProbelineError if this process may not start as many more threads, for a moment.

    A library whose threads cannot start ends the process, or waits forever.
    """
    started = _start_threads(count)
    if started < count:
        raise ProbelineError(
            f"this process can start {started} of {count} threads that it needs: raise its limit "
            "on threads (ulimit -u, a container's limit on pids) or addresses (ulimit -v)"
        )


def _start_threads(count: int) -> int:
    """Returns how many threads, up to `count`, could start at a time; they have ended.

    They are not Python's: each of those would leave a heap, which later threads take.
    """
    import ctypes

    try:  # room for heaps, one each up to glibc's limit
        size = min(count, 8 * num_cores()) * _HEAP_BYTES
        heaps = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
    except OSError:
        return 0
    library = ctypes.CDLL(None)
    lock, threads = ctypes.create_string_buffer(256), (ctypes.c_void_p * count)()
    library.pthread_rwlock_init(lock, None)
    library.pthread_rwlock_wrlock(lock)
    started = 0
    while started < count:
        place = ctypes.byref(threads, started * ctypes.sizeof(ctypes.c_void_p))
        if library.pthread_create(place, None, library.pthread_rwlock_rdlock, lock):
            break
        started += 1
    library.pthread_rwlock_unlock(lock)
    for thread in threads[:started]:
        library.pthread_join(ctypes.c_void_p(thread), None)
    heaps.close()
    return started


# --- the heap, with glibc -----------------------------------------------------------------------


def share_one_heap() -> None:
    """Makes all threads of this process and its forks allocate from one heap.

    glibc gives threads separate heaps, each of which keeps the memory of its largest message.
    """
    _call_libc("mallopt", _M_ARENA_MAX, 1)


def keep_large_blocks() -> None:
    """Makes large blocks of memory be reused, where each would be fetched from the kernel.

    Otherwise every row of 8 MiB costs thousands of page faults, more than reading it, and every
    batch a thousand, a third of drawing it.
    """
    _call_libc("mallopt", _M_MMAP_THRESHOLD, _MAX_KEPT_BYTES)
    _call_libc("mallopt", _M_TRIM_THRESHOLD, 4 * _MAX_KEPT_BYTES)


def trim_heap() -> None:
    """Returns freed memory to the system."""
    _call_libc("malloc_trim", 0)


def _call_libc(function: str, *arguments: int) -> None:
    """Calls a function of the C library, if it has it."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError, TypeError):
        getattr(ctypes.CDLL(None), function)(*arguments)
