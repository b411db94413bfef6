"""Objects on `gs://`: whole or ranged reads, listings, renames, guarded by generation.

Every function raises ProbelineError with one line: the path, the reason and the cure. Each process
has one google-cloud-storage client, for STORAGE_EMULATOR_HOST if set. Without credentials it reads
public buckets. Beam's own filesystem creates a client per call, fetches at least 16 MiB, and
ignores checksums and generations.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from beam_pipeline.errors import ProbelineError, one_line

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Client

SCHEME = "gs://"
_CLIENT_HOST, _NATIVE_HOST = "STORAGE_EMULATOR_HOST", "CLOUD_STORAGE_EMULATOR_ENDPOINT"
_RETRY_S = 30  # in interactive use; the library's own limit is 120
_FIRST_DELAY_S = 1.0  # before the first retry; each later one doubles it
_PROBE_S = 1  # timeout of each of three probes for a metadata server; google.auth's own is 3
_UPLOAD_CHUNK_BYTES = 16 << 20
REQUESTS_AT_A_TIME = 32  # as many connections are kept open
_BATCH_SIZE = 100  # GCS's limit per request
_MAX_COMPOSED = 32  # by one request
_BYTES = "application/octet-stream"
_LOG_IN = (
    "run `gcloud auth application-default login` or let GOOGLE_APPLICATION_CREDENTIALS name a key "
    "file"
)

_TIMEOUT_S = 60  # of an answer's next bytes, as in the library
_MISSING = (
    "there is no such object; check its name, or whether something removes objects from the bucket"
)
_CHANGED = (
    "it was changed or removed while the job ran; run the job again when nothing writes to its "
    "input"
)


@dataclass(frozen=True)
class FileInfo:
    """Size and checksum of a file that was not read."""

    num_bytes: int
    crc32c: str | None  # 8 hex digits; None for a local file
    generation: int = field(default=0, compare=False)  # on `gs://`, changes with every write


class Object(NamedTuple):
    """A small object; `updated` has a time zone."""

    data: bytes
    generation: int
    updated: datetime | None


def read(path: str) -> bytes | None:
    """Returns the content of a small object, or None if it does not exist."""
    found = read_object(path, with_generation=False)
    return found and found.data


def read_object(path: str, with_generation: bool = True) -> Object | None:
    """Returns a small object with its generation; otherwise like `read`."""
    from google.api_core.exceptions import NotFound, PreconditionFailed

    while True:
        with blob_at(path) as blob:
            try:
                if with_generation:
                    blob.reload(retry=_retry())
                data = blob.download_as_bytes(if_generation_match=blob.generation, retry=_retry())
            except PreconditionFailed:
                continue  # it was replaced between the two requests
            except NotFound:
                # The object or its bucket? A listing fails without a bucket.
                info(path)
                return None
            return Object(data, blob.generation or 0, blob.updated)


def write_object(path: str, data: bytes, generation: int) -> int | None:
    """Writes a small object if it has that generation (0: does not exist); returns the new one.

    Returns None if another process wrote the object first.
    """
    from google.api_core.exceptions import PreconditionFailed

    with blob_at(path, "write") as blob:
        try:
            blob.upload_from_string(data, if_generation_match=generation, retry=_retry())
        except PreconditionFailed:
            # A retry is also refused if the first request succeeded and its answer was lost.
            found = read_object(path)
            return found.generation if found and found.data == data else None
        return blob.generation


def delete_object(path: str, generation: int | None = None) -> None:
    """Deletes an object, or only the given generation; a missing object is not an error."""
    from google.api_core.exceptions import NotFound, PreconditionFailed

    with blob_at(path, "remove") as blob, contextlib.suppress(NotFound, PreconditionFailed):
        blob.delete(if_generation_match=generation, retry=_retry(patient=generation is None))


def delete_objects(paths: Iterable[str]) -> None:
    """Deletes objects in batches; missing objects are not an error."""
    with ThreadPoolExecutor(REQUESTS_AT_A_TIME) as pool:
        list(pool.map(_delete_batch, itertools.batched(paths, _BATCH_SIZE)))  # raises an error


def _delete_batch(paths: Sequence[str]) -> None:
    import requests
    from google.api_core.exceptions import GoogleAPIError

    client = access_to(paths[0]).client
    try:
        with client.batch():
            for bucket, name in map(bucket_and_name, paths):
                client.bucket(bucket).blob(name).delete()
    except (GoogleAPIError, requests.RequestException):
        for path in paths:  # a batch does not retry, nor report which objects failed
            delete_object(path)


def list_objects(
    prefix: str, recursive: bool = True, asked_for: str | None = None
) -> dict[str, FileInfo]:
    """Returns the objects below `prefix`, at least gs://BUCKET/, by path.

    `recursive=False` stops at the next slash; `asked_for` replaces the prefix in error messages.
    """
    bucket, _, name = prefix.removeprefix(SCHEME).partition("/")
    access = access_to(prefix)
    with explained_errors(asked_for or prefix, access):
        blobs = access.client.list_blobs(
            bucket,
            prefix=name,
            delimiter=None if recursive else "/",
            fields="items(name,size,crc32c,generation),nextPageToken",
            retry=_retry(patient=recursive),
        )
        found = {}
        for blob in blobs:
            # GCS encodes the four bytes of the checksum, big-endian, as base64.
            crc32c = base64.b64decode(blob.crc32c).hex() if blob.crc32c else None
            path = f"{SCHEME}{bucket}/{blob.name}"
            found[path] = FileInfo(blob.size or 0, crc32c, blob.generation or 0)
        return found


def info(path: str) -> FileInfo | None:
    """Returns an object's size and checksum, or None if it does not exist."""
    return list_objects(path, recursive=False).get(path)


