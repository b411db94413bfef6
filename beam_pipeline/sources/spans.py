"""Spans of JSON lines: byte ranges of a plain or bzip2 file that are read separately.

A line belongs to the span in which it begins, so every line is in one span. The number of a span's
first line is not known while it is read: its dead letters count rows from that line, until the
commit adds the lines of the spans before.
"""

import itertools
from collections.abc import Iterator
from typing import BinaryIO

from beam_pipeline.documents.json_records import is_object
from beam_pipeline.storage.bzip2 import read_lines_of_span
from beam_pipeline.storage.files import open_file
from beam_pipeline.storage.lines import (
    BYTE_ORDER_MARK,
    DAMAGE,
    Compression,
    compression_of,
    decompressed,
    read_blocks,
    read_blocks_of_range,
)
from beam_pipeline.storage.matching import FileVersion

_HEAD_BYTES = 64 << 10
Span = tuple[int, int]  # bytes [start, end) of the file, compressed
_SPAN_BYTES: dict[Compression | None, int] = {None: 16 << 20, "bzip2": 2 << 20}


def spans_of(file: FileVersion) -> tuple[Span, ...]:
    """Returns the even spans of a file of JSON lines; none if it has to be read as a whole."""
    if file.num_bytes < 2 * min(_SPAN_BYTES.values()):
        return ()
    with open_file(file.path, _HEAD_BYTES, file.version) as stream:
        span_bytes = _SPAN_BYTES.get(compression_of(stream), file.num_bytes)
        head = decompressed(stream).read(_HEAD_BYTES).removeprefix(BYTE_ORDER_MARK)
    num_spans = file.num_bytes // span_bytes
    first_line, newline, _ = head.lstrip().partition(b"\n")
    if num_spans < 2 or not newline or not is_object(first_line):
        return ()
    bounds = [file.num_bytes * at // num_spans for at in range(num_spans + 1)]
    return tuple(itertools.pairwise(bounds))


def read_span(stream: BinaryIO, span: Span | None) -> Iterator[bytes]:
    """Yields the decompressed lines of a span, or of the whole file, in blocks."""
    if span is None:
        return read_blocks(decompressed(stream))
    if compression_of(stream) is None:
        return read_blocks_of_range(stream, *span)
    return read_lines_of_span(stream, *span)


def row_in_file(file: FileVersion, span: Span, row: int) -> int:
    """Returns the row of a file that is `row` of a span, or the first after earlier damage."""
    num_lines = 0
    with open_file(file.path, version=file.version) as stream:
        try:
            for block in read_span(stream, (0, span[0])):
                num_lines += block.count(b"\n")
        except DAMAGE:
            return num_lines
    return num_lines + row
