"""A dataset's small files and the sizes of its shards, local or on `gs://`, without Beam.

Enter paths; leave bytes, or sizes and checksums. `gs://` goes through google-cloud-storage, which
is imported when the first such path comes and whose client lives as long as its process. With
STORAGE_EMULATOR_HOST set it asks that host, without credentials. Where there are no credentials
it asks anonymously, so that public buckets can be read. Shards on `gs://` are read by ArrayRecord
itself, after `prepare_native_reader`.
"""

from __future__ import annotations

import base64
import functools
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from beam_pipeline.errors import ProbelineError

if TYPE_CHECKING:
    from google.cloud.storage import Client

_SCHEME = "gs://"
_CLIENT_HOST, _NATIVE_HOST = "STORAGE_EMULATOR_HOST", "CLOUD_STORAGE_EMULATOR_ENDPOINT"
_RETRY_S = 30  # what is still out of reach by then is told; the library goes on for 120
_PROBE_S = 1  # of each of three looks for a metadata server; the library waits 3 each time
_LOG_IN = (
    "run `gcloud auth application-default login` or let GOOGLE_APPLICATION_CREDENTIALS name a key "
    "file"
)


@dataclass(frozen=True)
class FileInfo:
    """What is known of a file without reading it; `crc32c` is None for a local one."""

    num_bytes: int
    crc32c: str | None


@dataclass(frozen=True)
class _Access:
    """A client, and why it has no credentials if it needs some and found none."""

    client: Client
    nothing_found: str | None


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
    bucket, name = _bucket_and_name(path)
    access = _access(path)
    with _explained(path, access):
        from google.api_core.exceptions import NotFound

        try:
            return access.client.bucket(bucket).blob(name).download_as_bytes(retry=_retry())
        except NotFound:
            # Of the file or of the bucket? Only a listing tells; it fails without a bucket.
            _listing(access.client, bucket, name)
            return None


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
            bucket, name = _bucket_and_name(path)
            folders[bucket, name.rpartition("/")[0]][name] = path
    for (bucket, folder), paths_by_name in folders.items():
        some_path = next(iter(paths_by_name.values()))
        access = _access(some_path)
        with _explained(some_path, access):
            found = _listing(access.client, bucket, f"{folder}/" if folder else "")
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
    _bucket_and_name(path)
    if host := os.environ.get(_CLIENT_HOST):
        os.environ.setdefault(_NATIVE_HOST, host)
    if os.environ.get(_NATIVE_HOST):
        return
    if reason := _access(path).nothing_found:
        raise ProbelineError(
            f"cannot read {path}: ArrayRecord needs credentials for {_SCHEME}, of a public bucket "
            f"too: {reason}; {_LOG_IN}, or copy the dataset to a local folder"
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


# --- gs:// --------------------------------------------------------------------------------------


def _bucket_and_name(path: str) -> tuple[str, str]:
    bucket, _, name = path.removeprefix(_SCHEME).partition("/")
    if not path.startswith(_SCHEME):
        raise ProbelineError(
            f"cannot read {path}: only local paths and {_SCHEME} are supported; copy the dataset "
            "to one of them"
        )
    if not bucket or not name:
        raise ProbelineError(f"cannot read {path}: it is not {_SCHEME}bucket/name; give both")
    return bucket, name


def _access(path: str) -> _Access:
    try:
        import google.cloud.storage  # noqa: F401
    except ImportError as error:
        raise ProbelineError(
            f"cannot read {path}: {_SCHEME} needs google-cloud-storage; install it with "
            'pip install "probeline[gcp]" or "probeline[training]"'
        ) from error
    # A forked process makes its own: connections cannot be shared.
    return _access_of(os.getpid(), os.environ.get(_CLIENT_HOST))


@functools.cache
def _access_of(pid: int, emulator: str | None) -> _Access:
    """Returns the client of this process; the arguments only tell one from another."""
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud.storage import Client

    credentials, nothing_found = AnonymousCredentials(), None
    if not emulator:
        try:
            credentials, _ = google.auth.default(Client.SCOPE, request=_hurried_request())
        except DefaultCredentialsError as error:
            nothing_found = _one_line(error).partition(" To set up")[0].rstrip(".")
    return _Access(Client(project=None, credentials=credentials), nothing_found)


def _hurried_request() -> Any:
    """Returns what google.auth looks for a metadata server with, off Google's machines in vain.

    Where nothing answers it looks three times with a pause: 6 s in all, 12 s at its own pace.
    """
    from google.auth.transport.requests import Request

    request = Request()

    def hurried(*args: Any, **kwargs: Any) -> Any:
        if "timeout" in kwargs:  # what has none is no such look
            kwargs["timeout"] = _PROBE_S
        return request(*args, **kwargs)

    return hurried


def _retry() -> Any:
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_timeout(_RETRY_S)


def _listing(client: Client, bucket: str, prefix: str) -> dict[str, FileInfo]:
    """Returns by name what one folder holds, of the names that start with `prefix`."""
    blobs = client.list_blobs(
        bucket,
        prefix=prefix,
        delimiter="/",
        fields="items(name,size,crc32c),nextPageToken",
        retry=_retry(),
    )
    # GCS keeps the checksum as base64 of its bytes, the highest first.
    return {
        blob.name: FileInfo(blob.size, base64.b64decode(blob.crc32c).hex() if blob.crc32c else None)
        for blob in blobs
    }


@contextmanager
def _explained(path: str, access: _Access) -> Iterator[None]:
    """Raises what the client raises as one line: the path, the reason, the cure."""
    import requests
    from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, Unauthorized
    from google.auth.exceptions import GoogleAuthError, InvalidOperation, RefreshError

    try:
        yield
    except (Forbidden, Unauthorized, InvalidOperation) as error:  # the last: anonymous, on a 401
        if access.nothing_found:
            reason = f"it is not public: {access.nothing_found}; {_LOG_IN}"
        else:
            reason = f"{_one_line(error)}; give the account the role Storage Object Viewer"
        raise ProbelineError(f"cannot read {path}: {reason}") from error
    except NotFound as error:
        bucket, _ = _bucket_and_name(path)
        raise ProbelineError(
            f"cannot read {path}: there is no bucket {bucket}; check its name"
        ) from error
    except RefreshError as error:
        raise ProbelineError(f"cannot read {path}: {_one_line(error)}; {_LOG_IN}") from error
    except (GoogleAPIError, GoogleAuthError, requests.RequestException) as error:
        hint = f" ({access.nothing_found}: {_LOG_IN})" if access.nothing_found else ""
        raise ProbelineError(
            f"cannot read {path}: {_one_line(error)}; check the network and try again{hint}"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
