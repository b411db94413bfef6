"""One local copy of a remote file per machine, to be memory-mapped by all its processes.

The first process fetches the file under a lock; the others wait and map the same pages. A process
holds a shared lock on a copy until it has released every request. Fetching a file deletes the
copies that nobody holds.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass

from beam_pipeline.errors import explained_os_errors
from beam_pipeline.storage.files import (
    COPY_BYTES,
    atomic_write,
    check_not_linked,
    is_local,
    locked,
    open_file,
)

_COPIES, _LOCK = "copies", "lock"


@dataclass
class _Held:
    file: int  # open and locked
    num_users: int = 0


_held: dict[str, _Held] = {}  # of this process, by path


def on_this_machine(path: str) -> str:
    """Returns a local copy of an immutable file, or its own path; ProbelineError if impossible."""
    if is_local(path):
        return path
    copies = os.path.join(machine_folder(), _COPIES)
    copy = os.path.join(copies, hashlib.blake2b(path.encode(), digest_size=16).hexdigest())
    with _locked():
        check_not_linked(copies)
        os.makedirs(copies, exist_ok=True)
        if not os.path.exists(copy):
            _remove_unused(copies)
            with (
                explained_os_errors("copy to this machine", path),
                open_file(path) as source,
                atomic_write(copy) as target,
            ):
                shutil.copyfileobj(source, target, COPY_BYTES)
        if copy not in _held:
            _held[copy] = _Held(os.open(copy, os.O_RDONLY))
            fcntl.flock(_held[copy].file, fcntl.LOCK_SH)
        _held[copy].num_users += 1
    return copy


def release(copy: str) -> None:
    """Releases a copy returned by `on_this_machine`; ignores local files."""
    with _locked():
        if copy in _held:
            _held[copy].num_users -= 1
            if not _held[copy].num_users:
                os.close(_held.pop(copy).file)


def machine_folder() -> str:
    """Returns, and creates, a folder shared by this user's processes on this machine."""
    folder = os.path.join(tempfile.gettempdir(), f"probeline-{os.getuid()}")
    check_not_linked(folder)  # another user may have made it
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def _locked() -> contextlib.AbstractContextManager[None]:
    return locked(os.path.join(machine_folder(), _LOCK))


def _remove_unused(copies: str) -> None:
    for entry in os.scandir(copies):
        if entry.path in _held or not entry.is_file(follow_symlinks=False):
            continue
        with open(entry.path, "rb") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.remove(entry.path)
