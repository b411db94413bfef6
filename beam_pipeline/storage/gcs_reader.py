"""Reading objects on `gs://` in ranges, each with one request."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import Any, BinaryIO, cast

from beam_pipeline.storage.gcs import SCHEME, access_to, blob_at, explained_errors

_TIMEOUT_S = 60  # of an answer's next bytes, as in the library
_MISSING = (
    "there is no such object; check its name, or whether something removes objects from the bucket"
)
_CHANGED = (
    "it was changed or removed while the job ran; run the job again when nothing writes to its "
    "input"
)


def open_object(path: str, fetch_bytes: int, generation: int = 0) -> BinaryIO:
    """Opens an object, or this generation of it; each request fetches at least `fetch_bytes`."""
    blob_class, reader_class = _reader_classes()
    with blob_at(path) as blob:
        blob = blob_class(blob.name, blob.bucket, generation=generation or None)
        reader = reader_class(blob, chunk_size=fetch_bytes)
        reader.missing = _CHANGED if generation else _MISSING
        return cast(BinaryIO, reader)


def read_range(path: str, start: int, length: int) -> bytes:
    """Returns `length` bytes of an object, fewer where it ends before, with one request."""
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
        """Reads an answer at once. The library joins pieces of 8 KiB, which takes far longer."""

        def download_as_bytes(self, start: int, end: int | None, retry: Any, **_: Any) -> bytes:
            if self.size is not None and start >= self.size:
                return b""
            url = self._get_download_url(self.client)
            # BlobReader asks for one byte more than it needs, and then copies the others.
            last = "" if end is None else end - 1
            headers = {"Range": f"bytes={start}-{last}", "Accept-Encoding": "gzip"}

            def fetch() -> bytes:
                session = self.client._http
                with session.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S) as answer:
                    if not answer.ok:
                        raise from_http_response(answer)
                    # The size tells where the object ends without a further request.
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
