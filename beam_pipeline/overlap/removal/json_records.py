"""JSON written anew: blocks of bytes are copied, and only records that change are parsed.

Records are counted as the scan counts them: a blank line is no record. It is copied, and so is a
dead letter. In a record that changes, only the values of its text and its id become others.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import orjson

from beam_pipeline.documents.fields import Fields
from beam_pipeline.documents.json import MAX_RECORD_BYTES, parse
from beam_pipeline.documents.json_text import MARK, find_lines
from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.removal.changes import Changes, piece_id
from beam_pipeline.overlap.removal.training_files import Documents
from beam_pipeline.overlap.results.output_files import json_value
from beam_pipeline.storage.json_array import begins_array, split_array

_ZEROS = bytes(64)
_MARKED = json.dumps(MARK).encode()
_WHITESPACE = b" \t\r\n"
_MAX_TRIES = 100  # to find a field among those of the same name in objects within the record
Write = Callable[[bytes], Any]


def rewrite_json(
    blocks: Iterable[bytes], may_be_array: bool, write: Write, changes: Changes, fields: Fields
) -> int:
    """Copies a file of lines, or one array, with its contaminated records as `changes` has them.

    Args:
      blocks: a file without its byte order mark, cut anywhere.

    Returns:
      The number of records.

    Raises:
      ProbelineError: an element of an array is longer than a record may be.
    """
    blocks = iter(blocks)
    first = next(blocks, b"")
    blocks = chain([first], blocks)
    if may_be_array and begins_array(first):
        head = first[: first.index(b"[") + 1]
        return _rewrite_array(head, blocks, write, changes, fields)
    return _rewrite_lines(blocks, write, changes, fields)


def _rewrite_lines(blocks: Iterable[bytes], write: Write, changes: Changes, fields: Fields) -> int:
    row = 0
    for data, is_record in _whole_lines(blocks):
        if is_record is not None:
            write(data)
            row += is_record
            continue
        line_feed = b"" if data.endswith(b"\n") else b"\n"
        records = find_lines(data + line_feed + _ZEROS)
        documents = changes.within(row, row + records.count)
        at = 0
        for index, number in enumerate((documents.rows - row).tolist()):
            start, end = int(records.starts[number]), int(records.stops[number]) + 1
            write(data[at:start])
            line = data[start:end]
            separator = b"" if line.endswith(b"\n") else b"\n"
            write(separator.join(_changed(line, documents, index, changes, fields)))
            at = end
        write(data[at:] if at else data)
        row += records.count
    return row


def _rewrite_array(
    head: bytes, blocks: Iterable[bytes], write: Write, changes: Changes, fields: Fields
) -> int:
    tail = b""  # what whitespace follows the array

    def remembered() -> Iterator[bytes]:
        nonlocal tail
        for block in blocks:
            content = block.rstrip(_WHITESPACE)
            tail = block[len(content) :] if content else tail + block
            yield block

    write(head)
    row, separator = 0, b""
    for elements in split_array(remembered(), MAX_RECORD_BYTES):
        if any(len(element) > MAX_RECORD_BYTES for element in elements):
            raise ProbelineError(
                f"an element of a JSON array is longer than {MAX_RECORD_BYTES >> 20} MiB: convert "
                "the file to JSON lines and run the overlap job again"
            )
        documents = changes.within(row, row + len(elements))
        written: list[bytes] = []
        at = 0
        for index, number in enumerate((documents.rows - row).tolist()):
            written += elements[at:number]
            written += _changed(elements[number], documents, index, changes, fields)
            at = number + 1
        written += elements[at:]
        if written:
            write(separator + b",".join(written))
            separator = b","
        row += len(elements)
    write(b"]" + tail)
    return row


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool | None]]:
    """Yields whole lines, and None; of a line that is too long, parts, the last of them counted."""
    held: list[bytes] = []
    num_held = 0
    is_long = is_record = False
    for block in blocks:
        if is_long:
            end = block.find(b"\n") + 1
            is_long = not end
            yield (block, False) if is_long else (block[:end], is_record)
            if is_long:
                continue
            block = block[end:]
        stop = block.rfind(b"\n") + 1
        if stop:
            yield b"".join([*held, block[:stop]]), None
            held, num_held = [], 0
        held.append(block[stop:])
        num_held += len(block) - stop
        if num_held > MAX_RECORD_BYTES:
            line = b"".join(held)
            is_long, is_record = True, bool(line[: MAX_RECORD_BYTES + 1].strip())
            yield line, False
            held, num_held = [], 0
    if is_long:
        yield b"", is_record
    elif num_held:
        yield b"".join(held), None


def _changed(
    record: bytes, documents: Documents, index: int, changes: Changes, fields: Fields
) -> Iterator[bytes]:
    """Yields what becomes of a contaminated record."""
    values = parse(record)
    pieces = changes.texts(documents, index, values[fields.text])
    has_id = changes.is_split and fields.id != fields.text
    identifier = values.get(fields.id) if has_id else None
    names = [fields.text] if identifier is None else [fields.text, fields.id]
    places = _places_of(record, names) if pieces else None
    for number, piece in enumerate(pieces):
        new = {fields.text: piece}
        if identifier is not None:
            new[fields.id] = piece_id(str(identifier), number, piece)
        yield _with_values(record, values, places, new)
    if changes.is_split and identifier is None:
        changes.num_unnamed += len(pieces)


def _with_values(
    record: bytes,
    values: dict[str, Any],
    places: list[tuple[int, int, str]] | None,
    new: dict[str, str],
) -> bytes:
    """Returns a record with other values of some fields, and all its other bytes if possible."""
    if places is None:
        ending = record[len(record.rstrip()) :]
        return json.dumps({**values, **new}).encode() + ending
    parts, at = [], 0
    for start, end, name in places:
        is_ascii = record[start:end].isascii()
        value = json.dumps(new[name]).encode() if is_ascii else json_value(new[name])
        parts += [record[at:start], value]
        at = end
    return b"".join([*parts, record[at:]])


def _places_of(record: bytes, names: list[str]) -> list[tuple[int, int, str]] | None:
    """Returns where the values of fields at the top level are, in order; None if one is unclear.

    Each try parses the record, which may have thousands of such fields in objects within it.
    """
    found = []
    for name in names:
        place = _place_of(record, name)
        if place is None:
            return None
        found.append((*place, name))
    return sorted(found)


def _place_of(record: bytes, name: str) -> tuple[int, int] | None:
    for match in islice(_field(name).finditer(record), _MAX_TRIES):
        start, end = match.span(1)
        try:
            marked = orjson.loads(record[:start] + _MARKED + record[end:])
        except orjson.JSONDecodeError:
            continue
        if marked.get(name) == MARK:
            return start, end
    return None


@functools.cache
def _field(name: str) -> re.Pattern[bytes]:
    """Returns the pattern of a field whose value is a string, a number or a word."""
    key = re.escape(json_value(name))
    return re.compile(key + rb'\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*"|[^\s",\[\]{}]+)')
