"""Objects on `gs://`: whole and in ranges, listed, renamed, guarded by their generation.

Enter paths; leave bytes, sizes, the checksums that GCS keeps, and writes that succeed only if
nobody else was faster. Beam's own filesystem makes a client for every call, fetches 16 MiB where
a few kilobytes are asked for, and knows neither checksums nor generations. No Beam here:
training reads with it.
"""

from __future__ import annotations

import base64
import contextlib
import functools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from beam_pipeline.errors import ProbelineError
from beam_pipeline.storage.gcs_client import (
    SCHEME,
    Access,
    access_to,
    bucket_and_name,
    explained,
    patient_retry,
    retry,
)

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Client

_UPLOAD_CHUNK_BYTES = 16 << 20
_DELETES_AT_A_TIME = 16
_BYTES = "application/octet-stream"


@dataclass(frozen=True)
class FileInfo:
    """What is known of a file without reading it; `crc32c` is None for a local one."""

    num_bytes: int
    crc32c: str | None


class Object(NamedTuple):
    """A small object as it was read; every write of a name makes another generation."""

    data: bytes
    generation: int
    updated: datetime | None  # with a zone


def read(path: str) -> bytes | None:
    """Returns the whole of a small object, or None if there is none.

    Raises:
      ProbelineError: it cannot be read, or its bucket does not exist.
    """
    found = read_object(path, with_generation=False)
    return None if found is None else found.data


def read_object(path: str, with_generation: bool = True) -> Object | None:
    """Returns as `read` a small object, and of which generation that is."""
    from google.api_core.exceptions import NotFound, PreconditionFailed

    access = access_to(path)
    with explained(path, access):
        while True:
            blob = _blob(access, path)
            try:
                if with_generation:
                    blob.reload(retry=retry())
                data = blob.download_as_bytes(if_generation_match=blob.generation, retry=retry())
            except PreconditionFailed:
                continue  # somebody wrote it anew between the two requests
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
    with explained(path, access, "remove"), contextlib.suppress(NotFound, PreconditionFailed):
        _blob(access, path).delete(if_generation_match=generation, retry=retry())


def delete_objects(paths: Iterable[str]) -> None:
    """Deletes objects, several at a time; one that is not there is no error.

    Raises:
      ProbelineError: one of them cannot be deleted.
    """
    with ThreadPoolExecutor(_DELETES_AT_A_TIME) as pool:
        for _ in pool.map(_delete, paths):
            pass


def _delete(path: str) -> None:
    from google.api_core.exceptions import NotFound

    access = access_to(path)
    with explained(path, access, "remove"), contextlib.suppress(NotFound):
        _blob(access, path).delete(retry=patient_retry())


def objects_below(prefix: str) -> dict[str, int]:
    """Returns the sizes of all objects whose path starts so, by path; below a bucket at least.

    Raises:
      ProbelineError: they cannot be listed.
    """
    return {path: num_bytes for path, (num_bytes, _) in versions_below(prefix).items()}


def versions_below(prefix: str) -> dict[str, tuple[int, int]]:
    """Returns size and generation of what `objects_below` finds."""
    bucket, _, name = prefix.removeprefix(SCHEME).partition("/")
    access = access_to(prefix)
    fields = "items(name,size,generation),nextPageToken"
    with explained(prefix, access):
        blobs = access.client.list_blobs(bucket, prefix=name, fields=fields, retry=patient_retry())
        return {
            f"{SCHEME}{bucket}/{blob.name}": (blob.size, blob.generation or 0) for blob in blobs
        }


def exists(path: str) -> bool:
    """Tells whether there is such an object.

    Raises:
      ProbelineError: it cannot be asked for.
    """
    access = access_to(path)
    with explained(path, access):
        return _blob(access, path).exists(retry=patient_retry())


def rename(source: str, target: str) -> None:
    """Renames an object over whatever is there; no byte of it travels.

    Raises:
      ProbelineError: it cannot be renamed.
    """
    from google.api_core.exceptions import NotFound

    access = access_to(source)
    with explained(target, access, "write"):
        old, new = _blob(access, source), _blob(access, target)
        token, _, _ = new.rewrite(old, retry=patient_retry())
        while token:  # to another place or storage class, and large
            token, _, _ = new.rewrite(old, token=token, retry=patient_retry())
        with contextlib.suppress(NotFound):  # it has been renamed twice at once
            old.delete(retry=patient_retry())


def upload(local_path: str, path: str) -> None:
    """Copies a local file to an object, in chunks that are sent again if they get lost.

    GCS compares the whole with its checksum before the object appears.

    Raises:
      ProbelineError: it cannot be written.
    """
    access = access_to(path)
    with explained(path, access, "write"):
        blob = _blob(access, path)
        blob.chunk_size = _UPLOAD_CHUNK_BYTES
        blob.upload_from_filename(local_path, content_type=_BYTES, retry=patient_retry())


def create(path: str) -> BinaryIO:
    """Opens an object for writing; it appears when the stream is closed.

    The stream raises what google-cloud-storage raises.
    """
    blob = _blob(access_to(path), path)
    stream = blob.open(
        "wb",
        chunk_size=_UPLOAD_CHUNK_BYTES,
        ignore_flush=True,
        content_type=_BYTES,
        retry=patient_retry(),
    )
    return cast(BinaryIO, stream)


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
        @contextlib.contextmanager
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
