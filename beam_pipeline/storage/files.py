"""Files on any filesystem: reads, atomic writes, renames, sizes and checksums.

A path without a scheme is local. Local files and `gs://` are accessed directly; Beam's filesystems,
imported on first use, serve other schemes and globs. Large outputs are written under a
`unique_path` and renamed by `many_files.move_files`, which is idempotent; others by `atomic_write`.
"""

import contextlib
import fcntl
import hashlib
import io
import os
import shutil
import stat
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, BinaryIO, NamedTuple, cast

import google_crc32c

from beam_pipeline.errors import (
    ProbelineError,
    UsageError,
    explained_os_errors,
    machine_errors,
    printable,
)
from beam_pipeline.machine import path_key
from beam_pipeline.storage import gcs
from beam_pipeline.storage.gcs import FileInfo

_BLOCK_BYTES = 1 << 20
COPY_BYTES = 8 << 20
_RANGE_BYTES = 64 << 10


def is_local(path: str) -> bool:
    return "://" not in path


def real_path(path: str) -> str:
    """Returns the path of a file without links, for comparisons; remote paths as they are."""
    return path_key(os.path.realpath(path)) if is_local(path) else path


def is_gcs(path: str) -> bool:
    return path.startswith(gcs.SCHEME)


def unique_path(folder: str, name: str) -> str:
    """Returns a path below `folder` that is unique to this attempt: name-<32 hex digits>."""
    return os.path.join(folder, f"{name}-{uuid.uuid4().hex}")


def exists(path: str) -> bool:
    """Returns whether a file, or a local folder, exists."""
    if is_local(path):
        return os.path.exists(path)
    return gcs.exists(path) if is_gcs(path) else _beam().exists(path)


def is_special_file(path: str) -> bool:
    """Returns whether a local path exists but is not a regular file (for example, a pipe)."""
    return is_local(path) and os.path.exists(path) and not os.path.isfile(path)


def check_regular(paths: Iterable[str]) -> None:
    """Raises UsageError if a local path is a pipe, a device or a folder."""
    for path in paths:
        if is_special_file(path):
            raise UsageError(
                f"{path} is not a regular file but a pipe, a device or a folder: copy its content "
                "to a file"
            )


def is_folder(path: str) -> bool:
    """Returns whether a folder exists; on `gs://`, whether it contains any object."""
    if is_local(path):
        return os.path.isdir(path)
    below = path.rstrip("/") + "/"
    return bool(gcs.list_objects(below)) if is_gcs(path) else _beam().exists(below)


def file_infos(paths: Iterable[str]) -> dict[str, FileInfo | None]:
    """Returns each file's size, and on `gs://` its checksum; None if missing or not regular.

    Costs one `stat` per local file, one listing per `gs://` folder. Errors are those of
    `read_file`.
    """
    infos: dict[str, FileInfo | None] = dict.fromkeys(paths)
    folders: dict[str, list[str]] = defaultdict(list)
    for path in infos:
        if is_local(path):
            with _reading_local(path):
                found = os.stat(path)
                if stat.S_ISREG(found.st_mode):
                    infos[path] = FileInfo(found.st_size, None)
        else:
            gcs.bucket_and_name(path)  # raises for anything else
            folders[path.rpartition("/")[0]].append(path)
    for folder, in_folder in folders.items():
        found = gcs.list_objects(f"{folder}/", recursive=False, asked_for=in_folder[0])
        infos.update((path, found.get(path)) for path in in_folder)
    return infos


