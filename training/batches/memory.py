"""How the process's memory is handed out: once, to keep what rows and batches are made of."""

import contextlib
import ctypes
import functools

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGEST_KEPT_BYTES = 32 << 20  # the most that glibc allows


@functools.cache
def keep_large_blocks() -> None:
    """Asks glibc to reuse blocks of many MiB instead of fetching each from the kernel.

    Else every row of 8 MiB costs thousands of page faults, more than reading it, and every batch a
    thousand, a third of drawing it. Other C libraries go without.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 4 * _LARGEST_KEPT_BYTES)