def exists(path: str) -> bool:
    with blob_at(path) as blob:
        return blob.exists(retry=_retry(patient=True))


def copy(source: str, target: str) -> bool:
    """Copies an object on the server, replacing the target; False if there is no source."""
    from google.api_core.exceptions import NotFound

    with blob_at(target, "write") as new, blob_at(source, "write") as old:
        try:
            token, _, _ = new.rewrite(old, retry=_retry(patient=True))
            while token:  # a large object that changes its location or storage class
                token, _, _ = new.rewrite(old, token=token, retry=_retry(patient=True))
        except NotFound:
            info(target)  # raises if it is the bucket that is missing
            return False
    return True


def compose(target: str, parts: Sequence[str], temp_path: str) -> None:
    """Joins objects of one bucket on the server, in order; `parts` must not be empty.

    Intermediate objects, `temp_path`-LEVEL-NUMBER, are left behind.
    """
    with ThreadPoolExecutor(REQUESTS_AT_A_TIME) as pool:
        level = 0
        while len(parts) > _MAX_COMPOSED:
            batches = list(itertools.batched(parts, _MAX_COMPOSED))
            parts = [f"{temp_path}-{level}-{number}" for number in range(len(batches))]
            list(pool.map(_compose, parts, batches))
            level += 1
    _compose(target, parts)


def _compose(target: str, parts: Sequence[str]) -> None:
    from google.api_core.exceptions import NotFound

    with blob_at(target, "write") as joined:
        joined.content_type = _BYTES
        sources = [joined.bucket.blob(bucket_and_name(path)[1]) for path in parts]
        try:
            joined.compose(sources, retry=_retry(patient=True))
        except NotFound as error:
            info(target)  # raises if it is the bucket that is missing
            raise ProbelineError(
                f"cannot write {target}: one of its {len(parts)} parts, from {parts[0]} on, is "
                "gone: another process removes files from the output; run the command again"
            ) from error


def upload(local_path: str, path: str) -> None:
    """Uploads a local file in chunks with separate retries."""
    with blob_at(path, "write") as blob:
        blob.chunk_size = _UPLOAD_CHUNK_BYTES
        blob.upload_from_filename(local_path, content_type=_BYTES, retry=_retry(patient=True))


def download(path: str, local_path: str) -> None:
    """Downloads an object; the caller must compare its checksum."""
    from google.api_core.exceptions import NotFound

    with blob_at(path) as blob:
        try:
            cast(Any, blob).download_to_filename(local_path, checksum=None, retry=_retry(True))
        except NotFound as error:
            info(path)  # raises if it is the bucket that is missing
            raise ProbelineError(
                f"cannot read {path}: there is no such object: copy the dataset again as a whole"
            ) from error


