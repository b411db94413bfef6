"""Renames, joins and fetches many files with several requests at a time.

Renames are idempotent, and safe for concurrent attempts.
"""

import contextlib
import itertools
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from beam_pipeline.errors import ProbelineError, explained_os_errors
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import (
    COPY_BYTES,
    atomic_write,
    crc32c,
    delete_files,
    exists,
    is_gcs,
    is_local,
    open_file,
    rename,
    size_and_checksum,
    unique_path,
    write_durably,
    write_file,
)


class Move(NamedTuple):
    """A file to rename and its content; without a checksum the source must still exist."""

    source: str
    target: str
    num_bytes: int = 0
    crc32c: int | None = None


def move_files(moves: Sequence[Move]) -> None:
    """Renames files on one filesystem, replacing targets; skips moves already done."""
    with ThreadPoolExecutor(gcs.REQUESTS_AT_A_TIME) as pool:
        list(pool.map(_move, moves))
    if moves and is_gcs(moves[0].source):
        gcs.delete_objects(move.source for move in moves)


def copy_files(moves: Sequence[Move], temp_folder: str) -> None:
    """Like `move_files`, but keeps the sources: by hard links, or server-side on `gs://`."""
    with ThreadPoolExecutor(gcs.REQUESTS_AT_A_TIME) as pool:
        copied = partial(_copied, temp_folder=temp_folder)
        list(pool.map(partial(_name_target, name=copied), moves))


def _move(move: Move) -> None:
    _name_target(move, _renamed)


def _name_target(move: Move, name: Callable[[str, str], bool]) -> None:
    source, target, *content = move
    with explained_os_errors("write", target):
        if name(source, target):
            return
        if not exists(target) or size_and_checksum(target) != tuple(content):
            raise ProbelineError(
                f"{source} is gone and {target} has other content: another process removes files "
                "from the output; run the command again"
            )


def _renamed(source: str, target: str) -> bool:
    """Renames a file, or copies it on `gs://`; False if it does not exist."""
    if is_gcs(source):
        return gcs.copy(source, target)
    with contextlib.suppress(FileNotFoundError):  # another attempt was faster
        if exists(source):
            rename(source, target)
            return True
    return False


def _copied(source: str, target: str, temp_folder: str) -> bool:
    """Hard-links or copies a file to `target`; False if it does not exist."""
    if is_gcs(source):
        return gcs.copy(source, target)
    if not exists(source):
        return False
    if exists(target) and os.path.samefile(source, target):
        return True
    temporary = unique_path(temp_folder, os.path.basename(source))
    os.makedirs(temp_folder, exist_ok=True)
    try:
        try:
            os.link(source, temporary)
        except OSError:  # the filesystem has no hard links, or the file does not exist
            shutil.copyfile(source, temporary)
    except FileNotFoundError:
        return False
    rename(temporary, target)
    return True


def moves_to_folder(source: str, names: Sequence[str], target: str) -> list[Move]:
    """Returns the moves of files from one folder to another under the same names."""
    known = gcs.list_objects(f"{source}/") if is_gcs(source) else {}
    moves = [Move(f"{source}/{name}", f"{target}/{name}") for name in names]
    for at, move in enumerate(moves):
        if (info := known.get(move.source)) and info.crc32c:
            content = info.num_bytes, int(info.crc32c, 16)
            moves[at] = Move(move.source, move.target, *content)
    return moves


def write_guarded(
    path: str, data: bytes, temp_folder: str, guard: Callable[[], None] | None
) -> None:
    """Writes a small file below `temp_folder`, calls `guard`, which may raise, and renames it.

    Thus it cannot appear after another run has passed the guard and removed `temp_folder`. Without
    a guard the file is flushed to disk before it is renamed.
    """
    if guard is None:
        write_durably(path, data)
        return
    temporary = unique_path(temp_folder, os.path.basename(path))
    write_file(temporary, data)
    try:
        guard()
    except Exception:
        delete_files([temporary])
        raise
    move_files([Move(temporary, path, len(data), crc32c(data))])


def join_files(path: str, temp_folder: str, parts: Sequence[str], empty: bytes = b"") -> None:
    """Concatenates files into one; without parts it is `empty`.

    On `gs://` the server joins them, leaving intermediate objects in `temp_folder`.
    """
    if parts and is_gcs(path):
        gcs.compose(path, parts, unique_path(temp_folder, "joined"))
        return
    with atomic_write(path, temp_folder) as target:
        for part in parts:
            with open_file(part) as source:
                shutil.copyfileobj(source, target, COPY_BYTES)
        if not parts:
            target.write(empty)


def local_copies(paths: Iterable[str]) -> Iterator[str]:
    """Yields a local path to each file, in order, and prefetches the next ones.

    A copy is deleted when the next one is requested; a local file is its own copy. There are at
    most gcs.REQUESTS_AT_A_TIME copies, with COPY_BYTES of each in memory.
    """
    with (
        tempfile.TemporaryDirectory(prefix="probeline-") as folder,
        ThreadPoolExecutor(gcs.REQUESTS_AT_A_TIME) as pool,
    ):
        waiting: deque[Future[str]] = deque()
        for path, number in zip(paths, itertools.count()):
            waiting.append(pool.submit(_fetch, path, os.path.join(folder, str(number))))
            if len(waiting) == gcs.REQUESTS_AT_A_TIME:
                yield from _first(waiting, folder)
        while waiting:
            yield from _first(waiting, folder)


def _first(waiting: deque[Future[str]], folder: str) -> Iterator[str]:
    path = waiting.popleft().result()
    yield path
    if os.path.dirname(path) == folder:
        os.remove(path)


def _fetch(path: str, copy: str) -> str:
    if is_local(path):
        return path
    with open_file(path) as source, open(copy, "wb") as target:
        shutil.copyfileobj(source, target, COPY_BYTES)
    return copy
