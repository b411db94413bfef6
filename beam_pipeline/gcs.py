"""Objects on `gs://` where Beam's filesystem is not enough, and for readers that have no Beam.

Enter paths; leave bytes, checksums that GCS keeps, exact ranges, and writes that succeed only if
nobody else was faster (generations). Goes through google-cloud-storage, which is imported when
the first path comes and whose client lives as long as its process. With STORAGE_EMULATOR_HOST
set it asks that host, without credentials. Where there are no credentials it asks anonymously,
so that public buckets can be read.
"""

from __future__ import annotations

import base64
import functools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from beam_pipeline.errors import ProbelineError, one_line

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Client

SCHEME = "gs://"
CLIENT_HOST = "STORAGE_EMULATOR_HOST"
_RETRY_S = 30  # what is still out of reach by then is told; the library goes on for 120
_PROBE_S = 1  # of each of three looks for a metadata server; the library waits 3 each time
_DELETES_AT_A_TIME = 16
LOG_IN = (
    "run `gcloud auth application-default login` or let GOOGLE_APPLICATION_CREDENTIALS name a key "
    "file"
)
_ROLES = {"read": "Storage Object Viewer", "write": "Storage Object User"}


@dataclass(frozen=True)
class FileInfo:
    """What is known of a file without reading it; `crc32c` is None for a local one."""

    num_bytes: int
    crc32c: str | None


@dataclass(frozen=True)
class Access:
    """A client, and why it has no credentials if it needs some and found none."""

    client: Client
    nothing_found: str | None


class Object(NamedTuple):
    """A small object as it was read; every write of a name makes another generation."""

    data: bytes
    generation: int
    updated: datetime | None  # with a zone


# --- objects ------------------------------------------------------------------------------------


def read(path: str) -> bytes | None:
    """Returns the whole of a small object, or None if there is none.

    Raises:
      ProbelineError: it cannot be read, or its bucket does not exist.
    """
    found = read_object(path, with_generation=False)
    return None if found is None else found.data


def read_object(path: str, with_generation: bool = True) -> Object | None:
    """Returns as `read` a small object, and of which generation that is."""
    from google.api_core.exceptions import NotFound

    access = access_to(path)
    with explained(path, access):
        blob = _blob(access, path)
        try:
            if with_generation:
                blob.reload(retry=retry())
            data = blob.download_as_bytes(if_generation_match=blob.generation, retry=retry())
        except NotFound:
            # Of the object or of the bucket? Only a listing tells; it fails without a bucket.
            listing(access.client, *bucket_and_name(path))
            return None
        return Object(data, blob.generation or 0, blob.updated)


def write_object(path: str, data: bytes, generation: int) -> int | None:
    """Writes a small object over this generation of it, 0 for none; returns the new one.

    Returns None if another generation is there: somebody else was faster.

    Raises:
      ProbelineError: it cannot be written.
    """
    from google.api_core.exceptions import PreconditionFailed

    access = access_to(path)
    with explained(path, access, "write"):
        blob = _blob(access, path)
        try:
            blob.upload_from_string(data, if_generation_match=generation, retry=retry())
        except PreconditionFailed:
            # A retry of our own write is refused as well, if only its answer was lost.
            found = read_object(path)
            return found.generation if found and found.data == data else None
        return blob.generation


def delete_object(path: str, generation: int) -> None:
    """Deletes this generation of an object; does nothing if it has gone or is another one.

    Raises:
      ProbelineError: it cannot be deleted.
    """
    from google.api_core.exceptions import NotFound, PreconditionFailed

    access = access_to(path)
    with explained(path, access, "write"):
        try:
            _blob(access, path).delete(if_generation_match=generation, retry=retry())
        except (NotFound, PreconditionFailed):
            return


def delete_below(folder: str) -> None:
    """Deletes all objects below a folder, several at a time.

    Raises:
      ProbelineError: one of them cannot be deleted.
    """
    from google.api_core.exceptions import NotFound
    from google.cloud.storage.retry import DEFAULT_RETRY

    def delete(blob: Blob) -> None:
        try:
            blob.delete(retry=DEFAULT_RETRY)
        except NotFound:
            return

    bucket, name = bucket_and_name(folder)
    access = access_to(folder)
    with explained(folder, access, "write"), ThreadPoolExecutor(_DELETES_AT_A_TIME) as pool:
        blobs = access.client.list_blobs(
            bucket, prefix=f"{name.rstrip('/')}/", fields="items(name),nextPageToken", retry=retry()
        )
        for _ in pool.map(delete, blobs):
            pass


def info(path: str) -> FileInfo | None:
    """Returns an object's size and checksum, None if there is none.

    Raises:
      ProbelineError: it cannot be asked for.
    """
    bucket, name = bucket_and_name(path)
    access = access_to(path)
    with explained(path, access):
        return listing(access.client, bucket, name).get(name)


