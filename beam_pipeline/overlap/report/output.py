"""The files of a finished overlap job, read line by line.

Enter the job's output folder, local or on any filesystem that Beam knows; leave records. Of a
file of many GB no more than a line is in memory. What is missing or damaged is one line that
names the file.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from isal import igzip, igzip_lib

from beam_pipeline.errors import ProbelineError, UsageError, explained, one_line
from beam_pipeline.overlap.results.layout import BOILERPLATE, DETAILS_LEFT_OUT, SUCCESS_NAME
from beam_pipeline.storage import files

_OPTIONAL = (DETAILS_LEFT_OUT, BOILERPLATE)
_BUFFER_BYTES = 1 << 20
_LINES_A_STEP = 256
_BATCH_ROWS = 16_384
_ISAL_ERROR = cast(type[Exception], igzip_lib.IsalError)  # which its stubs call an instance

Advance = Callable[[int], None]


class Output:
    """The output folder of a job that has come to its end.

    Raises:
      UsageError: there is no such folder, or the job has not finished it.
    """

    def __init__(self, path: str):
        # A slash too many is part of a name on gs://, and hides files from Beam's globs elsewhere.
        path = re.sub("/+", "/", path) if files.is_local(path) else path
        self.path = path.rstrip("/") or "/"
        try:
            is_finished = self.has(SUCCESS_NAME)
        except (ValueError, OSError) as error:
            raise UsageError(str(explained("look for", self.file(SUCCESS_NAME), error))) from error
        if not is_finished:
            raise UsageError(
                f"{self.path} is no finished output of the overlap job: it has no {SUCCESS_NAME}; "
                "give the job's --output_path, or wait until it has ended"
            )

    def file(self, name: str) -> str:
        """Returns the path of a file of the output."""
        return f"{self.path.rstrip('/')}/{name}"

    def has(self, name: str) -> bool:
        """Tells whether there is such a file."""
        return files.exists(self.file(name))

    def find(self, pattern: str) -> dict[str, int]:
        """Returns the paths of the files that a glob matches, in order, with their sizes."""
        folder = self.file("")
        with reading(self.path):  # the folder's name may look like a glob
            found = files.match(re.sub(r"[*?\[]", "?", folder) + pattern)
        return dict(sorted(file for file in found if file[0].startswith(folder)))

    def json(self, name: str) -> dict[str, Any]:
        """Returns what a file of one JSON object holds."""
        path = self.file(name)
        with reading(path), files.open_file(path) as stream:
            return parse(stream.read())

    def records(self, name: str) -> Iterator[dict[str, Any]]:
        """Yields the records of a file of JSON lines; see `lines`."""
        path = self.file(name)
        for line in self.lines(name):
            with reading(path):
                record = parse(line)
            yield record

    def lines(self, name: str, advance: Advance = lambda _: None) -> Iterator[bytes]:
        """Yields the lines of a file, decompressed if it is called .gz.

        Of a file that only some runs write, and this one has not, it yields none.

        Args:
          advance: is told now and then how many bytes of the file, as it is stored, are read.
        """
        path = self.file(name)
        with reading(path):
            if name in _OPTIONAL and not self.has(name):
                return
            stored = files.open_file(path)
        with stored:
            stream: Any = stored
            if name.endswith(".gz"):
                stream = io.BufferedReader(igzip.IGzipFile(fileobj=stored), _BUFFER_BYTES)
            for number in range(1 << 62):
                with reading(path):
                    line = stream.readline()
                    if number % _LINES_A_STEP == 0 or not line:
                        advance(stored.tell())
                if not line:
                    return
                yield line

    def batches(self, path: str, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yields some columns of a Parquet file as record batches."""
        with reading(path), files.open_ranges(path) as stream:
            yield from pq.ParquetFile(stream).iter_batches(_BATCH_ROWS, columns=columns)


def parse(line: bytes) -> Any:
    """Returns what a piece of JSON says; it may hold lone surrogates, which orjson refuses."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Raises what a missing or damaged file raises inside as one line that names it."""
    try:
        yield
    except ProbelineError:
        raise
    except OSError as error:
        if error.errno or type(error).__module__.startswith("google."):
            raise explained("read", path, error) from error
        raise _damaged(path, error) from error
    except (ValueError, KeyError, TypeError, EOFError, pa.ArrowException, _ISAL_ERROR) as error:
        raise _damaged(path, error) from error


def _damaged(path: str, error: Exception) -> ProbelineError:
    reason = f"there is no {error}" if isinstance(error, KeyError) else one_line(error)
    return ProbelineError(
        f"cannot read {path}: {reason}; it is damaged or of another version: run the overlap job "
        "again with --overwrite"
    )
