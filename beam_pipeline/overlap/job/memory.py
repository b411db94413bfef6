"""What a step held goes back to the system when the step ends.

malloc and Arrow keep what is freed, and pages of mapped files stay: in workers that wait for
others, that is a few hundred MiB each.
"""

import contextlib
import ctypes
from collections.abc import Iterator

import pyarrow as pa

from beam_pipeline.jobs.monitoring import logged
from beam_pipeline.overlap.ngrams.arrays import hand_pages_back

_M_ARENA_MAX = -8  # of glibc's malloc.h
_not_of_glibc = (OSError, AttributeError, TypeError)  # what calls of other C libraries raise


def share_one_heap() -> None:
    """Has all threads of this process, and of those forked from it, allocate from one heap.

    glibc gives many threads heaps of their own, and each keeps what a large message once took.
    """
    with contextlib.suppress(*_not_of_glibc):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


@contextlib.contextmanager
def freeing_step(step: str, **where: object) -> Iterator[None]:
    """Logs as `logged`, and gives back what the step held."""
    with logged(step, **where):
        yield
    hand_pages_back()
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(*_not_of_glibc):
        ctypes.CDLL(None).malloc_trim(0)
