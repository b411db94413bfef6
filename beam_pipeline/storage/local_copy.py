"""One local copy of a remote file for all processes of a machine, to be mapped into memory.

The first process that asks fetches the file under a lock; the others wait and map the same pages.
A process holds a shared lock on each copy that it uses. Whoever fetches another file removes the
copies that nobody holds.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile

from beam_pipeline.errors import explained_os_errors
from beam_pipeline.storage.files import COPY_BYTES, atomic_write, is_local, locked, open_file

_LOCK = "lock"
_held: dict[str, int] = {}  # the open, locked files of this process by path


def on_this_machine(path: str) -> str:
    """Returns the path of a local copy of a file that never changes; a local file is its own copy.

    Raises:
      ProbelineError: there is no room for it, or the file cannot be read.
    """
    if is_local(path):
        return path
    folder = os.path.join(tempfile.gettempdir(), f"probeline-{os.getuid()}")
    copy = os.path.join(folder, hashlib.blake2b(path.encode(), digest_size=16).hexdigest())
    if copy in _held:
        return copy
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with locked(os.path.join(folder, _LOCK)):
        if not os.path.exists(copy):
            _remove_unused(folder)
            with (
                explained_os_errors("copy to this machine", path),
                open_file(path) as source,
                atomic_write(copy) as target,
            ):
                shutil.copyfileobj(source, target, COPY_BYTES)
        _held[copy] = os.open(copy, os.O_RDONLY)
        fcntl.flock(_held[copy], fcntl.LOCK_SH)
    return copy


def _remove_unused(folder: str) -> None:
    for entry in os.scandir(folder):
        if entry.name == _LOCK or entry.path in _held:
            continue
        with open(entry.path, "rb") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.remove(entry.path)
