"""Input files, matched by pattern and read only in the matched version.

A job plans its work from the matched files. If one changes before it is read, the run fails and
names it.
"""

import contextlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from beam_pipeline.errors import ProbelineError, UsageError, explained, explained_os_errors
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import check_scheme, is_folder, is_gcs, is_local

_WILDCARD = re.compile(r"[*?\[]")


class FileVersion(NamedTuple):
    """A matched file; its version changes when it is rewritten."""

    path: str
    num_bytes: int
    version: int  # `gs://`: generation, a time in µs; otherwise: modification time in ns

    def __str__(self) -> str:
        written = datetime.fromtimestamp(self.version / (1e6 if is_gcs(self.path) else 1e9), UTC)
        return f"{self.num_bytes} bytes of {written:%Y-%m-%d %H:%M:%S.%f}"


def match(pattern: str) -> list[FileVersion]:
    """Returns the files that match a path or glob; ProbelineError or BeamIOError on failure.

    `*` matches within a folder, `**` across folders. An existing path is not treated as a glob.
    """
    check_scheme(pattern, f"cannot look for {pattern}")
    if (file := _find_file(pattern)) is not None:
        return [file]
    folder = _folder_above_wildcard(pattern)
    return [] if folder is None else match_below(folder, [pattern[len(folder) :]])


def _find_file(path: str) -> FileVersion | None:
    if is_local(path):
        return _local_version(path) if os.path.lexists(path) else None
    if is_gcs(path):
        info = gcs.list_objects(path).get(path)
        return info and FileVersion(path, info.num_bytes, info.generation)
    return None if _WILDCARD.search(path) else next(iter(_match_elsewhere(path)), None)


def _folder_above_wildcard(pattern: str) -> str | None:
    """Returns a glob up to the last slash before its first wildcard; None for a path."""
    wildcard = _WILDCARD.search(pattern)
    return wildcard and pattern[: pattern.rfind("/", 0, wildcard.start()) + 1]


def match_below(folder: str, globs: Sequence[str]) -> list[FileVersion]:
    """Returns the files below a folder ("" or with a final slash) that match a relative glob.

    The globs have a common prefix before their first wildcards.
    """
    from apache_beam.io.filesystem import FileSystem

    if not is_local(folder) and not is_gcs(folder):
        return list({file for glob in globs for file in _match_elsewhere(folder + glob)})
    patterns = [re.compile(FileSystem.translate_pattern(glob)) for glob in globs]

    def matches(path: str) -> bool:
        return any(pattern.match(path, len(folder)) for pattern in patterns)

    if is_local(folder):
        depth = math.inf if "**" in "".join(globs) else max(glob.count("/") for glob in globs)
        return [_local_version(path) for path in _files_below(folder, depth) if matches(path)]
    prefix = min((_WILDCARD.split(glob, maxsplit=1)[0] for glob in globs), key=len)
    return [
        FileVersion(path, info.num_bytes, info.generation)
        for path, info in gcs.list_objects(folder + prefix).items()
        if matches(path)
    ]


def _match_elsewhere(pattern: str) -> list[FileVersion]:
    from apache_beam.io.filesystems import FileSystems

    return [
        FileVersion(file.path, file.size_in_bytes, int(file.last_updated_in_seconds * 1e9))
        for file in FileSystems.match([pattern])[0].metadata_list
    ]


def _files_below(folder: str, depth: float) -> Iterator[str]:
    """Yields the local files down to `depth` subfolders; follows links except cycles."""

    def fail(error: OSError) -> None:
        raise error

    root = folder or "./"
    if not os.path.isdir(root):
        return
    for above, folders, names in os.walk(root, onerror=fail, followlinks=True):
        inside = above[len(root) :].strip("/")
        if depth <= (inside.count("/") + 1 if inside else 0):
            folders.clear()
        folders[:] = [name for name in folders if not _leads_back(root, os.path.join(above, name))]
        for name in names:
            yield os.path.join(above, name)[len(root) - len(folder) :]


def _leads_back(root: str, path: str) -> bool:
    """Returns whether a path links to one of its own parents, down from the root."""
    if not os.path.islink(path):
        return False
    target, steps = os.path.realpath(path), path[len(root) :].split("/")[:-1]
    return any(
        os.path.realpath(os.path.join(root, *steps[:count])) == target
        for count in range(len(steps) + 1)
    )


def _local_version(path: str) -> FileVersion:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if not os.path.islink(path):
            raise
        return FileVersion(path, 0, 0)  # a link without a target: reading it names the link
    return FileVersion(path, found.st_size, found.st_mtime_ns)


def file_versions(paths: Sequence[str]) -> list[FileVersion]:
    """Returns the current versions of local or `gs://` files; ProbelineError if one is missing."""
    found: dict[str, FileVersion] = {}
    for folder in {path.rpartition("/")[0] for path in paths if is_gcs(path)}:
        for path, info in gcs.list_objects(f"{folder}/", recursive=False).items():
            found[path] = FileVersion(path, info.num_bytes, info.generation)
    for path in paths:
        if is_local(path) and os.path.lexists(path):
            with explained_os_errors("read", path):
                found[path] = _local_version(path)
        elif path not in found:
            raise ProbelineError(f"{path} is missing: copy the dataset again as a whole")
    return [found[path] for path in paths]


@contextlib.contextmanager
def unchanged(file: FileVersion, found_by: str = "") -> Iterator[None]:
    """Raises ProbelineError if a file has changed; on `gs://` `open_file` checks its version.

    `found_by` names the job that wrote the version to its result, if it was not this one.
    """
    _check_version(file, found_by)
    try:
        yield
    except Exception:
        _check_version(file, found_by)
        raise
    _check_version(file, found_by)


def _check_version(file: FileVersion, found_by: str) -> None:
    if is_gcs(file.path) and not found_by:
        return
    found: FileVersion | None = None
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = (
            _local_version(file.path) if is_local(file.path) else next(iter(match(file.path)), None)
        )
    if found != file:
        change = f"it had {file}, now {found or 'it is gone'}"
        if found_by:
            raise ProbelineError(
                f"{file.path} was changed after {found_by} read it: {change}; run {found_by} again "
                "with --overwrite, then this one"
            ) from None
        raise ProbelineError(
            f"{file.path} was changed while the job ran: {change}; run the job again when its "
            "input no longer changes"
        ) from None


def match_input(pattern: str, flag: str, below: str) -> tuple[str | None, list[FileVersion]]:
    """Returns the searched folder, ending with a slash, and the sorted files of an input flag.

    `pattern` is a file, for which the folder is None, a folder, searched with the glob `below`,
    such as `**/*.parquet`, or a glob. UsageError if the storage cannot be listed.
    """
    check_scheme(pattern, f"{flag}={pattern}")
    try:
        if is_folder(pattern):
            folder, glob = pattern.rstrip("/") + "/", below
        elif (file := _find_file(pattern)) is not None:
            return None, [file]
        elif (above := _folder_above_wildcard(pattern)) is not None:
            folder, glob = above, pattern[len(above) :]
        else:
            return None, []
        # `**/` in Beam's patterns matches at least one folder.
        globs = {glob, f"/{glob}".replace("/**/", "/")[1:]}
        return folder, sorted(match_below(folder, sorted(globs)))
    except (ValueError, OSError) as error:
        raise UsageError(str(explained("look for", f"{flag}={pattern}", error))) from error
