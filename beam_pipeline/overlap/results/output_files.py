"""How the files of an overlap run are written: whole or not at all, as JSON lines, as gzip.

A file is written under another name and renamed when it is whole. A gzip file may be several
members one after another, so that workers compress and whoever gathers only copies. zlib makes the
same bytes on any processor; ISA-L, ten times as fast, chooses its code by the processor.
"""

import json
import zlib
from collections.abc import Iterable
from typing import Any, BinaryIO

import orjson

from beam_pipeline.storage.files import atomic_write, open_file

_BLOCK_BYTES = 1 << 20
_COPY_BYTES = 8 << 20
_GZIP_FORMAT = 31  # what zlib calls wbits: a gzip header, without a name or a time
_LEVEL = 3


def json_line(record: Any) -> bytes:
    """Returns a value as one line of JSON."""
    return json_value(record) + b"\n"


def json_value(value: Any) -> bytes:
    """Returns a value as JSON; lone surrogates, which UTF-8 has no form for, as escapes."""
    try:
        return orjson.dumps(value)
    except TypeError:  # what orjson raises for a lone surrogate
        return json.dumps(value, separators=(",", ":")).encode()


class GzipMember:
    """Compresses what is written to a stream as one gzip member; the bytes hold no time."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_FORMAT)
        self._pieces: list[bytes] = []
        self._num_bytes = 0

    def write(self, *pieces: bytes) -> None:
        """Appends some bytes."""
        self._pieces += pieces
        self._num_bytes += sum(map(len, pieces))
        if self._num_bytes >= _BLOCK_BYTES:
            self._compress()

    def _compress(self) -> None:
        self._stream.write(self._compressor.compress(b"".join(self._pieces)))
        self._pieces, self._num_bytes = [], 0

    def close(self) -> None:
        """Ends the member; the stream stays open."""
        self._compress()
        self._stream.write(self._compressor.flush())

    def __enter__(self) -> "GzipMember":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is None:
            self.close()


def write_lines(path: str, temp_folder: str, records: Iterable[Any]) -> None:
    """Writes records as a file of JSON lines."""
    with atomic_write(path, temp_folder) as stream:
        for record in records:
            stream.write(json_line(record))


def join_files(path: str, temp_folder: str, parts: Iterable[str], empty: bytes = b"") -> None:
    """Writes the bytes of some files one after another as one file, `empty` if there are none."""
    with atomic_write(path, temp_folder) as target:
        for part in parts:
            empty = b""
            with open_file(part) as source:
                while block := source.read(_COPY_BYTES):
                    target.write(block)
        target.write(empty)


def empty_member() -> bytes:
    """Returns a gzip member of nothing."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_FORMAT)
    return compressor.flush()
