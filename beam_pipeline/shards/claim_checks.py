"""Claim checks: large payloads stay on storage, elements carry (path, offset, length, checksum).

Runners hold or sort the values of a group in memory, so large payloads must not travel in groups.
The claims of a file are valid only after `close`: a retried bundle writes a different file, and the
first one is never read.
"""

import itertools
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import BinaryIO, cast

from beam_pipeline.errors import ProbelineError, explained_os_errors
from beam_pipeline.jobs.messages import Message
from beam_pipeline.storage import gcs
from beam_pipeline.storage.files import (
    crc32c,
    create_file,
    is_gcs,
    is_local,
    open_ranges,
    unique_path,
)

_MAX_OPEN_FILES = 128
READS_AT_A_TIME = 16  # from `gs://`


class StoredPayload(Message, frozen=True):
    """A byte range of a closed file."""

    path: str  # without the writer's root
    offset: int
    length: int
    crc32c: int | None  # of the range; None for a part of a payload, which is not checked

    def part(self, start: int, length: int) -> "StoredPayload":
        """Returns the claim for `length` bytes from `start`."""
        if start == 0 and length == self.length:
            return self
        return StoredPayload(self.path, self.offset + start, length, None)


Payload = bytes | StoredPayload


def payload_bytes(payload: Payload) -> int:
    """Returns the size of a payload, stored or inline."""
    return len(payload) if isinstance(payload, bytes) else payload.length


class ClaimWriter:
    """Writes payloads to one file, created for the first payload that is not inline.

    Args:
      name: prefix of the file's name; a random suffix makes it unique.
      inline_bytes: payloads of up to this size travel in the claim.
      root: prefix of the folder that claims omit, since groups consist of claims; read them with
        `ClaimReader(root)`.
    """

    def __init__(self, folder: str, name: str, inline_bytes: int = 0, root: str = ""):
        self.path = unique_path(folder, name)
        self.num_bytes = 0
        self._claimed_path = self.path.removeprefix(root)
        self._inline_bytes = inline_bytes
        self._file: BinaryIO | None = None

    def put(self, payload: bytes | memoryview) -> Payload:
        """Stores a payload and returns its claim, which may be emitted only after `close`."""
        if len(payload) <= self._inline_bytes:
            return bytes(payload)
        start = self.append(payload)
        return StoredPayload(self._claimed_path, start, len(payload), crc32c(payload))

    def append(self, data: bytes | memoryview) -> int:
        """Appends to the file and returns the offset of the data."""
        with explained_os_errors("write", self.path):
            if self._file is None:
                self._file = create_file(self.path)
            self._file.write(data)
        start, self.num_bytes = self.num_bytes, self.num_bytes + len(data)
        return start

    def everything(self, checksum: int) -> StoredPayload:
        """Returns the claim for the whole file, given its CRC-32C."""
        return StoredPayload(self._claimed_path, 0, self.num_bytes, checksum)

    def close(self) -> None:
        """Makes the payloads readable by every worker."""
        if self._file is not None:
            with explained_os_errors("write", self.path):
                self._file.close()
            self._file = None


