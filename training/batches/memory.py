"""How the C library hands out memory: it keeps large blocks for the next row or batch."""

import contextlib
import ctypes
import functools

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_MAX_KEPT_BYTES = 32 << 20  # the largest value that glibc allows


@functools.cache
def keep_large_blocks() -> None:
    """Asks glibc to reuse blocks of many MiB instead of fetching each from the kernel.

    Otherwise every row of 8 MiB costs thousands of page faults, more than reading it, and every
    batch a thousand, a third of drawing it. With other C libraries this does nothing.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAX_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 4 * _MAX_KEPT_BYTES)