def create(path: str) -> BinaryIO:
    """Opens an object for writing, with the library's errors; it appears on a clean close."""
    with blob_at(path, "write") as blob:
        blob.chunk_size = _UPLOAD_CHUNK_BYTES
        stream = blob.open("wb", ignore_flush=True, content_type=_BYTES, retry=_retry(patient=True))
    return cast(BinaryIO, stream)


def prepare_native_reader(path: str) -> None:
    """Prepares the environment for ArrayRecord's `gs://` reader; ProbelineError if it would hang.

    Without credentials, even for a public bucket, it retries silently for over three minutes.
    """
    if "://" not in path:
        return
    bucket_and_name(path)
    if host := os.environ.get(_CLIENT_HOST):
        os.environ.setdefault(_NATIVE_HOST, host)
    if os.environ.get(_NATIVE_HOST):
        return
    if reason := access_to(path).no_credentials:
        raise ProbelineError(
            f"cannot read {path}: ArrayRecord needs credentials for {SCHEME}, even for a public "
            f"bucket: {reason}; {_LOG_IN}, or copy the dataset to a local folder"
        )


class Access(NamedTuple):
    """A client, and why it has no credentials; None if it has some or needs none."""

    client: Client
    no_credentials: str | None


def access_to(path: str) -> Access:
    """Returns this process's client; ProbelineError if the library is not installed."""
    try:
        import google.cloud.storage  # noqa: F401
    except ImportError as error:
        raise ProbelineError(
            f"cannot read {path}: {SCHEME} needs google-cloud-storage; install it with "
            'pip install "probeline[gcp]" or "probeline[training]"'
        ) from error
    # Keyed by process: a fork cannot share connections.
    return _access(os.getpid(), os.environ.get(_CLIENT_HOST))


def account_of(path: str) -> str:
    """Returns the account used to access a path; "" if unknown."""
    credentials = access_to(path).client._credentials  # pyright: ignore[reportPrivateUsage]
    return getattr(credentials, "service_account_email", "") or getattr(credentials, "account", "")


@functools.cache
def _access(pid: int, emulator: str | None) -> Access:
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud.storage import Client
    from requests.adapters import HTTPAdapter

    credentials, no_credentials = AnonymousCredentials(), None
    if not emulator:
        try:
            credentials, _ = google.auth.default(Client.SCOPE, request=_hurried_request())
        except DefaultCredentialsError as error:
            no_credentials = one_line(error).partition(" To set up")[0].rstrip(".")
    client = Client(project=None, credentials=credentials)
    for scheme in ("https://", "http://"):  # one reusable connection per concurrent request
        client._http.mount(scheme, HTTPAdapter(pool_maxsize=REQUESTS_AT_A_TIME))  # pyright: ignore[reportPrivateUsage]
    return Access(client, no_credentials)


def _hurried_request() -> Any:
    """Returns a google.auth transport that probes for a metadata server for 6 s instead of 12."""
    from google.auth.transport.requests import Request

    request = Request()

    def hurried(*args: Any, **kwargs: Any) -> Any:
        if "timeout" in kwargs:  # only set for probes
            kwargs["timeout"] = _PROBE_S
        return request(*args, **kwargs)

    return hurried


