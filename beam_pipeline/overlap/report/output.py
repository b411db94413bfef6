"""Reads the files of a finished overlap job, local or on any filesystem of Beam.

Files are read line by line, so a file of many GB needs little memory. A missing or damaged file
is an error of one line that names it.
"""

from __future__ import annotations

import functools
import io
import json
import sys
from collections.abc import Callable, Iterator

import msgspec

from beam_pipeline.errors import UsageError, explained
from beam_pipeline.overlap.results.layout import BOILERPLATE, DETAILS_LEFT_OUT, SUCCESS_NAME
from beam_pipeline.storage import files
from beam_pipeline.storage.lines import decompressed, explained_damage, read_blocks, split_lines

_OPTIONAL = (BOILERPLATE, DETAILS_LEFT_OUT)  # which only some runs write

Advance = Callable[[float], None]
_CURE = "it is damaged or of another version: run the overlap job again with --overwrite"
reading = functools.partial(explained_damage, cure=_CURE, more=(ValueError,))


class Output:
    """The output folder of a finished overlap job.

    Raises:
      UsageError: there is no such folder, or the job has not finished.
    """

    def __init__(self, path: str):
        self.path = path.rstrip("/") or "/"
        marker = self.file(SUCCESS_NAME)
        try:
            is_finished = files.exists(marker)
        except (ValueError, OSError) as error:
            raise UsageError(str(explained("look for", marker, error))) from error
        if not is_finished:
            raise UsageError(
                f"{self.path} is not a finished output of the overlap job: it has no "
                f"{SUCCESS_NAME}; give the job's --output_path, or wait until it has ended"
            )

    def file(self, name: str) -> str:
        """Returns the path of a file of the output."""
        return f"{self.path.rstrip('/')}/{name}"

    def num_bytes(self, name: str) -> int:
        """Returns the size of a file as stored."""
        with reading(self.file(name)), files.open_ranges(self.file(name)) as stream:
            return stream.seek(0, io.SEEK_END)

    def record[T](self, name: str, record_type: type[T]) -> T:
        """Returns the one record of a JSON file."""
        with reading(self.file(name)), files.open_file(self.file(name)) as stream:
            return msgspec.json.decode(stream.read(), type=record_type)

    def records[T](
        self, name: str, record_type: type[T], advance: Advance = lambda num_bytes: None
    ) -> Iterator[T]:
        """Yields the records of a file of JSON lines, compressed or not.

        Args:
          record_type: the msgspec.Struct of a record; other fields of a line are skipped.
          advance: called now and then with the number of bytes read since, as stored.
        """
        path = self.file(name)
        decoder = msgspec.json.Decoder(record_type)
        with reading(path):
            if name in _OPTIONAL and not files.exists(path):
                return
            with files.open_file(path) as stored:
                num_read = 0
                for lines in split_lines(read_blocks(decompressed(stored)), sys.maxsize):
                    advance(stored.tell() - num_read)
                    num_read = stored.tell()
                    yield from (_decoded(line, decoder) for line in lines)


def _decoded[T](line: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Returns the record of a line, which may hold lone surrogates: msgspec refuses them."""
    try:
        return decoder.decode(line)
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(line), decoder.type)
