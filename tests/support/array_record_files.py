"""ArrayRecord files through Beam: words to write, and a bucket in memory."""

import io
from collections.abc import Iterator
from typing import ClassVar

from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata, FileSystem

from beam_pipeline.storage.files import crc32c

WORDS = [f"word {number}".encode() * (1 + 13 * number % 400) for number in range(120)]


class Objects(FileSystem):
    """Objects in memory under objects://, with the manners of a bucket.

    There are no folders, an object appears when its upload is closed, and `delete` takes all
    below a prefix only where it ends with a slash. Tests replace `stored`.
    """

    stored: ClassVar[dict[str, bytes]] = {}

    @classmethod
    def scheme(cls):
        return "objects"

    def join(self, basepath, *paths):
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path):
        head, _, tail = path.rpartition("/")
        return head, tail

    def mkdirs(self, path):
        raise AssertionError("a bucket has no folders")

    def has_dirs(self):
        return False

    def _list(self, dir_or_prefix) -> Iterator[FileMetadata]:
        for path in sorted(self.stored):
            if path.startswith(dir_or_prefix):
                yield self.metadata(path)

    def create(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        stored = self.stored

        class Upload(io.BytesIO):
            def close(self):
                if not self.closed:
                    stored[path] = self.getvalue()
                super().close()

        return Upload()

    def open(self, path, mime_type="", compression_type=CompressionTypes.AUTO):
        return io.BytesIO(self.stored[path])

    def copy(self, source_file_names, destination_file_names):
        for source, destination in zip(source_file_names, destination_file_names, strict=True):
            self.stored[destination] = self.stored[source]

    def rename(self, source_file_names, destination_file_names):
        for source, destination in zip(source_file_names, destination_file_names, strict=True):
            if source not in self.stored:
                raise BeamIOError("Rename operation failed", {source: "no such object"})
            self.stored[destination] = self.stored.pop(source)

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

    def delete(self, paths):
        for path in paths:
            for other in list(self.stored):
                if other == path or (path.endswith("/") and other.startswith(path)):
                    del self.stored[other]