def _retry(patient: bool = False) -> Any:
    """Returns the retry policy: on 408, 429, 5xx and lost connections."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    policy = DEFAULT_RETRY.with_delay(initial=_FIRST_DELAY_S)
    return policy if patient else policy.with_timeout(_RETRY_S)


def bucket_and_name(path: str) -> tuple[str, str]:
    """Splits a path; raises ProbelineError if it is not `gs://bucket/name`."""
    if not path.startswith(SCHEME):
        raise ProbelineError(
            f"cannot read {path}: only local paths and {SCHEME} are supported; copy the dataset "
            "to one of these"
        )
    bucket, _, name = path.removeprefix(SCHEME).partition("/")
    if not bucket or not name:
        raise ProbelineError(f"cannot read {path}: it is not {SCHEME}bucket/name; give both")
    return bucket, name


@contextlib.contextmanager
def blob_at(path: str, action: str = "read") -> Iterator[Blob]:
    """Yields a handle of an object without a request; errors as `explained_errors`."""
    bucket, name = bucket_and_name(path)
    access = access_to(path)
    with explained_errors(path, access, action):
        yield access.client.bucket(bucket).blob(name)


@contextlib.contextmanager
def explained_errors(
    path: str, access: Access, action: str = "read", missing: str | None = None
) -> Iterator[None]:
    """Turns the client's exceptions into one line; `action` is "read", "write" or "remove"."""
    import requests
    import urllib3
    from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, Unauthorized
    from google.auth.exceptions import GoogleAuthError, InvalidOperation, RefreshError

    try:
        yield
    except (
        GoogleAPIError,
        GoogleAuthError,
        requests.RequestException,
        urllib3.exceptions.HTTPError,
    ) as error:
        reason = one_line(error)
        # InvalidOperation: an anonymous client received a 401.
        if isinstance(error, Forbidden | Unauthorized | InvalidOperation):
            if access.no_credentials:
                reason = f"it is not public: {access.no_credentials}; {_LOG_IN}"
            else:
                role = "Storage Object Viewer" if action == "read" else "Storage Object User"
                reason += f"; give the account the role {role}"
        elif isinstance(error, NotFound):
            bucket = path.removeprefix(SCHEME).partition("/")[0]
            reason = missing or f"there is no bucket {bucket}; check its name"
        elif isinstance(error, RefreshError):
            reason += f"; {_LOG_IN}"
        else:
            hint = f" ({access.no_credentials}: {_LOG_IN})" if access.no_credentials else ""
            reason += f"; check the network and try again{hint}"
        raise ProbelineError(f"cannot {action} {path}: {reason}") from error


def open_object(path: str, fetch_bytes: int, generation: int = 0) -> BinaryIO:
    """Opens an object, optionally at a generation; each request fetches at least `fetch_bytes`."""
    blob_class, reader_class = _reader_classes()
    with blob_at(path) as blob:
        blob = blob_class(blob.name, blob.bucket, generation=generation or None)
        reader = reader_class(blob, chunk_size=fetch_bytes)
        reader.missing = _CHANGED if generation else _MISSING
        return cast(BinaryIO, reader)


def read_range(path: str, start: int, length: int) -> bytes:
    """Returns up to `length` bytes of an object with one request."""
    from google.api_core.exceptions import RequestRangeNotSatisfiable
    from google.cloud.storage.retry import DEFAULT_RETRY

    blob_class, _ = _reader_classes()
    with blob_at(path) as blob, explained_errors(path, access_to(path), missing=_MISSING):
        blob = blob_class(blob.name, blob.bucket)
        try:
            return blob.download_as_bytes(start, start + length, DEFAULT_RETRY)
        except RequestRangeNotSatisfiable:
            return b""


@functools.cache
def _reader_classes() -> tuple[Any, Any]:
    from google.api_core.exceptions import from_http_response
    from google.cloud.storage import Blob
    from google.cloud.storage.fileio import BlobReader

    class Downloaded(Blob):
        """Reads a response at once; the library joins pieces of 8 KiB, which is far slower."""

        def download_as_bytes(self, start: int, end: int | None, retry: Any, **_: Any) -> bytes:
            if self.size is not None and start >= self.size:
                return b""
            url = self._get_download_url(self.client)
            # BlobReader requests one byte too many, then copies the others.
            last = "" if end is None else end - 1
            headers = {"Range": f"bytes={start}-{last}", "Accept-Encoding": "gzip"}

            def fetch() -> bytes:
                session = self.client._http
                with session.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S) as answer:
                    if not answer.ok:
                        raise from_http_response(answer)
                    # The size saves a request at the end of the object.
                    if total := re.search(r"/(\d+)$", answer.headers.get("Content-Range", "")):
                        self._properties["size"] = total[1]
                    return answer.raw.read(decode_content=True)

            return retry(fetch)()

    class Reader(BlobReader):
        missing: str

        def _explained(self) -> contextlib.AbstractContextManager[None]:
            path = f"{SCHEME}{self._blob.bucket.name}/{self._blob.name}"
            return explained_errors(path, access_to(path), missing=self.missing)

        def read(self, size: int = -1) -> bytes:
            with self._explained():
                return super().read(size)

        def seek(self, pos: int, whence: int = 0) -> Any:
            with self._explained():
                return super().seek(pos, whence)

    return Downloaded, Reader
