"""One training file to one clean file, in its format and compression, and what was counted.

A file without a contaminated document is copied as it is.
"""

import bz2
import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

import pyarrow as pa

from beam_pipeline.documents.fields import Fields
from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.removal.by_file import Counts
from beam_pipeline.overlap.removal.changes import Changes
from beam_pipeline.overlap.removal.cutting import Cut
from beam_pipeline.overlap.removal.json_records import rewrite_json
from beam_pipeline.overlap.removal.parquet_files import rewrite_parquet
from beam_pipeline.overlap.removal.training_files import DocumentReader, TrainingFile
from beam_pipeline.overlap.results.output_files import GzipMember
from beam_pipeline.storage.files import COPY_BYTES, create_file, open_file
from beam_pipeline.storage.lines import (
    BLOCK_BYTES,
    BYTE_ORDER_MARK,
    Compression,
    compression_of,
    decompressed,
)

_GZIP_LEVEL = 1  # twice as fast as level 3, for files larger by a twentieth


def clean_file(
    file: TrainingFile, documents: DocumentReader, target: str, fields: Fields, cut: Cut | None
) -> Counts:
    """Writes a training file anew to `target`; with a `cut` of None, without contaminated records.

    Raises:
      ProbelineError: the file cannot be written anew, or the counts do not add up.
    """
    changes = Changes(documents, cut)
    path, version = file.file.path, file.file.version
    num_rows = file.num_rows
    with create_file(target) as stream:
        if not file.num_documents:
            with open_file(path, version=version) as source:
                shutil.copyfileobj(source, stream, COPY_BYTES)
        elif file.format == "parquet":
            num_rows = rewrite_parquet(file.file, stream, changes, fields)
        else:
            with (
                open_file(path, version=version) as source,
                compressed(stream, compression_of(source)) as write,
            ):
                blocks = _read_blocks(decompressed(source), write)
                num_rows = rewrite_json(blocks, file.format == "json", write, changes, fields)
    counts = changes.counts(num_rows, file.num_chars)
    check_counts(path, counts.total)
    return counts


def check_counts(path: str, total: Counter[str]) -> None:
    """Raises ProbelineError unless all records and characters of a file are kept or removed."""
    is_whole = (
        total["records_in"] == total["records_kept"] + total["records_removed"]
        and total["contaminated"] == total["changed"] + total["records_removed"]
        and total["chars_in"] == total["chars_kept"] + total["chars_removed"]
        and total["contaminated_chars"] == total["contaminated_chars_kept"] + total["chars_removed"]
        and total["chars_kept"] >= total["contaminated_chars_kept"] >= 0
    )
    if not is_whole:
        raise ProbelineError(
            f"the counts of {path} do not add up, {dict(total)}: this is a fault of "
            "Probeline, report it"
        )


def _read_blocks(stream: BinaryIO, write: Callable[[bytes], Any]) -> Iterator[bytes]:
    """Yields the bytes of a file; its byte order mark is copied."""
    read = getattr(stream, "read1", stream.read)
    head = stream.read(len(BYTE_ORDER_MARK))
    if head == BYTE_ORDER_MARK:
        write(head)
        head = b""
    while block := head + read(BLOCK_BYTES):
        yield block
        head = b""


@contextlib.contextmanager
def compressed(
    target: BinaryIO, compression: Compression | None
) -> Iterator[Callable[[bytes], Any]]:
    """Yields what writes to a stream, compressed."""
    if compression == "gzip":
        with GzipMember(target, _GZIP_LEVEL) as member:
            yield member.write
    elif compression == "bzip2":
        with bz2.BZ2File(target, "wb") as stream:
            yield stream.write
    elif compression == "zstd":
        wrapped = pa.PythonFile(_Unclosed(target), mode="w")
        with pa.CompressedOutputStream(wrapped, "zstd") as stream:
            yield stream.write
    else:
        yield target.write


class _Unclosed:
    """A stream that Arrow may close without closing the file."""

    closed = False

    def __init__(self, stream: BinaryIO):
        self._stream = stream

    def write(self, data: Any) -> int:
        return cast(int, self._stream.write(data))

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self.closed = True
