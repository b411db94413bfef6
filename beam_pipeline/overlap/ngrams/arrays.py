"""Large arrays: one that grows in a single block, and files mapped into memory.

A mapped page that was read counts as process memory until the system needs it. Handing pages back
is almost free, since a page that is still cached is simply mapped again.
"""

import mmap
import os
import weakref

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


class Column:
    """A growing array in one block; the system reclaims large blocks, but not many small ones.

    `room` is the expected size; unused room takes no memory.
    """

    def __init__(self, kind: npt.DTypeLike, room: int):
        self._array, self._size = np.empty(room, kind), 0

    def add(self, values: np.ndarray) -> None:
        """Appends values."""
        start, self._size = self._size, self._size + len(values)
        if self._size > len(self._array):
            self._array.resize(self._size * 9 // 8, refcheck=False)
        self._array[start : self._size] = values

    def taken(self) -> np.ndarray:
        """Returns the array and releases it."""
        array, self._array = self._array[: self._size], self._array[:0].copy()
        return array


def map_file(path: str) -> pa.Buffer:
    """Maps a local file that never changes."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return pa.py_buffer(b"")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _mapped.add(mapped)
    return pa.py_buffer(mapped)


def hand_pages_back() -> None:
    """Hands back the pages of all files that this process has mapped."""
    for mapped in list(_mapped):
        mapped.madvise(mmap.MADV_DONTNEED)
