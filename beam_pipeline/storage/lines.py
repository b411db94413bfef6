"""Lines of text files, plain or compressed: decompressed, read in blocks, cut at line feeds.

  stream → decompressed → blocks of 1 MiB → lists of lines, one list per block

Memory is bounded: overlong lines are truncated. Lines end only at b"\\n".
"""

import bz2
import errno
import io
import lzma
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal, cast

import pyarrow as pa
from isal import igzip, igzip_lib

from beam_pipeline.errors import ProbelineError, explained, machine_error, one_line

Compression = Literal["gzip", "bzip2", "zstd", "xz"]
BLOCK_BYTES = 1 << 20
# Exceptions of damaged files, compressed or Parquet.
DAMAGE: tuple[type[Exception], ...] = (
    OSError,
    EOFError,
    lzma.LZMAError,
    pa.ArrowException,
    cast(type[Exception], igzip_lib.IsalError),  # its stub declares an instance
)
_FAILED_STORAGE = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN)
_LOST_PERMISSION = (errno.EACCES, errno.EPERM)
SMALLER_WINDOW = "compress it again without --long, whose window is too large for a worker"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP_MAGIC, BZIP2_MAGIC, _XZ_MAGIC = b"\x1f\x8b", b"BZh", b"\xfd7zX"
_ZSTD_MAGIC = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # of a frame, or skippable


@contextmanager
def explained_damage(
    path: str, cure: str, more: tuple[type[Exception], ...] = (), row: int | None = None
) -> Iterator[None]:
    """Turns the exceptions of a damaged file, DAMAGE and `more`, into one line with the cure.

    `row` is the first unread row, for the message.
    """
    try:
        yield
    except (*DAMAGE, *more) as error:
        is_storage = getattr(error, "errno", None) or type(error).__module__.startswith("google.")
        if isinstance(error, OSError) and is_storage:
            raise explained("read", path, error) from error
        reason, place = one_line(error), "" if row is None else f" (row {row})"
        if needs_large_window(error):
            cure = SMALLER_WINDOW
        raise ProbelineError(f"cannot read {path}{place}: {reason}; {cure}") from error


def damage_reason(path: str, error: Exception) -> str:
    """Returns the damage of a file in a line, given one of DAMAGE.

    Raises ProbelineError if instead the machine or the storage failed, such as for a lack of file
    handles, a stale NFS handle or, once the file is open, a lost permission: such a file is not
    damaged.
    """
    if isinstance(error, OSError):
        is_open = error.filename is None
        if error.errno in _FAILED_STORAGE or (is_open and error.errno in _LOST_PERMISSION):
            raise explained("read", path, error) from error
    if (known := machine_error(error)) is not None:
        raise known from error
    return one_line(error)


def needs_large_window(error: Exception) -> bool:
    """Returns whether Zstandard rejected a window of --long=28 to --long=31."""
    return "too much memory" in str(error)


def compression_of(stream: BinaryIO) -> Compression | None:
    """Returns the compression of a stream by its first bytes; None if uncompressed."""
    magic = stream.read(4)
    stream.seek(0)
    if magic.startswith(GZIP_MAGIC):
        return "gzip"
    if magic.startswith(BZIP2_MAGIC):
        return "bzip2"
    if magic.startswith(_XZ_MAGIC):
        return "xz"
    return "zstd" if _ZSTD_MAGIC.match(magic) else None


def decompressed(stream: BinaryIO) -> BinaryIO:
    """Returns the decompressed stream of gzip, bzip2, xz or Zstandard; other streams unchanged.

    ISA-L is four times as fast as zlib. Unlike python-zstandard, Arrow detects truncated streams.
    """
    compression = compression_of(stream)
    if compression == "gzip":
        return cast(BinaryIO, igzip.IGzipFile(fileobj=stream, mode="rb"))
    if compression == "bzip2":
        return cast(BinaryIO, io.BufferedReader(_Streams(stream, bz2.BZ2Decompressor)))
    if compression == "xz":
        return cast(BinaryIO, io.BufferedReader(_Streams(stream, lzma.LZMADecompressor)))
    if compression == "zstd":
        return cast(BinaryIO, pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd"))
    return stream


class _Streams(io.RawIOBase):
    """All streams of a bzip2 or xz file, with zeros between them.

    The readers of the standard library drop, without an error, all that follows a stream and does
    not begin like one: the rest of the file if a later stream is damaged there.
    """

    def __init__(self, stream: BinaryIO, decompressor: Callable[[], Any]):
        self._stream, self._decompressor, self._current = stream, decompressor, decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            data = b""
            if self._current.eof:
                data = self._current.unused_data.lstrip(b"\0")
                while not data and (block := self._stream.read(BLOCK_BYTES)):
                    data = block.lstrip(b"\0")
                if not data:
                    return 0
                self._current = self._decompressor()
            elif self._current.needs_input and not (data := self._stream.read(BLOCK_BYTES)):
                raise EOFError("Compressed file ended before the end-of-stream marker was reached")
            if data := self._current.decompress(data, len(buffer)):
                buffer[: len(data)] = data
                return len(data)


def read_blocks(
    stream: BinaryIO, take_mark: Callable[[bytes], Any] = lambda mark: None
) -> Iterator[bytes]:
    """Yields a stream up to its end or first damage, without byte order mark.

    `take_mark` is called with the mark, if there is one.
    """
    # `read` would lose the bytes decompressed before an error.
    read = getattr(stream, "read1", stream.read)
    head = stream.read(len(BYTE_ORDER_MARK))
    if head == BYTE_ORDER_MARK:
        take_mark(head)
        head = b""
    while block := head + read(BLOCK_BYTES):
        yield block
        head = b""


def read_blocks_of_range(stream: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """Yields all lines that begin in [start, end) of a file, without byte order mark."""
    # A line begins at `start` if the byte before it ends one.
    at = start - 1 if start else len(BYTE_ORDER_MARK)
    if start == 0 and stream.read(at) != BYTE_ORDER_MARK:
        at = 0
    stream.seek(at)
    has_begun = start == 0
    has_ended = not has_begun
    while at < end and (block := stream.read(min(BLOCK_BYTES, end - at))):
        at += len(block)
        if not has_begun:
            _, newline, block = block.partition(b"\n")
            has_begun = bool(newline)
        if block:
            has_ended = block.endswith(b"\n")
            yield block
    while not has_ended and (block := stream.read(BLOCK_BYTES)):
        rest, newline, _ = block.partition(b"\n")
        has_ended = bool(newline)
        yield rest + newline


def split_lines(blocks: Iterable[bytes], max_line_bytes: int) -> Iterator[list[bytes]]:
    """Yields the lines that end in each block, including blank ones, without line feeds.

    Blocks are cut anywhere. A line that spans blocks is cut after `max_line_bytes` + 1 bytes.
    """
    return (text.split(b"\n") for text in whole_lines(blocks, max_line_bytes))


def whole_lines(blocks: Iterable[bytes], max_line_bytes: int) -> Iterator[bytes]:
    """Yields the text of `split_lines`: the lines that end in each block, joined by line feeds."""
    held: list[bytes] = []  # the beginning of the next line
    room = max_line_bytes + 1
    for block in blocks:
        end = block.rfind(b"\n")
        if end >= 0:
            first_end = block.index(b"\n")
            held.append(block[: min(first_end, room)])
            yield b"".join((*held, memoryview(block)[first_end:end]))
            held, room = [], max_line_bytes + 1
        if rest := block[end + 1 :][:room]:
            held.append(rest)
            room -= len(rest)
    if held:
        yield b"".join(held)
