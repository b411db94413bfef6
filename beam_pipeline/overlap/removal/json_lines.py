"""JSON lines written anew: blocks of bytes are copied, and only records that change are parsed.

Lines are counted as the scan counts them: a blank line is no record. It is copied, and so is a
dead letter. In a record that changes, only the values of its text and its id become others.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import orjson

from beam_pipeline.errors import ProbelineError
from beam_pipeline.overlap.documents.json import MAX_RECORD_BYTES, Fields, parse
from beam_pipeline.overlap.documents.json_text import MARK, find_lines
from beam_pipeline.overlap.results.output_files import json_value

Change = Callable[[int, str], list[str]]  # (place of the record in `rows`, text) → its pieces
_ZEROS = bytes(64)
_MARKED = json.dumps(MARK).encode()


def rewrite_lines(
    blocks: Iterable[bytes],
    write: Callable[[bytes], Any],
    rows: np.ndarray,
    change: Change,
    fields: Fields,
    is_split: bool,
) -> int:
    """Copies lines, but the records `rows` as `change` has them; returns the number of records.

    Args:
      blocks: a file of lines, cut anywhere.
      rows: int64, ascending.
      is_split: pieces are records of their own, with `-0`, `-1`, … after the id.
    """
    row = 0
    for data, is_record in _whole_lines(blocks):
        if is_record is not None:
            write(data)
            row += is_record
            continue
        line_feed = b"" if data.endswith(b"\n") else b"\n"
        records = find_lines(data + line_feed + _ZEROS)
        first, stop = np.searchsorted(rows, [row, row + records.count]).tolist()
        at = 0
        for place in range(first, stop):
            number = int(rows[place]) - row
            start, end = int(records.starts[number]), int(records.stops[number]) + 1
            write(data[at:start])
            for line in _changed(data[start:end], place, change, fields, is_split):
                write(line)
            at = end
        write(data[at:] if at else data)
        row += records.count
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
    line: bytes, place: int, change: Change, fields: Fields, is_split: bool
) -> Iterator[bytes]:
    record = parse(line)
    pieces = change(place, record[fields.text])
    identifier = record.get(fields.id)
    end = b"" if line.endswith(b"\n") else b"\n"
    for number, piece in enumerate(pieces):
        values = {fields.text: piece}
        if is_split and identifier is not None:
            values[fields.id] = f"{identifier}-{number}"
        yield (end if number else b"") + _with_values(line, record, values)


def _with_values(line: bytes, record: dict[str, Any], values: dict[str, str]) -> bytes:
    """Returns a line with other values of some fields, and all its other bytes where possible."""
    for name, value in values.items():
        place = _place_of(line, name)
        if place is None:
            ending = line[len(line.rstrip()) :]
            return json.dumps({**record, **values}).encode() + ending
        start, end = place
        is_ascii = line[start:end].isascii()
        new = json.dumps(value).encode() if is_ascii else json_value(value)
        line = line[:start] + new + line[end:]
    return line


def _place_of(line: bytes, name: str) -> tuple[int, int] | None:
    """Returns where the value of a field at the top level is, None if that cannot be told."""
    key = re.escape(json_value(name))
    value = rb'("(?:[^"\\]|\\.)*"|[^\s",\[\]{}]+)'
    for match in re.finditer(key + rb"\s*:\s*" + value, line):
        start, end = match.span(1)
        try:
            marked = orjson.loads(line[:start] + _MARKED + line[end:])
        except orjson.JSONDecodeError:
            continue
        if marked.get(name) == MARK:
            return start, end
    return None


def check_lines(path: str, head: bytes) -> None:
    """Raises ProbelineError for a file of .json that is one array."""
    if head.lstrip().startswith(b"["):
        raise ProbelineError(
            f"{path} is a JSON array, which removal does not write: convert it to JSON lines and "
            "run the overlap job again"
        )
