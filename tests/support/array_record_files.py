"""ArrayRecord files through Beam: words to write, and a bucket in memory."""

import io
from collections.abc import Iterator
from typing import ClassVar

from apache_beam.io.filesystem import CompressionTypes, FileMetadata, FileSystem

from beam_pipeline.storage.files import crc32c

WORDS = [f"word {number}".encode() * (1 + 13 * number % 400) for number in range(120)]


class Objects(FileSystem):
    """Objects in memory under objects://, which are read and listed; tests replace `stored`."""

    stored: ClassVar[dict[str, bytes]] = {}

    @classmethod
    def scheme(cls):
        return "objects"

    def join(self, basepath, *paths):
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path):
        head, _, tail = path.rpartition("/")
        return head, tail

    def has_dirs(self):
        return False

    def _list(self, dir_or_prefix) -> Iterator[FileMetadata]:
        for path in sorted(self.stored):
            if path.startswith(dir_or_prefix):
                yield self.metadata(path)

    def open(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        return io.BytesIO(self.stored[path])

    def exists(self, path):
        return path in self.stored

    def size(self, path):
        return len(self.stored[path])

    def last_updated(self, path):
        return 0.0

    def checksum(self, path):
        return str(crc32c(self.stored[path]))

    def metadata(self, path):
        return FileMetadata(path, len(self.stored[path]))

    def _unsupported(self, *_, **__):
        raise NotImplementedError

    mkdirs = create = copy = rename = delete = _unsupported