def open_object(path: str, fetch_bytes: int) -> BinaryIO:
    """Opens an object for reading; a read asks for its own bytes, and for `fetch_bytes` at least.

    The stream's methods raise ProbelineError.
    """
    return cast(BinaryIO, _reader_class()(_blob(access_to(path), path), chunk_size=fetch_bytes))


@functools.cache
def _reader_class() -> Any:
    from google.api_core.exceptions import NotFound
    from google.cloud.storage.fileio import BlobReader

    class Reader(BlobReader):
        @contextmanager
        def _explained(self) -> Iterator[None]:
            path = f"{SCHEME}{self._blob.bucket.name}/{self._blob.name}"
            with explained(path, access_to(path)):
                try:
                    yield
                except NotFound as error:
                    raise ProbelineError(
                        f"cannot read {path}: there is no such object; check its name, or whether "
                        "something removes objects from the bucket"
                    ) from error

        def read(self, size: int = -1) -> bytes:
            with self._explained():
                return super().read(size)

        def seek(self, pos: int, whence: int = 0) -> Any:
            with self._explained():
                return super().seek(pos, whence)

    return Reader


def _blob(access: Access, path: str) -> Blob:
    bucket, name = bucket_and_name(path)
    return access.client.bucket(bucket).blob(name)


# --- how GCS is reached -------------------------------------------------------------------------


def bucket_and_name(path: str) -> tuple[str, str]:
    """Splits a path; ProbelineError if it is not `gs://bucket/name`."""
    bucket, _, name = path.removeprefix(SCHEME).partition("/")
    if not path.startswith(SCHEME):
        raise ProbelineError(
            f"cannot read {path}: only local paths and {SCHEME} are supported; copy the dataset "
            "to one of them"
        )
    if not bucket or not name:
        raise ProbelineError(f"cannot read {path}: it is not {SCHEME}bucket/name; give both")
    return bucket, name


def access_to(path: str) -> Access:
    """Returns this process's access; ProbelineError, with the path, without the library."""
    try:
        import google.cloud.storage  # noqa: F401
    except ImportError as error:
        raise ProbelineError(
            f"cannot read {path}: {SCHEME} needs google-cloud-storage; install it with "
            'pip install "probeline[gcp]" or "probeline[training]"'
        ) from error
    # A forked process makes its own: connections cannot be shared.
    return _access_of(os.getpid(), os.environ.get(CLIENT_HOST))


@functools.cache
def _access_of(pid: int, emulator: str | None) -> Access:
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
            nothing_found = one_line(error).partition(" To set up")[0].rstrip(".")
    return Access(Client(project=None, credentials=credentials), nothing_found)


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


def retry() -> Any:
    """Returns how requests are retried: on 408, 429, 5xx and lost connections, for a while."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_timeout(_RETRY_S)


def listing(client: Client, bucket: str, prefix: str) -> dict[str, FileInfo]:
    """Returns by name what one folder holds, of the names that start with `prefix`."""
    blobs = client.list_blobs(
        bucket,
        prefix=prefix,
        delimiter="/",
        fields="items(name,size,crc32c),nextPageToken",
        retry=retry(),
    )
    # GCS keeps the checksum as base64 of its bytes, the highest first.
    return {
        blob.name: FileInfo(blob.size, base64.b64decode(blob.crc32c).hex() if blob.crc32c else None)
        for blob in blobs
    }


@contextmanager
def explained(path: str, access: Access, action: str = "read") -> Iterator[None]:
    """Raises what the client raises as one line: the path, the reason, the cure.

    `action` is "read" or "write".
    """
    import requests
    from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, Unauthorized
    from google.auth.exceptions import GoogleAuthError, InvalidOperation, RefreshError

    try:
        yield
    except (Forbidden, Unauthorized, InvalidOperation) as error:  # the last: anonymous, on a 401
        if access.nothing_found:
            reason = f"it is not public: {access.nothing_found}; {LOG_IN}"
        else:
            reason = f"{one_line(error)}; give the account the role {_ROLES[action]}"
        raise ProbelineError(f"cannot {action} {path}: {reason}") from error
    except NotFound as error:
        bucket, _ = bucket_and_name(path)
        raise ProbelineError(
            f"cannot {action} {path}: there is no bucket {bucket}; check its name"
        ) from error
    except RefreshError as error:
        raise ProbelineError(f"cannot {action} {path}: {one_line(error)}; {LOG_IN}") from error
    except (GoogleAPIError, GoogleAuthError, requests.RequestException) as error:
        hint = f" ({access.nothing_found}: {LOG_IN})" if access.nothing_found else ""
        raise ProbelineError(
            f"cannot {action} {path}: {one_line(error)}; check the network and try again{hint}"
        ) from error
