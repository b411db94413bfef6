"""Claim checks: large payloads stay on storage, elements carry (path, offset, length, checksum).

Nothing large may travel inside a group: runners hold or sort a group's values in memory. A
`ClaimWriter` collects payloads in one attempt-unique file, and its claims count only once
`close` has returned: a bundle that is retried writes another file and the first is never read.
Payloads up to `inline_bytes` travel in the claim itself. A claim is bytes, so that it crosses a
shuffle with the cheapest coder that there is.
"""

import os
import struct
import uuid
from collections import OrderedDict
from typing import BinaryIO, NamedTuple

import google_crc32c
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from beam_pipeline.errors import ProbelineError, explained_os_errors

_STORED = struct.Struct("<cQQI")  # kind, offset, length, crc32c; the path follows
_INLINE_KIND, _STORED_KIND = b"i", b"s"
_MAX_OPEN_FILES = 128


def crc32c(data: bytes, crc: int = 0) -> int:
    """Extends a CRC-32C, the checksum that GCS keeps of every object."""
    return google_crc32c.extend(crc, data)


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


def encode_claim(payload: Payload) -> bytes:
    """Packs a payload, given inline or as a stored one, as an element's value."""
    if isinstance(payload, bytes):
        return _INLINE_KIND + payload
    kind = _STORED_KIND if payload.crc32c is not None else b"p"
    head = _STORED.pack(kind, payload.offset, payload.length, payload.crc32c or 0)
    return head + payload.path.encode()


def decode_claim(claim: bytes) -> Payload:
    """Inverts `encode_claim`."""
    if claim[:1] == _INLINE_KIND:
        return claim[1:]
    kind, offset, length, crc = _STORED.unpack_from(claim)
    path = claim[_STORED.size :].decode()
    return StoredPayload(path, offset, length, crc if kind == _STORED_KIND else None)


def payload_bytes(payload: Payload) -> int:
    """Returns the number of bytes that the payload stands for."""
    return len(payload) if isinstance(payload, bytes) else payload.length


def is_local(path: str) -> bool:
    """Tells a local path from one of a Beam filesystem with a scheme."""
    return "://" not in path


def unique_path(folder: str, name: str) -> str:
    """Returns a path below `folder` that no other attempt uses: name-<32 hex digits>."""
    return FileSystems.join(folder, f"{name}-{uuid.uuid4().hex}")


def create_file(path: str) -> BinaryIO:
    """Opens a new file of any Beam filesystem for writing, byte for byte."""
    return FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED)


class ClaimWriter:
    """Writes payloads to one file that appears with the first payload that is not inline."""

    def __init__(self, folder: str, name: str, inline_bytes: int = 0):
        self.path = unique_path(folder, name)
        self.num_bytes = 0
        self._crc32c = 0
        self._inline_bytes = inline_bytes
        self._file: BinaryIO | None = None

    def put(self, payload: bytes | memoryview) -> Payload:
        """Stores a payload; what is returned may be emitted after `close` only."""
        payload = bytes(payload)
        if len(payload) <= self._inline_bytes:
            return payload
        with explained_os_errors("write", self.path):
            if self._file is None:
                self._file = create_file(self.path)
            self._file.write(payload)
        stored = StoredPayload(self.path, self.num_bytes, len(payload), crc32c(payload))
        self.num_bytes += len(payload)
        self._crc32c = crc32c(payload, self._crc32c)
        return stored

    def everything(self) -> StoredPayload:
        """Returns all that was stored as one payload."""
        return StoredPayload(self.path, 0, self.num_bytes, self._crc32c)

    def close(self) -> None:
        """Makes the payloads readable for every worker."""
        if self._file is not None:
            with explained_os_errors("write", self.path):
                self._file.close()
            self._file = None


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
            raise ProbelineError(
                f"{payload.path} changed after it was written (bytes {payload.offset} to "
                f"{payload.offset + payload.length}): check the storage, then run again"
            )

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
            stream = FileSystems.open(payload.path, compression_type=CompressionTypes.UNCOMPRESSED)
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