class ClaimReader:
    """Reads payloads, keeping recently used files open; `root` is the writer's."""

    def __init__(self, root: str = "") -> None:
        self.root = root
        self._files: OrderedDict[str, BinaryIO] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None

    def read(self, payload: Payload) -> bytes:
        """Returns the payload's bytes; ProbelineError if they are not as written."""
        if isinstance(payload, bytes):
            return payload
        path = self.root + payload.path
        with explained_os_errors("read back", path):
            if is_gcs(path):
                data = gcs.read_range(path, payload.offset, payload.length)
            else:
                data = self._read_from_file(path, payload)
        if len(data) != payload.length or (
            payload.crc32c is not None and crc32c(data) != payload.crc32c
        ):
            raise self.changed(payload)
        return data

    def prefetch_in(
        self, path: str, offsets: list[int], lengths: list[int], checksums: list[int]
    ) -> Callable[[], list[bytes]]:
        """Prefetches payloads of one file; a small local one costs little more than a pread."""
        if is_local(self.root + path):
            return partial(self._read_local, path, offsets, lengths, checksums)
        claims = map(StoredPayload, itertools.repeat(path), offsets, lengths, checksums)
        waits = list(map(self.prefetch, claims))
        return lambda: [wait() for wait in waits]

    def _read_local(
        self, path: str, offsets: list[int], lengths: list[int], checksums: list[int]
    ) -> list[bytes]:
        with explained_os_errors("read back", self.root + path):
            file = self._files.get(self.root + path) or self._open(self.root + path)
            payloads = list(map(os.pread, itertools.repeat(file.fileno()), lengths, offsets))
        self._check(path, offsets, payloads, checksums)
        return payloads

    def prefetch_adjacent(
        self, path: str, offset: int, lengths: list[int], checksums: list[int]
    ) -> Callable[[], list[bytes]]:
        """Prefetches consecutive payloads of one file, the first at `offset`, with one request."""
        ends = list(itertools.accumulate(lengths, initial=0))
        wait = self.prefetch(StoredPayload(path, offset, ends[-1], None) if ends[-1] else b"")

        def payloads() -> list[bytes]:
            data = wait()
            found = [data[start:end] for start, end in itertools.pairwise(ends)]
            self._check(path, [offset + at for at in ends], found, checksums)
            return found

        return payloads

    def _check(
        self, path: str, offsets: list[int], payloads: list[bytes], checksums: list[int]
    ) -> None:
        for offset, payload, checksum in zip(offsets, payloads, checksums, strict=False):
            if crc32c(payload) != checksum:
                raise self.changed(StoredPayload(path, offset, len(payload), checksum))

    def prefetch(self, payload: Payload) -> Callable[[], bytes]:
        """Starts reading a payload on `gs://`; returns a callable that waits for its bytes."""
        if isinstance(payload, bytes) or not is_gcs(self.root + payload.path):
            return partial(self.read, payload)
        self._pool = self._pool or ThreadPoolExecutor(READS_AT_A_TIME)
        return self._pool.submit(self.read, payload).result

    def changed(self, payload: StoredPayload) -> ProbelineError:
        """Returns the error for a payload that is not as stored."""
        return ProbelineError(
            f"{self.root}{payload.path} changed after it was written (bytes {payload.offset} to "
            f"{payload.offset + payload.length}): check the storage, then run again"
        )

    def _read_from_file(self, path: str, payload: StoredPayload) -> bytes:
        file = self._files.get(path) or self._open(path)
        if is_local(path):
            # pread stops at about 2 GiB per call; a payload is far smaller.
            return os.pread(file.fileno(), payload.length, payload.offset)
        file.seek(payload.offset)
        return file.read(payload.length)

    def _open(self, path: str) -> BinaryIO:
        file = open(path, "rb", buffering=0) if is_local(path) else open_ranges(path)
        self._files[path] = cast(BinaryIO, file)
        if len(self._files) > _MAX_OPEN_FILES:
            self._files.popitem(last=False)[1].close()
        return self._files[path]

    def close(self) -> None:
        """Closes every file."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        for file in self._files.values():
            file.close()
        self._files.clear()


class PayloadReader:
    """Reads one payload from start to end, piece by piece."""

    def __init__(self, payload: Payload, reader: ClaimReader):
        self._payload = payload
        self._reader = reader
        self._begun = self._read = self._checksum = 0

    def read(self, num_bytes: int) -> bytes:
        """Returns the next bytes; at the end, ProbelineError if they are not as stored."""
        return self.prefetch(num_bytes)()

    def prefetch(self, num_bytes: int) -> Callable[[], bytes]:
        """Starts reading the next bytes; call the returned callables in order."""
        start, self._begun = self._begun, self._begun + num_bytes
        if isinstance(self._payload, bytes):
            return partial(self._payload.__getitem__, slice(start, self._begun))
        wait = self._reader.prefetch(self._payload.part(start, num_bytes))
        return partial(self._checked, wait, self._payload)

    def _checked(self, wait: Callable[[], bytes], payload: StoredPayload) -> bytes:
        data = wait()
        self._read += len(data)
        if len(data) < payload.length and payload.crc32c is not None:
            self._checksum = crc32c(data, self._checksum)
            if self._read == payload.length and self._checksum != payload.crc32c:
                raise self._reader.changed(payload)
        return data
