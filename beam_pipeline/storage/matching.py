"""Input files: matched by pattern, and proved to be the same files when they are read.

A job plans its work from the files that it matched. Whoever reads one opens the version that was
planned, or the run ends with the name of the file.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from beam_pipeline.errors import ProbelineError, UsageError, explained, explained_os_errors
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import is_folder, is_gcs, is_local


class FileVersion(NamedTuple):
    """A file that a pattern matches; its version changes when it is written again."""

    path: str
    num_bytes: int
    version: int  # the generation on `gs://`, else the time of modification in nanoseconds

    def __str__(self) -> str:
        written = datetime.fromtimestamp(self.version / 1e9, UTC)
        return f"{self.num_bytes} bytes of {written:%Y-%m-%d %H:%M:%S.%f}"


def match(pattern: str) -> list[FileVersion]:
    """Returns each file that a path or glob matches; ProbelineError, BeamIOError if it cannot."""
    if not is_gcs(pattern):
        from apache_beam.io.filesystems import FileSystems

        found = FileSystems.match([pattern])[0].metadata_list
        if is_local(pattern):
            return [_local_version(file.path) for file in found]
        return [
            FileVersion(file.path, file.size_in_bytes, int(file.last_updated_in_seconds * 1e9))
            for file in found
        ]
    from apache_beam.io.filesystem import FileSystem

    prefix = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    matches = re.compile(FileSystem.translate_pattern(pattern)).match
    return [
        FileVersion(path, info.num_bytes, info.generation)
        for path, info in gcs.list_objects(prefix).items()
        if matches(path)
    ]


def _local_version(path: str) -> FileVersion:
    found = os.stat(path)
    return FileVersion(path, found.st_size, found.st_mtime_ns)


def file_versions(paths: Sequence[str]) -> list[FileVersion]:
    """Returns files, local or on `gs://`, as they are now; ProbelineError if one is missing."""
    found: dict[str, FileVersion] = {}
    for folder in {path.rpartition("/")[0] for path in paths if is_gcs(path)}:
        for path, info in gcs.list_objects(f"{folder}/", recursive=False).items():
            found[path] = FileVersion(path, info.num_bytes, info.generation)
    for path in paths:
        if is_local(path):
            with explained_os_errors("read", path):
                found[path] = _local_version(path)
        elif path not in found:
            raise ProbelineError(f"{path} is missing: copy what it belongs to again as a whole")
    return [found[path] for path in paths]


@contextlib.contextmanager
def unchanged(file: FileVersion) -> Iterator[None]:
    """Makes sure that a file is the one that was matched, before and after the block reads it.

    An object on `gs://` needs no look: opened with its version, it is read in that version or
    not at all.

    Raises:
      ProbelineError: the file was changed, whatever else went wrong in the block.
    """
    _check_version(file)
    try:
        yield
    except Exception:
        _check_version(file)
        raise
    _check_version(file)


def _check_version(file: FileVersion) -> None:
    if is_gcs(file.path):
        return
    found: FileVersion | None = None
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = (
            _local_version(file.path) if is_local(file.path) else next(iter(match(file.path)), None)
        )
    if found != file:
        raise ProbelineError(
            f"{file.path} was changed while the job ran: it had {file}, now "
            f"{found or 'it is gone'}; run the job again when nothing writes to its input"
        ) from None


def match_input(pattern: str, flag: str, below: str) -> tuple[str, list[FileVersion]]:
    """Returns the files that an input flag names, and the glob that matched them.

    Args:
      pattern: a file, a glob, or a folder, which stands for the glob `below` in it, such as
        `**/*.parquet`.
      flag: the flag, for messages.

    Raises:
      UsageError: the storage cannot be listed.
    """
    try:
        if not any(char in pattern for char in "*?[") and is_folder(pattern):
            pattern = f"{pattern.rstrip('/')}/{below}"
        # Beam finds nothing for a glob without a folder, and `**/` wants one folder at least.
        added = "./" if is_local(pattern) and not pattern.startswith(("/", "./")) else ""
        globs = {added + pattern, (added + pattern).replace("/**/", "/")}
        found = {file for glob in sorted(globs) for file in match(glob)}
    except (ValueError, OSError) as error:
        raise UsageError(str(explained("look for", f"{flag}={pattern}", error))) from error
    return pattern, sorted(file._replace(path=file.path.removeprefix(added)) for file in found)
