"""Files of any filesystem that Beam knows, byte for byte.

Local ones and objects on `gs://` go without the detour through Beam's filesystems. A path without
a scheme is local. Whatever is written has a name of its own first (`unique_path`) and is renamed
when it is whole (`move`, which may be done twice). Beam is loaded when another filesystem is used.
"""

import contextlib
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from beam_pipeline.errors import ProbelineError, UsageError, explained, explained_os_errors
from beam_pipeline.storage import gcs
from beam_pipeline.storage.checksum import crc32c
from beam_pipeline.storage.gcs_client import SCHEME

_WRITE_BUFFER_BYTES = 1 << 20
_COPY_BYTES = 8 << 20
_RANGE_BYTES = 64 << 10
_UNCOMPRESSED = "uncompressed"  # Beam's CompressionTypes.UNCOMPRESSED


def _beam() -> Any:
    """Returns Beam's filesystems, which take two seconds to import."""
    from apache_beam.io.filesystems import FileSystems

    return FileSystems


def is_local(path: str) -> bool:
    """Tells a local path from one with a scheme."""
    return "://" not in path


def unique_path(folder: str, name: str) -> str:
    """Returns a path below `folder` that no other attempt uses: name-<32 hex digits>."""
    return _beam().join(folder, f"{name}-{uuid.uuid4().hex}")


def _make_folder_of(path: str) -> None:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


def is_gcs(path: str) -> bool:
    """Tells paths on `gs://` from others."""
    return path.startswith(SCHEME)


class FileVersion(NamedTuple):
    """A file as it was found; written again, it has another version."""

    path: str
    num_bytes: int
    version: int  # the generation on `gs://`, else when it was written, in nanoseconds


def match(pattern: str) -> list[tuple[str, int]]:
    """Returns path and bytes of each file that a path or glob matches.

    Raises:
      ProbelineError, BeamIOError: the storage cannot be asked.
    """
    return [(path, num_bytes) for path, num_bytes, _ in match_versions(pattern)]


def match_versions(pattern: str) -> list[FileVersion]:
    """Returns each file that a path or glob matches; raises as `match`."""
    if not is_gcs(pattern):
        found = _beam().match([pattern])[0].metadata_list
        return [
            FileVersion(file.path, file.size_in_bytes, int(file.last_updated_in_seconds * 1e9))
            for file in found
        ]
    from apache_beam.io.filesystem import FileSystem

    plain = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    matches = re.compile(FileSystem.translate_pattern(pattern)).match
    below = gcs.versions_below(plain)
    return [FileVersion(path, *version) for path, version in below.items() if matches(path)]


def match_input(pattern: str, flag: str, below: str) -> tuple[str, list[FileVersion]]:
    """Returns the files that an input flag names, and the glob that matched them.

    Args:
      pattern: a file, a glob, or a folder, which stands for the glob `below` in it.
      flag: the flag, for messages.

    Raises:
      UsageError: the storage cannot be asked.
    """
    try:
        if not any(char in pattern for char in "*?[") and is_folder(pattern):
            pattern = f"{pattern.rstrip('/')}/{below}"
        # Beam finds nothing for a glob without a folder, and `**/` wants one folder at least.
        added = "./" if is_local(pattern) and not pattern.startswith(("/", "./")) else ""
        globs = {added + pattern, (added + pattern).replace("/**/", "/")}
        found = {file for glob in sorted(globs) for file in match_versions(glob)}
    except (ValueError, OSError) as error:
        raise UsageError(str(explained("look for", f"{flag}={pattern}", error))) from error
    return pattern, sorted(file._replace(path=file.path.removeprefix(added)) for file in found)


def exists(path: str) -> bool:
    """Tells whether there is such a file, or a local folder."""
    if is_local(path):
        return os.path.exists(path)
    return gcs.exists(path) if is_gcs(path) else _beam().exists(path)


def is_folder(path: str) -> bool:
    """Tells whether there is a folder of that name; on `gs://`, whether anything lies below it."""
    below = path.rstrip("/") + "/"
    return bool(gcs.objects_below(below)) if is_gcs(path) else _beam().exists(below)


def create_file(path: str) -> BinaryIO:
    """Opens a new file for writing; its folder is made if need be."""
    if is_local(path):
        _make_folder_of(path)
        return open(path, "wb", buffering=_WRITE_BUFFER_BYTES)
    if is_gcs(path):
        return gcs.create(path)
    return _beam().create(path, compression_type=_UNCOMPRESSED)


def open_file(path: str, fetch_bytes: int = _COPY_BYTES) -> BinaryIO:
    """Opens a file for reading from its beginning on; on `gs://` at least so much at a time."""
    if is_local(path):
        return open(path, "rb")
    if is_gcs(path):
        return gcs.open_object(path, fetch_bytes)
    return _beam().open(path, compression_type=_UNCOMPRESSED)


def open_ranges(path: str) -> BinaryIO:
    """Opens a file for reads here and there, each of which asks for little more than its bytes."""
    return open_file(path, _RANGE_BYTES)


@contextlib.contextmanager
def local_file(path: str) -> Iterator[str]:
    """Yields the path of a new local file, which is at `path` once the block has ended well."""
    if is_local(path):
        _make_folder_of(path)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="probeline-") as folder:
        local_path = os.path.join(folder, "file")
        yield local_path
        if is_gcs(path):
            gcs.upload(local_path, path)
            return
        with open(local_path, "rb") as source, create_file(path) as target:
            shutil.copyfileobj(source, target, _COPY_BYTES)


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
    """Yields a local path with the bytes of `path`; a copy goes when the block ends."""
    if is_local(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="probeline-") as folder:
        copy = os.path.join(folder, "file")
        with open_file(path) as source, open(copy, "wb") as target:
            shutil.copyfileobj(source, target, _COPY_BYTES)
        yield copy


def remove_folder(path: str) -> None:
    """Removes a folder, if there is one, and all below it."""
    if is_local(path):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
        return
    if is_gcs(path):
        gcs.delete_objects(gcs.objects_below(f"{path}/"))
        return
    found = match(f"{path}/**")
    if found:  # what has no files has no folder
        _beam().delete([file for file, _ in found])


def size_and_checksum(path: str) -> tuple[int, int]:
    """Returns the number of bytes of a file and their CRC-32C, which GCS itself keeps."""
    if is_gcs(path) and (known := gcs.info(path)) and known.crc32c:
        return known.num_bytes, int(known.crc32c, 16)
    size = checksum = 0
    with open_file(path) as file:
        while block := file.read(_COPY_BYTES):
            size += len(block)
            checksum = crc32c(block, checksum)
    return size, checksum


def move(source: str, target: str, num_bytes: int, checksum: int) -> None:
    """Renames a file over whatever is there; does nothing if that has happened already.

    Raises:
      ProbelineError: the file is gone, and its target does not hold these bytes.
    """
    with explained_os_errors("write", target):
        if not exists(source):
            done = exists(target) and size_and_checksum(target)
            if done != (num_bytes, checksum):
                raise ProbelineError(
                    f"{source} is gone and {target} is not what it held: something else removes "
                    "files from the output; run the command again"
                )
            return
        if is_local(target):
            _make_folder_of(target)
            os.replace(source, target)
            return
        if is_gcs(target):
            gcs.rename(source, target)
            return
        _beam().rename([source], [target])
