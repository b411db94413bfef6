"""Files mapped into memory whose pages a process can hand back while it keeps the files open.

A page that has been read counts as memory of the process until the system needs it. Handing pages
back costs next to nothing: what is still cached is mapped again, many pages at a time.
"""

import mmap
import os
import weakref

import pyarrow as pa

_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


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
