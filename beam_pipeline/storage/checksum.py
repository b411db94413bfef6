"""CRC-32C, the checksum that GCS keeps of every object: of chunks, shards and the manifest."""

import google_crc32c

_BLOCK_BYTES = 1 << 20


def crc32c(data: bytes | memoryview, crc: int = 0) -> int:
    """Extends a CRC-32C by some bytes."""
    if isinstance(data, bytes):
        return google_crc32c.extend(crc, data)
    for start in range(0, len(data), _BLOCK_BYTES):  # the library takes bytes only
        crc = google_crc32c.extend(crc, data[start : start + _BLOCK_BYTES].tobytes())
    return crc


def checksum_text(checksum: int) -> str:
    """Returns a CRC-32C as 8 hex digits."""
    return f"{checksum:08x}"
