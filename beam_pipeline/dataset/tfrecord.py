"""TFRecord files without TensorFlow: records with their length and checksums.

  uint64 length | uint32 masked CRC-32C of it | record | uint32 masked CRC-32C of the record

Numbers are little-endian. A file has no header or footer and is not compressed. Beam's codec copies
each record three times, trusts its length, and stops at the first damaged one.
"""

import struct
from collections.abc import Iterator
from typing import BinaryIO

from beam_pipeline.errors import explained_os_errors
from beam_pipeline.storage.files import crc32c, create_file, open_file

SUFFIX = ".tfrecord"
_LENGTH, _CHECKSUM = struct.Struct("<Q"), struct.Struct("<I")
HEAD_BYTES = _LENGTH.size + _CHECKSUM.size
FRAMING_BYTES = HEAD_BYTES + _CHECKSUM.size  # of one record
_READ_BYTES = 16 << 20
_MASK_DELTA = 0xA282EAD8


class DamagedRecordError(ValueError):
    """A record, or the rest of a file, cannot be read; the message is the reason."""


def masked_crc32c(data: bytes) -> int:
    """Returns TFRecord's checksum, a CRC-32C masked since data may itself contain CRC-32Cs."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFF_FFFF


class TFRecordWriter:
    """Writes records to a new local file, with ArrayRecordWriter's interface."""

    def __init__(self, path: str):
        self._path = path
        with explained_os_errors("write", path):
            self._file = create_file(path)

    def write(self, record: bytes) -> None:
        length = _LENGTH.pack(len(record))
        with explained_os_errors("write", self._path):
            self._file.write(length + _CHECKSUM.pack(masked_crc32c(length)))
            self._file.write(record)
            self._file.write(_CHECKSUM.pack(masked_crc32c(record)))

    def close(self) -> None:
        with explained_os_errors("write", self._path):
            self._file.close()


def read_tfrecord(path: str) -> Iterator[bytes | DamagedRecordError]:
    """Yields each record of a file, or the error of a damaged one, as `read_records`."""
    with open_file(path) as file:
        yield from read_records(file)


def read_records(
    file: BinaryIO, max_record_bytes: int | None = None
) -> Iterator[bytes | DamagedRecordError]:
    """Yields each record of a stream, or the error of a damaged or oversized one.

    Memory is twice the size of a record. DamagedRecordError if the rest is unreadable, because the
    file ends within a record or a length is damaged.
    """
    number = 0
    while head := _read(file, HEAD_BYTES):
        length = _length_of(head, number)
        if max_record_bytes is not None and length > max_record_bytes:
            record, num_read = None, _pass_over(file, length)
        else:
            record = _read(file, length)
            num_read = len(record)
        tail = _read(file, _CHECKSUM.size)
        if num_read + len(tail) < length + _CHECKSUM.size:
            raise DamagedRecordError(
                f"it ends within record {number}, after {num_read} of its {length} bytes"
            )
        if record is None:
            yield DamagedRecordError(f"it has {length} bytes, more than {max_record_bytes}")
        else:
            is_whole = masked_crc32c(record) == _CHECKSUM.unpack(tail)[0]
            yield record if is_whole else DamagedRecordError("its checksum does not match")
        number += 1


def begins_tfrecord(head: bytes) -> bool:
    """Returns whether a file begins with a valid record length and checksum."""
    length, checksum = head[: _LENGTH.size], head[_LENGTH.size : HEAD_BYTES]
    return len(head) >= HEAD_BYTES and _CHECKSUM.pack(masked_crc32c(length)) == checksum


def _length_of(head: bytes, number: int) -> int:
    if len(head) < HEAD_BYTES:
        raise DamagedRecordError(f"it ends within the length of record {number}")
    if not begins_tfrecord(head):
        raise DamagedRecordError(
            f"the length of record {number} is damaged, so the rest cannot be read"
        )
    return _LENGTH.unpack_from(head)[0]


def _read(file: BinaryIO, num_bytes: int) -> bytes:
    """Reads up to `num_bytes` bytes, fewer at the end of the file, in blocks of _READ_BYTES."""
    blocks = []
    while num_bytes and (block := file.read(min(num_bytes, _READ_BYTES))):
        blocks.append(block)
        num_bytes -= len(block)
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _pass_over(file: BinaryIO, num_bytes: int) -> int:
    """Skips up to `num_bytes` bytes by reading, and returns how many there were."""
    left = num_bytes
    while left and (block := file.read(min(left, _READ_BYTES))):
        left -= len(block)
    return num_bytes - left
