"""A dataset's small files and the sizes of its shards, local or on `gs://`, without Beam.

Enter paths; leave bytes, or sizes and checksums; a small file may be written, too. Shards on
`gs://` are read by ArrayRecord itself, after `prepare_native_reader`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from beam_pipeline.errors import ProbelineError, UsageError, explained_os_errors, one_line
from beam_pipeline.storage import gcs
from beam_pipeline.storage.gcs import FileInfo
from beam_pipeline.storage.gcs_client import (
    CLIENT_HOST,
    LOG_IN,
    SCHEME,
    access_to,
    bucket_and_name,
    explained,
)

_NATIVE_HOST = "CLOUD_STORAGE_EMULATOR_ENDPOINT"


def read_file(path: str) -> bytes | None:
    """Returns the whole of a small file, or None if there is none.

    Raises:
      ProbelineError: it cannot be read, its bucket does not exist, or its scheme is not `gs://`.
    """
    if _is_local(path):
        with _explained_local(path):
            try:
                with open(path, "rb") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None
    return gcs.read(path)


def write_file(path: str, data: bytes) -> None:
    """Writes a small file over whatever is there; a local folder is made if need be.

    Other schemes than `gs://` go by Beam's filesystems, which are loaded for them alone.

    Raises:
      ProbelineError: it cannot be written.
      UsageError: nothing here knows the scheme.
    """
    with explained_os_errors("write", path):
        if _is_local(path):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
        elif path.startswith(SCHEME):
            with gcs.create(path) as file:
                file.write(data)
        else:
            _write_by_beam(path, data)


def _write_by_beam(path: str, data: bytes) -> None:
    from beam_pipeline.storage.files import create_file

    try:
        with create_file(path) as file:
            file.write(data)
    except ValueError as error:  # of a scheme without a filesystem
        raise UsageError(
            f"cannot write {path}: {one_line(error)}; give a local path or one on {SCHEME}"
        ) from error


def file_infos(paths: Iterable[str]) -> dict[str, FileInfo | None]:
    """Returns the size of each file, on `gs://` its checksum too; None where there is no file.

    Local files cost a `stat` each, files on `gs://` one listing of their folder.

    Raises:
      ProbelineError: as `read_file`.
    """
    infos: dict[str, FileInfo | None] = {}
    folders: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)  # its paths by name
    for path in paths:
        infos[path] = None
        if _is_local(path):
            infos[path] = _local_info(path)
        else:
            bucket, name = bucket_and_name(path)
            folders[bucket, name.rpartition("/")[0]][name] = path
    for (bucket, folder), paths_by_name in folders.items():
        some_path = next(iter(paths_by_name.values()))
        access = access_to(some_path)
        with explained(some_path, access):
            found = gcs.listing(access.client, bucket, f"{folder}/" if folder else "")
        for name in paths_by_name.keys() & found.keys():
            infos[paths_by_name[name]] = found[name]
    return infos


def prepare_native_reader(path: str) -> None:
    """Call this before ArrayRecord's own reader opens `path`; does nothing for a local one.

    The reader knows no STORAGE_EMULATOR_HOST: the same host is set as its
    CLOUD_STORAGE_EMULATOR_ENDPOINT, with which it needs no credentials either. It looks at the
    variable each time that it opens a file. Without credentials it would try in silence for more
    than three minutes, and it cannot read a public bucket anonymously, hence the error.

    Raises:
      ProbelineError: there are no credentials, or the scheme is not `gs://`.
    """
    if _is_local(path):
        return
    bucket_and_name(path)
    if host := os.environ.get(CLIENT_HOST):
        os.environ.setdefault(_NATIVE_HOST, host)
    if os.environ.get(_NATIVE_HOST):
        return
    if reason := access_to(path).nothing_found:
        raise ProbelineError(
            f"cannot read {path}: ArrayRecord needs credentials for {SCHEME}, of a public "
            f"bucket too: {reason}; {LOG_IN}, or copy the dataset to a local folder"
        )


# --- local files --------------------------------------------------------------------------------


def _is_local(path: str) -> bool:
    return "://" not in path


def _local_info(path: str) -> FileInfo | None:
    with _explained_local(path):
        try:
            return FileInfo(os.stat(path).st_size, None)
        except (FileNotFoundError, NotADirectoryError):
            return None


@contextmanager
def _explained_local(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ProbelineError(
            f"cannot read {path}: {error.strerror or error}; check the path and who may read it"
        ) from error