class _NamedFile(io.FileIO):
    """A file whose errors name it also when it is read or written, such as those of a full disk."""

    def readinto(self, buffer: Any) -> int:
        return self._named(super().readinto, buffer)

    def readall(self) -> bytes:
        return self._named(super().readall)

    def write(self, data: Any) -> int:
        return self._named(super().write, data)

    def _named(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except OSError as error:
            error.filename = self.name
            raise


def open_file(path: str, fetch_bytes: int = COPY_BYTES, version: int = 0) -> BinaryIO:
    """Opens a file for sequential reading, on `gs://` in requests of `fetch_bytes` or more.

    `version` is the required generation on `gs://`; 0 accepts any.
    """
    if is_local(path):
        with machine_errors():
            file = _NamedFile(path, "rb")
            block_bytes = os.fstat(file.fileno()).st_blksize  # megabytes on Lustre
            return io.BufferedReader(file, max(block_bytes, io.DEFAULT_BUFFER_SIZE))
    if is_gcs(path):
        return gcs.open_object(path, fetch_bytes, version)
    return cast(BinaryIO, _beam().open(path, compression_type="uncompressed"))


def open_ranges(path: str, version: int = 0) -> BinaryIO:
    """Opens a file for random reads, in requests little larger than the bytes read."""
    return open_file(path, _RANGE_BYTES, version)


def read_file(path: str) -> bytes | None:
    """Returns a small file, local or on `gs://`; None if missing, ProbelineError if unreadable."""
    if not is_local(path):
        return gcs.read(path)
    check_regular([path])  # a pipe would wait for ever
    with _reading_local(path), open(path, "rb") as file:
        return file.read()
    return None


@contextlib.contextmanager
def _reading_local(path: str) -> Iterator[None]:
    """Explains the errors of a local file; a missing file silently ends the block."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise ProbelineError(
            f"cannot read {path}: {error.strerror or error}; check the path and its permissions"
        ) from error


def begins_with(path: str, *texts: str) -> bool:
    """Returns whether a file begins with one of the texts; False for pipes and devices."""
    if is_special_file(path):
        return False
    heads = tuple(text.encode() for text in texts)
    num_bytes = max(map(len, heads))
    with explained_os_errors("read", path), open_file(path, num_bytes) as file:
        return file.read(num_bytes).startswith(heads)


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
    """Yields a local path to a file; a temporary copy is deleted at the end of the block."""
    if is_local(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="probeline-") as folder:
        copy = os.path.join(folder, "file")
        with open_file(path) as source, open(copy, "wb") as target:
            shutil.copyfileobj(source, target, COPY_BYTES)
        yield copy


def crc32c(data: bytes | memoryview, crc: int = 0) -> int:
    """Extends a CRC-32C, the checksum that GCS stores, by some bytes."""
    if isinstance(data, bytes):
        return google_crc32c.extend(crc, data)
    for start in range(0, len(data), _BLOCK_BYTES):  # the library accepts only bytes
        crc = google_crc32c.extend(crc, data[start : start + _BLOCK_BYTES].tobytes())
    return crc


def checksum_text(checksum: int) -> str:
    return f"{checksum:08x}"


def size_and_checksum(path: str) -> tuple[int, int]:
    """Returns a file's size and CRC-32C; on `gs://`, those stored by GCS."""
    if is_gcs(path) and (known := gcs.info(path)) and known.crc32c:
        return known.num_bytes, int(known.crc32c, 16)
    return _read_through(path, lambda block: None)


class Digests(NamedTuple):
    """Size and checksums of a file; `sha256` has 64 hex digits."""

    num_bytes: int
    crc32c: int
    sha256: str


def digests_of(data: bytes) -> Digests:
    return Digests(len(data), crc32c(data), hashlib.sha256(data).hexdigest())


def file_digests(path: str) -> Digests:
    sha256 = hashlib.sha256()
    size, checksum = _read_through(path, sha256.update)
    return Digests(size, checksum, sha256.hexdigest())


def _read_through(path: str, take: Callable[[bytes], None]) -> tuple[int, int]:
    """Passes a file to `take` in blocks; returns its size and CRC-32C."""
    checksum = 0
    with open_file(path) as file:
        while block := file.read(COPY_BYTES):
            checksum = crc32c(block, checksum)
            take(block)
        return file.tell(), checksum


def create_file(path: str) -> BinaryIO:
    """Opens a new file for writing and creates its folder; errors as `atomic_write`."""
    if is_local(path):
        _make_folder(path)
        return io.BufferedWriter(_NamedFile(path, "wb"), _BLOCK_BYTES)
    if is_gcs(path):
        return gcs.create(path)
    check_scheme(path, f"cannot write {path}")
    return _beam().create(path, compression_type="uncompressed")


# Beam's filesystems by scheme: the module they import, and the extra that installs it.
_EXTRAS = {"s3": ("boto3", "aws"), "hdfs": ("hdfs", "hadoop"), "azfs": ("azure", "azure")}


def check_path(flag: str, path: str) -> None:
    """Raises UsageError unless a flag's path is valid on a supported filesystem."""
    given = f"--{flag}={printable(path)}"
    if not path:
        raise UsageError(f"--{flag} is empty: give a path")
    if "\0" in path:
        raise UsageError(f"{given} contains a NUL character, which paths cannot have")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{given} is not UTF-8: rename the file, or link to it") from error
    scheme = path.partition("://")[0]
    module, extra = _EXTRAS.get(scheme, ("sys", ""))
    if find_spec(module) is None:
        raise UsageError(
            f"{given}: {scheme}:// needs an extra of Beam: pip install 'apache-beam[{extra}]'"
        )
    check_scheme(path, given)


def check_scheme(path: str, what: str) -> None:
    """Raises UsageError if no filesystem supports the scheme of a path."""
    if path.startswith("file://"):
        raise UsageError(f"{what}: give a local path without file://")
    try:
        _ = is_local(path) or is_gcs(path) or _beam().get_filesystem(path)
    except ValueError as error:
        scheme = path.partition("://")[0]
        raise UsageError(
            f"{what}: {scheme}:// is not supported: give a local path or one on {gcs.SCHEME}"
        ) from error


@contextlib.contextmanager
def atomic_write(
    path: str, temp_folder: str | None = None, durable: bool = False
) -> Iterator[BinaryIO]:
    """Opens a file that replaces `path` when the block ends without an error.

    Except on `gs://`, the bytes go to a temporary file, by default beside `path`, else in
    `temp_folder` on the same filesystem. It is deleted after an error, but not after a kill.
    `durable` flushes a local file to disk before the rename. UsageError if `path` is a folder, a
    device or a pipe, which root would replace.
    """
    check_scheme(path, f"cannot write {path}")
    if is_special_file(path):
        raise UsageError(
            f"cannot write {path}: it is a folder, a device or a pipe; give the path of a file"
        )
    temporary = f"{path}.{uuid.uuid4().int}.tmp"
    if temp_folder is not None:
        temporary = unique_path(temp_folder, os.path.basename(path))
    with explained_os_errors("write", path):
        if is_gcs(path):
            with gcs.create(path) as stream:
                yield stream
            return
        try:
            with create_file(temporary) as stream:
                yield stream
                if durable and is_local(path):
                    stream.flush()
                    os.fsync(stream.fileno())
            rename(temporary, path)
        except BaseException:
            with contextlib.suppress(Exception):
                delete_files([temporary])
            raise


def write_file(path: str, data: bytes, durable: bool = False) -> None:
    with atomic_write(path, durable=durable) as file:
        file.write(data)


def write_durably(path: str, data: bytes) -> None:
    """Writes a small file, flushed to disk before it is renamed."""
    write_file(path, data, durable=True)


@contextlib.contextmanager
def local_file(path: str) -> Iterator[str]:
    """Yields a local path to write to; the file moves to `path` if the block succeeds."""
    if is_local(path):
        _make_folder(path)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="probeline-") as folder:
        local_path = os.path.join(folder, "file")
        yield local_path
        if is_gcs(path):
            gcs.upload(local_path, path)
            return
        with open(local_path, "rb") as source, create_file(path) as target:
            shutil.copyfileobj(source, target, COPY_BYTES)


