"""Claim checks: large payloads stay on storage, elements carry (path, offset, length, checksum).

Nothing large may travel inside a group: runners hold or sort a group's values in memory. A
`ClaimWriter` collects payloads in one attempt-unique file, and its claims count only once
`close` has returned: a bundle that is retried writes another file and the first is never read.
Payloads up to `inline_bytes` travel in the claim itself. A claim is bytes, so that it crosses a
shuffle with the cheapest coder that there is.
"""

import itertools
import os
import struct
from collections import OrderedDict
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

from beam_pipeline.errors import ProbelineError, explained_os_errors
from beam_pipeline.storage.checksum import crc32c
from beam_pipeline.storage.files import create_file, is_local, open_ranges, unique_path

_STORED = struct.Struct("<cQQI")  # kind, offset, length, crc32c; the path follows
_INLINE_KIND, _STORED_KIND, _PART_KIND = b"i", b"s", b"p"
_MAX_OPEN_FILES = 128


class StoredPayload(NamedTuple):
    """A range of bytes of a closed file; `crc32c` is None for a part of a sealed payload."""

    path: str
    offset: int
    length: int
    crc32c: int | None

    def part(self, start: int, length: int) -> "StoredPayload":
        """Returns the claim to `length` bytes from `start` on."""
        if start == 0 and length == self.length:
            return self
        return StoredPayload(self.path, self.offset + start, length, None)


Payload = bytes | StoredPayload


def encode_claim(payload: Payload, folder: str = "") -> bytes:
    """Packs a payload, given inline or as a stored one, as an element's value.

    A path below `folder` goes without it: groups are made of claims, so their bytes count.
    """
    if isinstance(payload, bytes):
        return _INLINE_KIND + payload
    kind = _STORED_KIND if payload.crc32c is not None else _PART_KIND
    head = _STORED.pack(kind, payload.offset, payload.length, payload.crc32c or 0)
    return head + payload.path.removeprefix(folder).encode()


def decode_claim(claim: bytes, folder: str = "") -> Payload:
    """Inverts `encode_claim`, given the same folder."""
    if claim[:1] == _INLINE_KIND:
        return claim[1:]
    kind, offset, length, crc = _STORED.unpack_from(claim)
    path = folder + claim[_STORED.size :].decode()
    return StoredPayload(path, offset, length, crc if kind == _STORED_KIND else None)


def payload_bytes(payload: Payload) -> int:
    """Returns the number of bytes that the payload stands for."""
    return len(payload) if isinstance(payload, bytes) else payload.length


class ClaimWriter:
    """Writes payloads to one file that appears with the first payload that is not inline."""

    def __init__(self, folder: str, name: str, inline_bytes: int = 0):
        self.path = unique_path(folder, name)
        self.num_bytes = 0
        self._inline_bytes = inline_bytes
        self._file: BinaryIO | None = None

    def put(self, payload: bytes | memoryview) -> Payload:
        """Stores a payload; what is returned may be emitted after `close` only."""
        if len(payload) <= self._inline_bytes:
            return bytes(payload)
        start = self._write(payload)
        return StoredPayload(self.path, start, len(payload), crc32c(payload))

    def put_parts(self, data: memoryview, bounds: Sequence[int]) -> list[Payload]:
        """Stores data[bounds[i]:bounds[i + 1]] for every i, as `put` does, with one write."""
        ranges = list(itertools.pairwise(bounds))
        if all(end - start <= self._inline_bytes for start, end in ranges):
            return [bytes(data[start:end]) for start, end in ranges]
        first = self._write(data)
        return [
            bytes(data[start:end])
            if end - start <= self._inline_bytes
            else StoredPayload(self.path, first + start, end - start, crc32c(data[start:end]))
            for start, end in ranges
        ]

    def _write(self, data: bytes | memoryview) -> int:
        """Appends to the file and returns where the data begins."""
        with explained_os_errors("write", self.path):
            if self._file is None:
                self._file = create_file(self.path)
            self._file.write(data)
        start, self.num_bytes = self.num_bytes, self.num_bytes + len(data)
        return start

    def everything(self, checksum: int) -> StoredPayload:
        """Returns all that was stored as one payload, given its CRC-32C."""
        return StoredPayload(self.path, 0, self.num_bytes, checksum)

    def close(self) -> None:
        """Makes the payloads readable for every worker."""
        if self._file is not None:
            with explained_os_errors("write", self.path):
                self._file.close()
            self._file = None


def changed(payload: StoredPayload) -> ProbelineError:
    """Returns the error of a payload that is not what was stored."""
    return ProbelineError(
        f"{payload.path} changed after it was written (bytes {payload.offset} to "
        f"{payload.offset + payload.length}): check the storage, then run again"
    )


class ClaimReader:
    """Reads payloads, keeping the files open that it came across last."""

    def __init__(self) -> None:
        self._descriptors: OrderedDict[str, int] = OrderedDict()
        self._streams: OrderedDict[str, BinaryIO] = OrderedDict()

    def read(self, payload: Payload) -> bytes:
        """Returns the payload's bytes.

        Raises:
          ProbelineError: the file is gone, too short or not what was written.
        """
        if isinstance(payload, bytes):
            return payload
        with explained_os_errors("read back", payload.path):
            read = self._read_local if is_local(payload.path) else self._read_remote
            data = read(payload)
        self._check(payload, data)
        return data

    def _check(self, payload: StoredPayload, data: bytes) -> None:
        if len(data) != payload.length or (
            payload.crc32c is not None and crc32c(data) != payload.crc32c
        ):
            raise changed(payload)

    def _read_local(self, payload: StoredPayload) -> bytes:
        descriptor = self._descriptors.get(payload.path)
        if descriptor is None:
            descriptor = os.open(payload.path, os.O_RDONLY)
            self._descriptors[payload.path] = descriptor
            if len(self._descriptors) > _MAX_OPEN_FILES:
                os.close(self._descriptors.popitem(last=False)[1])
        # pread stops at about 2 GiB a call; a payload is far smaller.
        return os.pread(descriptor, payload.length, payload.offset)

    def _read_remote(self, payload: StoredPayload) -> bytes:
        stream = self._streams.get(payload.path)
        if stream is None:
            stream = open_ranges(payload.path)
            self._streams[payload.path] = stream
            if len(self._streams) > _MAX_OPEN_FILES:
                self._streams.popitem(last=False)[1].close()
        stream.seek(payload.offset)
        return stream.read(payload.length)

    def close(self) -> None:
        """Closes every file."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        for stream in self._streams.values():
            stream.close()
        self._descriptors.clear()
        self._streams.clear()