def rename(source: str, target: str) -> None:
    """Renames a file (not on `gs://`), replacing its target."""
    if is_local(target):
        _make_folder(target)
        os.replace(source, target)
    else:
        _beam().rename([source], [target])


def _make_folder(path: str) -> None:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


def delete_files(paths: list[str]) -> None:
    """Deletes files of one filesystem; ProbelineError if one cannot be deleted."""
    if paths and is_gcs(paths[0]):
        gcs.delete_objects(paths)
        return
    for path in paths:
        with explained_os_errors("remove", path):
            os.remove(path) if is_local(path) else _beam().delete([path])


def open_own(path: str, mode: str) -> BinaryIO:
    """Opens a local file that Probeline writes in place; UsageError if it is a link or no file."""
    check_not_linked(path)
    check_regular([path])
    return cast(BinaryIO, open(path, mode, opener=_open_no_link))


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def free_bytes(folder: str) -> int | None:
    """Returns the free disk space of an existing local folder, None for a remote one."""
    return shutil.disk_usage(folder).free if is_local(folder) else None


def check_not_linked(path: str) -> None:
    """Raises UsageError if a local path is a link or a mount point, so its files are not ours."""
    if is_local(path) and (os.path.islink(path) or os.path.ismount(path)):
        kind = "link" if os.path.islink(path) else "mount point"
        raise UsageError(f"{path} is a {kind}, which Probeline did not create: move it")


def remove_folder(path: str) -> None:
    """Removes a folder tree, if it exists.

    UsageError if it is a link or contains a mount point; ProbelineError if the storage fails.
    """
    with explained_os_errors("remove", path):
        _remove_folder(path)


def _remove_folder(path: str) -> None:
    if is_local(path):
        check_not_linked(path)
        files: list[str] = []
        for folder, folders, names in os.walk(path, followlinks=False):
            inside = [os.path.join(folder, name) for name in folders]
            for below in inside:
                if not os.path.islink(below):  # rmtree removes the link itself
                    check_not_linked(below)
            files += (os.path.join(folder, name) for name in names)
        with contextlib.suppress(FileNotFoundError), ThreadPoolExecutor() as pool:
            list(pool.map(os.remove, files))  # the kernel frees their pages on all cores
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
    elif is_gcs(path):
        gcs.delete_objects(gcs.list_objects(f"{path}/"))
    elif found := _beam().match([f"{path}/**"])[0].metadata_list:
        _beam().delete([file.path for file in found])


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Creates and exclusively locks a local file; the lock ends with the process."""
    with open_own(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _beam() -> Any:
    from apache_beam.io.filesystems import FileSystems

    return FileSystems
